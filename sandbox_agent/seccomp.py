"""The system call filter of a sandbox: a BPF program, and how a process puts itself under it.

It closes what namespaces do not separate: sockets of families that ignore network namespaces (AF_VSOCK
reaches the hypervisor), the key rings of a user, and kernel interfaces that a shell has no use for. A refused
call fails with an error, as if the kernel lacked the feature or the user the right. On one machine bubblewrap
loads it just before the shell starts, in a pod the agent before everything else.
"""

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass

# linux/audit.h: ELF machine | 64 bit | little endian.
_AUDIT_ARCH_X86_64 = 0xC000003E
_AUDIT_ARCH_AARCH64 = 0xC00000B7
# The bit of system calls of the x32 ABI; with any other ABI it only appears in invalid numbers.
_X32_BIT = 0x40000000

# linux/seccomp.h and linux/bpf_common.h
_RET_ALLOW = 0x7FFF0000
_RET_ERRNO = 0x00050000
_LOAD_WORD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_JUMP_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_GREATER_OR_EQUAL = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_RETURN = 0x06  # BPF_RET | BPF_K
# struct seccomp_data: int nr; u32 arch; u64 instruction_pointer; u64 args[6]
_OFFSET_NUMBER = 0
_OFFSET_ARCH = 4
_OFFSET_FIRST_ARGUMENT = 16  # its low half; both architectures are little endian

_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2  # prctl(2)
_PR_SET_NO_NEW_PRIVS = 38
_INSTRUCTION_BYTES = 8
_prctl = ctypes.CDLL(None, use_errno=True).prctl

# Families that a network namespace separates. Everything else is refused, whatever a later kernel adds.
SOCKET_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
_GLOBAL_SCOPE = "00"


@dataclass(frozen=True, slots=True)
class Numbers:
    """A system call's number on each supported architecture."""

    x86_64: int
    aarch64: int


DENIED = {
    # Key rings belong to the user outside, which sandboxes may share.
    "add_key": Numbers(248, 217),
    "request_key": Numbers(249, 218),
    "keyctl": Numbers(250, 219),
    # io_uring makes sockets, too, without passing this filter.
    "io_uring_setup": Numbers(425, 425),
    "io_uring_enter": Numbers(426, 426),
    "io_uring_register": Numbers(427, 427),
    # Kernel interfaces with a history of local privilege escalation.
    "bpf": Numbers(321, 280),
    "perf_event_open": Numbers(298, 241),
    "userfaultfd": Numbers(323, 282),
    "fanotify_init": Numbers(300, 262),
    # Namespaces and mounts: the sandbox lacks the capabilities; this is the second lock.
    "mount": Numbers(165, 40),
    "umount2": Numbers(166, 39),
    "pivot_root": Numbers(155, 41),
    "chroot": Numbers(161, 51),
    "setns": Numbers(308, 268),
    "unshare": Numbers(272, 97),
    "open_tree": Numbers(428, 428),
    "move_mount": Numbers(429, 429),
    "fsopen": Numbers(430, 430),
    "fsconfig": Numbers(431, 431),
    "fsmount": Numbers(432, 432),
    "fspick": Numbers(433, 433),
    "mount_setattr": Numbers(442, 442),
    "open_by_handle_at": Numbers(304, 265),
    # Takes descriptors out of other processes, among them those by which a shell is talked to.
    "pidfd_getfd": Numbers(438, 438),
    # The machine itself.
    "syslog": Numbers(103, 116),
    "acct": Numbers(163, 89),
    "swapon": Numbers(167, 224),
    "swapoff": Numbers(168, 225),
    "reboot": Numbers(169, 142),
    "init_module": Numbers(175, 105),
    "finit_module": Numbers(313, 273),
    "delete_module": Numbers(176, 106),
    "kexec_load": Numbers(246, 104),
    "kexec_file_load": Numbers(320, 294),
    "settimeofday": Numbers(164, 170),
    "clock_settime": Numbers(227, 112),
    "clock_adjtime": Numbers(305, 266),
    "adjtimex": Numbers(159, 171),
}
# Takes gigabytes in an instant, before anybody can measure them. File systems that lack it say the same, and
# programs write instead, as glibc's posix_fallocate does.
_FALLOCATE = Numbers(285, 47)
_SOCKET_CALLS = (Numbers(41, 198), Numbers(53, 199))  # socket, socketpair


class _Program(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


class UnsupportedArchitecture(Exception):
    """There is no table of system calls for this machine, so nothing may run on it."""

    def __init__(self, machine: str) -> None:
        super().__init__(f"no system call filter for the architecture {machine}")
        self.machine = machine


def families_of_pod(ipv6_addresses: str) -> tuple[int, ...]:
    """Which sockets a pod with these addresses, as in /proc/net/if_inet6, needs.

    Where pods have no address but link-local ones, no IPv6: network plugins that filter IPv4 alone let those
    pass to every pod behind the same bridge, whatever the NetworkPolicies say.
    """
    scopes = [line.split()[3] for line in ipv6_addresses.splitlines()]
    without = () if _GLOBAL_SCOPE in scopes else (socket.AF_INET6,)
    return tuple(family for family in SOCKET_FAMILIES if family not in without)


def load(program: bytes) -> None:
    """Put this process and whatever it starts under the filter, for ever. Before the first thread, since it
    is for the calling one. Raises OSError."""
    instructions = ctypes.create_string_buffer(program, len(program))
    filter_ = _Program(len(program) // _INSTRUCTION_BYTES, ctypes.addressof(instructions))
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(filter_), 0, 0),
    ):
        if _prctl(*arguments) != 0:
            code = ctypes.get_errno()
            raise OSError(code, f"system calls cannot be filtered: {os.strerror(code)}")


def filter_program(machine: str | None = None, families: Sequence[int] = SOCKET_FAMILIES) -> bytes:
    """An array of struct sock_filter for `machine`, as uname(2) names it (default: this one), with which
    sockets are of these `families`.

    Raises UnsupportedArchitecture.
    """
    machine = machine or os.uname().machine
    match machine:
        case "x86_64":
            arch, denied = _AUDIT_ARCH_X86_64, [numbers.x86_64 for numbers in DENIED.values()]
            sockets = [numbers.x86_64 for numbers in _SOCKET_CALLS]
            fallocate = _FALLOCATE.x86_64
        case "aarch64":
            arch, denied = _AUDIT_ARCH_AARCH64, [numbers.aarch64 for numbers in DENIED.values()]
            sockets = [numbers.aarch64 for numbers in _SOCKET_CALLS]
            fallocate = _FALLOCATE.aarch64
        case _:
            raise UnsupportedArchitecture(machine)
    # 32-bit calls have other numbers, so none of them may pass: they do not exist here.
    program = [
        _instruction(_LOAD_WORD, _OFFSET_ARCH),
        *_unless_equal(arch, errno.ENOSYS),
        _instruction(_LOAD_WORD, _OFFSET_NUMBER),
        _instruction(_JUMP_GREATER_OR_EQUAL, _X32_BIT, if_false=1),
        _instruction(_RETURN, _RET_ERRNO | errno.ENOSYS),
    ]
    for number, error in [*((number, errno.EPERM) for number in denied), (fallocate, errno.EOPNOTSUPP)]:
        program += [
            _instruction(_JUMP_EQUAL, number, if_false=1),
            _instruction(_RETURN, _RET_ERRNO | error),
        ]
    for position, number in enumerate(sockets):
        behind = len(sockets) - position  # the other comparisons and the return
        program.append(_instruction(_JUMP_EQUAL, number, if_true=behind))
    program += [_instruction(_RETURN, _RET_ALLOW), *_only_sockets_of(families)]
    return b"".join(program)


def _only_sockets_of(families: Sequence[int]) -> list[bytes]:
    checks = [_instruction(_LOAD_WORD, _OFFSET_FIRST_ARGUMENT)]
    for position, family in enumerate(families):
        checks.append(_instruction(_JUMP_EQUAL, family, if_true=len(families) - position))
    return [
        *checks,
        _instruction(_RETURN, _RET_ERRNO | errno.EAFNOSUPPORT),
        _instruction(_RETURN, _RET_ALLOW),
    ]


def _unless_equal(value: int, error: int) -> list[bytes]:
    return [_instruction(_JUMP_EQUAL, value, if_true=1), _instruction(_RETURN, _RET_ERRNO | error)]


def _instruction(code: int, operand: int, *, if_true: int = 0, if_false: int = 0) -> bytes:
    """struct sock_filter; the jumps count instructions to skip."""
    return struct.pack("=HBBI", code, if_true, if_false, operand)
