"""The v2 webhooks of a CompositeController as they go over the wire: requests, answers, and what is refused.

Source: pkg/hooks and pkg/controller/common/api/v2 of Metacontroller v4.17.2. A v2 answer is decoded strictly:
unknown and duplicate keys are errors, names are case-sensitive. Null and missing `children` both mean "none".
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tests.kube.objects import Object, name_of, namespace_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.kube.resources import Resource

HookName = Literal["sync", "finalize", "customize"]
ObjectMap: TypeAlias = "dict[str, dict[str, Object]]"


class HookError(Exception):
    """The hook did not answer, or not in a way that counts; nothing is written, the parent is tried again.

    `retry_after_seconds` is set by a 429: then exactly this delay, without backoff.
    """

    def __init__(self, message: str, retry_after_seconds: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class ControllerCrashed(BaseException):
    """The Metacontroller process ended: a null among the children is dereferenced."""


@dataclass(frozen=True)
class HookAnswer:
    """What the webhook's HTTP server sent back; a missing or unreadable Retry-After counts as 0."""

    code: int
    body: bytes
    retry_after_seconds: int = 0


# Sends a hook request and returns the answer. Raise OSError for a hook that is down or too slow.
CallHook: TypeAlias = Callable[[HookName, bytes], HookAnswer]


def in_process(**hooks: Callable[[Object], Any]) -> CallHook:
    """Hooks as functions: `in_process(sync=..., finalize=..., customize=...)`; an exception is a 500.

    Requests and answers go through JSON all the same, so that types are what they are on the wire.
    """

    def call(name: HookName, body: bytes) -> HookAnswer:
        try:
            answer = hooks[name](json.loads(body))
        except Exception as error:  # noqa: BLE001 - whatever a hook raises, its server answers 500
            return HookAnswer(500, str(error).encode())
        return HookAnswer(200, json.dumps(answer).encode())

    return call


@dataclass(frozen=True)
class SyncAnswer:
    """`children` in the order of the answer; a None in it ends the process."""

    status: Object | None = None
    children: list[Object | None] = field(default_factory=list)
    resync_after_seconds: float = 0.0
    finalized: bool = False


@dataclass(frozen=True)
class RelatedRule:
    """One rule of a customize answer; an empty `names` selects everything, as does an empty namespace."""

    api_version: str
    resource: str
    namespace: str = ""
    names: tuple[str, ...] = ()
    label_selector: Object | None = None
    namespace_selector: Object | None = None


def object_map(resources: Iterable[Resource]) -> ObjectMap:
    """A group for every kind, also when it has no objects."""
    return {resource.children_key: {} for resource in resources}


def map_key(obj: Object) -> str:
    """`namespace/name`, or just the name of a cluster-scoped object."""
    namespace = namespace_of(obj)
    return f"{namespace}/{name_of(obj)}" if namespace else name_of(obj)


def decode_sync(answer: HookAnswer) -> SyncAnswer:
    """Raises HookError."""
    body = _decode(answer, {"status", "children", "resyncAfterSeconds", "finalized"})
    status = _typed(body, "status", dict, None)
    children = _typed(body, "children", list, None) or []
    for child in children:
        if child is not None and (not isinstance(child, dict) or not child.get("kind")):
            raise HookError("can't unmarshal response: Object 'Kind' is missing in a child")
    resync = body.get("resyncAfterSeconds") or 0.0
    if isinstance(resync, bool) or not isinstance(resync, int | float):
        raise HookError("can't unmarshal response: resyncAfterSeconds is not a number")
    return SyncAnswer(status, children, float(resync), bool(_typed(body, "finalized", bool, False)))


def decode_customize(answer: HookAnswer) -> tuple[RelatedRule, ...]:
    """Raises HookError."""
    body = _decode(answer, {"relatedResources"})
    rules = _typed(body, "relatedResources", list, None) or []
    return tuple(_related_rule(rule) for rule in rules)


def _related_rule(rule: Any) -> RelatedRule:
    if not isinstance(rule, dict):
        raise HookError("can't unmarshal response: a related rule is not an object")
    decoded = RelatedRule(
        api_version=rule.get("apiVersion", ""),
        resource=rule.get("resource", ""),
        namespace=rule.get("namespace") or "",
        names=tuple(rule.get("names") or ()),
        label_selector=rule.get("labelSelector"),
        namespace_selector=rule.get("namespaceSelector"),
    )
    if decoded.names and (decoded.label_selector is not None or decoded.namespace_selector is not None):
        raise HookError("related rule cannot have both names and labelSelector/namespaceSelector specified")
    if decoded.namespace and decoded.namespace_selector is not None:
        raise HookError("related rule cannot have both namespace and namespaceSelector specified")
    return decoded


def _decode(answer: HookAnswer, known: set[str]) -> Object:
    if answer.code == 429:
        raise HookError("too many requests", answer.retry_after_seconds)
    if answer.code != 200:
        raise HookError(f"remote error: {answer.code}: {answer.body[:200]!r}")
    pairs: list[tuple[str, Any]] = []

    def keep_outermost(found: list[tuple[str, Any]]) -> Object:
        pairs[:] = found  # called from the inside out, so the last call is for the whole answer
        return dict(found)

    try:
        body = json.loads(answer.body, object_pairs_hook=keep_outermost)
    except ValueError as error:
        raise HookError(f"can't unmarshal response: {error}") from error
    if body is None:
        return {}
    if not isinstance(body, dict):
        raise HookError("can't unmarshal response: not an object")
    names = [name for name, _ in pairs] if body else []
    unknown = sorted(set(names) - known)
    if unknown or len(set(names)) != len(names):
        raise HookError(f"can't unmarshal response: unknown or duplicate fields among {names}")
    return body


def _typed(body: Object, name: str, kind: type, default: Any) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind):
        raise HookError(f"can't unmarshal response: {name} is not a {kind.__name__}")
    return value
