"""What programs that serve an instance in a cluster have in common: their options, where and who they are."""

import argparse
import uuid
from collections.abc import Mapping
from pathlib import Path

from lightkube.config.kubeconfig import SingleConfig
from lightkube.core.exceptions import ConfigError

from cli_mcp.program import CannotStart
from mcp_server.agents.signing import InvalidSessionKeys

CANNOT_START = (CannotStart, ConfigError, InvalidSessionKeys)
"""What is wrong with their arguments or files; each says so in words for whoever starts them."""


def add_instance_options(parser: argparse.ArgumentParser) -> None:
    """--instance, --namespace, --session-keys and --kubeconfig."""
    parser.add_argument("--instance", required=True, metavar="NAME", help="whose sandboxes it serves")
    parser.add_argument(
        "--namespace", metavar="NAME", help="of the instance (default: $POD_NAMESPACE, or the kubeconfig's)"
    )
    parser.add_argument(
        "--session-keys",
        type=Path,
        required=True,
        metavar="FILE",
        help="session-keys.json of the Secret cli-mcp-NAME-session-key; a changed file is taken over",
    )
    parser.add_argument("--kubeconfig", type=Path, metavar="FILE", help="default: the pod's, or $KUBECONFIG")


def namespace_of(asked: str | None, config: SingleConfig, environment: Mapping[str, str]) -> str:
    """The instance's namespace: what --namespace asks for, the pod's own, or the kubeconfig's."""
    return asked or environment.get("POD_NAMESPACE") or config.namespace


def issuer_of(environment: Mapping[str, str]) -> str:
    """The name of this process in calls to agents, for their logs only: what counts is the signature."""
    return environment.get("POD_UID") or f"outside-{uuid.uuid4()}"
