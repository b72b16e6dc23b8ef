"""Which entries of a kubeconfig the credential proxy can serve, and why not the others.

Only bearer tokens can be injected into a request. An entry that needs anything else, or that nobody could
serve without giving more rights than it meant to give, is refused with a reason; nothing is ignored silently.
Field names: https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any
from urllib.parse import urlsplit

import yaml
from cryptography import x509

from cli_mcp.api import endpoint
from cli_mcp.api.endpoint import Endpoint, InvalidEndpoint

MAX_KUBECONFIG_BYTES = 1024 * 1024
# What the sandbox's own kubeconfig holds in place of every credential.
DUMMY_TOKEN = "proxy-managed-token"  # noqa: S105

# What an HTTP header carries without quoting; a line end in a token would be a second header.
_TOKEN = re.compile(r"[\x21-\x7e]+")
_PLAIN_PATH = re.compile(r"(/[A-Za-z0-9._~:@!$&'()*+,=-]+)*")

_SERVICE_ACCOUNT = "use the token of a ServiceAccount"
_CERTIFICATE = f"a client certificate cannot be injected into a request; {_SERVICE_ACCOUNT}"
_BASIC_AUTH = f"basic authentication is not supported; {_SERVICE_ACCOUNT}"
_IMPERSONATION = "impersonation is not supported, and ignoring it would give more rights than meant"
_USER_REFUSALS = {
    "exec": f"the proxy runs no credential plugins; {_SERVICE_ACCOUNT}",
    "auth-provider": f"authentication providers are not supported; {_SERVICE_ACCOUNT}",
    "client-certificate": _CERTIFICATE,
    "client-certificate-data": _CERTIFICATE,
    "client-key": _CERTIFICATE,
    "client-key-data": _CERTIFICATE,
    "username": _BASIC_AUTH,
    "password": _BASIC_AUTH,
    "tokenFile": "the file is not part of the kubeconfig; write the token itself into `token`",
    "as": _IMPERSONATION,
    "as-uid": _IMPERSONATION,
    "as-groups": _IMPERSONATION,
    "as-user-extra": _IMPERSONATION,
}
_CLUSTER_REFUSALS = {
    "insecure-skip-tls-verify": "an unverified server would be handed the token; add its CA instead",
    "certificate-authority": "the file is not part of the kubeconfig; use certificate-authority-data",
    "proxy-url": "a proxy per cluster is not supported; use spec.proxy.upstream",
}
_USER_FIELDS = {"token", "extensions"}
_CLUSTER_FIELDS = {
    "server",
    "certificate-authority-data",
    "tls-server-name",
    "disable-compression",
    "extensions",
}


class InvalidKubeconfig(Exception):
    """The text is no kubeconfig at all. The message quotes nothing of it, since it may hold credentials."""


@dataclass(frozen=True, slots=True)
class KubernetesServer:
    """An API server with the credential for it.

    `path` is where its API begins, without a final slash and empty for most. `certificate_authority` is PEM
    that alone vouches for the server; None means the system's authorities.
    """

    endpoint: Endpoint
    path: str
    token: str = field(repr=False)
    certificate_authority: str | None = field(default=None, repr=False)
    tls_server_name: str | None = None


@dataclass(frozen=True, slots=True)
class ServedContext:
    name: str
    cluster: str
    user: str
    namespace: str | None
    server: KubernetesServer


@dataclass(frozen=True, slots=True)
class RefusedEntry:
    """`entry` is for example `user "admin"`."""

    entry: str
    reason: str

    def __str__(self) -> str:
        return f"{self.entry}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    contexts: tuple[ServedContext, ...]
    refused: tuple[RefusedEntry, ...]
    current_context: str | None

    @property
    def servers(self) -> tuple[KubernetesServer, ...]:
        """Each API server once, in the order of the contexts."""
        return tuple(dict.fromkeys(context.server for context in self.contexts))


class _Refusal(Exception):
    """Why one entry cannot be served."""


@dataclass(frozen=True, slots=True)
class _Cluster:
    endpoint: Endpoint
    path: str
    certificate_authority: str | None
    tls_server_name: str | None


def parse_kubeconfig(text: str | bytes) -> Kubeconfig:
    """What can be served, and why not the rest. Raises InvalidKubeconfig."""
    if len(text) > MAX_KUBECONFIG_BYTES:
        raise InvalidKubeconfig(f"is larger than {MAX_KUBECONFIG_BYTES} bytes")
    try:
        document = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError):
        # `from None`: the parser's message quotes the line, which may be the token.
        raise InvalidKubeconfig("is not valid YAML") from None
    if not isinstance(document, dict):
        raise InvalidKubeconfig("is not a mapping with clusters, users and contexts")

    refused: list[RefusedEntry] = []
    clusters: dict[str, _Cluster] = {}
    tokens: dict[str, str] = {}
    for name, body in _named(document, "clusters", "cluster"):
        try:
            clusters[name] = _cluster(body)
        except _Refusal as refusal:
            refused.append(RefusedEntry(f'cluster "{name}"', str(refusal)))
    for name, body in _named(document, "users", "user"):
        try:
            tokens[name] = _token(body)
        except _Refusal as refusal:
            refused.append(RefusedEntry(f'user "{name}"', str(refusal)))
    contexts: list[ServedContext] = []
    for name, body in _named(document, "contexts", "context"):
        try:
            contexts.append(_context(name, body, clusters, tokens))
        except _Refusal as refusal:
            refused.append(RefusedEntry(f'context "{name}"', str(refusal)))
    served, conflicting = _one_credential_per_server(contexts)
    current = document.get("current-context")
    return Kubeconfig(served, (*refused, *conflicting), current if isinstance(current, str) else None)


def dummy_kubeconfig(
    kubeconfig: Kubeconfig, certificate_authority_path: str, proxy_url: str | None = None
) -> str:
    """The kubeconfig of a sandbox: the served contexts under their own names, DUMMY_TOKEN for every user and
    the proxy's authority, by its path in the sandbox, for every server.

    With `proxy_url` that is where kubectl goes, whatever its environment says. A server on loopback, such as
    kind's, needs it: Go's HTTP client never asks a proxy of the environment for one.
    """
    names = [context.name for context in kubeconfig.contexts]
    current = kubeconfig.current_context if kubeconfig.current_context in names else next(iter(names), "")
    clusters = {context.cluster: context.server for context in kubeconfig.contexts}
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": name,
                    "cluster": {
                        "server": f"https://{server.endpoint}{server.path}",
                        "certificate-authority": certificate_authority_path,
                        **({"proxy-url": proxy_url} if proxy_url else {}),
                    },
                }
                for name, server in clusters.items()
            ],
            "users": [
                {"name": name, "user": {"token": DUMMY_TOKEN}}
                for name in dict.fromkeys(context.user for context in kubeconfig.contexts)
            ],
            "contexts": [
                {
                    "name": context.name,
                    "context": {
                        "cluster": context.cluster,
                        "user": context.user,
                        **({"namespace": context.namespace} if context.namespace else {}),
                    },
                }
                for context in kubeconfig.contexts
            ],
            "current-context": current,
        },
        sort_keys=False,
    )


def _named(document: Mapping[str, Any], plural: str, singular: str) -> Iterable[tuple[str, dict[str, Any]]]:
    """The entries of one of the kubeconfig's lists, without their empty fields, which mean absent."""
    entries = document.get(plural) or []
    if not isinstance(entries, list):
        raise InvalidKubeconfig(f"has `{plural}` that is not a list")
    seen: set[str] = set()
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise InvalidKubeconfig(f"has an entry without a name in `{plural}`")
        name, body = entry["name"], entry.get(singular) or {}
        if not isinstance(body, dict):
            raise InvalidKubeconfig(f"has a `{singular}` that is not a mapping")
        # kubectl refuses such a file as a whole too.
        if name in seen:
            raise InvalidKubeconfig(f'has two entries named "{name}" in `{plural}`')
        seen.add(name)
        yield name, {str(key): value for key, value in body.items() if value}


def _refuse_fields(body: Mapping[str, Any], refusals: Mapping[str, str], known: set[str]) -> None:
    for key in body:
        if key in refusals:
            raise _Refusal(f"`{key}`: {refusals[key]}")
        # A field of a later Kubernetes may be one more way to authenticate.
        if key not in known:
            raise _Refusal(f"`{key}` is not a field that the proxy knows")


def _cluster(body: Mapping[str, Any]) -> _Cluster:
    _refuse_fields(body, _CLUSTER_REFUSALS, _CLUSTER_FIELDS)
    where, path = _server(body.get("server"))
    name = body.get("tls-server-name")
    if name is not None and not isinstance(name, str):
        raise _Refusal("`tls-server-name` is not a string")
    return _Cluster(where, path, _certificate_authority(body.get("certificate-authority-data")), name)


def _server(url: object) -> tuple[Endpoint, str]:
    if not isinstance(url, str):
        raise _Refusal("has no `server`")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _Refusal("`server` is not a URL") from None
    if parts.scheme != "https":
        raise _Refusal("`server` must be an https URL: the token must not cross the network in the clear")
    if "@" in parts.netloc or "?" in url or "#" in url:
        raise _Refusal("`server` must be https://host:port/path, without user, query or fragment")
    path = parts.path.rstrip("/")
    if not _PLAIN_PATH.fullmatch(path) or {".", ".."} & set(path.split("/")):
        raise _Refusal("`server` has a path with empty, relative or encoded parts")
    try:
        return endpoint.parse(parts.netloc), path
    except InvalidEndpoint:
        raise _Refusal("`server` must name one literal host and, if it is not 443, the port") from None


def _certificate_authority(data: object) -> str | None:
    if data is None:
        return None
    try:
        pem = base64.b64decode(data if isinstance(data, str) else b"?", validate=True)
        x509.load_pem_x509_certificates(pem)
        return pem.decode("ascii")
    except (binascii.Error, ValueError):
        raise _Refusal("`certificate-authority-data` is not base64 of PEM certificates") from None


def _token(body: Mapping[str, Any]) -> str:
    _refuse_fields(body, _USER_REFUSALS, _USER_FIELDS)
    token = body.get("token")
    if token is None:
        raise _Refusal(f"has no token; {_SERVICE_ACCOUNT}")
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise _Refusal("`token` has characters that no HTTP header can carry, perhaps a line end")
    return token


def _context(
    name: str, body: Mapping[str, Any], clusters: Mapping[str, _Cluster], tokens: Mapping[str, str]
) -> ServedContext:
    cluster, user, namespace = body.get("cluster"), body.get("user"), body.get("namespace")
    if not isinstance(cluster, str) or cluster not in clusters:
        raise _Refusal(f'its cluster "{cluster}" is missing or refused')
    if not isinstance(user, str) or user not in tokens:
        raise _Refusal(f'its user "{user}" is missing or refused')
    target = clusters[cluster]
    server = KubernetesServer(
        target.endpoint, target.path, tokens[user], target.certificate_authority, target.tls_server_name
    )
    return ServedContext(name, cluster, user, namespace if isinstance(namespace, str) else None, server)


def _one_credential_per_server(
    contexts: list[ServedContext],
) -> tuple[tuple[ServedContext, ...], list[RefusedEntry]]:
    """The proxy sees host and port alone: contexts that share them must agree in everything else."""
    served: set[str] = set()
    refused: list[RefusedEntry] = []

    def by_endpoint(context: ServedContext) -> Endpoint:
        return context.server.endpoint

    for where, group in groupby(sorted(contexts, key=by_endpoint), by_endpoint):
        sharing = list(group)
        if len({context.server for context in sharing}) == 1:
            served.update(context.name for context in sharing)
            continue
        names = " and ".join(f'"{context.name}"' for context in sharing)
        reason = f"contexts {names} reach {where} with different tokens, CAs, paths or TLS names; keep one"
        refused += [RefusedEntry(f'context "{context.name}"', reason) for context in sharing]
    return tuple(context for context in contexts if context.name in served), refused
