"""A pod's JSON as the server reads it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from cli_mcp import names
from mcp_server.cluster.pods import ContainerExit, MalformedPod, parse_time, read_pod

METADATA = {"name": "p", "uid": "u", "resourceVersion": "7"}


def test_a_new_pod_has_next_to_nothing() -> None:
    pod = read_pod({"metadata": METADATA})
    assert (pod.name, pod.uid, pod.revision, pod.state, pod.ip) == ("p", "u", "7", "", "")
    assert pod.live
    assert not pod.usable
    assert not pod.scheduled


@pytest.mark.parametrize("missing", METADATA)
def test_a_pod_without_the_api_servers_own_fields_is_none(missing: str) -> None:
    with pytest.raises(MalformedPod, match=missing):
        read_pod({"metadata": {key: value for key, value in METADATA.items() if key != missing}})


def test_a_pod_in_use() -> None:
    pod = read_pod(
        {
            "metadata": {
                **METADATA,
                "labels": {
                    names.LABEL_INSTANCE: "demo",
                    names.LABEL_STATE: names.STATE_ACTIVE,
                    names.LABEL_SESSION_ID: "s",
                },
                "annotations": {
                    names.ANNOTATION_SESSION_OWNER: "me",
                    names.ANNOTATION_LAST_ACTIVITY: "2026-01-01T00:00:00Z",
                },
                "ownerReferences": [{"uid": "no"}, {"uid": "yes", "controller": True}],
            },
            "spec": {
                "nodeName": "node",
                "serviceAccountName": "sa",
                "volumes": [{"emptyDir": {}}, {"persistentVolumeClaim": {"claimName": "c"}}],
            },
            "status": {
                "phase": "Running",
                "podIP": "10.0.0.1",
                "conditions": [{"type": "Ready", "status": "True"}],
                "containerStatuses": [
                    {
                        "name": names.SANDBOX_CONTAINER,
                        "restartCount": 2,
                        "state": {"running": {}},
                        "lastState": {
                            "terminated": {
                                "exitCode": 137,
                                "reason": "OOMKilled",
                                "finishedAt": "2026-01-01T00:00:00Z",
                            }
                        },
                    }
                ],
            },
        }
    )
    assert pod.usable
    assert pod.ready
    assert (pod.owner, pod.session_id, pod.ip, pod.controller_uid) == ("me", "s", "10.0.0.1", "yes")
    assert pod.workspace_claim == "c"
    moment = datetime(2026, 1, 1, tzinfo=UTC)
    assert pod.last_activity == moment
    assert pod.sandbox.restarts == 2
    assert pod.sandbox.last_exit == ContainerExit(137, "OOMKilled", moment)


@pytest.mark.parametrize(
    "change",
    [
        {"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}},
        {"metadata": {"labels": {names.LABEL_STATE: names.STATE_RETIRING}}},
        {"metadata": {"labels": {names.LABEL_STATE: names.STATE_CLAIMING}}},
        {"status": {"phase": "Failed"}},
        {"status": {"phase": "Succeeded"}},
    ],
)
def test_pods_that_get_no_command(change: dict[str, Any]) -> None:
    labels = {names.LABEL_STATE: names.STATE_ACTIVE}
    pod = {
        "metadata": {**METADATA, "labels": labels, **change.get("metadata", {})},
        **{key: value for key, value in change.items() if key != "metadata"},
    }
    assert not read_pod(pod).usable


@pytest.mark.parametrize("text", [None, 7, "", "now", "2026-01-01T00:00:00", "2026-13-01T00:00:00Z"])
def test_what_is_no_time_is_none(text: object) -> None:
    assert parse_time(text) is None
