"""Drop privileges: a process calls this on itself before it reads untrusted bytes.

Four layers, each used if the system has it; each stops something that the others do not:

    rlimits               memory, CPU time, no file writes, no new descriptors, no new processes
    PR_SET_NO_NEW_PRIVS   no set-user-id program can regain privileges; required by the two below
    Landlock              no path can be opened, created, renamed or removed (Linux 5.13)
    seccomp               only the system calls that an interpreter needs to compute; all others return EPERM

It imports nothing of assay, so that a process can load it before anything else.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from typing import Any

# System calls that an interpreter makes to compute, to read its pipe and to write its answer.
# name: (x86_64, aarch64); -1 if the architecture lacks the call.
CALLS = {
    "read": (0, 63), "write": (1, 64), "readv": (19, 65), "writev": (20, 66), "close": (3, 57), "lseek": (8, 62),
    "fstat": (5, 80), "poll": (7, -1), "ppoll": (271, 73), "mmap": (9, 222), "mprotect": (10, 226),
    "munmap": (11, 215), "brk": (12, 214), "mremap": (25, 216), "madvise": (28, 233), "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132), "sched_yield": (24, 124),
    "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113), "clock_getres": (229, 114),
    "gettimeofday": (96, 169), "getpid": (39, 172), "gettid": (186, 178), "futex": (202, 98),
    "set_robust_list": (273, 99), "rseq": (334, 293), "restart_syscall": (219, 128), "exit": (60, 93),
    "exit_group": (231, 94), "getrusage": (98, 165), "getrlimit": (97, 163), "setrlimit": (160, 164),
    "prlimit64": (302, 261), "getrandom": (318, 278), "sysinfo": (99, 179), "sched_getaffinity": (204, 123),
    "tgkill": (234, 131), "membarrier": (324, 283),
}  # fmt: skip
THREADS = {"clone": (56, 220), "clone3": (435, 435)}  # for a library that starts threads
# For a process that gets sockets from its parent, limits its own CPU time and lowers its priority.
SOCKETS = {
    "recvfrom": (45, 207), "sendto": (44, 206), "select": (23, -1), "pselect6": (270, 72), "setitimer": (38, 103),
    "getpriority": (140, 141), "setpriority": (141, 140), "fcntl": (72, 25), "getsockname": (51, 204),
    "getsockopt": (55, 209),
}  # fmt: skip
# For a process that makes a copy of itself for each task.
FORKS = THREADS | SOCKETS | {
    "recvmsg": (47, 212), "dup": (32, 23), "dup2": (33, -1), "dup3": (292, 24), "fork": (57, -1), "wait4": (61, 260),
    "set_tid_address": (218, 96), "prctl": (157, 167), "landlock_create_ruleset": (444, 444),
    "landlock_restrict_self": (446, 446), "seccomp": (317, 277), "close_range": (436, 436),
}  # fmt: skip
_AUDIT = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2
_ALLOW, _EPERM = 0x7FFF0000, 0x00050000 | 1
_LOAD, _EQUAL, _RETURN = 0x20, 0x15, 0x06
_LANDLOCK_CREATE, _LANDLOCK_RESTRICT = 444, 446
_LANDLOCK_RIGHTS = (13, 14, 15, 15, 16)  # number of file access rights, by ABI version


def confine(
    memory: int, *, threads: bool = False, further: dict[str, tuple[int, int]] | None = None, descriptors: int = 3
) -> list[str]:
    """Drop all privileges that computing on a pipe does not need. Returns the names of the active layers.

    `further` are system calls to allow beyond the table, and `descriptors` is the number of open files allowed.
    """
    further = further or {}
    held = ["rlimits"] if _limit(memory, threads or "clone" in further, descriptors) else []
    if sys.platform != "linux":
        return held
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
        held.append("no_new_privs")
        held += ["landlock"] * _landlock(libc) + ["seccomp"] * _seccomp(libc, threads, further)
    return held


def allow_cpu(seconds: int) -> None:
    """Limit the CPU time from now on. This is the last resort if the parent dies and cannot enforce its timeout."""
    try:
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + seconds, hard))
    except (ImportError, ValueError, OSError):
        return


def _limit(memory: int, threads: bool, descriptors: int) -> bool:
    try:
        import resource
    except ImportError:
        return False
    limits = {"RLIMIT_AS": memory, "RLIMIT_FSIZE": 0, "RLIMIT_NOFILE": descriptors, "RLIMIT_CORE": 0}
    for name, limit in limits.items() if threads else (limits | {"RLIMIT_NPROC": 0}).items():
        try:
            resource.setrlimit(getattr(resource, name), (limit, limit))
        except (AttributeError, ValueError, OSError):
            continue
    return True


def _landlock(libc: Any) -> bool:
    """A rule set that covers every file access right and grants none."""
    version = libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)
    if version < 1:
        return False
    rights = (1 << _LANDLOCK_RIGHTS[min(version, len(_LANDLOCK_RIGHTS)) - 1]) - 1
    wanted = ctypes.c_uint64(rights)
    ruleset = libc.syscall(_LANDLOCK_CREATE, ctypes.byref(wanted), ctypes.c_size_t(8), 0)
    if ruleset < 0:
        return False
    try:
        return bool(libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _seccomp(libc: Any, threads: bool, further: dict[str, tuple[int, int]]) -> bool:
    """A filter with an allow-list of the table's system calls; any other call returns EPERM."""
    if platform.machine() not in _AUDIT or sys.maxsize < 2**32:
        return False
    column, audit = _AUDIT[platform.machine()]
    table = CALLS | (THREADS if threads else {}) | further
    numbers = sorted({row[column] for row in table.values()} - {-1})
    code = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, audit), (_RETURN, 0, 0, _EPERM), (_LOAD, 0, 0, 0)]
    for at, number in enumerate(numbers):
        code.append((_EQUAL, len(numbers) - at, 0, number))
    code += [(_RETURN, 0, 0, _EPERM), (_RETURN, 0, 0, _ALLOW)]
    program = b"".join(struct.pack("=HBBI", *line) for line in code)
    held = ctypes.create_string_buffer(program, len(program))
    descriptor = struct.pack("@HP", len(code), ctypes.addressof(held))
    return bool(libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.c_char_p(descriptor), 0, 0) == 0)
