"""The few requests of the Kubernetes API that sessions need, as plain JSON, none of them without a deadline.

Configuration, certificates and credentials (a mounted token is read again when it has been replaced) are
lightkube's. Its requests are not used: a delete takes no preconditions there, a watch waits for ever on a
silent connection, and every object would become a tree of typed models.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import orjson
from lightkube.config.client_adapter import user_auth, verify_cluster
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.config.models import User

Object = dict[str, Any]

CONNECT_SECONDS = 3.0
ANSWER_SECONDS = 10.0
"""The API server itself gives up on etcd after less; a request over time has an unknown outcome."""
_MAX_CONNECTIONS = 64
_KEEP_ALIVE_SECONDS = 60.0
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

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    @classmethod
    @asynccontextmanager
    async def connected(cls, config: SingleConfig | None = None) -> AsyncIterator["KubernetesApi"]:
        """By `config`, or that of the pod this runs in, or KUBECONFIG. Raises lightkube's ConfigError."""
        config = config or KubeConfig.from_env().get()
        assert config is not None
        async with client_of(config) as client:
            yield cls(client)

    async def list(self, resource: Resource, labels: str = "", *, fields: str = "") -> Listing:
        """A consistent list: what was written before the request is in it."""
        params = _selection(labels, fields)
        body = await self._request("GET", resource.path, params=params)
        return Listing(body.get("items") or [], (body.get("metadata") or {}).get("resourceVersion", ""))

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
        timeout = httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS, read=seconds + CONNECT_SECONDS)
        try:
            async with self._client.stream("GET", resource.path, params=params, timeout=timeout) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise _refusal(response)
                yield "", {}
                async for line in response.aiter_lines():
                    yield _event(line)
        except (httpx2.HTTPError, httpx2.StreamError) as error:
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
        content = None if body is None else orjson.dumps(body)
        headers = {} if body is None else {"Content-Type": content_type}
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                response = await self._client.request(
                    method, path, params=params, content=content, headers=headers
                )
        except TimeoutError as error:
            raise Unanswered(f"the Kubernetes API did not answer within {ANSWER_SECONDS:.0f} s") from error
        except httpx2.HTTPError as error:
            raise _unanswered(error) from error
        if not response.is_success:
            raise _refusal(response)
        return _json(response.content)


def client_of(config: SingleConfig) -> httpx2.AsyncClient:
    """A client for the API server of `config`, with its user's credential."""
    user = config.user or User()
    verify = verify_cluster(config.cluster, user, config.abs_file, trust_env=False)
    return httpx2.AsyncClient(
        base_url=config.cluster.server,
        auth=user_auth(user),
        verify=verify,
        trust_env=False,
        timeout=httpx2.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
        limits=httpx2.Limits(
            max_connections=_MAX_CONNECTIONS,
            max_keepalive_connections=_MAX_CONNECTIONS,
            keepalive_expiry=_KEEP_ALIVE_SECONDS,
        ),
    )


def _selection(labels: str, fields: str) -> dict[str, str]:
    selectors = {"labelSelector": labels, "fieldSelector": fields}
    return {name: selector for name, selector in selectors.items() if selector}


def _event(line: str) -> tuple[str, Object]:
    event = _json(line)
    kind, obj = event.get("type"), event.get("object")
    if not isinstance(kind, str) or not isinstance(obj, dict):
        raise Unanswered("the Kubernetes API sent a watch event of an unknown form")
    if kind == "ERROR":
        raise Refused(obj.get("code") or 500, obj.get("reason") or "", obj.get("message") or "")
    return kind, obj


def _json(content: bytes | str) -> Object:
    try:
        value = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise Unanswered("the Kubernetes API sent what is no JSON") from error
    if not isinstance(value, dict):
        raise Unanswered("the Kubernetes API sent what is no JSON object")
    return value


def _refusal(response: httpx2.Response) -> Refused:
    try:
        status = _json(response.content)
    except Unanswered:  # a load balancer's page, or the server's plain text
        status = {}
    message = status.get("message") or f"the Kubernetes API answered {response.status_code}"
    return Refused(response.status_code, status.get("reason") or "", message, _retry_after(response.headers))


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """RFC 9110 section 10.2.3, in its form with seconds: the only one that the API server uses."""
    value = headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdecimal() else None


def _unanswered(error: Exception) -> Unanswered:
    # The error's own text names addresses.
    return Unanswered(f"the Kubernetes API does not answer ({type(error).__name__})")
