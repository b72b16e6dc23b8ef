"""The world of a CompositeController with the real Metacontroller in it, in a namespace of a real cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from tests.e2e.kube_client import KubeClient, Reply, eventually
from tests.kube.errors import ApiError
from tests.kube.worlds import World, manifest

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.e2e.metacontroller import Metacontroller
    from tests.kube.connection import Call
    from tests.kube.objects import Object

# It is at rest when it asked for nothing for this long.
QUIET_SECONDS = 0.6
SETTLE_SECONDS = 30
BUSY_SECONDS = 1.5


class RealWorld(World):
    """`close` it, or its parents keep their namespace from going."""

    is_real = True

    def __init__(
        self, kube: KubeClient, metacontroller: Metacontroller, method: str, **settings: Any
    ) -> None:
        super().__init__()
        self.namespace = kube.namespace
        self._kube = kube
        self._metacontroller = metacontroller
        self._tracer = metacontroller.tracer
        metacontroller.hooks[self.namespace] = self.hooks
        controller = manifest(self.namespace, method, metacontroller.hook_url, **settings)
        self._checked(self._kube.create(controller))

    def close(self) -> None:
        """Let the parents go, and then what watches them."""
        self.before(None)
        self._tracer.held.clear()
        self.hooks.raw = None
        self.hooks.related = []
        self.hooks.finalize = lambda request: {"children": [], "finalized": True}
        for parent in self._kube.list("Widget").body["items"]:
            name = parent["metadata"]["name"]
            self._kube.delete("Widget", name)
            self._kube.patch("Widget", name, {"metadata": {"annotations": {"closed": "yes"}}})
        eventually(lambda: not self._kube.list("Widget").body["items"])
        # v4.17.2 dies of a nil pointer when its CompositeController goes while it waits for the answer to a
        # write of the parent: the cancelled request counts as a success without a result.
        self.settle()
        self._kube.delete("CompositeController", self.namespace)
        del self._metacontroller.hooks[self.namespace]

    def create(self, obj: Object) -> Object:
        return self._checked(self._kube.create(obj))

    def parent(self, name: str = "a", **metadata: Any) -> Object:
        """Returns once Metacontroller has noticed: it has yet to start what watches this world's kinds."""
        parent = super().parent(name, **metadata)
        eventually(lambda: self._tracer.has_seen(self.namespace))
        return parent

    def get(self, kind: str, name: str) -> Object | None:
        reply = self._kube.get(kind, name)
        return None if reply.code == 404 else reply.body

    def patch(self, kind: str, name: str, body: Object, subresource: str = "") -> Object:
        return self._checked(self._kube.patch(kind, name, body, subresource))

    def delete(self, kind: str, name: str, **options: Any) -> None:
        self._checked(self._kube.delete(kind, name, options or None))

    def bind(self, name: str) -> None:
        target = {"kind": "Node", "name": "none"}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        self._checked(self._kube.request("POST", self._kube.path("Pod", name, "binding"), binding))

    def settle(self) -> list[str]:
        deadline = time.monotonic() + SETTLE_SECONDS
        while self._tracer.quiet_seconds(self.namespace) < QUIET_SECONDS:
            assert time.monotonic() < deadline, f"no rest: {self._tracer.take(self.namespace)[-10:]}"
            time.sleep(0.05)
        # A sync that comes before the event of the last one's deletion deletes once more; it finds nothing.
        return [line for line in self._tracer.take(self.namespace) if not is_late_deletion(line)]

    def stay_busy(self) -> list[str]:
        time.sleep(BUSY_SECONDS)
        return self._tracer.take(self.namespace)

    def before(self, act: Callable[[Call], None] | None) -> None:
        self._tracer.before[self.namespace] = act

    def hold(self, plural: str, *, held: bool = True) -> None:
        (self._tracer.held.add if held else self._tracer.held.discard)(plural)
        self._tracer.note(self.namespace)

    def collect_garbage(self) -> None:
        """It has its turn all the time."""

    def _checked(self, reply: Reply) -> Object:
        self._tracer.note(self.namespace)  # whatever was changed, Metacontroller gets the time to notice
        if reply.code >= 400:
            raise ApiError(reply.code, str(reply.body.get("reason")), str(reply.body.get("message")))
        return dict(reply.body)


def is_late_deletion(line: str) -> bool:
    verb, *_, code = line.split()
    return (verb, code) == ("delete", "404")
