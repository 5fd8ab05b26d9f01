"""What a run may use and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["Limits", "Run", "Verdict"]


@dataclass(frozen=True)
class Limits:
    """Limits of one program.

    Parameters
    ----------
    cpu, wall : processor seconds of a process, wall-clock seconds of the whole program.
    memory : bytes of address space of a process, and of resident memory of all its processes together.
    processes : processes and threads.
    output : bytes on standard output and standard error together.
    file_size, disk : bytes of one file, of all files in its private ``/tmp`` (held in memory).

    Raises
    ------
    ValueError : for a value that is not positive, or memory below 64 MiB, in which Python does not start.
    """

    cpu: int = 10
    wall: float = 10.0
    memory: int = 1 << 29
    processes: int = 16
    output: int = 1 << 20
    file_size: int = 1 << 24
    disk: int = 1 << 24

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, bool) or not value > 0 or (f.name != "wall" and value != int(value)):
                need = "a positive number" if f.name == "wall" else "a positive integer"
                raise ValueError(f"{f.name}: got {value!r}; need {need}; because it limits a program")
        if self.memory < 1 << 26:
            raise ValueError(f"memory: got {self.memory} bytes; need at least {1 << 26}; because Python itself does not start in less")


@dataclass(frozen=True)
class Run:
    """One program that ran: ``status`` is "finished" or the limit that ended it; output is cut at the limit."""

    status: str
    exit_code: int | None
    stdout: str
    stderr: str
    seconds: float

    @property
    def ok(self) -> bool:
        """Ended by itself with exit code 0.  Says nothing of correctness: ``sys.exit(0)`` is ok too."""
        return self.status == "finished" and self.exit_code == 0


@dataclass(frozen=True)
class Verdict:
    """Whether a program passed its tests, why not, how many calls or tests were answered, and the seconds it took."""

    passed: bool
    message: str
    calls: int
    seconds: float
