"""The few requests of the Kubernetes API that sessions need, as plain JSON, none of them without a deadline.

Where the API server is, and whom to trust, lightkube reads. Its requests are not used: a delete takes no
preconditions there, a watch waits for ever on a silent connection, every object would become a tree of typed
models, and one request costs its HTTP client six times the CPU.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import orjson
from lightkube.config.client_adapter import verify_cluster
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import User
from lightkube.core.exceptions import ConfigError

Object = dict[str, Any]

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 10.0
"""The API server itself gives up on etcd after less; a request over time has an unknown outcome."""
_ANSWER_TIMEOUT = aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS)
_MAX_CONNECTIONS = 64
_KEEP_ALIVE_SECONDS = 60.0
_TOKEN_SECONDS = 60.0
"""How long a token from a file is used before the file is read again: the kubelet replaces it in time."""
# aiohttp asks for compression by itself, and the API server compresses whatever has more than 128 KiB, like
# twenty pods. It is near: to send the bytes costs less than to pack them.
_NOT_COMPRESSED = {"Accept-Encoding": "identity"}
_MERGE_PATCH = "application/merge-patch+json"
_TOO_OLD = 410


class KubernetesError(Exception):
    """A request that was not answered as hoped. The message is the cause, without addresses of ours."""


class Refused(KubernetesError):
    """The API server's own refusal: `code` and `reason` of the Status it answered with."""

    def __init__(
        self, code: int, reason: str, message: str, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.retry_after_seconds = retry_after_seconds

    @property
    def transient(self) -> bool:
        """Whether it says something about the server's state, rather than about the request."""
        return self.code == 429 or self.code >= 500


class Unanswered(KubernetesError):
    """No answer, or none that can be read. A write may have happened."""


class TooOld(KubernetesError):
    """The revision that a watch would begin with is forgotten: list again."""


@dataclass(frozen=True, slots=True)
class Listing:
    items: list[Object]
    revision: str


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind of objects in one namespace: `path` is its collection."""

    path: str

    @classmethod
    def core(cls, namespace: str, plural: str) -> "Resource":
        return cls(f"/api/v1/namespaces/{namespace}/{plural}")


class KubernetesApi:
    """Every method raises Refused or Unanswered."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        credentials: "_Credentials",
        on_request: Callable[[str], None] = lambda method: None,
    ) -> None:
        self._session = session
        self._credentials = credentials
        self._on_request = on_request

    @classmethod
    @asynccontextmanager
    async def connected(
        cls, config: SingleConfig | None = None, on_request: Callable[[str], None] = lambda method: None
    ) -> AsyncIterator["KubernetesApi"]:
        """By `config`, or that of the pod this runs in, or KUBECONFIG; `on_request` hears of each method.
        Raises lightkube's ConfigError."""
        config = config or KubeConfig.from_env().get()
        assert config is not None
        user = config.user or User()
        connector = aiohttp.TCPConnector(
            ssl=verify_cluster(config.cluster, user, config.abs_file, trust_env=False),
            limit=_MAX_CONNECTIONS,
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
        )
        async with aiohttp.ClientSession(
            config.cluster.server,
            connector=connector,
            headers=_NOT_COMPRESSED,
            auto_decompress=False,
            raise_for_status=False,
        ) as session:
            yield cls(session, _Credentials(user), on_request)

    def with_token(self, token: str) -> "KubernetesApi":
        """The same API server, asked by whom `token` belongs to; a client certificate would outweigh it."""
        return KubernetesApi(self._session, _Credentials(User(token=token)), self._on_request)

    async def list(self, resource: Resource, labels: str = "", *, fields: str = "") -> Listing:
        """A consistent list: what was written before the request is in it."""
        params = _selection(labels, fields)
        body = await self._request("GET", resource.path, params=params)
        return Listing(body.get("items") or [], (body.get("metadata") or {}).get("resourceVersion", ""))

    async def get(self, resource: Resource, name: str) -> Object:
        return await self._request("GET", f"{resource.path}/{name}")

    async def create(self, resource: Resource, body: Object) -> Object:
        return await self._request("POST", resource.path, body)

    async def patch(self, resource: Resource, name: str, body: Object) -> Object:
        """A merge patch (RFC 7386). `metadata.resourceVersion` in it makes it a compare-and-swap: 409 when
        stale; another `metadata.uid` is 422, since the uid cannot be changed."""
        return await self._request("PATCH", f"{resource.path}/{name}", body, content_type=_MERGE_PATCH)

    async def delete(self, resource: Resource, name: str, *, uid: str, grace_seconds: int | None) -> None:
        """404 when it is gone, 409 when another object has its name."""
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        await self._request("DELETE", f"{resource.path}/{name}", body)

    async def watch(
        self, resource: Resource, revision: str, *, labels: str = "", fields: str = "", seconds: int
    ) -> AsyncGenerator[tuple[str, Object], None]:
        """The events after `revision` as (type, object), bookmarks among them, until the server ends the
        watch after `seconds`. The first pair is ("", {}): the server has begun to answer.

        Raises TooOld too, and Unanswered when nothing comes for longer than `seconds`.
        """
        params = {
            "watch": "true",
            "resourceVersion": revision,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            **_selection(labels, fields),
        }
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_SECONDS, sock_read=seconds + CONNECT_SECONDS)
        self._on_request("WATCH")
        try:
            async with self._session.get(
                resource.path, params=params, headers=self._credentials.headers(), timeout=timeout
            ) as response:
                if response.status != 200:
                    raise _refusal(response, await response.read())
                yield "", {}
                async for line in _lines(response.content):
                    yield _event(line)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _unanswered(error) from error
        except Refused as error:
            if error.code == _TOO_OLD:
                raise TooOld(str(error)) from error
            raise

    async def _request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        params: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Object:
        self._on_request(method)
        headers = self._credentials.headers()
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            async with self._session.request(
                method,
                path,
                params=params,
                data=None if body is None else orjson.dumps(body),
                headers=headers,
                timeout=_ANSWER_TIMEOUT,
            ) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _unanswered(error) from error
        if not response.ok:
            raise _refusal(response, content)
        return _json(content)


class _Credentials:
    """What a request says of who makes it; client certificates are part of TLS."""

    def __init__(self, user: User) -> None:
        if user.exec is not None or user.auth_provider is not None:
            raise ConfigError("kubeconfig: users with exec or auth-provider are not supported, use a token")
        self._file = Path(user.token_file) if user.token_file else None
        self._token = user.token
        self._basic = aiohttp.BasicAuth(user.username, user.password or "") if user.username else None
        self._read_at = float("-inf")

    def headers(self) -> dict[str, str]:
        if self._file is not None and time.monotonic() - self._read_at >= _TOKEN_SECONDS:
            self._read_again(self._file)
        if self._token is not None:
            return {"Authorization": f"Bearer {self._token}"}
        return {"Authorization": self._basic.encode()} if self._basic else {}

    def _read_again(self, file: Path) -> None:
        try:
            self._token = file.read_text().strip()
        except OSError as error:
            if self._token is None:
                raise Unanswered(f"the token in {file} cannot be read: {error.strerror}") from error
        self._read_at = time.monotonic()


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Lines of any length, since an object may have 1.5 MB; what comes after the last newline is not one."""
    rest = b""
    async for data in content.iter_any():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            yield line


def is_lost(error: Refused) -> bool:
    """Whether what was written to is gone, has changed, or is another one by now: a wrong uid in a patch is
    invalid."""
    return error.code in (404, 409) or (error.code == 422 and "metadata.uid" in str(error))


def _selection(labels: str, fields: str) -> dict[str, str]:
    selectors = {"labelSelector": labels, "fieldSelector": fields}
    return {name: selector for name, selector in selectors.items() if selector}


def _event(line: bytes) -> tuple[str, Object]:
    event = _json(line)
    kind, obj = event.get("type"), event.get("object")
    if not isinstance(kind, str) or not isinstance(obj, dict):
        raise Unanswered("the Kubernetes API sent a watch event of an unknown form")
    if kind == "ERROR":
        raise Refused(obj.get("code") or 500, obj.get("reason") or "", obj.get("message") or "")
    return kind, obj


def _json(content: bytes) -> Object:
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise Unanswered("the Kubernetes API sent what is no JSON") from error
    if not isinstance(value, dict):
        raise Unanswered("the Kubernetes API sent what is no JSON object")
    return value


def _refusal(response: aiohttp.ClientResponse, content: bytes) -> Refused:
    try:
        status = _json(content)
    except Unanswered:  # a load balancer's page, or the server's plain text
        status = {}
    message = status.get("message") or f"the Kubernetes API answered {response.status}"
    return Refused(response.status, status.get("reason") or "", message, _retry_after(response.headers))


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """RFC 9110 section 10.2.3, in its form with seconds: the only one that the API server uses."""
    value = headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdecimal() else None


def _unanswered(error: Exception) -> Unanswered:
    # The error's own text names addresses.
    return Unanswered(f"the Kubernetes API does not answer ({type(error).__name__})")
