"""Hydra group ``carm`` (YAML) and launch scripts; ``python -m carm_verl recipes`` prints where they are."""
