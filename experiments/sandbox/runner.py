"""Run model-written Python where it can neither harm nor cheat."""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib.util
import json
import os
import platform
import select
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from .results import Limits, Run, Verdict

__all__ = ["FunctionTests", "Job", "ProgramTests", "Sandbox", "SandboxUnavailable", "same_output"]

_HERE = Path(__file__).parent
_GRACE = 10.0
_PAUSES = (0.2, 2.0)
_DEFAULT_PACKAGES = ("numpy",)
_SHOWN = 200
_STARTED = b"started"


class SandboxUnavailable(RuntimeError):
    """This machine cannot isolate a program, and nobody asked for ``isolation="unsafe"``."""


@dataclass(frozen=True)
class FunctionTests:
    """Assertions on functions or classes of the program.

    Parameters
    ----------
    tests : Python source that raises iff the program is wrong.
    names : names in ``tests`` that stand for the program's objects, beside those that nothing else binds.
    prelude : source executed before the tests, for helpers they use.
    """

    tests: str
    names: tuple[str, ...] = ()
    prelude: str = ""


@dataclass(frozen=True)
class ProgramTests:
    """Pairs of standard input and expected standard output; all must agree, see `same_output`."""

    cases: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Job:
    """A program and its tests."""

    source: str
    tests: FunctionTests | ProgramTests


class Runner(Protocol):
    """What a code verifier needs: verdicts of jobs, in order."""

    def check_all(self, jobs: Sequence[Job]) -> list[Verdict]: ...


def same_output(got: str, expected: str) -> bool:
    """Equal line by line after trailing white space and blank lines at the end are dropped; numbers in a line may differ by 1e-6 relative.

    >>> same_output("1 2 \\n3\\n\\n", "1 2\\n3"), same_output("0.3333333333", "0.3333333334"), same_output("12", "1 2")
    (True, True, False)
    """
    lines, wanted = ([line.split() for line in text.rstrip().split("\n")] for text in (got, expected))
    return len(lines) == len(wanted) and all(
        len(line) == len(want) and all(map(_same_token, line, want)) for line, want in zip(lines, wanted, strict=True)
    )


def _same_token(got: str, expected: str) -> bool:
    if got == expected:
        return True
    if not any(c in expected for c in ".eE"):
        return False
    try:
        a, b = float(got), float(expected)
    except ValueError:
        return False
    return abs(a - b) <= 1e-6 * max(1.0, abs(b))


class Sandbox:
    """Runs programs in Linux namespaces of their own.

    A program sees a read-only interpreter and a private ``/tmp``; no network, no ``/proc``, no shell, no other packages than named,
    no environment.  Its limits are those of `Limits`.  What it prints is all that leaves.

    **Verdicts cannot be forged.**  Expected outputs of program tests never enter the sandbox.  Tests of functions run in a second sandbox;
    the program's objects are reached by calls whose arguments and results are rebuilt as plain data, so neither exit codes, nor printed
    tokens, nor patched modules, nor objects with their own ``__eq__`` reach the verdict, and tests that were never answered do not pass.

    Parameters
    ----------
    limits : limits of a program (of both sides, for function tests).
    packages : import names a program may use beside the standard library; installed here, they are bound read-only.  Default NumPy,
        which the prompts of EvalPlus and many solutions take for granted; () for none.  Tests may import whatever is installed here.
    isolation : "namespaces", or "unsafe": plain processes with resource limits, which reach files and network like you do.
    workers : programs at the same time in `check_all`; default the processors this process may use.

    Raises
    ------
    SandboxUnavailable : namespaces are not to be had here; there is no silent fallback.
    ValueError : an unknown isolation, package or number of workers; by `check`, tests that no program can pass, because they do not
        compile or import what is not installed.

    Examples
    --------
    >>> box = Sandbox()  # doctest: +SKIP
    >>> box.check("def double(x): return 2 * x", FunctionTests("assert double(4) == 8")).passed  # doctest: +SKIP
    True
    """

    def __init__(
        self,
        limits: Limits | None = None,
        *,
        packages: Iterable[str] | None = None,
        isolation: str = "namespaces",
        workers: int | None = None,
    ) -> None:
        if isolation not in ("namespaces", "unsafe"):
            raise ValueError(f"isolation: got {isolation!r}; need 'namespaces' or 'unsafe'; because nothing else is implemented")
        workers = len(os.sched_getaffinity(0)) if workers is None else workers
        if workers < 1:
            raise ValueError(f"workers: got {workers}; need at least 1; because programs must run somewhere")
        self.limits = limits or Limits()
        self.isolation, self.workers = isolation, workers
        if packages is None:
            packages = [name for name in _DEFAULT_PACKAGES if importlib.util.find_spec(name) is not None]
        self.packages = _package_folders(tuple(packages))
        if isolation == "unsafe":
            warnings.warn("isolation: 'unsafe' runs model-written code with your files, your network and your rights", stacklevel=2)
        elif (reason := unavailable()) is not None:
            raise SandboxUnavailable(
                f"isolation: got {isolation!r}; need Linux namespaces; because {reason}; isolation='unsafe' would run without a sandbox"
            )

    def run(self, source: str, stdin: str = "") -> Run:
        """Run ``source`` as a main program with ``stdin`` on its standard input."""
        job = self._job({"source": source, "stdin": stdin, "start.py": _CANDIDATE_SIDE["start.py"]}, _PROGRAM)
        with self._spawn(job) as process:
            return self._collect(process)

    def check(self, source: str, tests: FunctionTests | ProgramTests) -> Verdict:
        """Whether ``source`` passes ``tests``; a machine short of memory or processes is given two more chances to set up."""
        check = self._check_program if isinstance(tests, ProgramTests) else self._check_functions
        for pause in _PAUSES:
            try:
                return check(source, tests)
            except (SandboxUnavailable, BlockingIOError, MemoryError):
                time.sleep(pause)
        return check(source, tests)

    def check_all(self, jobs: Sequence[Job]) -> list[Verdict]:
        """Verdicts in the order of ``jobs``, ``workers`` at a time."""
        with ThreadPoolExecutor(self.workers) as pool:
            return list(pool.map(lambda job: self.check(job.source, job.tests), jobs))

    def _check_program(self, source: str, tests: ProgramTests) -> Verdict:
        began = time.monotonic()
        if not tests.cases:
            return Verdict(False, "there are no tests", 0, 0.0)
        for i, (stdin, expected) in enumerate(tests.cases):
            run = self.run(source, stdin)
            message = judge(run, expected)
            if message:
                return Verdict(False, f"test {i}: {message}", i, time.monotonic() - began)
        return Verdict(True, "", len(tests.cases), time.monotonic() - began)

    def _check_functions(self, source: str, tests: FunctionTests) -> Verdict:
        began = time.monotonic()
        order = json.dumps({"tests": tests.tests, "names": list(tests.names), "prelude": tests.prelude})
        ask_read, ask_write = os.pipe()
        reply_read, reply_write = os.pipe()
        ends = [ask_read, reply_write, ask_write, reply_read]
        with contextlib.ExitStack() as stack:
            try:
                program = self._job({"source": source, **_CANDIDATE_SIDE}, _SERVE, ends[:2])
                candidate = stack.enter_context(self._spawn(program))
                job = self._job({"tests": order, **_TESTS_SIDE}, _JUDGE, ends[2:], trusted=True)
                judge_process = stack.enter_context(self._spawn(job))
            finally:
                for fd in ends:
                    os.close(fd)
            run = self._collect(judge_process)
            self._must_have_started(candidate)
        seconds = time.monotonic() - began
        try:
            verdict = json.loads(run.stdout)
        except ValueError:
            return Verdict(False, run.status if run.status != "finished" else f"the tests broke off: {run.stderr[-_SHOWN:]}", 0, seconds)
        if "unusable" in verdict:
            raise ValueError(
                f"tests: got {verdict['unusable']}; need tests that compile and whose imports are installed here; because without "
                f"them no program can pass"
            )
        return Verdict(verdict["passed"] is True and run.ok, verdict["message"], verdict["calls"], seconds)

    def _job(self, files: dict[str, str], code: str, fds: Sequence[int] = (), *, trusted: bool = False) -> dict[str, Any]:
        """What the launcher needs to know; ``trusted`` code, the tests, sees every installed package."""
        files = {"stdin": "", **files}
        job = {"files": files, "code": code, "fds": list(fds), "limits": asdict(self.limits), "env": _environment()}
        job["parent"] = os.getpid()
        if self.isolation == "unsafe":
            return job
        places, masks, links = _interpreter()
        packages = [(str(folder), f"/packages/{folder.name}") for folder in self.packages]
        path = ["/packages"]
        if trusted:
            for i, folder in enumerate(_installed()):
                packages.append((folder, f"/installed/{i}"))
                path.append(f"/installed/{i}")
        argv = [_executable(), "-I", "-B", "-c", f"import sys; sys.path += {path}; {code}"]
        return job | {"argv": argv, "binds": [*places, *packages], "masks": masks, "links": links}

    @contextlib.contextmanager
    def _spawn(self, job: dict[str, Any]):
        """The process that holds the sandbox; ending it ends everything inside."""
        with contextlib.ExitStack() as stack:
            if self.isolation == "unsafe":
                box = stack.enter_context(tempfile.TemporaryDirectory(prefix="unsafe-", ignore_cleanup_errors=True))
                job["box"] = box
            command = [_executable(), "-I", "-S", "-c", _LAUNCH[self.isolation]]
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, pass_fds=job["fds"], env={}, cwd="/"
            )
            stack.callback(_end, process)
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(job).encode())
                process.stdin.close()
            process.stdin = None
            yield process

    def _collect(self, process: subprocess.Popen[bytes]) -> Run:
        try:
            out, err = process.communicate(timeout=self.limits.wall + _GRACE)
        except subprocess.TimeoutExpired:
            return Run("wall-clock limit", None, "", "", self.limits.wall)
        start, _, end = out.partition(b"\n")
        _check_start(start, err)
        try:
            result = json.loads(end)
        except ValueError:
            return Run("sandbox ended", None, "", err.decode(errors="replace")[-_SHOWN:], 0.0)
        texts = (base64.b64decode(result[name]).decode(errors="replace") for name in ("stdout", "stderr"))
        return Run(result["status"], result["exit_code"], *texts, result["seconds"])

    def _must_have_started(self, process: subprocess.Popen[bytes]) -> None:
        """A sandbox that never started says nothing about the program in it."""
        assert process.stdout is not None and process.stderr is not None
        ready = select.poll()
        ready.register(process.stdout, select.POLLIN)
        start = process.stdout.readline() if ready.poll(1000 * (self.limits.wall + _GRACE)) else b""
        if start.strip() != _STARTED:
            process.kill()
            _check_start(start.strip(), process.stderr.read())


def _check_start(line: bytes, errors: bytes) -> None:
    if line == _STARTED:
        return
    try:
        reason = json.loads(line)["setup"]
    except ValueError:
        reason = errors.decode(errors="replace").strip()[-_SHOWN:] or "no word from it"
    raise SandboxUnavailable(f"sandbox: got {reason}; need namespaces, mounts and limits; because nothing runs without")


def judge(run: Run, expected: str) -> str:
    """Why ``run`` fails a program test, or the empty string."""
    if run.status != "finished":
        return run.status
    if run.exit_code != 0:
        return f"exit code {run.exit_code}: {run.stderr.strip()[-_SHOWN:]}"
    return "" if same_output(run.stdout, expected) else f"wrong output {run.stdout[:_SHOWN]!r}"


@functools.cache
def unavailable() -> str | None:
    """Why programs cannot be isolated on this machine, or None; tried once by running one."""
    if sys.platform != "linux":
        return f"this is {sys.platform}"
    if platform.machine() not in ("x86_64", "aarch64"):
        return f"the system call filter is not written for {platform.machine()}"
    box = Sandbox.__new__(Sandbox)
    box.limits, box.isolation, box.packages, box.workers = Limits(), "namespaces", (), 1
    try:
        run = box.run("print('ready')")
    except SandboxUnavailable as error:
        return str(error)
    return None if run.ok and run.stdout == "ready\n" else f"a first program did not run: {run.status} {run.stderr[-_SHOWN:]}"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _environment() -> dict[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {"PATH": "/nowhere", "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8", "PYTHONHASHSEED": "0", **threads}


def _executable() -> str:
    return os.path.realpath(sys.executable)


@functools.cache
def _interpreter() -> tuple[list[tuple[str, str]], list[str], list[tuple[str, str]]]:
    """Read-only binds that let this interpreter start, folders to hide in them, and the root's symbolic links.

    Installed packages are hidden: a benchmark's answers may lie among them.
    """
    stdlib = sysconfig.get_path("stdlib")
    places = [_executable(), stdlib, sysconfig.get_path("platstdlib", vars={"platbase": sys.base_exec_prefix})]
    folder, name = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("INSTSONAME")
    if folder and name and name.endswith((".so", ".so.1.0")) and os.path.isfile(os.path.join(folder, name)):
        places.append(os.path.join(folder, name))
    machine = platform.machine()
    libraries = (f"lib/{machine}-linux-gnu", "lib64", "lib/ld-linux-aarch64.so.1", "lib/ld-musl-x86_64.so.1")
    places += [f"/usr/lib/locale/{name}" for name in ("C.UTF-8", "C.utf8")]
    places += [f"/{top}{lib}" for lib in libraries for top in ("usr/", "")]
    links = [(top, os.readlink(top)) for top in ("/lib", "/lib64") if os.path.islink(top)]
    behind = tuple(f"{link}/" for link, _ in links)
    binds, seen = [], set()
    for place in places:
        inside = any(place.startswith(f"{other}/") for other in seen)
        if os.path.exists(place) and place not in seen and not inside and not f"{place}/".startswith(behind):
            seen.add(place)
            binds.append((place, place))
    masks = [path for name in ("site-packages", "dist-packages") if os.path.isdir(path := os.path.join(stdlib, name))]
    return binds, masks, links


def _installed() -> tuple[str, ...]:
    """Folders of installed packages."""
    return tuple(dict.fromkeys(path for name in ("purelib", "platlib") if os.path.isdir(path := sysconfig.get_path(name))))


def _package_folders(names: tuple[str, ...]) -> tuple[Path, ...]:
    folders: list[Path] = []
    for name in names:
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            raise ValueError(f"packages: got {name!r}; need the import name of an installed package; because its folder is bound")
        folder = Path(next(iter(spec.submodule_search_locations)))
        folders += [folder, *(p for p in [folder.parent / f"{name}.libs"] if p.is_dir())]
    return tuple(folders)


_START = "import runpy; runpy.run_path('/box/start.py')['prepare'](); "
_PROGRAM = _START + "runpy.run_path('/box/source', run_name='__main__')"
_SERVE = _START + "runpy.run_path('/box/candidate_side.py', run_name='__main__')"
_JUDGE = "import runpy; runpy.run_path('/box/tests_side.py', run_name='__main__')"
_CANDIDATE_SIDE, _TESTS_SIDE = (
    {name: (_HERE / name).read_text(encoding="utf-8") for name in names}
    for names in (("candidate_side.py", "plain.py", "start.py"), ("tests_side.py", "plain.py", "names.py"))
)
_LAUNCH: dict[str, str] = {
    kind: f"import sys; sys.path.insert(0, {str(_HERE)!r}); import {module}; {module}.main()"
    for kind, module in (("namespaces", "jail"), ("unsafe", "unsafe"))
}
