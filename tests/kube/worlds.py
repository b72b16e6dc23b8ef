"""The world of one CompositeController: its hooks, its objects, and the model that syncs them.

A test says what the hooks answer, changes objects, and `run`s the world until it is at rest. tests/e2e has
the same world with the real Metacontroller in it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.kube import garbage
from tests.kube.api import Api
from tests.kube.composite import CompositeController, Settings
from tests.kube.deletion import DeleteOptions
from tests.kube.hook_wire import CallHook, HookAnswer, HookName, in_process
from tests.kube.rbac import MASTERS, User
from tests.kube.samples import WIDGETS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kube.clock import Clock
    from tests.kube.connection import Call
    from tests.kube.objects import Object

CHILD_RESOURCES = (
    ("v1", "configmaps"),
    ("v1", "pods"),
    ("v1", "secrets"),
    ("v1", "services"),
    ("v1", "serviceaccounts"),
    ("apps/v1", "deployments"),
    ("networking.k8s.io/v1", "networkpolicies"),
    ("rbac.authorization.k8s.io/v1", "roles"),
    ("rbac.authorization.k8s.io/v1", "rolebindings"),
)
# Two Metacontrollers on one cluster leave each other's CompositeControllers alone by this label.
PART_OF = "metacontroller-twin"
PARENT_API_VERSION = "twin.example.com/v1"
METACONTROLLER = User("metacontroller", groups=(MASTERS,))
# Enough syncs to show that a world does not come to rest.
BUSY_STEPS = 30


def manifest(
    name: str,
    method: str,
    hook_url: str,
    *,
    customizes: bool = False,
    ignoreStatusChanges: bool = True,  # noqa: N803 - as in the manifest
    **spec: Any,
) -> Object:
    """The CompositeController of a world; each world has its own, which selects parents by a label."""
    hooks = ("sync", "finalize", *(("customize",) if customizes else ()))
    rule = {"updateStrategy": {"method": method}}
    return {
        "apiVersion": "metacontroller.k8s.io/v1alpha1",
        "kind": "CompositeController",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": PART_OF}},
        "spec": {
            **spec,
            "generateSelector": True,
            "parentResource": {
                "apiVersion": PARENT_API_VERSION,
                "resource": "widgets",
                "ignoreStatusChanges": ignoreStatusChanges,
                "labelSelector": {"matchLabels": {"world": name}},
            },
            "childResources": [
                {"apiVersion": version, "resource": plural, **rule} for version, plural in CHILD_RESOURCES
            ],
            "hooks": {
                hook: {"version": "v2", "webhook": {"url": f"{hook_url}/{name}/{hook}"}} for hook in hooks
            },
        },
    }


@dataclass
class Hooks:
    """What the hooks answer, and what they were asked."""

    requests: list[Object] = field(default_factory=list)
    finalizing: list[Object] = field(default_factory=list)
    related: list[Object] = field(default_factory=list)
    desired: Callable[[Object], list[Object]] = lambda request: []
    answer: Callable[[Object], Any] | None = None
    finalize: Callable[[Object], Any] = lambda request: {"children": [], "finalized": True}
    raw: HookAnswer | None = None

    def call(self, name: HookName, body: bytes) -> HookAnswer:
        if self.raw is not None and name == "sync":
            return self.raw
        return self._in_process(name, body)

    @property
    def _in_process(self) -> CallHook:
        return in_process(sync=self._sync, finalize=self._finalize, customize=self._customize)

    def _sync(self, request: Object) -> Any:
        self.requests.append(request)
        return self.answer(request) if self.answer else {"status": {}, "children": self.desired(request)}

    def _finalize(self, request: Object) -> Any:
        self.finalizing.append(request)
        return self.finalize(request)

    def _customize(self, request: Object) -> Any:
        return {"relatedResources": self.related}


class World(ABC):
    """`namespace` is the world's own. Methods that change something raise ApiError when that is refused."""

    is_real: bool
    namespace: str

    def __init__(self) -> None:
        self.hooks = Hooks()
        self._touched = 0

    @abstractmethod
    def create(self, obj: Object) -> Object: ...

    @abstractmethod
    def get(self, kind: str, name: str) -> Object | None: ...

    @abstractmethod
    def patch(self, kind: str, name: str, body: Object, subresource: str = "") -> Object: ...

    @abstractmethod
    def delete(self, kind: str, name: str, **options: Any) -> None: ...

    @abstractmethod
    def bind(self, name: str) -> None:
        """Bind a pod to a node that does not exist."""

    @abstractmethod
    def settle(self) -> list[str]:
        """Let it go on until nothing moves; Metacontroller's writes since the last call."""

    @abstractmethod
    def stay_busy(self) -> list[str]:
        """Like `settle`, for a world that may not come to rest: a while of it."""

    def run(self) -> list[str]:
        """Until nothing moves; the writes on children since the last call, as `verb plural name code`."""
        return [line for line in self.settle() if not is_of_parent(line)]

    def run_for_parent(self) -> list[str]:
        """Until nothing moves; the writes on parents since the last call."""
        return [line for line in self.settle() if is_of_parent(line)]

    @abstractmethod
    def before(self, act: Callable[[Call], None] | None) -> None:
        """Call `act` before each of Metacontroller's requests."""

    @abstractmethod
    def hold(self, plural: str, *, held: bool = True) -> None:
        """Let Metacontroller's watch of a core kind lag, until it is released with `held=False`."""

    @abstractmethod
    def collect_garbage(self) -> None:
        """Give the garbage collector its turn."""

    def parent(self, name: str = "a", **metadata: Any) -> Object:
        labels = {"world": self.namespace, **metadata.pop("labels", {})}
        meta = {"name": name, "namespace": self.namespace, "labels": labels, **metadata}
        return self.create({"apiVersion": PARENT_API_VERSION, "kind": "Widget", "metadata": meta, "spec": {}})

    def touch(self) -> None:
        """Make a sync of parent `a` happen."""
        self._touched += 1
        self.patch("Widget", "a", {"metadata": {"annotations": {"touched": str(self._touched)}}})

    def label(self, name: str, **labels: str | None) -> None:
        """Set labels of a pod."""
        self.patch("Pod", name, {"metadata": {"labels": labels}})

    def stored(self, kind: str, name: str) -> Object:
        found = self.get(kind, name)
        assert found is not None, f"{kind} {name} does not exist"
        return found

    def placed(self, obj: Object) -> Object:
        """The object in this world's namespace."""
        return {**obj, "metadata": {**obj["metadata"], "namespace": self.namespace}}


class ModelWorld(World):
    """The model: nothing moves but in `run`."""

    is_real = False
    namespace = "default"

    def __init__(self, method: str = "InPlace", **settings: Any) -> None:
        super().__init__()
        self.api = Api()
        self.api.create(WIDGETS)
        self._settings = Settings.from_manifest(manifest(self.namespace, method, "http://hooks", **settings))
        self._read = 0
        self.controller = self.restart()

    def restart(self, call_hook: CallHook | None = None) -> CompositeController:
        """A new process: caches and queue start anew."""
        self.controller = CompositeController(
            self.api, self._settings, call_hook or self.hooks.call, METACONTROLLER
        )
        return self.controller

    @property
    def clock(self) -> Clock:
        return self.api.clock  # type: ignore[return-value]

    def create(self, obj: Object) -> Object:
        return self.api.create(obj)

    def get(self, kind: str, name: str) -> Object | None:
        return self.api.find(self._plural(kind), self.namespace, name)

    def patch(self, kind: str, name: str, body: Object, subresource: str = "") -> Object:
        return self.api.patch(self._plural(kind), self.namespace, name, body, subresource=subresource)

    def delete(self, kind: str, name: str, **options: Any) -> None:
        self.api.delete(self._plural(kind), self.namespace, name, DeleteOptions.from_json(options))

    def bind(self, name: str) -> None:
        self.api.bind(self.namespace, name, "none")

    def settle(self) -> list[str]:
        for _ in range(2):  # a cache that is used for the first time makes a sync fail once
            self.controller.run()
            self.clock.advance(0.01)
        return self._writes()

    def stay_busy(self) -> list[str]:
        for _ in range(BUSY_STEPS):
            self.controller.deliver()
            if self.controller.sync_next() is None:
                self.clock.advance(0.01)
        return self._writes()

    def before(self, act: Callable[[Call], None] | None) -> None:
        self.controller.connection.before = act

    def hold(self, plural: str, *, held: bool = True) -> None:
        self.controller.informer(plural).held = held

    def collect_garbage(self) -> None:
        garbage.settle(self.api)

    def _plural(self, kind: str) -> str:
        return next(it.qualified for it in self.api.registry if it.kind == kind)

    def _writes(self) -> list[str]:
        new = self.api.journal[self._read :]
        self._read = len(self.api.journal)
        return [
            f"{it.verb} {_without_group(it.resource)} {it.name} {it.code}"
            for it in new
            if it.user == METACONTROLLER.name and it.is_write
        ]


def is_of_parent(line: str) -> bool:
    return line.split()[1].startswith("widgets")


def _without_group(resource: str) -> str:
    """`widgets.twin.example.com/status` is `widgets/status`."""
    qualified, slash, subresource = resource.partition("/")
    return qualified.partition(".")[0] + slash + subresource
