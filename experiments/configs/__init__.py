"""Configurations of experiments: TOML files, one per model and benchmark of the papers, read into checked dataclasses."""

from .schema import BASELINES, Budget, Data, Evaluation, Experiment, Lora, Mask, Model, Update, find, names, parse, read

__all__ = ["BASELINES", "Budget", "Data", "Evaluation", "Experiment", "Lora", "Mask", "Model", "Update", "find", "names", "parse", "read"]
