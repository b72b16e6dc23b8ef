"""The filter, run by an interpreter of its few instructions and by the kernel."""

import errno
import socket
import struct
import subprocess
import sys

import pytest

from sandbox_agent import seccomp

ALLOW = 0x7FFF0000
ARCHES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SOCKET = {"x86_64": 41, "aarch64": 198}
READ = {"x86_64": 0, "aarch64": 63}


def run(program: bytes, *, arch: int, number: int, argument: int = 0) -> int:
    """What the BPF program answers to a system call."""
    data = struct.pack("=IIQ6Q", number, arch, 0, argument, 0, 0, 0, 0, 0)
    instructions = list(struct.iter_unpack("=HBBI", program))
    accumulator = position = 0
    while True:
        code, if_true, if_false, operand = instructions[position]
        position += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, operand)
        elif code == 0x06:
            return int(operand)
        else:
            jumps = accumulator == operand if code == 0x15 else accumulator >= operand
            position += if_true if jumps else if_false


def refusal(answer: int) -> str:
    return "allowed" if answer == ALLOW else errno.errorcode[answer & 0xFFFF]


@pytest.mark.parametrize("machine", ARCHES)
@pytest.mark.parametrize("name", seccomp.DENIED)
def test_a_denied_call_is_refused(machine: str, name: str) -> None:
    number = getattr(seccomp.DENIED[name], machine)
    answer = run(seccomp.filter_program(machine), arch=ARCHES[machine], number=number)
    assert refusal(answer) == "EPERM"


@pytest.mark.parametrize(
    ("number", "call"),
    [
        (101 << 8, "allowed"),  # no call at all, for comparison
        (155, "pivot_root"), (161, "chroot"), (165, "mount"), (166, "umount2"), (175, "init_module"),
        (246, "kexec_load"), (248, "add_key"), (249, "request_key"), (250, "keyctl"), (272, "unshare"),
        (298, "perf_event_open"), (300, "fanotify_init"), (304, "open_by_handle_at"), (308, "setns"),
        (313, "finit_module"), (320, "kexec_file_load"), (321, "bpf"), (323, "userfaultfd"),
        (425, "io_uring_setup"), (428, "open_tree"), (429, "move_mount"), (430, "fsopen"),
        (442, "mount_setattr"),
    ],
)  # fmt: skip
def test_what_no_shell_needs_is_denied_by_the_kernels_number(number: int, call: str) -> None:
    """As in arch/x86/entry/syscalls/syscall_64.tbl of Linux, so that a line lost from the table shows."""
    answer = run(seccomp.filter_program("x86_64"), arch=ARCHES["x86_64"], number=number)
    assert refusal(answer) == ("allowed" if call == "allowed" else "EPERM")


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 285), ("aarch64", 47)])
def test_space_cannot_be_reserved_as_on_file_systems_without_it(machine: str, number: int) -> None:
    answer = run(seccomp.filter_program(machine), arch=ARCHES[machine], number=number)
    assert answer & 0xFFFF == errno.EOPNOTSUPP


@pytest.mark.parametrize("machine", ARCHES)
def test_an_ordinary_call_passes(machine: str) -> None:
    assert run(seccomp.filter_program(machine), arch=ARCHES[machine], number=READ[machine]) == ALLOW


@pytest.mark.parametrize("machine", ARCHES)
@pytest.mark.parametrize("call", [0, 1], ids=["socket", "socketpair"])
def test_only_families_with_network_namespaces_have_sockets(machine: str, call: int) -> None:
    number = SOCKET[machine] + (12 * call if machine == "x86_64" else call)
    program = seccomp.filter_program(machine)
    passed = [
        family
        for family in range(64)
        if run(program, arch=ARCHES[machine], number=number, argument=family) == ALLOW
    ]
    assert passed == sorted(seccomp.SOCKET_FAMILIES)
    vsock = run(program, arch=ARCHES[machine], number=number, argument=socket.AF_VSOCK)
    assert refusal(vsock) == "EAFNOSUPPORT"


@pytest.mark.parametrize("machine", ARCHES)
def test_the_upper_half_of_a_family_does_not_hide_it(machine: str) -> None:
    """The kernel takes an int; what stands above must not make another family of it here."""
    argument = (7 << 32) | socket.AF_VSOCK
    answer = run(
        seccomp.filter_program(machine), arch=ARCHES[machine], number=SOCKET[machine], argument=argument
    )
    assert refusal(answer) == "EAFNOSUPPORT"


@pytest.mark.parametrize(
    ("machine", "arch", "number"),
    [
        ("x86_64", 0x40000003, 102),  # i386, socketcall
        ("x86_64", ARCHES["x86_64"], 0x40000000 + 41),  # x32, socket
        ("aarch64", 0x40000028, 281),  # 32-bit ARM, socket
    ],
)
def test_other_instruction_sets_have_no_system_calls(machine: str, arch: int, number: int) -> None:
    assert refusal(run(seccomp.filter_program(machine), arch=arch, number=number)) == "ENOSYS"


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(seccomp.UnsupportedArchitecture):
        seccomp.filter_program("vax")


LOOPBACK = "00000000000000000000000000000001 01 80 10 80       lo"
LINK_LOCAL = "fe800000000000000c5d9afffe2a4a4b 02 40 20 80     eth0"
GLOBAL = "fd00001000000000000000000000000a 02 40 00 80     eth0"


@pytest.mark.parametrize(
    ("addresses", "has_ipv6"),
    [
        ([], False),
        ([LOOPBACK], False),
        ([LOOPBACK, LINK_LOCAL], False),
        ([LINK_LOCAL, GLOBAL, LOOPBACK], True),
    ],
)
def test_a_pod_has_ipv6_when_an_address_leads_beyond_the_link(addresses: list[str], has_ipv6: bool) -> None:
    families = seccomp.families_of_pod("".join(f"{line}\n" for line in addresses))
    others = {socket.AF_UNIX, socket.AF_INET, socket.AF_NETLINK}
    assert set(families) == (others | {socket.AF_INET6} if has_ipv6 else others)


@pytest.mark.parametrize("machine", ARCHES)
def test_a_family_that_a_pod_does_not_need_is_refused(machine: str) -> None:
    program = seccomp.filter_program(machine, seccomp.families_of_pod(""))
    answers = {
        family: run(program, arch=ARCHES[machine], number=SOCKET[machine], argument=family)
        for family in seccomp.SOCKET_FAMILIES
    }
    assert refusal(answers.pop(socket.AF_INET6)) == "EAFNOSUPPORT"
    assert set(answers.values()) == {ALLOW}


def test_what_is_under_the_filter_stays_there_with_all_that_it_starts() -> None:
    attempts = """
import errno, socket
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_VSOCK):
    try:
        socket.socket(family).close()
        print("made")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
    program = f"""
import subprocess, sys
from sandbox_agent import seccomp
seccomp.load(seccomp.filter_program(families=seccomp.families_of_pod("")))
{attempts}
sys.stdout.flush()
subprocess.run([sys.executable, "-c", {attempts!r}], check=True)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["made", "EAFNOSUPPORT", "EAFNOSUPPORT"] * 2


def test_without_ipv6_the_agent_listens_on_ipv4() -> None:
    program = """
from sandbox_agent import http_server, seccomp
seccomp.load(seccomp.filter_program(families=seccomp.families_of_pod("")))
print(http_server.listen(None, 0).family.name)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "AF_INET\n"
