"""Metacontroller's way to the API server: a test can act before and after each request, or lose it.

`before` and `after` get each request; raise OSError in one for a request, or an answer, that is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tests.kube.errors import ApiError
from tests.kube.objects import Object, name_of, namespace_of, uid_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kube.api import Api
    from tests.kube.deletion import DeleteOptions
    from tests.kube.rbac import User

MANAGER = "metacontroller"
CONFLICT_TRIES = 4  # client-go's retry.DefaultBackoff

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Call:
    """A request before it is sent; `resource` is plural, with `/subresource` where there is one."""

    verb: str
    resource: str
    namespace: str
    name: str


class Connection:
    """The requests that Metacontroller makes, as the given user."""

    def __init__(self, api: Api, user: User) -> None:
        self.before: Callable[[Call], None] | None = None
        self.after: Callable[[Call], None] | None = None
        self._api = api
        self._user = user

    def get(self, obj: Object) -> Object:
        """The live object under the same kind, namespace and name."""
        kind = self._api.registry.by_kind(obj["apiVersion"], obj["kind"])
        return self._send(
            "get", obj, lambda: self._api.get(kind, namespace_of(obj), name_of(obj), user=self._user)
        )

    def create(self, obj: Object) -> Object:
        return self._send("create", obj, lambda: self._api.create(obj, user=self._user, manager=MANAGER))

    def update(self, obj: Object, subresource: str = "") -> Object:
        return self._send(
            "update",
            obj,
            lambda: self._api.update(obj, subresource, user=self._user, manager=MANAGER),
            subresource,
        )

    def delete(self, obj: Object, options: DeleteOptions) -> None:
        kind = self._api.registry.by_kind(obj["apiVersion"], obj["kind"])
        self._send(
            "delete",
            obj,
            lambda: self._api.delete(kind, namespace_of(obj), name_of(obj), options, user=self._user),
        )

    def read_modify_write(
        self, obj: Object, change: Callable[[Object], Object | None], subresource: str = ""
    ) -> Object:
        """GET and PUT until no conflict gets in between; `change` returns None when there is nothing to do.

        Raises:
            ApiError: 404, also when another object has taken the name; 409 after the last try.
        """
        kind = self._api.registry.by_kind(obj["apiVersion"], obj["kind"])
        for tries_left in reversed(range(CONFLICT_TRIES)):
            live = self.get(obj)
            if uid_of(live) != uid_of(obj):
                raise ApiError(404, "NotFound", f'{kind.qualified} "{name_of(obj)}" not found')
            changed = change(live)
            if changed is None:
                return live
            try:
                return self.update(changed, subresource)
            except ApiError as error:
                if error.reason != "Conflict" or not tries_left:
                    raise
        raise AssertionError("the last try either returns or raises")

    def _send(self, verb: str, obj: Object, request: Callable[[], Answer], subresource: str = "") -> Answer:
        resource = self._api.registry.by_kind(str(obj.get("apiVersion")), obj["kind"]).plural
        call = Call(
            verb, f"{resource}/{subresource}" if subresource else resource, namespace_of(obj), name_of(obj)
        )
        if self.before:
            self.before(call)
        answer = request()
        if self.after:
            self.after(call)
        return answer
