"""Configurations of experiments: TOML files, one per model and benchmark of the papers, read into checked dataclasses."""

from .schema import Budget, Data, Evaluation, Experiment, Lora, Mask, Model, Update, find, names, parse, read

__all__ = ["Budget", "Data", "Evaluation", "Experiment", "Lora", "Mask", "Model", "Update", "find", "names", "parse", "read"]
