"""`cli-mcp doctor`: prints the findings, the problems with their remedies."""

import sys

from cli_mcp.arguments import ArgumentParser
from cli_mcp.doctor.checks import Finding, Level, examine
from cli_mcp.doctor.gather import NoCluster, connected, gather

_EXIT_HEALTHY = 0
_EXIT_PROBLEMS = 1
_EXIT_NO_CLUSTER = 2
_LEVEL_WIDTH = max(map(len, Level))


def shown(finding: Finding) -> str:
    line = f"{finding.level:<{_LEVEL_WIDTH}}  {finding.subject}: {finding.text}"
    return f"{line}\n{'':<{_LEVEL_WIDTH}}  {finding.remedy}" if finding.remedy else line


def main(arguments: list[str]) -> int:
    """Exit status: 0 no problem (warnings allowed), 1 problems, 2 the cluster gives no answer."""
    options = _parser().parse_args(arguments)
    try:
        with connected(options.kubeconfig, options.context) as client:
            findings = examine(gather(client))
    except NoCluster as error:
        print(f"cli-mcp doctor: {error}", file=sys.stderr)
        return _EXIT_NO_CLUSTER
    for finding in findings:
        print(shown(finding))
    return _EXIT_PROBLEMS if any(it.level is Level.PROBLEM for it in findings) else _EXIT_HEALTHY


def _parser() -> ArgumentParser:
    parser = ArgumentParser(
        prog="cli-mcp doctor",
        description="Check an installation in a cluster: versions, Metacontroller, admission, instances.",
        epilog="It only reads. Exit status: 0 no problem, 1 problems, 2 the cluster gives no answer.",
    )
    parser.add_argument("--kubeconfig", metavar="FILE", help="KUBECONFIG or ~/.kube/config when left out")
    parser.add_argument("--context", metavar="NAME", help="the kubeconfig's current one when left out")
    return parser
