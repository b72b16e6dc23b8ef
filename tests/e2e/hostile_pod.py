"""A pod that passes for the sandbox of a session, as whoever may make pods can make one."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cli_mcp import names
from tests.e2e import hostile_agent
from tests.e2e.operator import Object, apply, kubectl

if TYPE_CHECKING:
    from tests.e2e.instances import Instance


def make_hostile_pod(
    instance: Instance, name: str, session: str, owner: str, owner_reference: Object | None = None
) -> None:
    """It runs the hostile agent, is Ready, and for the server the sandbox of that session, if the owner
    reference is that of the instance."""
    config = json.loads(
        instance.child("configmap", f"cli-mcp-{instance.name}")["data"][names.SANDBOX_CONFIG_KEY]
    )
    labels = config["template"]["metadata"]["labels"] | {
        names.LABEL_SESSION_ID: session,
        names.LABEL_STATE: names.STATE_ACTIVE,
    }
    annotations = {
        names.ANNOTATION_SESSION_OWNER: owner,
        names.ANNOTATION_LAST_ACTIVITY: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    container: Object = {
        "name": names.SANDBOX_CONTAINER,
        "image": os.environ["E2E_SANDBOX_IMAGE"],
        "command": ["python3", "-c", Path(hostile_agent.__file__).read_text()],
        "env": [{"name": "CLI_MCP_POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
        "resources": {"requests": {"cpu": "1m", "memory": "16Mi"}},
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": instance.namespace,
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [owner_reference or config["ownerReference"]],
        },
        "spec": {
            "serviceAccountName": f"cli-mcp-{instance.name}-sandbox",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        },
    }
    apply(pod)
    kubectl("-n", instance.namespace, "wait", "--for=condition=Ready", f"pod/{name}", "--timeout=60s")
