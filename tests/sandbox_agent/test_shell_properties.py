"""Random sequences of commands of every kind: the state is there after each of them, in time."""

import asyncio
import tempfile
import time
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandbox_agent.confined import ConfinedDirectory
from sandbox_agent.launch import DirectLauncher
from tests.sandbox_agent.conftest import ENVIRONMENT, TestSession, stdout

KINDS = st.sampled_from(
    [
        "printf abc", "echo 'hello", "cat <<EOF\nhello", "echo (", "if true; then", "exit 3",
        "exec echo gone",
        "set -e; false; echo no", "set -u; echo $NOT_SET", "exec >/dev/null; echo hidden", "kill -9 $$",
        "sleep 9; echo after", "while :; do :; done", "sleep 9 & echo go", "(sleep 0.1; printf noise) &",
        "timeout 1 yes & echo started", "cat; read x; echo $x", r"printf '\xff\x00'", "seq 1 30000",
        "echo() { :; }; printf() { :; }", "(exit 7)", "# nothing", "trap 'echo bye' EXIT; echo a",
        "set -x; echo b; set +x", "kill -STOP $$", "return 4", "false", "kill -9 $PPID", "kill %1; wait",
        "trap '' INT; sleep 9", "setsid sleep 9 &", "kill 0", "shopt -s extdebug", "set +m", "disown -a",
        "trap 'x=$((x+1))' ERR; false", "cd /; cd -", "exec 9>&1", "IFS=/", "bash -ic 'sleep 9'",
    ]
)  # fmt: skip
SETTINGS = settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    derandomize=False,
)


@SETTINGS
@given(st.lists(st.tuples(KINDS, st.sampled_from([0.15, 0.3])), min_size=1, max_size=8))
def test_the_state_is_there_after_any_command(steps: list[tuple[str, float]]) -> None:
    asyncio.run(run(steps))


async def run(steps: list[tuple[str, float]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        for name in ("exchange", "workspace"):
            Path(directory, name).mkdir()
        with ConfinedDirectory(Path(directory, "workspace")) as workspace:
            launcher = DirectLauncher(Path(directory, "exchange"), Path(directory, "workspace"), ENVIRONMENT)
            session = TestSession(launcher, workspace)
            await session.start()
            try:
                for number, (command, timeout_seconds) in enumerate(steps):
                    # Set in a command of its own: what a command that costs the shell changed itself is lost.
                    await session.sh(f"STATE={number}")
                    await session.sh(command, timeout_seconds)
                    began = time.monotonic()
                    outcome = await session.sh_after_attack('\\builtin echo "$STATE"', 10)
                    assert stdout(outcome) == f"{number}\n"
                    assert time.monotonic() - began < 10
            finally:
                await session.close("over")
