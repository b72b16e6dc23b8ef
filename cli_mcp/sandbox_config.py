"""sandbox.json: what the hooks tell the MCP server (and the SSH gateway) about sandboxes.

Written by the hooks into the ConfigMap `cli-mcp-<instance>`, which the server watches through the API; a
mounted file would lag by more than a minute.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from cli_mcp.execution import DEFAULT_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS, STREAM_LIMIT_BYTES


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, validate_by_name=True)


class Gate(_Model):
    """Whether sandboxes may be claimed and created. `reason` is for a caller who is refused."""

    open: bool
    reason: str = ""


class SessionLimits(_Model):
    """Seconds and counts of spec.sandbox; None is no limit."""

    idle_timeout_seconds: float
    max_sessions: int | None = None
    max_sessions_per_owner: int | None = None
    max_lifetime_seconds: float | None = None


class CommandLimits(_Model):
    """spec.sandbox.commandTimeout and outputLimit, the latter in bytes of each stream in a result."""

    default_seconds: float = DEFAULT_TIMEOUT_SECONDS
    max_seconds: float = MAX_TIMEOUT_SECONDS
    output_bytes: int = STREAM_LIMIT_BYTES


class SandboxConfig(_Model):
    """`template` and `pool_hash` are None while not even the template is known; then the gate is closed.

    `template` is a Pod without a name. A pod made from it gets a name and `owner_reference`; and when
    `workspace_claim`, a PersistentVolumeClaim without a name, is there, a claim of the pod's name, which then
    stands in place of the claim name in the volume `workspace`. `reach` has a text for each endpoint that the
    proxy lets sandboxes through to.
    """

    version: Literal[1] = 1
    gate: Gate
    pool_hash: str | None
    template: dict[str, Any] | None
    owner_reference: dict[str, Any]
    limits: SessionLimits
    commands: CommandLimits = CommandLimits()
    tools: tuple[str, ...]
    reach: tuple[str, ...] = ()
    workspace_claim: dict[str, Any] | None = None
    default_session: Literal["perCaller", "refuse"] = "perCaller"
