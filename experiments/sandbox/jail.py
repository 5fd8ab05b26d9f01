"""One program in namespaces of its own, as a script: reads a job on standard input, writes what happened on standard output.

Standard library only: the trainer starts it as ``python -I -S`` and never forks itself.  The process unshares the mount, PID, network,
IPC and UTS namespaces (and the user namespace, unless it is root), and its child, PID 1 of the new PID namespace, builds a root file
system of read-only binds, forgets the old one, starts the program without privileges and watches it.  When PID 1 ends, the kernel ends
everything inside.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import os
import platform
import resource
import secrets
import select
import signal
import socket
import sys
import time
from typing import Any

import seccomp

_NS = {"mount": 0x20000, "uts": 0x04000000, "ipc": 0x08000000, "user": 0x10000000, "pid": 0x20000000, "net": 0x40000000}
_BIND, _REC, _PRIVATE, _DETACH = 4096, 16384, 1 << 18, 2
_RDONLY, _NOSUID, _NODEV, _NOEXEC = 1, 2, 4, 8
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR, _RECURSIVE = 442, 0x8000
_DEVICES = ("null", "zero", "random", "urandom")
_TICK = 0.01

libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    job = json.loads(sys.stdin.buffer.read())
    libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != job["parent"]:
        os._exit(1)  # the trainer died before that
    try:
        _unshare()
        pid = os.fork()
    except (OSError, MemoryError) as error:
        _report_setup(error, "unshare")
        return
    if pid:
        for fd in job["fds"]:
            os.close(fd)
        os.waitpid(pid, 0)
        return
    try:
        _inside(job)
    finally:
        os._exit(0)


def _unshare() -> None:
    root = os.geteuid() == 0
    uid, gid = os.geteuid(), os.getegid()
    flags = sum(flag for name, flag in _NS.items() if name != "user" or not root)
    _call(libc.unshare(flags), "unshare")
    if not root:
        for name, text in (("setgroups", "deny"), ("uid_map", f"1000 {uid} 1"), ("gid_map", f"1000 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as f:
                f.write(text)


def _inside(job: dict[str, Any]) -> None:
    libc.prctl(1, signal.SIGKILL)
    libc.prctl(4, 0)  # PR_SET_DUMPABLE: nobody inside may open or trace PID 1
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGXCPU):
        signal.signal(number, signal.SIG_IGN)
    try:
        proc = _build_root(job)
        socket.sethostname("sandbox")
        pipes = [os.pipe() for _ in range(3)]  # standard output, standard error, failure of the start
        began = time.monotonic()
        pid = os.fork()
    except (OSError, MemoryError) as error:
        _report_setup(error, "mount")
        return
    limits = job["limits"]
    if pid == 0:
        _start(job, [end for _, end in pipes])
    for _, end in pipes:
        os.close(end)
    for fd in job["fds"]:
        os.close(fd)
    (out, err), failure = (pipes[0][0], pipes[1][0]), pipes[2][0]
    broken = os.read(failure, 1000)
    if broken:
        _report({"setup": broken.decode(errors="replace")})
        return
    os.write(1, b"started\n")
    result = _watch(pid, out, err, proc, limits, began)
    _report({**result, "seconds": time.monotonic() - began})


def _build_root(job: dict[str, Any]) -> int:
    """The file system of the program; returns an open ``/proc`` that only PID 1 holds."""
    _mount("none", "/", "", _REC | _PRIVATE)
    sources = [(target, os.open(source, os.O_PATH)) for source, target in job["binds"]]
    sources += [(f"/dev/{name}", os.open(f"/dev/{name}", os.O_PATH)) for name in _DEVICES]
    size = 4 * 2**20 + sum(len(text) for text in job["files"].values()) * 4
    _mount("tmpfs", "/tmp", "tmpfs", _NOSUID | _NODEV, f"size={size},mode=755")
    # the sources stay reachable through their descriptors, although /tmp now hides one part of the old tree
    for target, fd in sources:
        path = "/tmp" + target
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            os.makedirs(path, 0o755, exist_ok=True)
        else:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o444))
        _mount(f"/proc/self/fd/{fd}", path, "", _BIND | _REC)
        os.close(fd)
        _protect(path, _RDONLY | _NOSUID | (0 if target.startswith("/dev/") else _NODEV), recursive=True)
    for path in job["masks"]:
        if os.path.isdir("/tmp" + path):
            _mount("tmpfs", "/tmp" + path, "tmpfs", _RDONLY | _NOSUID | _NODEV | _NOEXEC, "size=4k,mode=755")
    for link, target in [*job["links"], ("/dev/stdin", "/box/stdin"), ("/dev/shm", "/tmp")]:
        if not os.path.lexists("/tmp" + link):
            os.symlink(target, "/tmp" + link)
    for name in ("tmp", "proc", "box"):
        os.makedirs(f"/tmp/{name}", 0o755, exist_ok=True)
    for name, text in job["files"].items():
        with open(f"/tmp/box/{name}", "w", encoding="utf-8", errors="surrogatepass") as f:
            f.write(text)
    _mount("tmpfs", "/tmp/tmp", "tmpfs", _NOSUID | _NODEV | _NOEXEC, f"size={job['limits']['disk']},nr_inodes=4096,mode=1777")
    _mount("proc", "/tmp/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    proc = os.open("/tmp/proc", os.O_RDONLY | os.O_DIRECTORY)
    _call(libc.umount2(b"/tmp/proc", _DETACH), "/proc")
    os.rmdir("/tmp/proc")
    os.chdir("/tmp")
    _call(libc.syscall(_PIVOT_ROOT[platform.machine()], b".", b"."), "pivot_root")
    _call(libc.umount2(b".", _DETACH), "old root")
    os.chdir("/")
    _protect("/", _RDONLY | _NOSUID | _NODEV, recursive=False)
    os.chdir("/tmp")
    return proc


def _start(job: dict[str, Any], pipes: list[int]) -> None:
    """In the child: limits, descriptors, no privileges, then the program; never returns."""
    failure = pipes[2]
    try:
        os.setsid()
        stdin = os.open("/box/stdin", os.O_RDONLY)
        kept = [stdin, pipes[0], pipes[1], *job["fds"]]
        high = [os.dup2(fd, 200 + i) for i, fd in enumerate(kept)]
        failure = os.dup2(failure, 199, inheritable=False)
        for target, fd in enumerate(high):
            os.dup2(fd, target)
        os.closerange(len(high), failure)
        os.closerange(failure + 1, 4096)
        limits = job["limits"]
        for name, value in (
            ("CPU", limits["cpu"]), ("AS", limits["memory"]), ("FSIZE", limits["file_size"]), ("NPROC", limits["processes"]),
            ("CORE", 0), ("NOFILE", 64), ("MEMLOCK", 0), ("MSGQUEUE", 0), ("STACK", min(64 * 2**20, limits["memory"] // 4)),
        ):  # fmt: skip
            resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (value, value))
        _drop_privileges()
        for number in range(1, signal.NSIG):
            if number not in (signal.SIGKILL, signal.SIGSTOP, 32, 33):
                signal.signal(number, signal.SIG_DFL)
        seccomp.install()
        os.execve(job["argv"][0], job["argv"], job["env"])
    except BaseException as error:
        os.write(failure, f"{type(error).__name__}: {error}".encode())
    finally:
        os._exit(1)


def _drop_privileges() -> None:
    for capability in range(64):
        if libc.prctl(24, capability, 0, 0, 0) != 0:  # PR_CAPBSET_DROP
            break
    libc.prctl(47, 4, 0, 0, 0)  # PR_CAP_AMBIENT_CLEAR_ALL
    if os.geteuid() == 0:
        uid = 2**30 + secrets.randbelow(2**30)  # a user of this run alone, so that its process limit counts nobody else
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    nothing = (ctypes.c_uint32 * 6)()
    _call(libc.capset(header, nothing), "capset")


def _watch(pid: int, out: int, err: int, proc: int, limits: dict[str, Any], began: float) -> dict[str, Any]:
    """Collect output until the program ends or a limit is passed."""
    texts = {out: bytearray(), err: bytearray()}
    poller = select.poll()
    for fd in texts:
        os.set_blocking(fd, False)
        poller.register(fd, select.POLLIN)
    status, code, checked = None, None, 0.0
    while status is None:
        for fd, _ in poller.poll(1000 * _TICK):
            if not _drain(fd, texts[fd]):
                poller.unregister(fd)
        code = _reap(pid)
        if code is not None:
            for fd in texts:
                _drain(fd, texts[fd])
            status = "finished"
        if sum(map(len, texts.values())) > limits["output"]:
            status = "output limit"
        elif status is None and time.monotonic() - began > limits["wall"]:
            status = "wall-clock limit"
        elif status is None and time.monotonic() - checked > 2 * _TICK:
            checked = time.monotonic()
            status = _over(proc, limits)
    if code is not None and status == "finished" and -code in (signal.SIGXCPU, signal.SIGKILL):
        status = "cpu limit"
    if status != "finished":
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    room = limits["output"]
    stdout, stderr = (base64.b64encode(bytes(texts[fd][:room])).decode() for fd in (out, err))
    return {"status": status, "exit_code": code, "stdout": stdout, "stderr": stderr}


def _drain(fd: int, into: bytearray) -> bool:
    try:
        data = os.read(fd, 1 << 16)
    except BlockingIOError:
        return True
    into += data
    return bool(data)


def _reap(pid: int) -> int | None:
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return None
        if ended == 0:
            return None
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _over(proc: int, limits: dict[str, Any]) -> str | None:
    """Which limit all processes together exceed; resident memory is summed, as limits on one process do not bound a family."""
    pids = [name for name in os.listdir(proc) if name.isdigit() and name != "1"]
    if len(pids) > limits["processes"]:
        return "process limit"
    resident = 0
    for name in pids:
        try:
            fd = os.open(f"{name}/statm", os.O_RDONLY, dir_fd=proc)
        except OSError:
            continue
        try:
            resident += int(os.read(fd, 200).split()[1]) * resource.getpagesize()
        except (OSError, IndexError):
            continue
        finally:
            os.close(fd)
    return "memory limit" if resident > limits["memory"] else None


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    result = libc.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), data.encode() or None)
    _call(result, target)


def _protect(path: str, attributes: int, *, recursive: bool) -> None:
    setting = (ctypes.c_uint64 * 4)(attributes, 0, 0, 0)
    flags = _RECURSIVE if recursive else 0
    _call(libc.syscall(_MOUNT_SETATTR, -100, path.encode(), flags, ctypes.byref(setting), ctypes.sizeof(setting)), path)


def _call(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def _report_setup(error: OSError | MemoryError, step: str) -> None:
    reason = f"{error.strerror} ({error.filename or step})" if isinstance(error, OSError) else "no memory"
    _report({"setup": reason})


def _report(result: dict[str, Any]) -> None:
    data = memoryview(json.dumps(result).encode())
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    main()
