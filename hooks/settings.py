"""What the installation decides for all instances: images, platform, how callers are authenticated."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

Platform = Literal["generic", "openshift"]
CallerAuthentication = Literal["self-review", "token-review"]


class InvalidSettings(ValueError):
    """A variable has a value that means nothing."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`image` runs server, proxy and SSH gateway; `sandbox_image` is the default for sandboxes and carries
    the agent that is copied into every other image. The MCP servers ask about callers with the callers' own
    tokens (self-review), or with a right of their own about tokens that are made for them (token-review)."""

    image: str
    sandbox_image: str
    platform: Platform = "generic"
    caller_authentication: CallerAuthentication = "self-review"


DEFAULT_IMAGE = "quay.io/cli-mcp/cli-mcp:0.1.0"
DEFAULT_SANDBOX_IMAGE = "quay.io/cli-mcp/sandbox:0.1.0"


def settings_from(environment: Mapping[str, str]) -> Settings:
    """CLI_MCP_IMAGE, CLI_MCP_SANDBOX_IMAGE, CLI_MCP_PLATFORM (generic or openshift) and
    CLI_MCP_CALLER_AUTHENTICATION (self-review or token-review). Raises InvalidSettings."""
    return Settings(
        image=environment.get("CLI_MCP_IMAGE") or DEFAULT_IMAGE,
        sandbox_image=environment.get("CLI_MCP_SANDBOX_IMAGE") or DEFAULT_SANDBOX_IMAGE,
        platform=_one_of(environment, "CLI_MCP_PLATFORM", get_args(Platform)),
        caller_authentication=_one_of(
            environment, "CLI_MCP_CALLER_AUTHENTICATION", get_args(CallerAuthentication)
        ),
    )


T = TypeVar("T", bound=str)


def _one_of(environment: Mapping[str, str], variable: str, values: tuple[T, ...]) -> T:
    """The first of `values` unless the variable says another. Raises InvalidSettings."""
    found = environment.get(variable, values[0])
    for value in values:
        if value == found:
            return value
    raise InvalidSettings(f"{variable} is {found!r}; use {' or '.join(values)}")
