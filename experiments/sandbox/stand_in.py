"""A local stand-in for SandboxFusion, for tests and dry runs: the same interface on 127.0.0.1, programs run by `Sandbox`.

``faults`` makes it misbehave on purpose: the n-th request (from 0) gets an HTTP status, "hang", "close", "SandboxError", a body of bytes,
or a reply that comes byte by byte without end ("drip" after the header, "drip header" from the first byte) instead.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from .results import Limits
from .runner import Sandbox


class StandIn:
    """Serves while the ``with`` block runs; ``url`` is its address, ``requests`` what it was asked, in order of arrival."""

    def __init__(self, faults: Mapping[int, int | str | bytes] | None = None, *, hang: float = 1.0) -> None:
        self.requests: list[dict[str, Any]] = []
        self._faults, self._hang, self._lock = dict(faults or {}), hang, threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with outer._lock:
                    fault = outer._faults.get(len(outer.requests))
                    outer.requests.append(body)
                if fault == "hang":
                    time.sleep(outer._hang)
                if fault in ("hang", "close"):
                    self.close_connection = True
                    return
                if fault in ("drip", "drip header"):
                    self._drip(b"HTTP/1.0 200 OK\r\nContent-Length: 9999\r\n\r\n" if fault == "drip" else b"HTTP/1.0 200 ")
                    return
                status = fault if isinstance(fault, int) else 200 if self.path == "/run_code" else 404
                reply = {"status": "SandboxError", "message": "asked to fail"} if fault else outer._run(body)
                data = fault if isinstance(fault, bytes) else json.dumps(reply).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def _drip(self, head: bytes) -> None:
                self.close_connection = True
                self.wfile.write(head)
                with contextlib.suppress(OSError):  # until the client has had enough
                    while True:
                        self.wfile.write(b" ")
                        time.sleep(outer._hang / 10)

            def log_message(self, *arguments: Any) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def _run(self, body: dict[str, Any]) -> dict[str, Any]:
        limits = Limits(wall=float(body["run_timeout"]), memory=int(body["memory_limit_MB"]) << 20)
        run = Sandbox(limits).run(body["code"], body["stdin"])
        status = "TimeLimitExceeded" if run.status == "wall-clock limit" else "Finished" if run.ok else "Error"
        result = {"status": status, "execution_time": run.seconds, "return_code": run.exit_code, "stdout": run.stdout, "stderr": run.stderr}
        return {"status": "Success" if run.ok else "Failed", "message": "", "compile_result": None, "run_result": result, "files": {}}

    def __enter__(self) -> StandIn:
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
