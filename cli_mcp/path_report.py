"""What a call would meet on its way, as the MCP server finds it and as the hooks put it into conditions.

Each replica of the server writes its own report under the name of its pod into the ConfigMap
`cli-mcp-<instance>-path`. There is no time in it: while nothing changes, nothing is written.
"""

from collections.abc import Iterable
from enum import StrEnum

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, alias_generator=to_camel, validate_by_name=True)


class TargetKind(StrEnum):
    KUBERNETES = "kubernetes"
    ALLOWLIST = "allowlist"


class TargetState(_Model):
    """What the proxy gets from `endpoint`, host:port. `problem` is empty while a request would be answered;
    `remedy` says what an admin can do."""

    endpoint: str
    kind: TargetKind
    credential_refused: bool = False
    problem: str = ""
    remedy: str = ""


class TargetStates(_Model):
    """The proxy's answer at /targets; no targets before it has looked for the first time."""

    targets: tuple[TargetState, ...] = ()


class PathReport(_Model):
    """`unreachable` has a sentence for each part of the instance that the server does not reach."""

    targets: tuple[TargetState, ...] = ()
    unreachable: tuple[str, ...] = ()


def merged(states: Iterable[TargetState]) -> tuple[TargetState, ...]:
    """One state for each target, by name: who has a problem with it outweighs who has not."""
    found: dict[str, TargetState] = {}
    for state in states:
        known = found.get(state.endpoint)
        if known is None or (state.problem and not known.problem):
            found[state.endpoint] = state
    return tuple(found[endpoint] for endpoint in sorted(found))
