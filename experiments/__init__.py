"""Experiments: what the README's figures come from. Not part of the wheel; run from the repository root."""
