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

from tests.kube import adoption, children, parents, selectors, triggers
from tests.kube.connection import Connection
from tests.kube.customize import NotSyncedError, RelatedObjects
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
    finalizers_of,
    is_terminating,
    labels_of,
    name_of,
    namespace_of,
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
        if triggers.parent_counts(event, ignores_status_changes=self.settings.ignores_status_changes):
            self._enqueue(event.object)

    def _on_child(self, event: Event) -> None:
        for parent in triggers.parents_of_child(event, self._parents):
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
        finalizer = self.settings.finalizer
        parent = parents.sync_finalizer(self.connection, parent, finalizer, wanted=self.settings.has_finalize)
        if not self._is_ours(parent):
            return []
        observed = self._claim_children(parent)
        related = self._related.of(parent) if self.settings.has_customize else {}
        answer = self._call_sync_hook(parent, observed, related)
        desired = children.desired_map(parent, answer.children)
        if answer.resync_after_seconds > 0:
            self.queue.add_after(key, answer.resync_after_seconds)
        if answer.finalized:
            parent = parents.set_finalizer(self.connection, parent, finalizer, present=False)
        desired = children.labelled(desired, uid_of(parent))
        failures: list[Exception] = []
        if parents.manages_children(parent, finalizer):
            failures = children.manage(
                self.connection,
                self._api.registry,
                adoption.controller_reference(self._parent_kind, parent),
                observed,
                desired,
                self._methods,
                self.order,
            )
        try:
            parents.write_status(self.connection, parent, answer.status or {})
        except ApiError as error:
            if error.code == 404 or error.reason == "Conflict":
                return []  # what failed among the children is forgotten, too
            raise
        return failures

    def _claim_children(self, parent: Object) -> ObjectMap:
        observed = object_map(self._child_kinds)
        for kind in self._child_kinds:
            cached = self._children[kind.qualified].objects(namespace_of(parent))
            claimed = adoption.claim(self.connection, self._parent_kind, parent, cached)
            observed[kind.children_key] = {map_key(child): child for child in claimed}
        return observed

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
