"""What a run really cost: rollouts, tokens and seconds, per generation step and in total."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Ledger"]

COUNTS = (
    "prompts",
    "generated",  # responses sampled for training prompts
    "kept",  # of these, responses the policy kept
    "trained",  # of these, responses that entered the update (after pruning)
    "calibration",  # responses sampled for calibration only
    "calibration_extra",  # of the generated ones, those drawn only so that a score is known: they train like any other
    "generated_tokens",
    "trained_tokens",
    "calibration_tokens",
    "groups",
    "groups_with_variance",
    "forward_rows",  # rows that entered forward and backward (trained rows x optimisation passes)
    "masked",  # rows rejected by the response mask, over all passes
    "masked_of",  # rows shown to the response mask, over all passes
    "reward_calls",  # responses handed to the reward functions
    "discarded",  # rows drawn only so that every process calls the engine alike
    "optimizer_steps",
)
PHASES = ("generate", "reward", "train", "calibrate")


class Ledger:
    """Rollouts, tokens and wall-clock of a run.

    ``history`` holds one record per generation step, :meth:`totals` their sum.  ``generated`` counts responses drawn for
    training prompts and ``calibration`` those drawn only to calibrate, so the true cost is their sum; ``trained`` counts
    distinct responses that entered the update, ``forward_rows`` the rows of all its passes.
    ``seconds_other`` is what lies between the phases: optimizer, data loading, logging.
    """

    def __init__(self) -> None:
        self.history: list[dict[str, Any]] = []
        self._start: float | None = None
        self._elapsed = 0.0
        self._charged = 0.0  # seconds charged to any phase so far
        self._absorbing: str | None = None

    def start(self) -> None:
        """Start (or, after a resume, continue) the clock."""
        self._start = time.perf_counter()

    def stop(self) -> None:
        """Stop the clock."""
        self._elapsed, self._start = self.elapsed, None

    @property
    def elapsed(self) -> float:
        """Seconds on the clock."""
        return self._elapsed + (time.perf_counter() - self._start if self._start is not None else 0.0)

    def open(self, step: int) -> dict[str, Any]:
        """Begin the record of a generation step."""
        record: dict[str, Any] = {"step": step, "clock": self.elapsed, **dict.fromkeys(COUNTS, 0)}
        record |= {f"seconds_{phase}": 0.0 for phase in PHASES}
        record |= {"audit": {}, "policy": {}, "d_scores": [], "drawn": [], "mean_k": 0.0, "reward_mean": float("nan")}
        self.history.append(record)
        return record

    @property
    def current(self) -> dict[str, Any]:
        """The record of the generation step in progress."""
        return self.history[-1] if self.history else self.open(0)

    def add(self, **counts: float) -> None:
        """Add to counts of the current record."""
        record = self.current
        for name, value in counts.items():
            record[name] += value

    @contextmanager
    def phase(self, name: str, *, absorb: bool = False) -> Iterator[None]:
        """Charge the seconds of a block to a phase, less what phases inside it charge to theirs.

        With ``absorb=True`` the phases inside charge to this one: sampling for calibration is calibration time.
        """
        name = self._absorbing or name
        outer, self._absorbing = self._absorbing, name if absorb else self._absorbing
        before, start = self._charged, time.perf_counter()
        try:
            yield
        finally:
            self._absorbing = outer
            own = time.perf_counter() - start - (self._charged - before)
            self._charged += own
            self.current[f"seconds_{name}"] += own

    @property
    def calibration_share(self) -> float:
        """Rollouts drawn for calibration, on prompts of its own or of training, over all rollouts so far."""
        calibration, extra, generated = (sum(r[n] for r in self.history) for n in ("calibration", "calibration_extra", "generated"))
        return (calibration + extra) / max(calibration + generated, 1)

    def totals(self) -> dict[str, Any]:
        """Sums over the run, ``seconds_other``, ``seconds_total``, and ``audit`` as ``{event: [occurred, trials]}``."""
        out: dict[str, Any] = {name: sum(r[name] for r in self.history) for name in COUNTS}
        for phase in PHASES:
            out[f"seconds_{phase}"] = sum(r[f"seconds_{phase}"] for r in self.history)
        out["seconds_total"] = self.elapsed
        out["seconds_other"] = max(0.0, self.elapsed - sum(out[f"seconds_{p}"] for p in PHASES))
        audit: dict[str, list[int]] = {}
        for record in self.history:
            for event, (occurred, trials) in record["audit"].items():
                total = audit.setdefault(event, [0, 0])
                total[0] += occurred
                total[1] += trials
        out["audit"] = audit
        return out

    def state_dict(self) -> dict[str, Any]:
        """JSON-serialisable state."""
        return {"history": self.history, "elapsed": self.elapsed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` saved."""
        self.history, self._elapsed = list(state["history"]), float(state["elapsed"])
