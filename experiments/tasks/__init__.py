"""Tasks: public data sets in their public schemas, disjoint splits, prompts, and a test split that is opened once."""

from .load import load
from .registry import TASKS, Task, task
from .rows import Example
from .sealed import SealedTest
from .splits import Splits, split

__all__ = ["TASKS", "Example", "SealedTest", "Splits", "Task", "load", "split", "task"]
