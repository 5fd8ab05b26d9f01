"""The small log that ships with the package: a real run of ``conformal_trl`` on the embedded arithmetic model."""

from __future__ import annotations

from pathlib import Path

__all__ = ["demo_logs"]


def demo_logs() -> list[Path]:
    """Paths of the demo files: completions of 40 steps at a fixed group of 32, and token-level log-probabilities."""
    return sorted((Path(__file__).parent / "data").glob("*.parquet"))
