"""A seccomp filter in classic BPF, installed through ``prctl``: what a program may not ask of the kernel.

Everything is allowed but the calls listed, which either reach past a namespace (vsock, keyrings, BPF, performance events), make new
privileges (mounts, namespaces, tracing) or hold memory that no limit counts (memfd, System V shared memory).  Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

#: Refused with EPERM; numbers for (x86_64, aarch64), None where the architecture has no such call.
DENIED: dict[str, tuple[int | None, int | None]] = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97), "setns": (308, 268),
    "fsopen": (430, 430), "fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "move_mount": (429, 429),
    "open_tree": (428, 428), "mount_setattr": (442, 442), "open_by_handle_at": (304, 265), "name_to_handle_at": (303, 264),
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "process_madvise": (440, 440),
    "kcmp": (312, 272), "pidfd_open": (434, 434), "pidfd_getfd": (438, 438), "pidfd_send_signal": (424, 424),
    "bpf": (321, 280), "perf_event_open": (298, 241), "userfaultfd": (323, 282), "fanotify_init": (300, 262),
    "io_uring_setup": (425, 425), "io_uring_enter": (426, 426), "io_uring_register": (427, 427),
    "add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219),
    "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104),
    "kexec_file_load": (320, 294), "reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "acct": (163, 89),
    "quotactl": (179, 60), "syslog": (103, 116), "sethostname": (170, 161), "setdomainname": (171, 162), "personality": (135, 92),
    "settimeofday": (164, 170), "clock_settime": (227, 112), "adjtimex": (159, 171), "clock_adjtime": (305, 266), "vhangup": (153, 58),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "msgget": (68, 186), "semget": (64, 190),
    "mq_open": (240, 180), "mbind": (237, 235), "migrate_pages": (256, 238), "move_pages": (279, 239), "iopl": (172, None),
    "ioperm": (173, None), "modify_ldt": (154, None),
}  # fmt: skip

_CLONE, _CLONE3, _SOCKET, _PRLIMIT = (56, 220), (435, 435), (41, 198), (302, 261)
_NEW_NAMESPACES = 0x7E020000
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENT_0 = 0, 4, 16


def program(machine: str) -> bytes:
    """The filter for ``machine`` ("x86_64" or "aarch64") as an array of ``struct sock_filter``.

    A call through another architecture's table (32-bit entry points, x32) ends the process.

    >>> len(program("x86_64")) % 8
    0
    >>> program("riscv64")
    Traceback (most recent call last):
    ...
    ValueError: machine: got 'riscv64'; need x86_64 or aarch64; because system call numbers differ
    """
    if machine not in _ARCHITECTURES:
        raise ValueError(f"machine: got {machine!r}; need x86_64 or aarch64; because system call numbers differ")
    column, audit = _ARCHITECTURES[machine]
    code = [_op(_LOAD, _ARCHITECTURE), _op(_EQUAL, audit, 1, 0), _op(_RETURN, _KILL), _op(_LOAD, _NUMBER)]
    code += [_op(_AT_LEAST, 0x40000000, 0, 1), _op(_RETURN, _KILL)]
    for numbers in DENIED.values():
        if numbers[column] is not None:
            code += [_op(_EQUAL, numbers[column], 0, 1), _op(_RETURN, _REFUSE | errno.EPERM)]
    code += [_op(_EQUAL, _CLONE3[column], 0, 1), _op(_RETURN, _REFUSE | errno.ENOSYS)]  # libc then uses clone
    for number, test, value, allowed_if in (
        (_CLONE[column], _ANY_BIT, _NEW_NAMESPACES, False),
        (_SOCKET[column], _EQUAL, 1, True),  # AF_UNIX only: AF_VSOCK knows no network namespace
        (_PRLIMIT[column], _EQUAL, 0, True),  # own limits only
    ):
        refuse, allow = _op(_RETURN, _REFUSE | errno.EPERM), _op(_RETURN, _ALLOW)
        body = [_op(_LOAD, _ARGUMENT_0), _op(test, value, 0, 1), *((allow, refuse) if allowed_if else (refuse, allow))]
        code += [_op(_EQUAL, number, 0, len(body)), *body]
    return b"".join([*code, _op(_RETURN, _ALLOW)])


def install() -> None:
    """Set ``no_new_privs`` and the filter for this process and all it will start; irreversible."""
    code = program(platform.machine())
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(code, len(code))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    header = Program(len(code) // 8, ctypes.addressof(buffer))
    for arguments in ((38, 1, 0, 0, 0), (22, 2, ctypes.byref(header), 0, 0)):  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({arguments[0]})")


def _op(code: int, k: int | None, jump_true: int = 0, jump_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, jump_true, jump_false, k)
