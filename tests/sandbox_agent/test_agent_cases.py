"""All of tests/data/shell.yaml over a real agent's HTTP, each case in an agent of its own."""

import asyncio
import time

from cli_mcp.agent_api import Failure, Finished
from tests.sandbox_agent.running_agent import RunningAgent, SignedClient, agent_directory, free_port
from tests.shell_cases import Case, Observed, command_of, load_cases, problems

_AT_ONCE = 4


async def test_every_case_holds() -> None:
    places = asyncio.Semaphore(_AT_ONCE)

    async def run(case: Case) -> list[str]:
        async with places:
            return await problems_of(case)

    found = await asyncio.gather(*map(run, load_cases()))
    assert [problem for case in found for problem in case] == []


async def problems_of(case: Case) -> list[str]:
    wrong: list[str] = []
    saved: dict[str, str] = {}
    with agent_directory() as directory:
        agent = RunningAgent(directory, free_port())
        agent.start()
        try:
            async with SignedClient(agent) as client:
                for number, step in enumerate(case.steps, 1):
                    if "tool_error_has" in step:
                        continue  # the MCP server does not send an empty command
                    seen = await observed(client, command_of(step, saved), step.get("timeout", 60))
                    wrong += [f"{case.id}, step {number}: {problem}" for problem in problems(step, seen)]
                    if "save_path" in step and seen.output_file is not None:
                        saved[step["save_path"]] = seen.output_file
        finally:
            agent.close()
    return wrong


async def observed(client: SignedClient, command: str, timeout_seconds: float) -> Observed:
    began = time.monotonic()
    event = await client.last_event(command, timeout_seconds)
    seconds = time.monotonic() - began
    if isinstance(event, Failure):
        return Observed(seconds, is_error=True, tool_error=event.message)
    assert isinstance(event, Finished)
    outcome = event.outcome
    return Observed(
        seconds,
        outcome.exit_code != 0,
        exit_code=outcome.exit_code,
        stdout=outcome.stdout.head + outcome.stdout.tail,
        stderr=outcome.stderr.head + outcome.stderr.tail,
        timed_out=outcome.timed_out,
        truncated=outcome.stdout.truncated or outcome.stderr.truncated,
        shell_restarted=outcome.shell_restarted,
        background=outcome.background,
        output_file=outcome.stdout.file or outcome.stderr.file,
    )
