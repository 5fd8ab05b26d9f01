"""Doctests of an adapter are collected where the framework it plugs into is installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("verl") else ["carm_verl/*", "hydra_plugins/*"]
