"""What the proxy runs on, and how it is exchanged while it runs: routes with their credentials, authorities.

Both are loaded anew on `reload`. What cannot be used is reported and changes nothing: the state before it
stays, but for routes that the configuration no longer lists.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from cli_mcp.authority import CERTIFICATE_FILE, KEY_FILE
from cli_mcp.kubeconfig import MAX_KUBECONFIG_BYTES, InvalidKubeconfig, parse_kubeconfig
from cli_mcp.proxy_config import InvalidProxyConfig, ProxyConfig, UpstreamConfig, parse_proxy_config
from cred_proxy.certificates import Authority, InvalidAuthority, parse_authorities, signing_authority
from cred_proxy.routes import InvalidRoutes, RouteTable, build_routes, narrowed

MAX_FILE_BYTES = MAX_KUBECONFIG_BYTES


class Source(StrEnum):
    ROUTING = "routing"
    AUTHORITY = "authority"


class InvalidSource(Exception):
    """A source cannot be used. The message is for an operator and holds no credential."""


@dataclass(frozen=True, slots=True)
class Routing:
    table: RouteTable
    upstream: UpstreamConfig


class CredentialsUnusable(InvalidSource):
    """The kubeconfig cannot be used. What `config` no longer lists ends all the same."""

    def __init__(self, message: str, config: ProxyConfig) -> None:
        super().__init__(message)
        self.config = config


RoutingLoader = Callable[[], Routing]
AuthorityLoader = Callable[[], tuple[Authority, ...]]


def routing_from_files(config: Path, kubeconfig: Path | None) -> RoutingLoader:
    """A loader that reads both files each time; it raises InvalidSource."""

    def load() -> Routing:
        try:
            parsed = parse_proxy_config(_read(config))
        except InvalidProxyConfig as error:
            raise InvalidSource(f"{config}: {error}") from None
        try:
            credentials = parse_kubeconfig(_read(kubeconfig)) if kubeconfig and parsed.kubernetes else None
        except InvalidSource as error:
            raise CredentialsUnusable(str(error), parsed) from None
        except InvalidKubeconfig as error:
            raise CredentialsUnusable(f"{kubeconfig} {error}", parsed) from None
        try:
            return Routing(build_routes(parsed, credentials), parsed.upstream)
        except InvalidRoutes as error:
            message = f"{kubeconfig or 'no kubeconfig given'}: {error}"
            raise CredentialsUnusable(message, parsed) from None

    return load


def authorities_from_directory(directory: Path) -> AuthorityLoader:
    """A loader that reads `ca.crt` and `ca.key` each time; it raises InvalidSource."""

    def load() -> tuple[Authority, ...]:
        try:
            certificates = _read(directory / CERTIFICATE_FILE).decode("ascii")
            keys = _read(directory / KEY_FILE).decode("ascii")
            return parse_authorities(certificates, keys, datetime.now(UTC))
        except UnicodeDecodeError:
            raise InvalidSource(f"{directory}: ca.crt and ca.key must be PEM") from None
        except InvalidAuthority as error:
            raise InvalidSource(f"{directory}: {error}") from None

    return load


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise InvalidSource(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise InvalidSource(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    return content


class LiveState:
    """The state in use. The constructor raises InvalidSource, since there is nothing to keep yet."""

    def __init__(
        self,
        load_routing: RoutingLoader,
        load_authorities: AuthorityLoader,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load_routing = load_routing
        self._load_authorities = load_authorities
        self._monotonic = monotonic
        self.routing = load_routing()
        self._authorities = load_authorities()
        self._authorities_since = monotonic()
        self.problems: dict[Source, str] = {}

    @property
    def authority(self) -> Authority:
        """The one that signs now."""
        return signing_authority(self._authorities, self._monotonic() - self._authorities_since)

    def reload(self) -> dict[Source, str | None]:
        """Load both sources. For each, None when what it holds is in use now, or why it is not."""
        return {
            Source.ROUTING: self._attempt(Source.ROUTING, self._reload_routing),
            Source.AUTHORITY: self._attempt(Source.AUTHORITY, self._reload_authorities),
        }

    def _attempt(self, source: Source, load: Callable[[], None]) -> str | None:
        try:
            load()
        except InvalidSource as error:
            self.problems[source] = str(error)
            return str(error)
        self.problems.pop(source, None)
        return None

    def _reload_routing(self) -> None:
        try:
            self.routing = self._load_routing()
        except CredentialsUnusable as error:
            self.routing = replace(self.routing, table=narrowed(self.routing.table, error.config))
            raise

    def _reload_authorities(self) -> None:
        loaded = self._load_authorities()
        if loaded[0].fingerprint != self._authorities[0].fingerprint:
            # A directory with the new key alone still lets the previous authority finish its time.
            if len(loaded) == 1:
                loaded = (loaded[0], self._authorities[0])
            self._authorities_since = self._monotonic()
            self._authorities = loaded
