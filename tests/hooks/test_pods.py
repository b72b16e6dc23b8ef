"""What the hooks read from a pod."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cli_mcp import names
from hooks.pods import Role, last_activity, observe_pod, parse_time
from hooks.wire import MalformedRequest, Parent

PARENT = Parent({"metadata": {}}, "demo", "ns", "uid-1", 1)
CREATED = datetime(2026, 1, 1, tzinfo=UTC)
OURS = {names.LABEL_INSTANCE: "demo", names.LABEL_COMPONENT: "sandbox"}


def pod(
    labels: dict[str, str] | None = None, status: dict[str, Any] | None = None, **metadata: Any
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "labels": OURS if labels is None else labels,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            **metadata,
        },
        "spec": {"serviceAccountName": "cli-mcp-demo-sandbox"},
        "status": status or {},
    }


@pytest.mark.parametrize(
    ("labels", "metadata", "role"),
    [
        (OURS, {}, Role.UNCLAIMED),
        (OURS | {names.LABEL_SESSION_ID: "s"}, {}, Role.CLAIMED),
        (OURS | {names.LABEL_STATE: "claiming"}, {}, Role.CLAIMED),
        (OURS | {names.LABEL_STATE: "something-new"}, {}, Role.CLAIMED),
        (OURS | {names.LABEL_SESSION_ID: "s", names.LABEL_STATE: "retiring"}, {}, Role.RETIRING),
        (OURS | {names.LABEL_STATE: "retiring"}, {"deletionTimestamp": "x"}, Role.TERMINATING),
        ({}, {}, Role.FOREIGN),
        (OURS | {names.LABEL_INSTANCE: "other"}, {}, Role.FOREIGN),
        (OURS | {names.LABEL_COMPONENT: "server"}, {}, Role.FOREIGN),
    ],
)
def test_a_pods_role_follows_from_its_labels(
    labels: dict[str, str], metadata: dict[str, Any], role: Role
) -> None:
    assert observe_pod(pod(labels, **metadata), PARENT).role is role


def test_a_pod_with_another_service_account_is_foreign_whatever_its_labels() -> None:
    stranger = {**pod(), "spec": {"serviceAccountName": "default"}}
    assert observe_pod(stranger, PARENT).role is Role.FOREIGN


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({}, {"ready": False, "ready_changed": CREATED, "finished": False, "unschedulable": False}),
        (
            {
                "conditions": [
                    {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:01:00Z"}
                ]
            },
            {"ready": True, "ready_changed": CREATED + timedelta(minutes=1)},
        ),
        ({"phase": "Failed"}, {"finished": True}),
        ({"phase": "Succeeded"}, {"finished": True}),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]},
            {"unschedulable": True},
        ),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]},
            {"unschedulable": False},
        ),
        (
            {
                "initContainerStatuses": [
                    {"image": "agent:1", "state": {"waiting": {"reason": "InvalidImageName"}}}
                ],
                "containerStatuses": [
                    {"image": "it:1", "state": {"waiting": {"reason": "ImagePullBackOff"}}},
                    {"image": "later:1", "state": {"waiting": {"reason": "ErrImagePull"}}},
                    {"image": "there:1", "state": {"running": {}}},
                ],
            },
            {"missing_images": ("agent:1", "it:1")},
        ),
        (
            {"containerStatuses": [{"name": "sandbox", "lastState": {"terminated": {"exitCode": 77}}}]},
            {"isolation_failed": True},
        ),
        (
            {"containerStatuses": [{"name": "sandbox", "state": {"terminated": {"exitCode": 77}}}]},
            {"isolation_failed": True},
        ),
        (
            {
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [{"name": "sandbox", "lastState": {"terminated": {"exitCode": 77}}}],
            },
            {"isolation_failed": False},
        ),
        (
            {
                "containerStatuses": [
                    {"name": "other", "lastState": {"terminated": {"exitCode": 77}}},
                    {"name": "sandbox", "lastState": {"terminated": {"exitCode": 1, "message": "77"}}},
                ]
            },
            {"isolation_failed": False},
        ),
    ],
)
def test_a_pods_state_follows_from_its_status(status: dict[str, Any], expected: dict[str, Any]) -> None:
    seen = observe_pod(pod(status=status), PARENT)
    assert {field: getattr(seen, field) for field in expected} == expected


def test_a_pod_without_a_creation_time_is_not_from_an_api_server() -> None:
    with pytest.raises(MalformedRequest):
        observe_pod(pod(creationTimestamp=None), PARENT)


CLAIM = {
    "time": "2026-01-01T00:30:00Z",
    "fieldsV1": {"f:metadata": {"f:labels": {f"f:{names.LABEL_SESSION_ID}": {}}}},
}


@pytest.mark.parametrize(
    ("stamp", "managed_fields", "minutes"),
    [
        ("2026-01-01T00:45:00Z", [CLAIM], 45),
        ("2026-01-01T01:45:00.5+01:00", [], 45.0083333333),
        ("2026-01-01T01:04:00Z", [], 64),
        (None, [CLAIM, {"time": "2026-01-01T00:50:00Z", "fieldsV1": {"f:status": {}}}], 30),
        ("yesterday", [CLAIM], 30),
        ("2026-13-01T00:00:00Z", [CLAIM], 30),
        ("2027-01-01T00:00:00Z", [CLAIM], 30),
        ("2027-01-01T00:00:00Z", [], 0),
        (None, [], 0),
    ],
)
def test_last_activity_is_the_stamp_or_the_claim_or_the_creation(
    stamp: str | None, managed_fields: list[Any], minutes: float
) -> None:
    annotations = {} if stamp is None else {names.ANNOTATION_LAST_ACTIVITY: stamp}
    seen = observe_pod(pod(annotations=annotations, managedFields=managed_fields), PARENT)
    found = last_activity(seen, now=CREATED + timedelta(hours=1))
    assert abs(found - CREATED - timedelta(minutes=minutes)) < timedelta(seconds=1)


@pytest.mark.parametrize("text", [None, 5, "", "2026-01-01", "2026-01-01T00:00:00", "2026-01-01T00:00:00z"])
def test_what_is_no_rfc_3339_time_with_a_zone_is_no_time(text: object) -> None:
    assert parse_time(text) is None
