"""What the installation decides for all instances: images and platform, from the environment."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Platform = Literal["generic", "openshift"]


class InvalidSettings(ValueError):
    """A variable has a value that means nothing."""


@dataclass(frozen=True, slots=True)
class Settings:
    """`image` runs server, proxy and SSH gateway; `sandbox_image` is the default for sandboxes and carries
    the agent that is copied into every other image."""

    image: str
    sandbox_image: str
    platform: Platform = "generic"


DEFAULT_IMAGE = "quay.io/cli-mcp/cli-mcp:0.1.0"
DEFAULT_SANDBOX_IMAGE = "quay.io/cli-mcp/sandbox:0.1.0"


def settings_from(environment: Mapping[str, str]) -> Settings:
    """CLI_MCP_IMAGE, CLI_MCP_SANDBOX_IMAGE and CLI_MCP_PLATFORM (generic or openshift). Raises
    InvalidSettings."""
    platform = environment.get("CLI_MCP_PLATFORM", "generic")
    if platform not in ("generic", "openshift"):
        raise InvalidSettings(f"CLI_MCP_PLATFORM is {platform!r}; use generic or openshift")
    return Settings(
        image=environment.get("CLI_MCP_IMAGE") or DEFAULT_IMAGE,
        sandbox_image=environment.get("CLI_MCP_SANDBOX_IMAGE") or DEFAULT_SANDBOX_IMAGE,
        platform="openshift" if platform == "openshift" else "generic",
    )
