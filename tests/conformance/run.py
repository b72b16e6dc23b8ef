"""Runs the MCP conformance suite against the server, for each protocol era; exit status 0 when both pass.

The baselines beside this file list what a server with one tool does not have. A scenario that fails without
being listed, or passes although it is, makes the run fail. Needs Node.js 22 or newer in PATH.
"""

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

from mcp_server.authentication import NoAuthentication
from tests.mcp_server.fake_backend import running_server

HERE = Path(__file__).parent
SUITE = HERE / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
SPEC_VERSIONS = ("2025-11-25", "2026-07-28")


async def main() -> int:
    if not SUITE.exists():
        # With the lock file: the same suite every time.
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=HERE, check=True)
    async with running_server(authenticator=NoAuthentication()) as server:
        statuses = [await run_suite(server.url, version) for version in SPEC_VERSIONS]
    return max(statuses)


async def run_suite(url: str, spec_version: str) -> int:
    """The suite's exit status for one version of the specification."""
    with tempfile.TemporaryDirectory() as results:
        suite = await asyncio.create_subprocess_exec(
            "node",
            SUITE,
            "server",
            *("--url", url),
            *("--suite", "all"),
            *("--spec-version", spec_version),
            *("--expected-failures", HERE / f"baseline-all-{spec_version}.yml"),
            *("-o", results),
        )
        return await suite.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
