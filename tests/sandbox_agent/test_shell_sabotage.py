"""Whatever a command does to its shell, the next one is answered in time, with the state from before."""

import time

import pytest

from sandbox_agent import shell
from tests.sandbox_agent.conftest import TestSession

SABOTAGE = {
    "function-builtin": "builtin() { :; }",
    "functions-named-like-builtins": "eval() { :; }; command() { :; }; declare() { :; }; set() { :; }",
    "function-report": "__cli_mcp_report() { :; }; __cli_mcp_status() { :; }",
    "unset-report": "unset -f __cli_mcp_report __cli_mcp_status",
    "alias-report": "alias __cli_mcp_report=false __cli_mcp_status=false builtin=false .=false",
    "disabled-printf": "enable -n printf",
    "disabled-builtin": "enable -n builtin",
    "disabled-source": "enable -n . source",
    "all-disabled": "enable -n $(enable | cut -d' ' -f2)",
    "readonly-everything": "for v in $(compgen -v); do readonly $v 2>/dev/null; done",
    "odd-ifs": "IFS=0123456789abcdef",
    "noexec": "set -n",
    "noglob-noclobber": "set -f; set -C",
    "verbose-and-xtrace": "set -vx; PS4='$(sleep 0.01)+'",
    "xtrace-into-control": "for n in {3..255}; do BASH_XTRACEFD=$n; done 2>/dev/null; set -x",
    "posix": "set -o posix",
    "onecmd": "set -t",
    "errexit": "set -e",
    "errexit-then-false": "set -e; false",
    "nounset": "set -u; echo $NOT_THERE",
    "no-job-control": "set +m",
    "debug-trap": "trap 'echo debug; false' DEBUG",
    "debug-trap-that-skips": "shopt -s extdebug; trap false DEBUG",
    "err-trap-that-exits": "trap 'exit 3' ERR; false",
    "return-trap": "set -T; trap 'return 5' RETURN",
    "exit-trap-that-hangs": "trap 'sleep 100' EXIT; exit",
    "exit-trap-that-spins": "trap 'while :; do :; done' EXIT; exit",
    "signals-ignored": "trap '' INT TERM HUP QUIT",
    "chld-trap": "trap 'echo child' CHLD; /bin/true",
    "prompt-command": "PROMPT_COMMAND='sleep 0.1'; PS1='$(echo prompt)'",
    "prompt-command-that-exits": "PROMPT_COMMAND='exit 4'",
    "tmout": "TMOUT=1; sleep 1.5",
    "exit": "exit 7",
    "exit-in-subshell": "(exit 7)",
    "logout": "logout",
    "exec-missing": "exec /no/such/program",
    "exec-true": "exec true",
    "exec-closes-all": "for n in {0..255}; do eval \"exec $n>&-\"; done",
    "exec-replaces-all": "for n in {3..255}; do eval \"exec $n</dev/null\"; done 2>/dev/null",
    "kill-shell": "kill -9 $$",
    "kill-shell-later": "(sleep 0.2; kill -9 $$) & disown",
    "kill-group": "kill 0",
    "kill-all-of-the-group": "kill -9 0",
    "segv": "kill -SEGV $$",
    "hup": "kill -HUP $$",
    "stop-supervisor": "kill -STOP $PPID",
    "kill-supervisor": "kill -9 $PPID",
    "steal-requests": "(timeout 1 cat /proc/$$/fd/0 >/dev/null &) ; sleep 0.2",
    "steal-start": "timeout 3 cat /proc/$PPID/fd/0 >/dev/null & sleep 0.2; exit",
    "forge-reports": r"for f in /proc/$$/fd/*; do printf '\0a 0 1\0/\0x\0x\0x\0x\0a.' >$f; done 2>&-",
    "noise-on-control": "for f in /proc/$$/fd/*; do head -c 3000000 /dev/zero >$f; done 2>/dev/null",
    "noise-on-control-later": "for f in /proc/$$/fd/*; do timeout 2 cat /dev/zero >$f & done 2>/dev/null",
    "no-descriptors": "ulimit -n 4",
    "no-processes": "ulimit -u 1; /bin/true",
    "no-file-size": "ulimit -f 0; echo x >file",
    "little-memory": "ulimit -v 1000; /bin/true",
    "deleted-directory": "mkdir gone && cd gone && rmdir ../gone",
    "unreadable-directory": "mkdir dark && cd dark && chmod 000 .",
    "deep-recursion": "f() { f; }; f",
    "endless-source": "echo '. ./loop' >loop; . ./loop",
    "unterminated": "cat <<EOF\n$(echo 'x",
    "history-expansion": "set -o history -H; echo '!!'",
    "suspend": "suspend -f & sleep 0.1; kill -CONT %1 2>/dev/null",
    "path": "PATH=/nowhere",
    "locale": "LC_ALL=C; LANG=tr_TR.UTF-8; LC_NUMERIC=de_DE.UTF-8",
    "binary-variable": r"X=$'\x01\xff\xfe\n\e[31m'; declare -A M=([$'a\nb']=$'c\nd')",
    "confusing-values": "X=$'\\ndeclare -r Y=1\\nset -o errexit\\n'; f() { echo 'declare -x Z'; }",
    "coproc": "coproc sleep 0.3",
    "hash": "hash -p /bin/false true; hash -p /bin/false rm",
    "exported-function": "export -f f 2>/dev/null; f() { echo f; }; export -f f",
    "nameref": "declare -n ref=STATE; declare -n self=self 2>/dev/null",
    "lastpipe": "shopt -s lastpipe; set +m; echo x | read y",
    "remove-exchange": "rm -rf ../../exchange",
    "close-exchange": "chmod 000 ../../exchange",
    "replace-exchange": "rm -rf ../../exchange; ln -s /etc ../../exchange",
    "replace-exchange-by-a-file": "rm -rf ../../exchange; touch ../../exchange",
}  # fmt: skip


@pytest.fixture(autouse=True)
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, seconds in (("_START_SECONDS", 2.0), ("_ASK_SECONDS", 0.2), ("_SILENCE_SECONDS", 0.6)):
        monkeypatch.setattr(shell, name, seconds)


@pytest.mark.parametrize("command", SABOTAGE.values(), ids=SABOTAGE.keys())
async def test_the_next_command_answers_with_the_state(session: TestSession, command: str) -> None:
    assert (await session.sh('STATE=kept; mkdir here; cd here; s() { echo "$STATE"; }')).exit_code == 0
    began = time.monotonic()
    await session.sh(command, timeout_seconds=1.5)
    assert time.monotonic() - began < 10
    for _ in range(2):
        outcome = await session.sh_after_attack('\\builtin echo "[$STATE]"', 5)
        assert b"[kept]\n" in outcome.stdout.head, outcome
        assert not outcome.timed_out, outcome
