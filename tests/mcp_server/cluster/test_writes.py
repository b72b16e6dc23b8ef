"""What the server writes of pods."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from cli_mcp import names
from cli_mcp.sandbox_config import Gate, SandboxConfig, SessionLimits
from mcp_server.backend import SessionKey
from mcp_server.cluster import writes
from mcp_server.cluster.pods import SandboxPod

if TYPE_CHECKING:
    from mcp_server.cluster.kubernetes import Object

POD = SandboxPod("p", "u", "7")
ME = SessionKey("me", "s")
NOW = datetime(2026, 1, 1, 12, 30, 0, 999_999, tzinfo=UTC)
STAMP = "2026-01-01T12:30:00Z"
EXACT = "2026-01-01T12:30:00.999Z"
SWAP = {"uid": "u", "resourceVersion": "7"}


@pytest.mark.parametrize(
    ("written", "metadata"),
    [
        (
            writes.claim(POD, ME, NOW),
            {
                **SWAP,
                "labels": {names.LABEL_SESSION_ID: "s", names.LABEL_STATE: names.STATE_CLAIMING},
                "annotations": {
                    names.ANNOTATION_SESSION_OWNER: "me",
                    names.ANNOTATION_CLAIMED_AT: EXACT,
                    names.ANNOTATION_LAST_ACTIVITY: STAMP,
                },
            },
        ),
        (
            writes.activate(POD, NOW),
            {
                **SWAP,
                "labels": {names.LABEL_STATE: names.STATE_ACTIVE},
                "annotations": {names.ANNOTATION_LAST_ACTIVITY: STAMP},
            },
        ),
        (writes.retire(POD), {**SWAP, "labels": {names.LABEL_STATE: names.STATE_RETIRING}}),
        (
            writes.retire(POD, "DELETE"),
            {
                **SWAP,
                "labels": {names.LABEL_STATE: names.STATE_RETIRING},
                "annotations": {names.ANNOTATION_ENDED_BY: "DELETE"},
            },
        ),
        (writes.renew(POD, NOW), {**SWAP, "annotations": {names.ANNOTATION_LAST_ACTIVITY: STAMP}}),
        (writes.stamp(POD, NOW), {"uid": "u", "annotations": {names.ANNOTATION_LAST_ACTIVITY: STAMP}}),
    ],
)
def test_patches(written: Object, metadata: Object) -> None:
    assert written == {"metadata": metadata}


def test_a_newborn_leaves_the_template_as_it_is() -> None:
    template = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"namespace": "n", "labels": {"controller-uid": "i", names.LABEL_POOL_HASH: "h"}},
        "spec": {"containers": [{"name": "sandbox"}]},
    }
    before = json.dumps(template)
    owner = {"kind": names.KIND, "uid": "i", "controller": True}
    config = SandboxConfig(
        gate=Gate(open=True),
        pool_hash="h",
        template=template,
        owner_reference=owner,
        limits=SessionLimits(idle_timeout_seconds=60),
        tools=("bash",),
    )
    pod = writes.newborn(config, "name", "n", ME, NOW)
    assert json.dumps(template) == before
    assert pod["spec"] == template["spec"]
    assert pod["metadata"]["ownerReferences"] == [owner]
    assert pod["metadata"]["labels"] == {
        "controller-uid": "i",
        names.LABEL_POOL_HASH: "h",
        names.LABEL_SESSION_ID: "s",
        names.LABEL_STATE: names.STATE_CLAIMING,
    }
    assert pod["metadata"]["annotations"] == {
        names.ANNOTATION_SESSION_OWNER: "me",
        names.ANNOTATION_CLAIMED_AT: EXACT,
        names.ANNOTATION_LAST_ACTIVITY: STAMP,
        names.ANNOTATION_LAST_APPLIED: (
            '{"apiVersion":"v1","kind":"Pod","metadata":'
            '{"labels":{"controller-uid":"i"},"name":"name","namespace":"n"}}'
        ),
    }
