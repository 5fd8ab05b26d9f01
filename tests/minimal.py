"""The cores with NumPy and SciPy alone: everything imports, nothing else is reached for, and the suites of both cores pass.

    python tests/minimal.py [FOLDER]

Makes a virtual environment in FOLDER (default build/minimal) with the pinned NumPy, SciPy and test tools, and runs pytest in it.
``make test-minimal`` calls it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: What a user gets with ``pip install conformal-carm``, and what the suites themselves need.
PACKAGES = ("numpy", "scipy", "pytest", "hypothesis")

IMPORTS = """
import importlib, importlib.util, pkgutil, sys
for heavy in ("torch", "trl", "transformers", "matplotlib"):
    assert importlib.util.find_spec(heavy) is None, heavy
names = []
for package in ("conformal_core", "carm_core"):
    names += [package] + [m.name for m in pkgutil.walk_packages(importlib.import_module(package).__path__, package + ".")]
for name in names:
    if not name.endswith(".testing"):
        importlib.import_module(name)
assert "scipy" not in sys.modules, "scipy is imported before a law is asked for"
assert "hypothesis" not in sys.modules, "hypothesis is imported outside the testing modules"
for name in names:
    module = importlib.import_module(name)
    for public in getattr(module, "__all__", ()):
        getattr(module, public)
print(f"{len(names)} modules import with NumPy alone")
"""


def needs_more(path: Path) -> bool:
    """Whether a test file imports something that a minimal install does not have."""
    text = path.read_text(encoding="utf-8")
    return bool(re.search(r"^\s*(import|from) (torch|trl|transformers|experiments|conformal_trl|carm_torch|benchmarks)\b", text, re.M))


def main(folder: Path) -> int:
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-c", ROOT / "constraints.txt", *PACKAGES]
        subprocess.run(install, check=True)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([python, "-c", IMPORTS], check=True, env=environment, cwd=folder)
    tests = [path for core in ("conformal_core", "carm_core") for path in sorted((ROOT / "tests" / core).glob("test_*.py"))]
    able = [path for path in tests if not needs_more(path)]
    others = ", ".join(path.name for path in tests if path not in able)
    print(f"{len(able)} of {len(tests)} test files of the cores run here; with torch or trainers: {others}", flush=True)
    doctests = ["conformal_core", "carm_core"]
    run = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *able, *doctests]
    return subprocess.run(run, env=environment, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "minimal").resolve()))
