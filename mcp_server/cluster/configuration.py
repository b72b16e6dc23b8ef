"""sandbox.json as the hooks wrote it last: the template of sandboxes, their limits, and the gate."""

import logging

from pydantic import ValidationError

from cli_mcp.names import SANDBOX_CONFIG_KEY
from cli_mcp.sandbox_config import CommandLimits, SandboxConfig, SessionLimits
from mcp_server.cluster.kubernetes import Object

logger = logging.getLogger(__name__)

# What holds for sessions while nobody has said anything: the API's default idleTimeout.
_DEFAULT_LIMITS = SessionLimits(idle_timeout_seconds=1800.0)


class Configuration:
    """The audience of a watch on the one ConfigMap that is called `name`.

    A ConfigMap that goes, or that cannot be read, closes the gate; the owner and the limits that were known
    last go on to hold for the sessions that there are.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._current: SandboxConfig | None = None
        self._trouble = f"ConfigMap {name} has not been read yet"

    @property
    def current(self) -> SandboxConfig | None:
        """None until it could be read once."""
        return self._current

    @property
    def limits(self) -> SessionLimits:
        return self._current.limits if self._current else _DEFAULT_LIMITS

    @property
    def commands(self) -> CommandLimits:
        return self._current.commands if self._current else CommandLimits()

    @property
    def controller_uid(self) -> str:
        """The uid of the instance; one that no object has while it is not known."""
        return self._current.owner_reference.get("uid", "") if self._current else "unknown"

    def closed_because(self) -> str:
        """Why no sandbox may be claimed or made; "" when it may."""
        if self._trouble or self._current is None:
            return self._trouble
        if not self._current.gate.open:
            return self._current.gate.reason or "the instance's gate is closed"
        if self._current.template is None or self._current.pool_hash is None:
            return "the template of sandboxes is not known yet"
        return ""

    def listed(self, items: list[Object], revision: str) -> None:
        if items:
            self.changed("ADDED", items[0])
        else:
            self._trouble = f"ConfigMap {self._name} does not exist"

    def changed(self, event: str, item: Object) -> None:
        if event == "DELETED":
            self._trouble = f"ConfigMap {self._name} has been deleted"
            return
        try:
            self._current = SandboxConfig.model_validate_json(
                (item.get("data") or {}).get(SANDBOX_CONFIG_KEY, "")
            )
            self._trouble = ""
        except ValidationError as error:
            logger.error("ConfigMap %s: %s", self._name, error)
            self._trouble = f"{SANDBOX_CONFIG_KEY} in ConfigMap {self._name} cannot be read by this version"
