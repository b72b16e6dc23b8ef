"""A model of Metacontroller's CompositeController: which sync happens when, and what it does.

Deterministic: it moves only when a test calls `deliver` (caches catch up) or `sync_next` (one parent is
synced), or `run`, which does both until nothing is left to do. Source:
pkg/controller/composite/controller.go of v4.17.2 with dynamic apply; where experiments with the real one
showed something else, they were followed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING

from tests.kube import adoption, children, selectors
from tests.kube.connection import Connection
from tests.kube.customize import NotSyncedError, RelatedObjects
from tests.kube.deletion import FOREGROUND, ORPHAN
from tests.kube.errors import ApiError
from tests.kube.hook_wire import (
    CallHook,
    HookAnswer,
    HookError,
    HookName,
    ObjectMap,
    RelatedRule,
    SyncAnswer,
    decode_customize,
    decode_sync,
    map_key,
    object_map,
)
from tests.kube.informer import Informer
from tests.kube.objects import (
    Object,
    annotations_of,
    controller_of,
    finalizers_of,
    is_terminating,
    labels_of,
    metadata,
    name_of,
    namespace_of,
    revision_of,
    same_json,
    uid_of,
)
from tests.kube.rbac import ADMIN, User
from tests.kube.three_way import go_json
from tests.kube.workqueue import WorkQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kube.api import Api
    from tests.kube.watch import Event

# Any of these fails a sync as a whole; the parent is tried again with backoff.
SYNC_ERRORS = (ApiError, HookError, NotSyncedError, children.WrongLabelsError, OSError)


@dataclass(frozen=True)
class Settings:
    """A CompositeController object, as far as the model knows it; generateSelector is always on."""

    name: str
    parent: tuple[str, str]
    children: tuple[tuple[str, str, children.Method], ...]
    label_selector: Object | None = None
    ignores_status_changes: bool = False
    resync_period_seconds: int | None = None
    has_finalize: bool = True
    has_customize: bool = False
    manifest: Object = field(default_factory=dict, compare=False)

    @classmethod
    def from_manifest(cls, manifest: Object) -> Settings:
        """From the object that is applied to a cluster."""
        spec = manifest["spec"]
        parent = spec["parentResource"]
        if not spec.get("generateSelector"):
            raise ValueError("the model knows only generateSelector: true")
        return cls(
            name=name_of(manifest),
            parent=(parent["apiVersion"], parent["resource"]),
            children=tuple(
                (
                    rule["apiVersion"],
                    rule["resource"],
                    (rule.get("updateStrategy") or {}).get("method") or "OnDelete",
                )
                for rule in spec.get("childResources", ())
            ),
            label_selector=parent.get("labelSelector"),
            ignores_status_changes=bool(parent.get("ignoreStatusChanges")),
            resync_period_seconds=spec.get("resyncPeriodSeconds"),
            has_finalize="finalize" in spec["hooks"],
            has_customize="customize" in spec["hooks"],
            manifest=manifest,
        )

    @property
    def finalizer(self) -> str:
        return f"metacontroller.io/compositecontroller-{self.name}"


@dataclass(frozen=True)
class Sync:
    """What one sync did: the hook that was called (None when it did not come so far) and why it failed."""

    key: str
    hook: HookName | None
    errors: tuple[Exception, ...] = ()


class CompositeController:
    """One running Metacontroller with one CompositeController; make a new one for a restart."""

    def __init__(self, api: Api, settings: Settings, call_hook: CallHook, user: User = ADMIN) -> None:
        self.settings = settings
        self.connection = Connection(api, user)
        self.queue = WorkQueue(api.clock)
        self.syncs: list[Sync] = []
        self.order: Callable[[list[str]], list[str]] = sorted
        self._api = api
        self._call_hook = call_hook
        self._parent_kind = api.registry.by_plural(*settings.parent)
        self._child_kinds = [
            api.registry.by_plural(version, plural) for version, plural, _ in settings.children
        ]
        self._methods: children.Methods = {
            (kind.group, kind.kind): rule[2]
            for kind, rule in zip(self._child_kinds, settings.children, strict=True)
        }
        self._parents = Informer(api.storage, self._parent_kind)
        self._children = {kind.qualified: Informer(api.storage, kind) for kind in self._child_kinds}
        self._related = RelatedObjects(api, api.clock, self._ask_for_related)
        self._resynced_at = api.clock()
        self._hook: HookName | None = None
        for event in self._parents.start():
            self._on_parent(event)
        for informer in self._children.values():
            for event in informer.start():
                self._on_child(event)

    # --- time and caches ------------------------------------------------------------------------------------

    def informer(self, kind: str) -> Informer:
        """The cache of the parent's or a child kind, to hold or look into: `informer("pods").held = True`."""
        return self._parents if kind == self._parent_kind.qualified else self._children[kind]

    def related_informer(self, api_version: str, plural: str) -> Informer:
        """The cache of a related kind; it exists once a sync has asked for it."""
        return self._related.informers[(api_version, plural)]

    def deliver(self, limit: int | None = None) -> int:
        """Let each cache that is not held catch up by at most `limit` events; returns how many there were."""
        count = 0
        for event in self._parents.deliver(limit):
            self._on_parent(event)
            count += 1
        for informer in self._children.values():
            for event in informer.deliver(limit):
                self._on_child(event)
                count += 1
        for informer in list(self._related.informers.values()):
            for event in informer.deliver(limit):
                self._on_related(informer, event)
                count += 1
        self._resync_periodically()
        return count

    def run(self, max_syncs: int = 100) -> int:
        """Deliver and sync until nothing is ready now; returns the number of syncs.

        Raises:
            AssertionError: after `max_syncs`, for that is a hot loop.
        """
        for done in range(max_syncs):
            self.deliver()
            if self.sync_next() is None:
                return done
        raise AssertionError(f"no rest after {max_syncs} syncs: {self.syncs[-3:]}")

    def _resync_periodically(self) -> None:
        period = self.settings.resync_period_seconds
        if period is None or self._api.clock() - self._resynced_at < timedelta(seconds=period):
            return
        self._resynced_at = self._api.clock()
        for parent in self._parents.objects():
            self._enqueue(parent)

    # --- which events make a sync ---------------------------------------------------------------------------

    def _on_parent(self, event: Event) -> None:
        if event.type == "MODIFIED" and self.settings.ignores_status_changes and event.old is not None:
            old, new = event.old, event.object
            unchanged = (
                metadata(old).get("generation") == metadata(new).get("generation")
                and labels_of(old) == labels_of(new)
                and annotations_of(old) == annotations_of(new)
            )
            if unchanged and not is_terminating(new):
                return
        self._enqueue(event.object)

    def _on_child(self, event: Event) -> None:
        child = event.object
        if (
            event.old is not None
            and event.type == "MODIFIED"
            and revision_of(event.old) == revision_of(child)
        ):
            return
        controller = controller_of(child)
        if controller is not None:
            parent = self._parents.get(namespace_of(child), controller["name"])
            if parent is not None and uid_of(parent) == controller["uid"] and self._is_ours(parent):
                self._enqueue(parent)
            return
        if event.type == "DELETED" or is_terminating(child):
            return  # an orphan that goes is nobody's
        for parent in self._parents.objects(namespace_of(child)):
            if selectors.match_labels(self._selector(parent), labels_of(child)):
                self._enqueue(parent)

    def _on_related(self, informer: Informer, event: Event) -> None:
        for parent in self._parents.objects():
            if self._is_ours(parent) and self._related.concerns(parent, informer, event):
                self._enqueue(parent)

    def _enqueue(self, parent: Object) -> None:
        if self._is_ours(parent):
            self.queue.add(map_key(parent))

    def _is_ours(self, parent: Object) -> bool:
        return self.settings.finalizer in finalizers_of(parent) or self._is_selected(parent)

    def _is_selected(self, parent: Object) -> bool:
        return selectors.match_labels(selectors.from_object(self.settings.label_selector), labels_of(parent))

    @staticmethod
    def _selector(parent: Object) -> tuple[selectors.Requirement, ...]:
        return (selectors.Requirement("controller-uid", "In", frozenset((uid_of(parent),))),)

    # --- one sync -------------------------------------------------------------------------------------------

    def sync_next(self) -> Sync | None:
        """Sync the parent that waits longest; None when none is ready.

        Raises:
            ControllerCrashed: when the real process would have ended.
        """
        key = self.queue.pop()
        if key is None:
            return None
        self._hook = None
        failures: list[Exception] = []
        try:
            failures += self._sync(key)
        except SYNC_ERRORS as error:
            failures.append(error)
        self._requeue(key, failures)
        done = Sync(key, self._hook, tuple(failures))
        self.syncs.append(done)
        return done

    def _requeue(self, key: str, failures: list[Exception]) -> None:
        if not failures:
            self.queue.forget(key)
            return
        retry_after = next((it.retry_after_seconds for it in failures if isinstance(it, HookError)), None)
        if retry_after is not None:
            self.queue.add_after(key, retry_after)
        else:
            self.queue.add_rate_limited(key)

    def _sync(self, key: str) -> list[Exception]:
        namespace, _, name = key.rpartition("/")
        parent = self._parents.get(namespace, name)
        if parent is None or not self._is_ours(parent):
            return []
        parent = self._sync_finalizer(parent)
        if not self._is_ours(parent):
            return []
        observed = self._claim_children(parent)
        related = self._related.of(parent) if self.settings.has_customize else {}
        answer = self._call_sync_hook(parent, observed, related)
        if answer.resync_after_seconds > 0:
            self.queue.add_after(key, answer.resync_after_seconds)
        desired = children.desired_map(parent, answer.children, adds_uid=True)
        if answer.finalized:
            parent = self._set_finalizer(parent, present=False)
        failures: list[Exception] = []
        if not is_terminating(parent) or self._may_finalize(parent):
            failures = children.manage(
                self.connection,
                self._api.registry,
                self._parent_kind,
                parent,
                observed,
                desired,
                self._methods,
                self.order,
            )
        try:
            self._write_status(parent, answer.status or {})
        except ApiError as error:
            if error.code == 404 or error.reason == "Conflict":
                return []  # what failed among the children is forgotten, too
            raise
        return failures

    def _sync_finalizer(self, parent: Object) -> Object:
        """Before anything else, from the cached parent; never added to one that terminates."""
        present = self.settings.finalizer in finalizers_of(parent)
        wanted = self.settings.has_finalize
        if present == wanted or (wanted and is_terminating(parent)):
            return parent
        return self._set_finalizer(parent, present=wanted)

    def _set_finalizer(self, parent: Object, *, present: bool) -> Object:
        name = self.settings.finalizer

        def change(live: Object) -> Object | None:
            if (name in finalizers_of(live)) == present:
                return None
            others = [it for it in finalizers_of(live) if it != name]
            return {
                **live,
                "metadata": {**live["metadata"], "finalizers": [*others, name] if present else others},
            }

        return self.connection.read_modify_write(parent, change)

    def _may_finalize(self, parent: Object) -> bool:
        """Children of a terminating parent are managed while it has our finalizer and none of the GC."""
        finalizers = finalizers_of(parent)
        return self.settings.finalizer in finalizers and not {FOREGROUND, ORPHAN} & set(finalizers)

    def _claim_children(self, parent: Object) -> ObjectMap:
        observed = object_map(self._child_kinds)
        namespace = namespace_of(parent)
        for kind in self._child_kinds:
            may_adopt = False
            for child in self._children[kind.qualified].objects(namespace):
                verdict = adoption.judge(parent, child, self._selector(parent))
                if verdict == "adopt":
                    may_adopt = may_adopt or self._recheck(parent)
                    verdict = "owned" if self._adopt(parent, child) else "ignore"
                elif verdict == "release":
                    self._release(parent, child)
                if verdict == "owned":
                    observed[kind.children_key][map_key(child)] = child
        return observed

    def _recheck(self, parent: Object) -> bool:
        """Live, once for each kind with something to adopt; OSError when the cached parent is outdated."""
        live = self.connection.get(parent)
        if uid_of(live) != uid_of(parent) or is_terminating(live):
            raise OSError(f"{map_key(parent)} has just been deleted")
        return True

    def _adopt(self, parent: Object, child: Object) -> bool:
        reference = adoption.controller_reference(self._parent_kind, parent)
        return self._update_owners(child, lambda live: adoption.with_owner(live, reference))

    def _release(self, parent: Object, child: Object) -> None:
        self._update_owners(child, lambda live: adoption.without_owner(live, uid_of(parent)))

    def _update_owners(self, child: Object, change: Callable[[Object], Object]) -> bool:
        """False when the child is gone."""
        try:
            self.connection.read_modify_write(child, change)
        except ApiError as error:
            if error.code == 404:
                return False
            raise
        return True

    def _call_sync_hook(self, parent: Object, observed: ObjectMap, related: ObjectMap) -> SyncAnswer:
        finalizing = self.settings.has_finalize and (is_terminating(parent) or not self._is_selected(parent))
        request = {
            "controller": self.settings.manifest,
            "parent": parent,
            "children": observed,
            "related": related,
            "finalizing": finalizing,
        }
        return decode_sync(self._post("finalize" if finalizing else "sync", request))

    def _ask_for_related(self, parent: Object) -> tuple[RelatedRule, ...]:
        request = {"controller": self.settings.manifest, "parent": parent}
        return decode_customize(self._post("customize", request))

    def _post(self, hook: HookName, request: Object) -> HookAnswer:
        if hook != "customize":
            self._hook = hook
        try:
            return self._call_hook(hook, go_json(request).encode())
        except OSError as error:
            raise HookError(f"{hook} hook failed: {error}") from error

    def _write_status(self, parent: Object, status: Object) -> None:
        """Live GET, and a PUT when the whole status differs; observedGeneration is the cached parent's."""
        wanted = {**status, "observedGeneration": metadata(parent).get("generation", 0)}

        def change(live: Object) -> Object | None:
            if same_json(live.get("status"), wanted):
                return None
            return {**live, "status": wanted}

        self.connection.read_modify_write(parent, change, "status")
