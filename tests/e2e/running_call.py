"""A call that goes on while a test does something else."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.e2e.operator import eventually, kubectl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.instances import Instance
    from tests.e2e.mcp_client import McpClient
    from tests.e2e_local.harness import Answer

COMMAND_SECONDS = 300
# A command that writes down that it was interrupted; what would come after it in the shell does not run then.
UNTIL_INTERRUPTED = """python3 -c '
import time
try:
    time.sleep(120)
except KeyboardInterrupt:
    print("interrupted", file=open("seen", "w"))
'"""
_MARK = "/workspace/has-begun"


@contextmanager
def running_call(
    instance: Instance, client: McpClient, session: str, command: str
) -> Iterator[Future[Answer]]:
    """Its answer to come; entered once the command runs in the session's pod. `client` is busy meanwhile."""
    assert client.bash(session, f"rm -f {_MARK}").exit_code == 0
    (pod,) = instance.session_pods(session)
    has_begun = ("-n", instance.namespace, "exec", pod["metadata"]["name"], "--", "ls", _MARK)
    with ThreadPoolExecutor(1) as thread:
        answer = thread.submit(client.bash, session, f"touch {_MARK}; {command}", COMMAND_SECONDS)
        eventually(lambda: kubectl(*has_begun, check=False), 30)
        yield answer
