"""The last look at an answer before it leaves: what Metacontroller would take badly fails here instead.

A missing list or a null deletes children or ends the Metacontroller process; a float that is a whole number
is written again at every sync. Failing (HTTP 500) changes nothing in the cluster.
"""

from typing import Any

from cli_mcp import names
from hooks.values import flapping_value
from hooks.wire import CHILD_KINDS, SECRET, Manifest, Parent

_KINDS = {(kind.api_version, kind.kind) for kind in CHILD_KINDS}
_SECRET = (SECRET.api_version, SECRET.kind)


class UnsafeAnswer(AssertionError):
    """The answer would do harm; a defect of the hooks."""


def checked(answer: Manifest, parent: Parent) -> Manifest:
    """`answer` itself. Raises UnsafeAnswer."""
    children = answer.get("children")
    if not isinstance(children, list):
        raise UnsafeAnswer("children is no list")
    seen: set[tuple[Any, ...]] = set()
    for child in children:
        identity = _identity(child, parent)
        if identity in seen:
            raise UnsafeAnswer(f"{identity} twice")
        seen.add(identity)
    flapping = flapping_value((*children, answer.get("status") or {}))
    if flapping is not None:
        raise UnsafeAnswer(f"the value {flapping}")
    return answer


def _identity(child: Any, parent: Parent) -> tuple[str, str, str]:
    if not isinstance(child, dict):
        raise UnsafeAnswer(f"{child!r} among the children")
    kind = (child.get("apiVersion"), child.get("kind"))
    metadata = child.get("metadata") or {}
    name = metadata.get("name")
    if kind not in _KINDS:
        raise UnsafeAnswer(f"{kind} is no kind of child")
    if not name or "generateName" in metadata:
        raise UnsafeAnswer(f"a {kind[1]} without a name of its own")
    if metadata.get("namespace") != parent.namespace:
        raise UnsafeAnswer(f"{kind[1]} {name} is in another namespace")
    if (metadata.get("labels") or {}).get(names.LABEL_CONTROLLER_UID, parent.uid) != parent.uid:
        raise UnsafeAnswer(f"{kind[1]} {name} carries the uid of another instance")
    # Metacontroller removes what is no longer desired, here the only copy of a key.
    if kind == _SECRET and not child.get("data"):
        raise UnsafeAnswer(f"Secret {name} without data")
    return str(kind[0]), str(kind[1]), name
