"""A pytest session that is collected once and forked for every mutant, each fork running only tests that execute the changed lines."""

from __future__ import annotations

import gc
import json
import os
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .operators import Mutant
from .planting import Finder, Living, living_functions, replacements
from .store import digest

OPTIONS = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--capture=no", "-m", "not slow and not gpu"]
EXAMPLES = 30  # of a Hypothesis test, derandomised and not shrunk


def settle(item: Any) -> None:
    """Few, derandomised examples, and no shrinking of failures, in a Hypothesis test."""
    from hypothesis import HealthCheck, Phase, settings

    test = getattr(item, "obj", None)
    test = getattr(test, "__func__", test)
    own = getattr(test, "_hypothesis_internal_use_settings", None)
    if own is not None:
        test._hypothesis_internal_use_settings = settings(
            own,
            max_examples=min(own.max_examples, EXAMPLES),
            derandomize=True,
            database=None,
            deadline=None,
            phases=(Phase.explicit, Phase.generate),
            suppress_health_check=list(HealthCheck),
        )


class Settle:
    """The same for a session started afresh."""

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        for item in items:
            settle(item)


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


@dataclass
class Coverage:
    """Lines of the core that each test executes, and its CPU seconds; tests that fail as things are."""

    lines: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    cost: dict[str, float] = field(default_factory=dict)
    failing: list[str] = field(default_factory=list)

    def covering(self, module: str, span: tuple[int, int] | None) -> list[str]:
        """Tests that execute a line of the span.

        For a change outside of functions: a line of the module, or none of the core (tests of names and defaults).
        """

        def reads(modules: dict[str, list[int]]) -> bool:
            if span is None:
                return module in modules or not modules
            return any(span[0] <= line <= span[1] for line in modules.get(module, ()))

        return [test for test in self.cost if test not in self.failing and reads(self.lines.get(test, {}))]


@dataclass
class Verdict:
    """What became of a mutant: the test that killed it ("timeout", "crash"), or None if it survived."""

    mutant: Mutant
    killer: str | None


class Child:
    """One forked attempt, limited in CPU seconds; it reports the name of the test that failed."""

    def __init__(self, work: Callable[[], str | None], cpu: float) -> None:
        self.began, self.wall = time.monotonic(), 60 + 20 * cpu
        read, write = os.pipe()
        self.pipe = read
        self.pid = os.fork()
        if not self.pid:
            code = 70
            try:
                os.close(read)
                silence()
                limit = int(cpu) + 1
                resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
                killer = work()
                os.write(write, (killer or "").encode())
                code = 0
            finally:
                os._exit(code)
        os.close(write)

    def poll(self) -> tuple[bool, str | None]:
        """(finished, killer)."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            if time.monotonic() - self.began < self.wall:
                return False, None
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self.pipe)
            return True, "timeout"
        with os.fdopen(self.pipe, "rb") as pipe:
            name = pipe.read().decode()
        if os.WIFSIGNALED(status):
            return True, "timeout" if os.WTERMSIG(status) in (signal.SIGXCPU, signal.SIGKILL) else "crash"
        return True, name or ("crash" if os.WEXITSTATUS(status) else None)


def silence() -> None:
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)


def in_turn(tasks: Iterable[Any], start: Callable[[Any], Child | None], jobs: int) -> Iterator[tuple[Any, str | None]]:
    """(task, killer) of each task as it finishes, ``jobs`` at a time; a task without tests to run survives at once."""
    waiting, running = iter(tasks), []
    while True:
        while len(running) < jobs and (task := next(waiting, None)) is not None:
            child = start(task)
            if child is None:
                yield task, None
            else:
                running.append((task, child))
        if not running:
            return
        time.sleep(0.005)
        for entry in list(running):
            finished, killer = entry[1].poll()
            if finished:
                running.remove(entry)
                yield entry[0], killer


def run_items(items: list[Any], failed: list[str], cost: dict[str, float]) -> str | None:
    """Run tests until one fails, each within six times its usual CPU time and three seconds; its name."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        soft = int(time.process_time() + 3 + 6 * cost[item.nodeid]) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if failed:
            return failed[0]
    return None


class Watch:
    """Names of the tests that failed, in order."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.failed.append(report.nodeid or "collection")


class Session:
    """The plugin: collects, measures coverage in a fork (so that no cache is warm), then tries the mutants of each module.

    ``plan`` gives modules with their mutants once coverage is known; ``record`` takes each verdict, ``done`` how
    many of a module were tried.
    """

    def __init__(
        self,
        tree: Path,
        core: str,
        store: Path,
        plan: Callable[[Coverage], Iterator[tuple[str, list[Mutant]]]],
        record: Callable[[str, Verdict], None],
        done: Callable[[str, int], None],
        jobs: int,
        budget: float,
    ) -> None:
        self.tree, self.core, self.store, self.plan, self.record, self.done = tree, core, store, plan, record, done
        self.jobs, self.budget = jobs, budget
        self.watch, self.kills = Watch(), Counter[tuple[str, str]]()

    def pytest_runtestloop(self, session: Any) -> bool:
        session.config.pluginmanager.register(self.watch)
        self.items = {item.nodeid: item for item in session.items}
        for item in session.items:
            settle(item)
        self.coverage = self.measured()
        warm_up()
        gc.freeze()
        living = living_functions(str(self.tree / self.core))
        for module, todo in self.plan(self.coverage):
            for verdict in self.verdicts(module, todo, living):
                self.record(module, verdict)
            self.done(module, len(todo))
        return True

    def verdicts(self, module: str, todo: list[Mutant], living: Living) -> Iterator[Verdict]:
        path = self.tree / self.core / f"{module}.py"
        source = path.read_text(encoding="utf-8")

        def quick(mutant: Mutant) -> Child | None:
            changes = replacements(str(path), source, mutant.source, living)
            if changes is None:
                outside.add(id(mutant))
                return None
            tests = self.tests(module, mutant.span, self.budget)
            if not tests:
                return None

            def work() -> str | None:
                for function, code in changes:
                    function.__code__ = code
                return run_items([self.items[t] for t in tests], self.watch.failed, self.coverage.cost)

            return Child(work, self.limit(tests))

        def afresh(mutant: Mutant) -> Child:
            tests = self.tests(module, None, self.budget / (2 if id(mutant) in outside else 5))
            return Child(lambda: self.run_afresh(mutant, path, tests), 10 + self.limit(tests))

        outside: set[int] = set()
        left = []
        for mutant, killer in in_turn(todo, quick, self.jobs):
            if killer is None:
                left.append(mutant)
            else:
                self.kills[module, killer] += 1
                yield Verdict(mutant, killer)
        for mutant, killer in in_turn(left, afresh, self.jobs):
            yield Verdict(mutant, killer)

    def limit(self, tests: list[str]) -> float:
        return 5 + 4 * sum(self.coverage.cost[t] for t in tests)

    def tests(self, module: str, span: tuple[int, int] | None, budget: float) -> list[str]:
        """Tests of the changed lines, the likely and cheap ones first, as many as a budget of CPU seconds allows."""
        cost, own = self.coverage.cost, (f"test_{module}.py", f"{self.core}/{module}.py")

        def order(test: str) -> float:
            return (cost[test] + 0.01) * (1 if any(name in test for name in own) else 3) / (1 + self.kills[module, test])

        chosen, spent = [], 0.0
        for test in sorted(self.coverage.covering(module, span), key=order):
            spent += cost[test]
            if spent > budget and chosen:
                break
            chosen.append(test)
        return chosen

    def run_afresh(self, mutant: Mutant, path: Path, tests: list[str]) -> str | None:
        """Everything below the tree is imported anew, on the mutated source."""
        import pytest

        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(str(self.tree)):
                del sys.modules[name]
        watch, finder = Watch(), Finder(f"{self.core}.{mutant.module}", str(path), mutant.source)
        code = pytest.main([*OPTIONS, "-x", *tests], plugins=[finder, Settle(), watch])
        return watch.failed[0] if watch.failed else None if code == 0 else "collection"

    def measured(self) -> Coverage:
        """Coverage of the tests as things are; from the store for tests whose file and executed modules are as they were."""
        path = self.store / f"coverage-{self.core}.json"
        known = json.loads(path.read_text()) if path.exists() else {"files": {}, "lines": {}, "cost": {}, "failing": []}
        files = {name: digest(self.tree, [name]) for name in {*(t.split("::")[0] for t in self.items), *self.modules()}}
        changed = {name for name, state in files.items() if known["files"].get(name) != state}

        def stale(test: str) -> bool:
            reads = (f"{self.core}/{module}.py" for module in known["lines"].get(test, ()))
            return test not in known["cost"] or test in known["failing"] or not changed.isdisjoint([test.split("::")[0], *reads])

        kept = {test for test in self.items if not stale(test)}
        if len(kept) < len(self.items):
            began = time.monotonic()
            part = self.tree.parent / "coverage.json"
            child = Child(lambda: self.measure(part, [test for test in self.items if test not in kept]), 3600)
            while not (finished := child.poll())[0]:
                time.sleep(0.05)
            if finished[1] is not None:
                sys.exit(f"coverage: the tests did not run to their end ({finished[1]})")
            fresh = json.loads(part.read_text())
            print(f"coverage of {len(fresh['cost'])} tests in {time.monotonic() - began:.0f} s", flush=True)
            fresh["lines"] |= {test: known["lines"].get(test, {}) for test in kept}
            fresh["cost"] |= {test: known["cost"][test] for test in kept}
            known = fresh | {"files": files}
            path.write_text(json.dumps(known))
        for test in known["failing"]:
            print(f"left out, because it fails on the source as it is: {test}", flush=True)
        return Coverage(known["lines"], known["cost"], known["failing"])

    def modules(self) -> list[str]:
        return [f"{self.core}/{path.name}" for path in (self.tree / self.core).glob("*.py")]

    def measure(self, path: Path, tests: list[str]) -> str | None:
        import coverage

        folder = self.tree / self.core
        meter = coverage.Coverage(data_file=None, source=[str(folder)], config_file=False, messages=False)
        items, cost = [self.items[test] for test in tests], {}
        meter.start()
        for item, following in zip(items, [*items[1:], None], strict=True):
            meter.switch_context(item.nodeid)
            began = time.process_time()
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            cost[item.nodeid] = round(time.process_time() - began, 4)
        meter.stop()
        data, lines = meter.get_data(), {}
        for file in data.measured_files():
            for line, contexts in data.contexts_by_lineno(file).items():
                for test in contexts:
                    if test in cost:
                        lines.setdefault(test, {}).setdefault(Path(file).stem, []).append(line)
        path.write_text(json.dumps({"lines": lines, "cost": cost, "failing": sorted(set(self.watch.failed))}))
        return None
