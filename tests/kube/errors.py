"""What the API server answers when it refuses: one type, and a constructor for each reason.

Codes and reasons: `metav1.StatusReason` in k8s.io/apimachinery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.kube.objects import Object
    from tests.kube.resources import Resource


class ApiError(Exception):
    """A refusal. `code` is the HTTP status, `reason` the word that clients branch on."""

    def __init__(self, code: int, reason: str, message: str, details: Object | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}

    def status(self) -> Object:
        """The `Status` object that goes over the wire."""
        body: Object = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details:
            body["details"] = self.details
        return body


def _details(resource: Resource, name: str) -> Object:
    details: Object = {"name": name, "kind": resource.plural}
    if resource.group:
        details["group"] = resource.group
    return details


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def unauthorized() -> ApiError:
    return ApiError(401, "Unauthorized", "Unauthorized")


def forbidden(resource: Resource, name: str, why: str) -> ApiError:
    return ApiError(
        403, "Forbidden", f'{resource.qualified} "{name}" is forbidden: {why}', _details(resource, name)
    )


def no_such_path() -> ApiError:
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def not_found(resource: Resource, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{resource.qualified} "{name}" not found', _details(resource, name))


def already_exists(resource: Resource, name: str) -> ApiError:
    return ApiError(
        409, "AlreadyExists", f'{resource.qualified} "{name}" already exists', _details(resource, name)
    )


def modified(resource: Resource, name: str) -> ApiError:
    """The write carries the resourceVersion of an older state."""
    return conflict(
        resource,
        name,
        "the object has been modified; please apply your changes to the latest version and try again",
    )


def conflict(resource: Resource, name: str, why: str) -> ApiError:
    return ApiError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {resource.qualified} "{name}": {why}',
        _details(resource, name),
    )


def precondition_failed(resource: Resource, name: str, field: str, wanted: str, found: str) -> ApiError:
    """The object under this name is another one, or has changed."""
    why = f"Precondition failed: {field} in precondition: {wanted}, {field} in object meta: {found}"
    return conflict(resource, name, why)


def expired(message: str) -> ApiError:
    """The revision that a list or watch asks for is compacted: list again."""
    return ApiError(410, "Expired", message)


def unsupported_media_type(content_type: str) -> ApiError:
    return ApiError(
        415, "UnsupportedMediaType", f"the body of the request was in an unknown format: {content_type}"
    )


def invalid(resource: Resource, name: str, causes: Sequence[tuple[str, str]]) -> ApiError:
    """`causes` are pairs of field path and what is wrong with it."""
    texts = [f"{field}: {text}" for field, text in causes]
    listed = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
    details = _details(resource, name)
    details["kind"] = resource.kind
    details["causes"] = [
        {"reason": "FieldValueInvalid", "message": text, "field": field} for field, text in causes
    ]
    kind = f"{resource.kind}.{resource.group}" if resource.group else resource.kind
    return ApiError(422, "Invalid", f'{kind} "{name}" is invalid: {listed}', details)
