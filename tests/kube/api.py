"""The API server without HTTP: create, get, list, update, patch and delete over a store, synchronously.

Every rule that decides something has its own module; this one puts them in the order of the real server:
authorize, find, check preconditions, shape, admit, validate, record, store. What goes in or out is copied.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from tests.kube import admission, errors, patch, rbac, resources, schema, states
from tests.kube.clock import Clock
from tests.kube.deletion import DeleteOptions, check_preconditions, is_released, terminating
from tests.kube.managed_fields import record_write
from tests.kube.objects import (
    Object,
    copy_json,
    metadata,
    name_of,
    namespace_of,
    revision_of,
    through_go,
    uid_of,
)
from tests.kube.rbac import ADMIN, Attributes, Bindings, User
from tests.kube.resources import Registry, Resource
from tests.kube.selectors import EVERYTHING, Selection
from tests.kube.storage import Key, Storage

if TYPE_CHECKING:
    from datetime import datetime

# k8s.io/apimachinery/pkg/util/rand: no vowels, no digits that look like letters.
_SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_SUFFIX_CHARS = 5


@dataclass(frozen=True)
class Request:
    """One line of the journal: what was asked, by whom, and the HTTP status of the answer."""

    verb: str
    resource: str
    namespace: str
    name: str
    user: str
    code: int

    @property
    def is_write(self) -> bool:
        return self.verb in ("create", "update", "patch", "delete")


@dataclass(frozen=True)
class Page:
    """A list at one revision; `token` continues it when `remaining` is not 0."""

    items: list[Object]
    revision: str
    token: str = ""
    remaining: int = 0


Objects: TypeAlias = list[Object]
Rule: TypeAlias = Callable[[Object, "Object | None"], list[schema.Cause]]


class Api:
    """`rules` maps a kind to a check of (new, old) that stands for CEL rules or an admission policy."""

    def __init__(self, clock: Callable[[], datetime] | None = None, log_limit: int = 100_000) -> None:
        self.clock = clock or Clock()
        self.storage = Storage(log_limit)
        self.registry = Registry()
        self.rules: dict[str, Rule] = {}
        self.journal: list[Request] = []
        self._numbers = itertools.count(1)
        for name in ("default", "kube-system"):
            self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        self.journal.clear()

    # --- reading ------------------------------------------------------------------------------------------

    def get(self, kind: str | Resource, namespace: str, name: str, *, user: User = ADMIN) -> Object:
        """Raises 404 when it does not exist, 403 when the user may not."""
        resource = self._resource(kind)
        with self._request("get", resource, namespace, name, user):
            return copy_json(self._existing(resource, namespace, name))

    def list(
        self,
        kind: str | Resource,
        namespace: str = "",
        selection: Selection = EVERYTHING,
        *,
        limit: int = 0,
        token: str = "",
        at: int | None = None,
        user: User = ADMIN,
    ) -> Page:
        """A consistent list, by namespace and name; all pages show the revision of the first.

        Raises:
            ApiError: 410 when that revision has been compacted meanwhile.
        """
        resource = self._resource(kind)
        with self._request("list", resource, namespace, selection.name, user), self.storage.lock:
            skip, revision = _read_token(token) if token else (0, at)
            found = [
                it for it in self.storage.items(resource.key, namespace, revision) if selection.matches(it)
            ]
            revision = self.storage.revision if revision is None else revision
            end = skip + limit if limit else len(found)
            remaining = max(len(found) - end, 0)
            next_token = _write_token(end, revision) if remaining else ""
            return Page(copy_json(found[skip:end]), str(revision), next_token, remaining)

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        """The stored object itself, outside of every request: for tests to look at, not to change."""
        resource = self._resource(kind)
        return self.storage.get(_key(resource, namespace, name))

    def objects(self, kind: str, namespace: str = "") -> Objects:
        """All stored objects of a kind, outside of every request."""
        return self.storage.items(self._resource(kind).key, namespace)

    # --- writing ------------------------------------------------------------------------------------------

    def create(
        self, obj: Object, *, user: User = ADMIN, manager: str = "test", dry_run: bool = False
    ) -> Object:
        """Raises 409 AlreadyExists, 404 without the namespace, 403 in a terminating one, 422 when invalid."""
        resource = self.registry.by_kind(str(obj.get("apiVersion")), str(obj.get("kind")))
        name = name_of(obj) or self._generated_name(obj)
        namespace = namespace_of(obj) if resource.namespaced else ""
        with self._request("create", resource, namespace, name, user, success=201), self.storage.lock:
            self._check_namespace(resource, namespace, name)
            key = _key(resource, namespace, name)
            born = states.newborn(resource, through_go(obj), namespace, name, self._new_uid(), self.clock())
            self._admit(resource, name, born)
            self._validate(resource, name, born, None, user)
            if self.storage.get(key) is not None:
                raise errors.already_exists(resource, name)
            born["metadata"]["managedFields"] = record_write(
                None, born, manager, "", resource.api_version, self.clock()
            )
            if dry_run:
                return born
            stored = self.storage.put(key, born)
            self._after_create(stored)
            return copy_json(stored)

    def update(
        self,
        obj: Object,
        subresource: str = "",
        *,
        user: User = ADMIN,
        manager: str = "test",
        dry_run: bool = False,
    ) -> Object:
        """PUT of the whole object. A resourceVersion in it makes it a compare-and-swap (409 when stale)."""
        resource = self.registry.by_kind(str(obj.get("apiVersion")), str(obj.get("kind")))
        namespace, name = namespace_of(obj), name_of(obj)
        with self._request("update", resource, namespace, name, user, subresource), self.storage.lock:
            current = self._existing(resource, namespace, name)
            if uid_of(obj) not in ("", uid_of(current)):
                raise errors.precondition_failed(resource, name, "UID", uid_of(obj), uid_of(current))
            if resource.is_custom and not revision_of(obj):
                why = "Invalid value: 0x0: must be specified for an update"
                raise errors.invalid(resource, name, [("metadata.resourceVersion", why)])
            return self._replace(
                resource, current, through_go(obj), subresource, user, manager, dry_run=dry_run
            )

    def patch(
        self,
        kind: str | Resource,
        namespace: str,
        name: str,
        body: Any,
        content_type: str = patch.MERGE,
        subresource: str = "",
        *,
        user: User = ADMIN,
        manager: str = "test",
        dry_run: bool = False,
    ) -> Object:
        """PATCH. A resourceVersion in the patch makes it a compare-and-swap (409); another uid is 422."""
        resource = self._resource(kind)
        if content_type == patch.APPLY and self.storage.get(_key(resource, namespace, name)) is None:
            fresh = {"apiVersion": resource.api_version, "kind": resource.kind, **body}
            fresh["metadata"] = {
                **metadata(body),
                "name": name,
                **({"namespace": namespace} if namespace else {}),
            }
            return self.create(fresh, user=user, manager=manager, dry_run=dry_run)
        with self._request("patch", resource, namespace, name, user, subresource), self.storage.lock:
            current = self._existing(resource, namespace, name)
            proposed = patch.apply_patch(resource, name, current, body, content_type)
            return self._replace(
                resource, current, through_go(proposed), subresource, user, manager, dry_run=dry_run
            )

    def delete(
        self,
        kind: str | Resource,
        namespace: str,
        name: str,
        options: DeleteOptions = DeleteOptions(),  # noqa: B008 - frozen
        *,
        user: User = ADMIN,
        dry_run: bool = False,
    ) -> Object:
        """DELETE: the object if it stays, terminating, or its last state if it is gone.

        Raises:
            ApiError: 404, or 409 Conflict when a precondition does not hold.
        """
        resource = self._resource(kind)
        with self._request("delete", resource, namespace, name, user), self.storage.lock:
            current = self._existing(resource, namespace, name)
            check_preconditions(resource, current, options)
            kept = terminating(resource, current, options, self.clock())
            if dry_run or kept is current:
                return copy_json(current)
            key = _key(resource, namespace, name)
            if kept is not None:
                current = self.storage.put(key, kept)
                if not is_released(current):
                    return copy_json(current)
            return copy_json(self._remove(key, current))

    # --- what tests need beside requests --------------------------------------------------------------------

    def bind(self, namespace: str, name: str, node: str, *, user: User = ADMIN) -> None:
        """POST pods/NAME/binding: what the scheduler does."""
        resource = self.registry.by_name("pods")
        with (
            self._request("create", resource, namespace, name, user, "binding", success=201),
            self.storage.lock,
        ):
            pod = self._existing(resource, namespace, name)
            if pod["spec"].get("nodeName"):
                why = f"pod {name} is already assigned to node {pod['spec']['nodeName']}"
                raise errors.conflict(resource, name, why)
            bound = {**pod, "spec": {**pod["spec"], "nodeName": node}}
            self.storage.put(_key(resource, namespace, name), bound)

    def bindings(self) -> Bindings:
        """The RBAC objects as they are now."""
        group = "rbac.authorization.k8s.io"
        return Bindings(*(tuple(self.storage.items((group, plural))) for plural in _RBAC_PLURALS))

    def is_allowed(self, user: User, asked: Attributes) -> bool:
        return rbac.is_allowed(user, asked, self.bindings())

    def finalize_namespace(self, name: str, *, user: User = ADMIN) -> None:
        """PUT namespaces/NAME/finalize without finalizers: the namespace goes, as its content has before."""
        resource = self.registry.by_name("namespaces")
        with self._request("update", resource, "", name, user, "finalize"), self.storage.lock:
            namespace = self._existing(resource, "", name)
            self._remove(_key(resource, "", name), namespace)

    # --- steps ----------------------------------------------------------------------------------------------

    @contextmanager
    def _request(
        self,
        verb: str,
        resource: Resource,
        namespace: str,
        name: str,
        user: User,
        subresource: str = "",
        success: int = 200,
    ) -> Iterator[None]:
        """Authorizes, and writes the journal whatever happens."""
        named = f"{resource.qualified}/{subresource}" if subresource else resource.qualified
        code = 500
        try:
            plural = f"{resource.plural}/{subresource}" if subresource else resource.plural
            known_name = "" if verb == "create" and not subresource else name
            self._authorize(
                user, Attributes(verb, resource.group, plural, namespace, known_name), resource, name
            )
            yield
            code = success
        except errors.ApiError as error:
            code = error.code
            raise
        finally:
            self.journal.append(Request(verb, named, namespace, name, user.name, code))

    def _authorize(self, user: User, asked: Attributes, resource: Resource, name: str) -> None:
        if self.is_allowed(user, asked):
            return
        what = f'resource "{asked.resource}" in API group "{asked.group}"'
        where = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
        raise errors.forbidden(resource, name, f'User "{user.name}" cannot {asked.verb} {what} {where}')

    def _resource(self, kind: str | Resource) -> Resource:
        return kind if isinstance(kind, Resource) else self.registry.by_name(kind)

    def _existing(self, resource: Resource, namespace: str, name: str) -> Object:
        found = self.storage.get(_key(resource, namespace, name))
        if found is None:
            raise errors.not_found(resource, name)
        return found

    def _generated_name(self, obj: Object) -> str:
        prefix = str(metadata(obj).get("generateName") or "")
        if not prefix:
            return ""
        number = next(self._numbers)
        digits = [
            number // len(_SUFFIX_ALPHABET) ** place % len(_SUFFIX_ALPHABET) for place in range(_SUFFIX_CHARS)
        ]
        return prefix + "".join(_SUFFIX_ALPHABET[digit] for digit in reversed(digits))

    def _check_namespace(self, resource: Resource, namespace: str, name: str) -> None:
        if not resource.namespaced:
            return
        namespaces = self.registry.by_name("namespaces")
        found = self.storage.get(_key(namespaces, "", namespace))
        if found is None:
            raise errors.not_found(namespaces, namespace)
        try:
            admission.admit_into(found, namespace)
        except admission.Refused as refused:
            raise errors.forbidden(resource, name, str(refused)) from refused

    def _admit(self, resource: Resource, name: str, born: Object) -> None:
        match resource.kind:
            case "Pod" if not resource.is_custom and born["spec"].get("containers"):
                try:
                    admission.admit_pod(born, self.find)
                except admission.Refused as refused:
                    raise errors.forbidden(resource, name, str(refused)) from refused
            case "Service":
                services = self.storage.items(resource.key)
                ports = {
                    port["nodePort"]
                    for service in services
                    for port in service["spec"].get("ports", ())
                    if "nodePort" in port
                }
                asked = born["spec"].get("clusterIP")
                if asked not in (None, "", "None") and any(
                    asked == service["spec"].get("clusterIP") for service in services
                ):
                    why = f"Invalid value: [{asked}]: provided IP is already allocated"
                    raise errors.invalid(resource, name, [("spec.clusterIPs", why)])
                admission.admit_service(born, next(self._numbers), ports)
            case "Namespace":
                born["spec"] = {"finalizers": ["kubernetes"]}
                born["metadata"]["labels"] = {
                    **metadata(born).get("labels", {}),
                    "kubernetes.io/metadata.name": name,
                }

    def _after_create(self, stored: Object) -> None:
        """What controllers do at once with some new objects."""
        match stored["kind"]:
            case "Namespace":
                for kind, name in admission.NAMESPACE_DEFAULTS:
                    resource = self.registry.by_name(kind)
                    meta = {"name": name, "namespace": name_of(stored)}
                    self.create({"apiVersion": "v1", "kind": resource.kind, "metadata": meta})
            case "CustomResourceDefinition":
                self.registry.add(resources.custom_resources(stored))

    def _validate(self, resource: Resource, name: str, new: Object, old: Object | None, user: User) -> None:
        causes = states.problems(resource, new, old)
        if not causes and resource.kind in self.rules:
            causes = self.rules[resource.kind](new, old)
        if causes:
            raise errors.invalid(resource, name, causes)
        if resource.kind in ("Role", "ClusterRole"):
            missing = rbac.uncovered(user, new.get("rules") or (), namespace_of(new), self.bindings())
            if missing:
                why = f'user "{user.name}" is attempting to grant permissions not currently held: {missing}'
                raise errors.forbidden(resource, name, why)

    def _replace(
        self,
        resource: Resource,
        current: Object,
        proposed: Object,
        subresource: str,
        user: User,
        manager: str,
        *,
        dry_run: bool,
    ) -> Object:
        name = name_of(current)
        if revision_of(proposed) not in ("", revision_of(current)):
            raise errors.modified(resource, name)
        forgeries = states.forgeries(proposed, current)
        if forgeries:
            raise errors.invalid(resource, name, forgeries)
        new = states.next_state(resource, current, proposed, subresource)
        self._validate(resource, name, new, current, user)
        if states.is_same(new, current):
            return copy_json(current)
        new["metadata"]["managedFields"] = record_write(
            current, new, manager, subresource, resource.api_version, self.clock()
        )
        if dry_run:
            return new
        key = _key(resource, namespace_of(current), name)
        if is_released(new):
            return copy_json(self._remove(key, new))
        stored = self.storage.put(key, new)
        if resource.kind == "CustomResourceDefinition":
            self.registry.remove(resources.custom_resources(current))
            self.registry.add(resources.custom_resources(stored))
        return copy_json(stored)

    def _remove(self, key: Key, last: Object) -> Object:
        removed = self.storage.remove(key, last)
        if removed["kind"] == "CustomResourceDefinition":
            gone = resources.custom_resources(removed)
            for resource in gone:
                for obj in self.storage.items(resource.key):
                    self.storage.remove(_key(resource, namespace_of(obj), name_of(obj)), obj)
            self.registry.remove(gone)
        return removed

    def _new_uid(self) -> str:
        return f"00000000-0000-4000-8000-{next(self._numbers):012d}"


_RBAC_PLURALS = ("roles", "rolebindings", "clusterroles", "clusterrolebindings")


def _key(resource: Resource, namespace: str, name: str) -> Key:
    return Key(resource.key, namespace if resource.namespaced else "", name)


def _write_token(skip: int, revision: int) -> str:
    return base64.urlsafe_b64encode(json.dumps([skip, revision]).encode()).decode()


def _read_token(token: str) -> tuple[int, int]:
    try:
        skip, revision = json.loads(base64.urlsafe_b64decode(token))
        return int(skip), int(revision)
    except ValueError as error:
        raise errors.bad_request(f"continue key is not valid: {error}") from error
