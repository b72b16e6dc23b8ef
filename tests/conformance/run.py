"""Runs the MCP conformance suite against local mode, for each protocol era; exit status 0 when both pass.

The baselines beside this file list what a server with one tool does not have. A scenario that fails without
being listed, or passes although it is, makes the run fail. Needs Node.js 22 or newer in PATH.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.e2e_local.harness import running

HERE = Path(__file__).parent
SUITE = HERE / "node_modules/@modelcontextprotocol/conformance/dist/index.js"
SPEC_VERSIONS = ("2025-11-25", "2026-07-28")


def main() -> int:
    if not SUITE.exists():
        # `ci` keeps to the lock file: the same suite every time.
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=HERE, check=True)
    with running(arguments=("--no-auth",)) as server:
        return max(run_suite(server.url, version) for version in SPEC_VERSIONS)


def run_suite(url: str, spec_version: str) -> int:
    """The suite's exit status for one version of the specification."""
    with tempfile.TemporaryDirectory() as results:
        suite = ["node", str(SUITE), "server", "--url", url, "--suite", "all", "-o", results]
        baseline = HERE / f"baseline-all-{spec_version}.yml"
        suite += ["--spec-version", spec_version, "--expected-failures", str(baseline)]
        return subprocess.run(suite).returncode


if __name__ == "__main__":
    sys.exit(main())
