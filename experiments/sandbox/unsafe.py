"""The same job without a sandbox: a plain process with resource limits, only for ``isolation="unsafe"``.

Standard library only; started as a script like ``jail``, with the same job on standard input and the same answer on standard output.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import signal
import subprocess
import sys
import time
from typing import Any


def main() -> None:
    job = json.loads(sys.stdin.buffer.read())
    box, limits = job["box"], job["limits"]
    for name, text in job["files"].items():
        with open(f"{box}/{name}", "w", encoding="utf-8", errors="surrogatepass") as f:
            f.write(text)
    began = time.monotonic()
    fds = [os.dup2(fd, 100 + i) for i, fd in enumerate(job["fds"])]
    with open(f"{box}/stdin") as stdin, open(f"{box}/stdout", "wb") as out, open(f"{box}/stderr", "wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-I", "-B", "-c", job["code"].replace("/box/", f"{box}/")],
            stdin=stdin,
            stdout=out,
            stderr=err,
            cwd=box,
            env=job["env"],
            close_fds=False,
            preexec_fn=lambda: _limit(limits, fds),
        )
        print("started", flush=True)
        for fd in (*job["fds"], *fds):
            os.close(fd)
        try:
            process.wait(limits["wall"])
            status = "cpu limit" if process.returncode in (-signal.SIGXCPU, -signal.SIGKILL) else "finished"
        except subprocess.TimeoutExpired:
            status = "wall-clock limit"
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    texts = {}
    for name in ("stdout", "stderr"):
        with open(f"{box}/{name}", "rb") as f:
            data = f.read(limits["output"] + 1)
        if len(data) > limits["output"]:
            status = "output limit"
        texts[name] = base64.b64encode(data[: limits["output"]]).decode()
    print(json.dumps({"status": status, "exit_code": code, "seconds": time.monotonic() - began, **texts}))


def _limit(limits: dict[str, Any], fds: list[int]) -> None:
    os.setsid()
    for target, fd in enumerate(fds, 3):
        os.dup2(fd, target)
    for name, value in (("CPU", limits["cpu"]), ("AS", limits["memory"]), ("FSIZE", limits["file_size"]), ("CORE", 0)):
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
    os.closerange(3 + len(fds), 256)
