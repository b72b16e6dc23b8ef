"""proxy-config.json: which endpoints the credential proxy of an instance lets a sandbox reach.

Written by the hooks and by local mode, read by the proxy. It holds no secret: the token and the CA of a
Kubernetes route come from the kubeconfig that is mounted beside it.
"""

import re
from collections.abc import Iterable
from typing import Annotated, Literal, Self

from cryptography import x509
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from cli_mcp.api import endpoint
from cli_mcp.api.endpoint import Endpoint, InvalidEndpoint
from cli_mcp.kubeconfig import KubernetesServer

_HTTP_PROXY = re.compile(r"http://(?P<authority>[^/@?#\s]+:[0-9]+)/?")


class InvalidProxyConfig(Exception):
    """The message names the path in the file and what is wrong there."""


def _http_proxy(url: str) -> str:
    match = _HTTP_PROXY.fullmatch(url)
    if match is None:
        raise ValueError("must be http://host:port, without user, path or query")
    return f"http://{_endpoint(match['authority'])}"


def _endpoint(text: str) -> Endpoint:
    try:
        return endpoint.parse(text)
    except InvalidEndpoint:
        raise ValueError(f"{text} {endpoint.MEANING}") from None


def _pem_certificates(pem: str) -> str:
    try:
        x509.load_pem_x509_certificates(pem.encode())
    except ValueError:
        raise ValueError("must be one or more certificates in PEM") from None
    return pem


class _Model(BaseModel):
    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        hide_input_in_errors=True,
    )


class _Route(_Model):
    host: str
    port: int = Field(ge=1, le=65535)

    @model_validator(mode="after")
    def _is_canonical(self) -> Self:
        # Routes are looked up by what a client's CONNECT normalises to; another spelling would never match.
        canonical = _endpoint(str(self.endpoint))
        if canonical != self.endpoint:
            raise ValueError(f"{self.endpoint} must be written {canonical}")
        return self

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(self.host, self.port)


class KubernetesRouteConfig(_Route):
    """An API server whose credential the mounted kubeconfig has. `path` is where its API begins."""

    path: str = ""


class AllowlistRouteConfig(_Route):
    """A host that is reached without any credential."""

    allow_upgrades: bool = False


class UpstreamConfig(_Model):
    """How the proxy itself reaches the network: an HTTP proxy to go through, more CAs to trust."""

    http_proxy: Annotated[str, AfterValidator(_http_proxy)] | None = None
    ca_bundle: Annotated[str, AfterValidator(_pem_certificates)] | None = None


class OwnSecrets(_Model):
    """The Secrets that the instance itself is made of, which no sandbox may have, and where they are."""

    namespace: str
    names: tuple[str, ...] = Field(min_length=1)


class ProxyConfig(_Model):
    version: Literal[1] = 1
    kubernetes: tuple[KubernetesRouteConfig, ...] = ()
    allowlist: tuple[AllowlistRouteConfig, ...] = ()
    upstream: UpstreamConfig = UpstreamConfig()
    own_secrets: OwnSecrets | None = None

    @model_validator(mode="after")
    def _every_endpoint_once(self) -> Self:
        seen: dict[Endpoint, str] = {}
        for kind, routes in (("kubernetes", self.kubernetes), ("allowlist", self.allowlist)):
            for index, route in enumerate(routes):
                here = f"{kind}[{index}]"
                if route.endpoint in seen:
                    raise ValueError(
                        f"{seen[route.endpoint]} and {here} both name {route.endpoint}; keep one"
                    )
                seen[route.endpoint] = here
        return self

    def reach(self) -> tuple[str, ...]:
        """A text for each endpoint, for people and models."""
        kubernetes = (
            f"{route.endpoint}{route.path} (Kubernetes; the credential is put in)"
            for route in self.kubernetes
        )
        return (*kubernetes, *(str(route.endpoint) for route in self.allowlist))


def proxy_config(
    servers: Iterable[KubernetesServer],
    allowlist: Iterable[AllowlistRouteConfig],
    upstream: UpstreamConfig | None = None,
) -> ProxyConfig:
    """The configuration for these targets. Raises InvalidProxyConfig when two of them name one endpoint."""
    try:
        return ProxyConfig(
            kubernetes=tuple(
                KubernetesRouteConfig(host=server.endpoint.host, port=server.endpoint.port, path=server.path)
                for server in servers
            ),
            allowlist=tuple(allowlist),
            upstream=upstream or UpstreamConfig(),
        )
    except ValidationError as error:
        raise InvalidProxyConfig(_explain(error)) from None


def parse_proxy_config(text: str | bytes) -> ProxyConfig:
    """Raises InvalidProxyConfig."""
    try:
        return ProxyConfig.model_validate_json(text)
    except ValidationError as error:
        raise InvalidProxyConfig(_explain(error)) from None


def _explain(error: ValidationError) -> str:
    return "; ".join(
        ".".join(map(str, problem["loc"])) + ": " * bool(problem["loc"]) + problem["msg"]
        for problem in error.errors(include_url=False, include_input=False, include_context=False)
    )
