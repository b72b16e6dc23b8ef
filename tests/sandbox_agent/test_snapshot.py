import subprocess
from pathlib import Path

import pytest

from sandbox_agent.snapshot import Snapshot, restore_script


def restored(snapshot: Snapshot, then: str) -> str:
    """What `then` prints in a shell with the state of the snapshot."""
    bash = ["bash", "--norc", "--noprofile", "-O", "expand_aliases"]
    done = subprocess.run(bash, input=restore_script(snapshot) + then.encode(), capture_output=True)
    return done.stdout.decode()


@pytest.mark.parametrize(
    ("variables", "then", "printed"),
    [
        (b'declare -- A="1"\n', "echo $A", "1\n"),
        (b'declare -x A="1"\n', "bash -c 'echo $A'", "1\n"),
        (b'declare -- A="two\nlines"\n', 'echo "$A"', "two\nlines\n"),
        (b'declare -r A="1"\n', "A=2; echo $A", ""),
        (b'declare -r UID="1"\ndeclare -- A="1"\n', "echo $A", "1\n"),
        (b'declare -- TMOUT="1"\ndeclare -- A="1"\n', "echo $TMOUT$A", "1\n"),
        (b'declare -- BASH_XTRACEFD="1"\ndeclare -- A="1"\n', "set -x; echo $A", "1\n"),
        (b'declare -x PWD="/nowhere"\n', "echo $PWD", "/\n"),
        (b'declare -x OLDPWD="/usr"\n', "cd -", "/usr\n"),
        (b'declare -r OLDPWD="/usr"\n', "pwd", "/\n"),
        (b'declare -r BASHOPTS="extglob"\n', "shopt -q extglob && ! shopt -q sourcepath && echo on", "on\n"),
        (b'declare -r BASHOPTS="extdebug"\n', "shopt -q extdebug || echo off", "off\n"),
        (b'declare -r SHELLOPTS="noglob:nounset"\n', "echo * {a,b}; echo $X; echo on", "* {a,b}\n"),
        (b'declare -r SHELLOPTS="braceexpand:errexit:onecmd"\n', "false; echo {a,b}", "a b\n"),
        (b'declare -r BASHOPTS="x;touch injected"\n', "ls injected 2>/dev/null", ""),
        (b"garbage ( that ' does not parse\n", "echo on", ""),
    ],
)  # fmt: skip
def test_variables_and_options_come_back(variables: bytes, then: str, printed: str) -> None:
    snapshot = Snapshot(b"/", variables, b"", b"", b"")
    assert restored(snapshot, then) == printed


def test_directories_with_any_name_come_back(tmp_path: Path) -> None:
    for name in ("a b", "it's", "new\nline", "-dash", "$HOME `x`", "ünï"):
        (tmp_path / name).mkdir()
        assert restored(Snapshot(bytes(tmp_path / name), b"", b"", b"", b""), "pwd") == f"{tmp_path}/{name}\n"


def test_functions_are_defined_before_aliases_could_change_them() -> None:
    snapshot = Snapshot(
        b"/", b"", b"f () \n{ \n    x\n}\nx () { echo function; }\n", b"alias x='echo alias'\n", b""
    )
    assert restored(snapshot, "f; x") == "function\nalias\n"


def test_traps_do_not_fire_while_the_rest_is_restored() -> None:
    traps = b"umask 0027\ntrap -- 'echo bye' EXIT\ntrap -- 'exit 9' ERR\n"
    snapshot = Snapshot(b"/nowhere", b'declare -r UID="1"\n', b"", b"", traps)
    assert restored(snapshot, "umask") == "0027\nbye\n"


def test_a_snapshot_survives_as_bytes() -> None:
    snapshot = Snapshot(b"/x", b"v\xff\n", b"f", b"", b"umask 0\n")
    assert Snapshot.load(snapshot.dump()) == snapshot


@pytest.mark.parametrize("data", [b"", b"\0", b"\0" * 5, b"\0" * 3])
def test_other_bytes_are_no_snapshot(data: bytes) -> None:
    with pytest.raises(ValueError, match="snapshot"):
        Snapshot.load(data)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (b"declare -- X=1\ndeclare -- OLD_PS1=2\n", b""),
        (
            b'declare -- PS1="a"\ndeclare -- X=1\n',
            b"""\\builtin eval 'declare -- PS1="a"' || \\builtin :; """,
        ),
        (
            b'declare -- A=1\ndeclare -- PS0="it\'s\nPS2"\ndeclare -x PS2\n',
            b"""\\builtin eval 'declare -- PS0="it'"'"'s\nPS2"' || \\builtin :; """
            b"""\\builtin eval 'declare -x PS2' || \\builtin :; """,
        ),
        (b'declare -- PS1="' + b"x" * (1 << 15) + b'"\n', b""),
    ],
)
def test_prompts_are_set_by_text_that_fits_into_a_line(variables: bytes, expected: bytes) -> None:
    assert Snapshot(b"/", variables, b"", b"", b"").prompts() == expected
