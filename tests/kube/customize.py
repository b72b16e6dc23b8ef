"""Related objects: what the customize hook asked for, from caches of their own.

The answer is kept for each generation of a parent for 20 minutes. The first use of a kind starts its watch,
and that sync is tried again. Source: pkg/controller/common/customize/manager.go of Metacontroller v4.17.2.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from tests.kube import selectors
from tests.kube.hook_wire import HookError, ObjectMap, RelatedRule, map_key
from tests.kube.informer import Informer
from tests.kube.objects import labels_of, metadata, name_of, namespace_of, uid_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from tests.kube.api import Api
    from tests.kube.objects import Object
    from tests.kube.watch import Event

CACHE_SECONDS = 20 * 60


class NotSyncedError(Exception):
    """The cache of a related kind has just been started."""


class RelatedObjects:
    """`ask` calls the hook and decodes its answer; it raises HookError."""

    def __init__(
        self, api: Api, clock: Callable[[], datetime], ask: Callable[[Object], tuple[RelatedRule, ...]]
    ) -> None:
        self.informers: dict[tuple[str, str], Informer] = {}
        self._api = api
        self._clock = clock
        self._ask = ask
        self._answers: dict[tuple[str, int], tuple[datetime, tuple[RelatedRule, ...]]] = {}

    def of(self, parent: Object) -> ObjectMap:
        """A group for each rule's kind, with what the rules select.

        Raises:
            HookError: when the hook fails; the sync hook is then not called.
            NotSyncedError: on the first use of a kind.
            ApiError: 404 for a kind that is not served.
        """
        found: ObjectMap = {}
        for rule in self._rules(parent):
            informer = self._informer(rule)
            group = found.setdefault(informer.resource.children_key, {})
            group.update({map_key(obj): obj for obj in informer.objects() if self._selects(rule, obj)})
        return found

    def concerns(self, parent: Object, informer: Informer, event: Event) -> bool:
        """Whether the parent must be synced because of a related object, as it was or as it is."""
        try:
            rules = self._rules(parent)
        except HookError:
            return False
        kind = (informer.resource.api_version, informer.resource.plural)
        versions = [obj for obj in (event.old, event.object) if obj is not None]
        return any(
            self._selects(rule, obj)
            for rule in rules
            for obj in versions
            if (rule.api_version, rule.resource) == kind
        )

    def _rules(self, parent: Object) -> tuple[RelatedRule, ...]:
        key = (uid_of(parent), metadata(parent).get("generation", 0))
        kept = self._answers.get(key)
        if kept and self._clock() - kept[0] < timedelta(seconds=CACHE_SECONDS):
            return kept[1]
        rules = self._ask(parent)
        self._answers[key] = (self._clock(), rules)
        return rules

    def _informer(self, rule: RelatedRule) -> Informer:
        kind = (rule.api_version, rule.resource)
        if kind not in self.informers:
            resource = self._api.registry.by_plural(*kind)
            self.informers[kind] = Informer(self._api.storage, resource)
            self.informers[kind].start()
            raise NotSyncedError(f"related informer of {resource.qualified} not synced yet")
        return self.informers[kind]

    def _selects(self, rule: RelatedRule, obj: Object) -> bool:
        if rule.namespace and namespace_of(obj) not in ("", rule.namespace):
            return False
        if rule.names:
            return name_of(obj) in rule.names
        if rule.namespace_selector is not None and not self._in_namespace(rule.namespace_selector, obj):
            return False
        return selectors.match_labels(selectors.from_object(rule.label_selector), labels_of(obj))

    def _in_namespace(self, selector: Object, obj: Object) -> bool:
        namespace = self._api.find("namespaces", "", namespace_of(obj))
        return namespace is not None and selectors.match_labels(
            selectors.from_object(selector), labels_of(namespace)
        )
