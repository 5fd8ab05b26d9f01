"""A pytest session that is collected once and forked for every mutant, each fork running only tests that execute the changed lines."""

from __future__ import annotations

import functools
import gc
import json
import mmap
import os
import resource
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from .operators import Mutant
from .planting import Finder, living_functions, replacements
from .store import digest

OPTIONS = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--capture=no", "--tb=short", "-m", "not slow and not gpu"]
EXAMPLES = 30  # of a Hypothesis test at first, derandomised and not shrunk; as many as it declares at last
LIKELY = 3.0  # CPU seconds of tests that an import anew is worth at first

Span = tuple[int, int]
Changes = list[tuple[FunctionType, CodeType]]


def settle(item: Any, examples: int | None) -> bool:
    """Derandomised examples, no shrinking, at most so many (None: as declared); whether the test declares more than EXAMPLES."""
    from hypothesis import HealthCheck, Phase, settings

    test: Any = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    if getattr(test, "_hypothesis_internal_use_settings", None) is None:
        return False
    own = vars(test).setdefault("_declared_settings", test._hypothesis_internal_use_settings)
    test._hypothesis_internal_use_settings = settings(
        own,
        max_examples=min(own.max_examples, examples or own.max_examples),
        derandomize=True,
        database=None,
        deadline=None,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    return bool(own.max_examples > EXAMPLES)


def warm_up() -> None:
    """Import what tests import late, so that no fork pays for it."""
    import scipy.optimize
    import scipy.special
    import scipy.stats
    from hypothesis import given, settings
    from hypothesis import strategies as st

    @settings(max_examples=5, database=None, derandomize=True, deadline=None)
    @given(st.lists(st.integers()), st.text(), st.floats(), st.fractions(), st.decimals(), st.randoms(use_true_random=False))
    def test(a: object, b: object, c: object, d: object, e: object, f: object) -> None:
        scipy.stats.beta(2, 2).cdf(0.5), scipy.special.betaln(1, 1), scipy.optimize.brentq(float, -1, 1)

    test()


def caches(folder: str) -> list[Any]:
    """The ``lru_cache`` wrappers of functions defined below ``folder``."""
    kind = type(functools.lru_cache(lambda: None))
    found = [(thing, getattr(thing.__wrapped__, "__code__", None)) for thing in gc.get_objects() if type(thing) is kind]
    return [cache for cache, code in found if code is not None and code.co_filename.startswith(folder)]


@dataclass
class Coverage:
    """Lines of the core that each test executes, and its CPU seconds; tests that fail as things are; lines executed by imports."""

    lines: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    cost: dict[str, float] = field(default_factory=dict)
    failing: list[str] = field(default_factory=list)
    imports: dict[str, set[int]] = field(default_factory=dict)

    def sound(self, tests: Iterable[str]) -> list[str]:
        failing = set(self.failing)
        return [test for test in tests if test not in failing]

    def covering(self, module: str, span: Span) -> list[str]:
        """Tests that execute a line of the span."""
        return self.sound(t for t, read in self.lines.items() if any(span[0] <= line <= span[1] for line in read.get(module, ())))

    def reading(self, module: str, core: str) -> list[str]:
        """Tests that execute a line of the module; the tests of the core that execute none of it (of names and defaults)."""
        return self.sound(
            t for t in self.cost if module in (read := self.lines.get(t, {})) or (not read and t.startswith(f"tests/{core}/"))
        )

    def imported(self, module: str, span: Span) -> bool:
        return any(span[0] <= line <= span[1] for line in self.imports.get(module, ()))


@dataclass
class Verdict:
    """What became of a mutant: the test that killed it, or None; decided: it was killed, or every test chosen for it passed."""

    mutant: Mutant
    killer: str | None
    decided: bool


@dataclass
class Trial:
    """A mutant, how to plant it (None: by an import anew), the tests that may notice it, likely and cheap ones first, and those tried."""

    mutant: Mutant
    path: Path
    source: str
    changes: Changes | None
    tests: list[str]
    tried: set[str] = field(default_factory=set)
    killer: str | None = None
    way: tuple[bool, int | None] = (False, None)  # of the last attempt: whether by an import anew, examples
    said: str = ""  # by the test that killed it

    def left(self) -> list[str]:
        return [test for test in self.tests if test not in self.tried]

    def verdict(self) -> Verdict:
        return Verdict(self.mutant, self.killer, self.killer is not None or not self.left())


class Note:
    """What a fork tells its parent: the test it is at, the first that failed, how it ended."""

    def __init__(self) -> None:
        self.room = mmap.mmap(-1, 1 << 14)

    def write(self, **what: object) -> None:
        text = json.dumps(self.read() | what).encode()
        self.room[: len(text) + 1] = text + b"\0"

    def read(self) -> dict[str, Any]:
        return dict(json.loads(self.room[:].split(b"\0")[0] or b"{}"))


class Child:
    """One forked attempt."""

    def __init__(self, work: Callable[[Note], None], tests: list[str], cpu: float) -> None:
        self.began, self.wall, self.tests, self.note = time.monotonic(), 300 + 60 * cpu, tests, Note()
        self.pid = os.fork()
        if not self.pid:
            try:
                silence()
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                allow(120)
                work(self.note)
                self.note.write(done=True)
            except BaseException:
                self.note.write(error=traceback.format_exc()[-1500:])
            finally:
                os._exit(0)

    def poll(self) -> tuple[str | None, bool] | None:
        """(killer, whether all tests ran) once it has ended; a test that takes ten times its usual CPU time fails, as does a crash."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            if time.monotonic() - self.began < self.wall:
                return None
            os.kill(self.pid, signal.SIGKILL)
            _, status = os.waitpid(self.pid, 0)
        told = self.note.read()
        if told.get("killer"):
            return told["killer"], True
        if "error" in told:
            print(f"no verdict: {told['error']}", flush=True)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGKILL:
            what = "timeout" if os.WTERMSIG(status) == signal.SIGXCPU else "crash"
            return f"{what} in {told.get('at', 'collection')}", True
        return None, bool(told.get("done"))


def silence() -> None:
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)


def allow(seconds: float) -> None:
    """CPU time from now on."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + seconds) + 1, resource.RLIM_INFINITY))


def in_turn(tasks: Iterable[Trial], start: Callable[[Trial], Child | None], jobs: int) -> Iterator[Trial]:
    """Each task as its attempt ends, ``jobs`` at a time; a task that starts none ends at once."""
    waiting, running = iter(tasks), list[tuple[Trial, Child]]()
    while True:
        while len(running) < jobs and (task := next(waiting, None)) is not None:
            child = start(task)
            if child is None:
                yield task
            else:
                running.append((task, child))
        if not running:
            return
        time.sleep(0.002)
        for entry in list(running):
            task, child = entry
            if (ended := child.poll()) is not None:
                running.remove(entry)
                task.killer, task.said = ended[0], child.note.read().get("said", "")
                task.tried.update(child.tests if ended == (None, True) else ())
                yield task


class Watch:
    """A plugin that notes the first failure, and allows each test ten times its usual CPU time and ten seconds (unknown: an hour)."""

    def __init__(self, note: Note, cost: dict[str, float]) -> None:
        self.note, self.cost, self.failed = note, cost, list[str]()

    def fail(self, name: str, report: Any) -> None:
        self.failed.append(name)
        if len(self.failed) == 1:
            self.note.write(killer=name, said=report.longreprtext[-600:])

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.note.write(at=nodeid)
        allow(10 + 10 * self.cost.get(nodeid, 360))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.fail(report.nodeid, report)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.fail(report.nodeid or "collection", report)


class Chosen:
    """A plugin for a session afresh: of the tests that were there before, only those chosen, in their order."""

    def __init__(self, tests: list[str], before: set[str], examples: int | None) -> None:
        self.rank, self.before, self.examples = {test: i for i, test in enumerate(tests)}, before, examples

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if item.nodeid in self.rank or item.nodeid not in self.before]
        items.sort(key=lambda item: self.rank.get(item.nodeid, len(self.rank)))
        for item in items:
            settle(item, self.examples)


class Session:
    """The plugin: collects, measures coverage in a fork (so that no cache is warm), then tries the mutants of each module.

    ``plan`` gives modules with their mutants; ``record`` takes each verdict, ``done`` how many of a module were tried.  A mutant takes
    tests up to ``budget`` CPU seconds at first.  What no test killed is tried again at the end, up to ``last`` seconds: with the
    tests left over, then with as many examples as Hypothesis tests declare; ``explained`` mutants are not.
    """

    def __init__(
        self,
        tree: Path,
        core: str,
        store: Path,
        plan: Callable[[], Iterator[tuple[str, list[Mutant]]]],
        record: Callable[[Verdict], None],
        done: Callable[[str, int], None],
        explained: Callable[[Mutant], bool],
        jobs: int,
        budget: float,
        last: float,
    ) -> None:
        self.tree, self.core, self.store, self.plan, self.record, self.done = tree, core, store, plan, record, done
        self.explained, self.jobs, self.budget, self.last = explained, jobs, budget, last
        self.kills = Counter[tuple[str, str]]()
        self.control = dict[tuple[bool, int | None, str], bool]()  # (import anew, examples, test) -> whether it passes as things are

    def pytest_sessionstart(self) -> None:
        import coverage

        self.meter = coverage.Coverage(data_file=None, source=[str(self.tree / self.core)], config_file=False, messages=False)
        self.meter.start()

    def pytest_collection_finish(self) -> None:
        self.meter.stop()

    def pytest_runtestloop(self, session: Any) -> bool:
        self.plugins = session.config.pluginmanager
        self.items = {item.nodeid: item for item in session.items}
        self.many = {name for name, item in self.items.items() if settle(item, EXAMPLES)}
        self.coverage = self.measured()
        data = self.meter.get_data()
        self.coverage.imports = {Path(file).stem: set(data.lines(file) or ()) for file in data.measured_files()}
        warm_up()
        living, self.caches = living_functions(str(self.tree / self.core)), caches(str(self.tree))
        gc.collect()
        gc.freeze()
        left = list[Trial]()
        for module, todo in self.plan():
            path = self.tree / self.core / f"{module}.py"
            source = path.read_text(encoding="utf-8")
            trials = []
            for mutant in todo:
                changes = replacements(str(path), source, mutant.source, living)
                trials.append(Trial(mutant, path, source, changes, self.tests(module, None if changes is None else mutant.span)))
            left += [trial for trial in self.first(trials) if not self.explained(trial.mutant)]
            self.done(module, len(trials))
        left.sort(key=lambda trial: sum(self.coverage.cost[t] for t in trial.tests))
        print(f"{len(left)} mutants alive so far, tried again", flush=True)
        self.again(left)
        return True

    # ---- rounds

    def first(self, trials: list[Trial]) -> list[Trial]:
        """Those still alive after a budget of tests."""
        here, anew = [t for t in trials if t.changes is not None], [t for t in trials if t.changes is None]
        alive = self.round(here, lambda t: self.here(t, self.within(t.left(), self.budget), EXAMPLES))
        likely = self.round(anew, lambda t: self.anew(t, self.within(t.left(), LIKELY), EXAMPLES))
        return alive + self.round(likely, lambda t: self.anew(t, self.within(t.left(), self.budget), EXAMPLES))

    def again(self, trials: list[Trial]) -> list[Trial]:
        """Those still alive after the tests left over, then all examples, then (where imports execute the change) an import anew."""

        def rest(t: Trial) -> Child | None:
            tests = self.within(t.left(), self.last)
            return self.anew(t, tests, EXAMPLES) if t.changes is None else self.here(t, tests, EXAMPLES)

        def examples(t: Trial) -> Child | None:
            tests = self.within([test for test in t.tests if test in self.many], self.last / 2)
            return self.anew(t, tests, None) if t.changes is None else self.here(t, tests, None)

        def imports(t: Trial) -> Child | None:
            if t.changes is None or not self.coverage.imported(t.mutant.module, t.mutant.span):
                return None
            return self.anew(t, self.within(self.tests(t.mutant.module, None), self.budget), EXAMPLES)

        return self.round(self.round(self.round(trials, rest), examples), imports)

    def round(self, trials: list[Trial], start: Callable[[Trial], Child | None]) -> list[Trial]:
        """Those still alive after an attempt each.  A kill counts if the killing test passes on the source as it is, planted alike."""
        pending, alive = list[Trial](), list[Trial]()

        def settled() -> None:
            self.check(pending)
            for trial in pending:
                if trial.killer is None:
                    alive.append(trial)
                else:
                    self.kills[trial.mutant.module, trial.killer] += 1
                self.record(trial.verdict())
            pending.clear()

        for trial in in_turn(trials, start, self.jobs):
            pending.append(trial)
            if len(pending) >= 40:
                settled()
        settled()
        return alive

    def check(self, trials: list[Trial]) -> None:
        """Take back kills by tests that fail on the source as it is."""
        for trial in trials:
            anew, examples = trial.way
            name = trial.killer or ""
            tests = [test for test in self.items if test == name or (name.endswith(".py") and test.startswith(f"{name}::"))][:1]
            if not tests:
                continue
            if (anew, examples, name) not in self.control:
                as_it_is = Trial(trial.mutant, trial.path, trial.source, None if anew else [], tests)

                def start(t: Trial, anew: bool = anew, examples: int | None = examples) -> Child | None:
                    return self.anew(t, t.tests, examples, t.source) if anew else self.here(t, t.tests, examples)

                (after,) = in_turn([as_it_is], start, 1)
                self.control[anew, examples, name] = after.killer is None
                if after.killer is not None:
                    print(f"kills nothing, because it fails on the source as it is: {name}\n{after.said}", flush=True)
                    self.coverage.failing += tests
            if not self.control[anew, examples, name]:
                trial.killer, trial.tests = None, self.coverage.sound(trial.tests)

    # ---- attempts

    def here(self, trial: Trial, tests: list[str], examples: int | None) -> Child | None:
        """Planted into the living functions."""

        def work(note: Note) -> None:
            for cache in self.caches:
                cache.cache_clear()
            for function, code in trial.changes or ():
                function.__code__ = code
            watch, items = Watch(note, self.coverage.cost), [self.items[test] for test in tests]
            self.plugins.register(watch)
            for item, following in zip(items, [*items[1:], None], strict=True):
                settle(item, examples)
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                if watch.failed:
                    return

        trial.way = (False, examples)
        return Child(work, tests, self.seconds(tests)) if tests else None

    def anew(self, trial: Trial, tests: list[str], examples: int | None, source: str | None = None) -> Child | None:
        """Everything below the tree is imported anew, on the mutated source."""

        def work(note: Note) -> None:
            import pytest

            for name, module in list(sys.modules.items()):
                if (getattr(module, "__file__", None) or "").startswith(str(self.tree)):
                    del sys.modules[name]
            files = list(dict.fromkeys(str(self.tree / test.split("::")[0]) for test in tests))
            watch, chosen = Watch(note, self.coverage.cost), Chosen(tests, set(self.items), examples)
            finder = Finder(f"{self.core}.{trial.mutant.module}", str(trial.path), source or trial.mutant.source)
            code = pytest.main([*OPTIONS, "-x", *files], plugins=[finder, chosen, watch])
            if not watch.failed and code not in (0, 5):
                raise RuntimeError(f"pytest ended with {code} but names no failure")

        trial.way = (True, examples)
        return Child(work, tests, 10 + self.seconds(tests)) if tests else None

    def seconds(self, tests: list[str]) -> float:
        return sum(self.coverage.cost[test] for test in tests)

    def within(self, tests: list[str], budget: float) -> list[str]:
        """The first of them, as many as a budget of CPU seconds allows, and at least one."""
        chosen, spent = list[str](), 0.0
        for test in tests:
            spent += self.coverage.cost[test] + 0.005
            if spent > budget and chosen:
                break
            chosen.append(test)
        return chosen

    def tests(self, module: str, span: Span | None) -> list[str]:
        """Tests that execute the span (None: the module), cheap ones first, and those that execute little else."""
        found = self.coverage.reading(module, self.core) if span is None else self.coverage.covering(module, span)

        def order(test: str) -> float:
            read = self.coverage.lines.get(test, {})
            here, all_lines = len(read.get(module, ())), sum(map(len, read.values()))
            share = (here / all_lines) ** 0.5 if all_lines else 1.0
            return (self.coverage.cost[test] + 0.02) / (share + 0.05) / (1 + self.kills[module, test])

        return sorted((test for test in found if test in self.items), key=order)  # the store may know of tests left out today

    # ---- coverage

    def measured(self) -> Coverage:
        """Coverage of the tests as things are; from the store for tests whose file and executed modules are as they were."""
        path = self.store / f"coverage-{self.core}.json"
        helpers = sorted(str(p.relative_to(self.tree)) for p in (self.tree / "tests").rglob("*.py") if not p.name.startswith("test_"))
        version = digest(self.tree, [h for h in helpers if h.split("/")[1] in (self.core, "claims") or h.count("/") == 1]) + str(EXAMPLES)
        known = json.loads(path.read_text()) if path.exists() else {}
        if known.get("version") != version:
            known = {"files": {}, "lines": {}, "cost": {}, "failing": []}
        files = {name: digest(self.tree, [name]) for name in {*(t.split("::")[0] for t in self.items), *self.modules()}}
        changed = {name for name, state in files.items() if known["files"].get(name) != state}

        def stale(test: str) -> bool:
            reads = (f"{self.core}/{module}.py" for module in known["lines"].get(test, ()))
            return test not in known["cost"] or test in known["failing"] or not changed.isdisjoint([test.split("::")[0], *reads])

        kept = {test for test in self.items if not stale(test)}
        if len(kept) < len(self.items):
            began = time.monotonic()
            part = self.tree.parent / "coverage.json"
            todo = [test for test in self.items if test not in kept]
            child = Child(lambda note: self.measure(part, todo, note), todo, 3600)
            while (ended := child.poll()) is None:
                time.sleep(0.05)
            if not part.exists():
                sys.exit(f"coverage: the tests did not run to their end ({ended[0]})")
            fresh = json.loads(part.read_text())
            print(f"coverage of {len(fresh['cost'])} tests in {time.monotonic() - began:.0f} s", flush=True)
            fresh["lines"] |= {test: known["lines"].get(test, {}) for test in kept}
            fresh["cost"] |= {test: known["cost"][test] for test in kept}
            known = fresh | {"files": files, "version": version}
            path.write_text(json.dumps(known))
        for test in known["failing"]:
            print(f"left out, because it fails on the source as it is: {test}", flush=True)
        return Coverage(known["lines"], known["cost"], known["failing"])

    def modules(self) -> list[str]:
        return [f"{self.core}/{path.name}" for path in (self.tree / self.core).glob("*.py")]

    def measure(self, path: Path, tests: list[str], note: Note) -> None:
        """Each test with the caches of the core empty, so that none hides which lines it relies on behind a test before it."""
        import coverage

        folder = self.tree / self.core
        meter = coverage.Coverage(data_file=None, source=[str(folder)], config_file=False, messages=False)
        items, cost, watch, emptied = [self.items[test] for test in tests], {}, Watch(note, {}), caches(str(folder))
        self.plugins.register(watch)
        meter.start()
        for item, following in zip(items, [*items[1:], None], strict=True):
            for cache in emptied:
                cache.cache_clear()
            meter.switch_context(item.nodeid)
            began = time.process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            cost[item.nodeid] = round(time.process_time() - began, 4)
        meter.stop()
        data, lines = meter.get_data(), dict[str, dict[str, list[int]]]()
        for file in data.measured_files():
            for line, contexts in data.contexts_by_lineno(file).items():
                for test in contexts:
                    if test in cost:
                        lines.setdefault(test, {}).setdefault(Path(file).stem, []).append(line)
        path.write_text(json.dumps({"lines": lines, "cost": cost, "failing": sorted(set(watch.failed))}))
