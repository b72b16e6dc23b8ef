"""Who am I, and may I? The reviews that are asked of the API server and stored nowhere.

Pure. SelfSubjectReview and SelfSubjectAccessReview are open to every authenticated user
(system:basic-user); the others need the right to create them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kube import errors
from tests.kube.rbac import Attributes, Bindings, User, is_allowed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.kube.objects import Object

AUTHENTICATION = "authentication.k8s.io"
AUTHORIZATION = "authorization.k8s.io"
REVIEWS = {
    (AUTHENTICATION, "selfsubjectreviews"): "SelfSubjectReview",
    (AUTHENTICATION, "tokenreviews"): "TokenReview",
    (AUTHORIZATION, "selfsubjectaccessreviews"): "SelfSubjectAccessReview",
    (AUTHORIZATION, "subjectaccessreviews"): "SubjectAccessReview",
}
_OPEN = frozenset(("selfsubjectreviews", "selfsubjectaccessreviews"))


def review(
    group: str, plural: str, body: Object, user: User, bindings: Bindings, tokens: Mapping[str, User]
) -> Object:
    """The review with its status.

    Raises:
        ApiError: 403 when the user may not ask.
    """
    if plural not in _OPEN and not is_allowed(user, Attributes("create", group, plural), bindings):
        why = f'{plural}.{group} is forbidden: User "{user.name}" cannot create resource "{plural}"'
        raise errors.ApiError(403, "Forbidden", why)
    spec = body.get("spec") or {}
    status = _STATUS[plural](spec, user, bindings, tokens)
    head = {"apiVersion": f"{group}/v1", "kind": REVIEWS[group, plural], "metadata": {}}
    return (
        {**head, "spec": spec, "status": status}
        if plural != "selfsubjectreviews"
        else {**head, "status": status}
    )


def _user_info(user: User) -> Object:
    info: Object = {"username": user.name, "groups": list(user.groups)}
    return {**info, "uid": user.uid} if user.uid else info


def _who_am_i(spec: Object, user: User, bindings: Bindings, tokens: Mapping[str, User]) -> Object:
    return {"userInfo": _user_info(user)}


def _whose_token(spec: Object, user: User, bindings: Bindings, tokens: Mapping[str, User]) -> Object:
    owner = tokens.get(spec.get("token") or "")
    if owner is None:
        return {"authenticated": False, "user": {}, "error": "invalid bearer token"}
    return {"authenticated": True, "user": _user_info(owner), "audiences": list(spec.get("audiences") or ())}


def _may_i(spec: Object, user: User, bindings: Bindings, tokens: Mapping[str, User]) -> Object:
    asked = spec.get("resourceAttributes")
    if not asked:
        raise errors.bad_request("spec.resourceAttributes: only resources are known here")
    subresource = asked.get("subresource")
    resource = asked.get("resource", "")
    attributes = Attributes(
        verb=asked.get("verb", ""),
        group=asked.get("group", ""),
        resource=f"{resource}/{subresource}" if subresource else resource,
        namespace=asked.get("namespace", ""),
        name=asked.get("name", ""),
    )
    return {"allowed": is_allowed(user, attributes, bindings)}


def _may_they(spec: Object, user: User, bindings: Bindings, tokens: Mapping[str, User]) -> Object:
    them = User(spec.get("user", ""), spec.get("uid", ""), tuple(spec.get("groups") or ()))
    return _may_i(spec, them, bindings, tokens)


_STATUS: dict[str, Callable[[Object, User, Bindings, Mapping[str, User]], Object]] = {
    "selfsubjectreviews": _who_am_i,
    "tokenreviews": _whose_token,
    "selfsubjectaccessreviews": _may_i,
    "subjectaccessreviews": _may_they,
}
