"""Model-written code under guard: a sandbox on this machine, a client for SandboxFusion on a cluster."""

from .fusion import SandboxFusion
from .results import Limits, Run, Verdict
from .runner import FunctionTests, Job, ProgramTests, Runner, Sandbox, SandboxUnavailable, same_output

__all__ = [
    "FunctionTests",
    "Job",
    "Limits",
    "ProgramTests",
    "Run",
    "Runner",
    "Sandbox",
    "SandboxFusion",
    "SandboxUnavailable",
    "Verdict",
    "same_output",
]
