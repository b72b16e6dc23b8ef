"""SSH in local mode: the gateway beside the HTTP server, with files in place of Secrets.

The keys of a route are in `<name of its Secret>/authorized_keys` below --secrets-dir. The host key is that of
hostKeySecret, or one that is made once and kept in the state directory.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from starlette.applications import Starlette

from cli_mcp.api.instance import CliMcpInstance, Ssh
from cli_mcp.audit_budget import BudgetedLog
from local_runtime.sessions import LocalSessions
from local_runtime.state import StateDirectory
from mcp_server.app import calls_of, tool_calls_of
from mcp_server.catalogue import ALL_GROUPS, Offering, offer
from ssh_gateway.access import ACCESS_FILE, Access, example_username, to_json
from ssh_gateway.audit import write_audit_to
from ssh_gateway.authorization import AUTHORIZED_KEYS_FILE, Authorizer
from ssh_gateway.gateway import SESSION_HINT, Gateway
from ssh_gateway.host_key import HostKey, HostKeyProblem, load_host_key, load_or_make_host_key

HOST_KEY_FILE = "ssh_host_ed25519_key"
# What is no address to connect to.
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared with, not bound to


class SshProblem(Exception):
    """SSH cannot be served as the instance asks; the message says what is missing."""


class LocalSsh:
    """What `--ssh` needs, checked before anything starts. The constructor raises SshProblem."""

    def __init__(self, instance: CliMcpInstance, secrets_dir: Path | None, state: StateDirectory) -> None:
        if instance.spec.ssh is None:
            raise SshProblem(
                "--ssh needs spec.ssh.routes in the instance: who may log in, and whose keys count"
            )
        self.name = instance.metadata.name
        self.spec = instance.spec.ssh
        self._secrets_dir = _keys_directory(self.spec, secrets_dir)
        self._state = state
        self.host_key = _host_key(self.spec, self._secrets_dir, state)

    def gateway(
        self, app: Starlette, sessions: LocalSessions, offering: Callable[[], Offering], audit: BudgetedLog
    ) -> Gateway:
        """The gateway for the sessions that `app` serves over HTTP."""
        return Gateway(
            tool_calls_of(app),
            offer(lambda: replace(offering(), groups=ALL_GROUPS), SESSION_HINT),
            calls_of(app),
            sessions.hold,
            Authorizer(lambda: self.spec.routes, self._secrets_dir, lambda: datetime.now(UTC)),
            self.host_key,
            write_audit_to(audit),
        )

    def publish(self, host: str, port: int) -> Access:
        """Say, to `cli-mcp ssh-config` too, how clients get in."""
        access = Access(
            instance=self.name,
            host=_ANY_ADDRESS.get(host, host),
            port=port,
            public_key=self.host_key.public_key,
            fingerprint=self.host_key.fingerprint,
            username=example_username([route.username for route in self.spec.routes]),
        )
        (self._state.path / ACCESS_FILE).write_text(f"{to_json(access)}\n")
        return access


def _keys_directory(spec: Ssh, secrets_dir: Path | None) -> Path:
    """Raises SshProblem."""
    if secrets_dir is None:
        raise SshProblem(
            "--ssh needs --secrets-dir DIR, with the keys of each route in "
            f"DIR/{spec.routes[0].authorized_keys_secret}/{AUTHORIZED_KEYS_FILE}"
        )
    for route in spec.routes:
        file = secrets_dir / route.authorized_keys_secret / AUTHORIZED_KEYS_FILE
        if not file.is_file():
            raise SshProblem(f"there is no {file}, which lists the public keys of a route of spec.ssh")
    return secrets_dir


def _host_key(spec: Ssh, secrets_dir: Path, state: StateDirectory) -> HostKey:
    """Raises SshProblem."""
    try:
        if spec.host_key_secret is not None:
            return load_host_key(secrets_dir / spec.host_key_secret / HOST_KEY_FILE)
        return load_or_make_host_key(state.path / HOST_KEY_FILE)
    except (HostKeyProblem, OSError) as error:
        raise SshProblem(str(error)) from None
