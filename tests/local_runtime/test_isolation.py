"""What is found wrong with a process that should be a sandbox's first."""

import pytest

from local_runtime import isolation
from local_runtime.isolation import NAMESPACES, Namespaces

HOST = Namespaces(dict.fromkeys(NAMESPACES, 1))
SANDBOX = Namespaces({name: 100 + number for number, name in enumerate(NAMESPACES)})
REPORTED = {name: inode for name, inode in SANDBOX.inodes.items() if name != "user"}

GOOD = """\
Name:\tbash
Uid:\t1900000001\t1900000001\t1900000001\t1900000001
NSpid:\t4711\t1
CapInh:\t0000000000000000
CapPrm:\t0000000000000000
CapEff:\t0000000000000000
CapBnd:\t0000000000000000
CapAmb:\t0000000000000000
NoNewPrivs:\t1
Seccomp:\t2
"""


def test_namespaces_of_its_own_are_right() -> None:
    assert isolation.namespace_faults(SANDBOX, HOST, REPORTED) == []


@pytest.mark.parametrize("name", NAMESPACES)
def test_a_namespace_that_is_shared_with_the_host_is_found(name: str) -> None:
    shared = Namespaces({**SANDBOX.inodes, name: 1})
    assert f"shares the {name} namespace of the host" in isolation.namespace_faults(shared, HOST, {})


@pytest.mark.parametrize("name", REPORTED)
def test_a_process_in_other_namespaces_than_reported_is_found(name: str) -> None:
    faults = isolation.namespace_faults(SANDBOX, HOST, {**REPORTED, name: 999})
    assert faults == [f"is not in the {name} namespace that was made for it"]


@pytest.mark.parametrize("missing", REPORTED)
def test_a_report_without_a_namespace_is_refused(missing: str) -> None:
    info: dict[str, object] = {f"{name}-namespace": inode for name, inode in REPORTED.items()}
    assert isolation.reported_namespaces(info) == REPORTED
    del info[f"{missing}-namespace"]
    with pytest.raises(ValueError, match=missing):
        isolation.reported_namespaces(info)


def test_this_process_is_in_the_namespaces_of_the_host() -> None:
    here = isolation.namespaces_of("self")
    assert len(isolation.namespace_faults(here, here, {})) == len(NAMESPACES)


def test_a_process_without_privileges_is_right() -> None:
    assert isolation.privilege_faults(GOOD, uid=1_900_000_001) == []


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        *((f"{name}:\t0000000000000000", f"{name}:\t0000000000000001") for name in ("CapInh", "CapPrm")),
        *((f"{name}:\t0000000000000000", f"{name}:\t000001ffffffffff") for name in ("CapEff", "CapBnd")),
        ("CapAmb:\t0000000000000000", "CapAmb:\t0000000000200000"),
        ("NoNewPrivs:\t1", "NoNewPrivs:\t0"),
        ("Seccomp:\t2", "Seccomp:\t0"),
        ("NSpid:\t4711\t1", "NSpid:\t4711"),
        ("Uid:\t1900000001", "Uid:\t0"),
    ],
)
def test_a_privilege_too_many_is_found(good: str, bad: str) -> None:
    assert len(isolation.privilege_faults(GOOD.replace(good, bad), uid=1_900_000_001)) == 1
