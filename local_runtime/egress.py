"""The way out of local mode's sandboxes: one credential proxy that listens on the loopback of each of them.

The listener that a connection came in by says which session it is. Nothing in the sandbox identifies it, so
there is nothing to steal: a real credential never leaves this process.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from prometheus_client import CollectorRegistry

from cli_mcp.api.instance import CliMcpInstance
from cli_mcp.authority import CERTIFICATE_FILE, KEY_FILE, generate_authority
from cli_mcp.kubeconfig import (
    InvalidKubeconfig,
    Kubeconfig,
    dummy_kubeconfig,
    parse_kubeconfig,
)
from cli_mcp.mounted import fingerprint
from cli_mcp.names import CA_PATH, KUBECONFIG_KEY, KUBECONFIG_PATH
from cli_mcp.proxy_config import (
    AllowlistRouteConfig,
    InvalidProxyConfig,
    ProxyConfig,
    UpstreamConfig,
    proxy_config,
)
from cli_mcp.sandbox_environment import sandbox_environment
from cred_proxy.audit import AuditSink
from cred_proxy.certificates import InvalidAuthority, parse_authorities
from cred_proxy.proxy import ClientIdentity, CredentialProxy, Listener
from cred_proxy.reload import follow
from cred_proxy.routes import InvalidRoutes, build_routes
from cred_proxy.sources import InvalidSource, Routing, authorities_from_directory
from local_runtime.environment import NoSuchFile, SecretFiles
from local_runtime.netns import NetworkNamespaces
from local_runtime.netns_helper import LISTEN_ADDRESS
from local_runtime.state import StateDirectory
from sandbox_agent.refused_requests import MOST_NOTES

log = logging.getLogger(__name__)

# Renewed at a start, when no session has the old authority any more.
RENEWED_BEFORE_EXPIRY = timedelta(days=30)
_PROXY_URL = "http://{}:{}".format(*LISTEN_ADDRESS)
# Where clients look for authorities that no variable can tell, such as wget with GnuTLS. Nobody but the proxy
# can be reached, so that its own are all that is of use there.
_SYSTEM_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Fedora
)
_UNCLAIMED = ClientIdentity("unclaimed")


class EgressProblem(Exception):
    """The instance's way out cannot be set up; the message names the field or file, and the remedy."""


@dataclass(frozen=True, slots=True)
class Reach:
    """What the sandboxes may reach now."""

    config: ProxyConfig
    kubeconfig: Kubeconfig | None

    def hosts(self) -> set[str]:
        return {route.host for route in (*self.config.kubernetes, *self.config.allowlist)}


def read_reach(instance: CliMcpInstance, files: SecretFiles) -> Reach:
    """The routes of the instance's targets, with the kubeconfig as it is on the disk now.

    Raises EgressProblem.
    """
    proxy = instance.spec.proxy
    if proxy is None:
        return Reach(ProxyConfig(), None)
    kubeconfig = _kubeconfig(instance, files)
    allowlist = [
        AllowlistRouteConfig(host=endpoint.host, port=endpoint.port, allow_upgrades=target.allow_upgrades)
        for target in proxy.targets
        for endpoint in target.endpoints
    ]
    upstream = (
        UpstreamConfig(http_proxy=proxy.upstream.http_proxy, ca_bundle=proxy.upstream.ca_bundle)
        if proxy.upstream
        else None
    )
    servers = kubeconfig.servers if kubeconfig else ()
    try:
        return Reach(proxy_config(servers, allowlist, upstream), kubeconfig)
    except InvalidProxyConfig as error:
        raise EgressProblem(f"spec.proxy: {error}") from None


def _kubeconfig(instance: CliMcpInstance, files: SecretFiles) -> Kubeconfig | None:
    secret = instance.kubeconfig_secret_name
    if secret is None:
        return None
    place = f"{files.directory or 'DIR'}/{secret}/{KUBECONFIG_KEY}"
    try:
        kubeconfig = parse_kubeconfig(files.read(secret, KUBECONFIG_KEY))
    except NoSuchFile:
        remedy = "" if files.directory else " and start with --secrets-dir DIR"
        raise EgressProblem(
            f"the kubernetes target of spec.proxy needs a kubeconfig: put it into {place}{remedy}"
        ) from None
    except InvalidKubeconfig as error:
        raise EgressProblem(f"{place} {error}") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise EgressProblem(f"{place} cannot be used: {reason}") from None
    if not kubeconfig.contexts:
        reasons = "; ".join(map(str, kubeconfig.refused)) or "it has no contexts"
        raise EgressProblem(f"{place} has no context that the proxy can serve: {reasons}")
    return kubeconfig


class Egress:
    """In use from the construction to `close`. Raises EgressProblem."""

    def __init__(
        self,
        instance: CliMcpInstance,
        files: SecretFiles,
        state: StateDirectory,
        *,
        audit: AuditSink,
        registry: CollectorRegistry,
    ) -> None:
        self._instance = instance
        self._files = files
        self._state = state
        loaded = fingerprint(self._watched())
        self._config = state.system / "config"
        self._config.mkdir(exist_ok=True)
        self._config.chmod(0o755)
        self._use(read_reach(instance, files))
        authority = _authority(state.proxy_ca, instance.metadata.name)
        certificate = state.write_system_file(CERTIFICATE_FILE, (authority / CERTIFICATE_FILE).read_text())
        # The directory, so that a kubeconfig that replaces another is seen in running sandboxes too.
        config = {str(Path(KUBECONFIG_PATH).parent): self._config} if self.reach.kubeconfig else {}
        self.read_only = {
            **config,
            CA_PATH: certificate,
            **{path: certificate for path in _SYSTEM_BUNDLES if Path(path).is_file()},
        }
        """Files and directories of the sandbox, as its path and the path here."""
        self.environment = sandbox_environment(
            _PROXY_URL, hosts=self.reach.hosts(), kubernetes=self.reach.kubeconfig is not None
        )
        try:
            self._proxy = CredentialProxy(
                load_routing=self._load_routing,
                load_authorities=authorities_from_directory(authority),
                audit=audit,
                registry=registry,
            )
        except InvalidSource as error:
            raise EgressProblem(str(error)) from None
        self._namespaces = NetworkNamespaces()
        self._follower = asyncio.create_task(follow(self._proxy, self._watched(), loaded))

    def gateway(self) -> "Gateway":
        """The way out for one more sandbox."""
        return Gateway(self._proxy, self._namespaces)

    def problem(self) -> str | None:
        """Why the proxy works with an earlier state than the files on the disk have, if it does."""
        return "; ".join(self._proxy.problems.values()) or None

    async def close(self) -> None:
        self._follower.cancel()
        await asyncio.wait([self._follower])
        await self._proxy.close()
        self._namespaces.close()

    def _load_routing(self) -> Routing:
        try:
            reach = read_reach(self._instance, self._files)
            routing = Routing(build_routes(reach.config, reach.kubeconfig), reach.config.upstream)
        except (EgressProblem, InvalidRoutes) as error:
            raise InvalidSource(str(error)) from None
        if reach.kubeconfig != self.reach.kubeconfig:
            try:
                self._use(reach)
            except OSError as error:
                raise InvalidSource(f"{error.filename} cannot be written: {error.strerror}") from None
        return routing

    def _use(self, reach: Reach) -> None:
        """Show the sandboxes these contexts. Raises OSError, and then everything is as before."""
        if reach.kubeconfig is not None:
            text = dummy_kubeconfig(reach.kubeconfig, CA_PATH, _PROXY_URL)
            self._state.write_system_file(f"{self._config.name}/{KUBECONFIG_KEY}", text)
        self.reach = reach
        for entry in reach.kubeconfig.refused if reach.kubeconfig else ():
            log.warning("the proxy does not serve this entry of the kubeconfig: %s", entry)

    def _watched(self) -> Sequence[Path]:
        secret = self._instance.kubeconfig_secret_name
        if secret is None or self._files.directory is None:
            return ()
        return (self._files.directory / secret / KUBECONFIG_KEY,)


class Gateway:
    """The listener of one sandbox. A sandbox that starts again gets a new one."""

    def __init__(self, proxy: CredentialProxy, namespaces: NetworkNamespaces) -> None:
        self._proxy = proxy
        self._namespaces = namespaces
        self._client = _UNCLAIMED
        self._listener: Listener | None = None
        self._refused: dict[str, None] = {}
        self._unsubscribe: Callable[[], None] = _nothing

    async def open(self, pid: int, network_namespace: int) -> None:
        """Listen in the network namespace of `pid`, whose inode number is `network_namespace`.

        Raises SandboxUnavailable.
        """
        await self._stop_listening()
        listening = await self._namespaces.listen_in(pid, network_namespace)
        self._listener = await self._proxy.serve(listening, self._client)
        self._listener.assign(self._client)  # as it is by now

    def assign(self, session: str) -> None:
        """What the sandbox asks for from now on is recorded as of `session`."""
        self._client = ClientIdentity(session)
        self._unsubscribe()
        self._unsubscribe = self._proxy.refused.subscribe(session, self._hear)
        if self._listener is not None:
            self._listener.assign(self._client)

    def take_refused(self) -> tuple[str, ...]:
        """What the proxy has refused to the session since the last time, in words for it, each once."""
        refused, self._refused = tuple(self._refused), {}
        return refused

    def _hear(self, text: str) -> None:
        if len(self._refused) < MOST_NOTES:
            self._refused[text] = None

    async def close(self) -> None:
        self._unsubscribe()
        self._unsubscribe = _nothing
        await self._stop_listening()

    async def _stop_listening(self) -> None:
        if self._listener is not None:
            listener, self._listener = self._listener, None
            await listener.close()


def _nothing() -> None:
    return


def _authority(directory: Path, instance: str) -> Path:
    """The directory of the proxy's certificate authority, which is made when there is none of use."""
    directory.mkdir(mode=0o700, exist_ok=True)
    directory.chmod(0o700)
    now = datetime.now(UTC)
    try:
        certificates = (directory / CERTIFICATE_FILE).read_text()
        parse_authorities(certificates, (directory / KEY_FILE).read_text(), now + RENEWED_BEFORE_EXPIRY)
    except (FileNotFoundError, UnicodeDecodeError, InvalidAuthority):
        certificate, key = generate_authority(f"cli-mcp {instance}", now)
        for name, content in ((KEY_FILE, key), (CERTIFICATE_FILE, certificate)):
            path = directory / name
            path.unlink(missing_ok=True)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(fd, "w") as file:
                file.write(content)
    return directory
