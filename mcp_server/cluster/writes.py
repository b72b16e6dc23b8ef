"""What the server writes: the patches of the claim protocol, and pods that are born claiming."""

from datetime import UTC, datetime

import orjson

from cli_mcp import names
from cli_mcp.sandbox_config import SandboxConfig
from mcp_server.backend import SessionKey
from mcp_server.cluster.kubernetes import Object
from mcp_server.cluster.pods import SandboxPod

_WORKSPACE_VOLUME = "workspace"


def claim(pod: SandboxPod, session: SessionKey, now: datetime) -> Object:
    """Everything that a claim consists of in one write."""
    return _swap(pod, _claimed_labels(session), _claimed_annotations(session, now))


def activate(pod: SandboxPod, now: datetime) -> Object:
    return _swap(
        pod, {names.LABEL_STATE: names.STATE_ACTIVE}, {names.ANNOTATION_LAST_ACTIVITY: timestamp(now)}
    )


def retire(pod: SandboxPod, ended_by: str = "") -> Object:
    """`ended_by` is what other replicas tell callers whose commands still run."""
    annotations = {names.ANNOTATION_ENDED_BY: ended_by} if ended_by else {}
    return _swap(pod, {names.LABEL_STATE: names.STATE_RETIRING}, annotations)


def stamp(pod: SandboxPod, now: datetime) -> Object:
    """A sign of life. Whatever else has changed meanwhile stays, and a pod that retires goes on to do so."""
    return _patch(pod, {}, {names.ANNOTATION_LAST_ACTIVITY: timestamp(now)})


def renew(pod: SandboxPod, now: datetime) -> Object:
    """A sign of life of a session that may be about to expire: fails if that has begun."""
    return _swap(pod, {}, {names.ANNOTATION_LAST_ACTIVITY: timestamp(now)})


def newborn(
    config: SandboxConfig, name: str, namespace: str, session: SessionKey, now: datetime, workspace: str = ""
) -> Object:
    """A pod for one session, from a configuration that has a template; a persistent workspace is
    the claim `workspace`, or one of the pod's own name."""
    assert config.template is not None
    annotations = _claimed_annotations(session, now)
    pod = child(config, config.template, name, namespace, _claimed_labels(session), annotations)
    for volume in pod["spec"].get("volumes", ()):
        if config.workspace_claim is not None and volume["name"] == _WORKSPACE_VOLUME:
            volume["persistentVolumeClaim"]["claimName"] = workspace or name
    return pod


def child(
    config: SandboxConfig,
    template: Object,
    name: str,
    namespace: str,
    labels: dict[str, str],
    annotations: dict[str, str],
) -> Object:
    """An object from a template of the configuration, owned by the instance.

    Among its annotations is the one in which Metacontroller keeps what it applied last: with it there from
    the start the first sync, which returns exactly this, has nothing to write.
    """
    made: Object = orjson.loads(orjson.dumps(template))
    metadata = made["metadata"]
    labels = {**metadata.get("labels", {}), **labels}
    applied = {
        "apiVersion": made["apiVersion"],
        "kind": made["kind"],
        "metadata": {
            "labels": {names.LABEL_CONTROLLER_UID: labels[names.LABEL_CONTROLLER_UID]},
            "name": name,
            "namespace": namespace,
        },
    }
    made["metadata"] = {
        **metadata,
        "name": name,
        "namespace": namespace,
        "labels": labels,
        "annotations": {
            **metadata.get("annotations", {}),
            **annotations,
            names.ANNOTATION_LAST_APPLIED: orjson.dumps(applied, option=orjson.OPT_SORT_KEYS).decode(),
        },
        "ownerReferences": [dict(config.owner_reference)],
    }
    return made


def timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC, with whole seconds."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _exact_timestamp(moment: datetime) -> str:
    """RFC 3339 in UTC, with milliseconds."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _claimed_labels(session: SessionKey) -> dict[str, str]:
    return {names.LABEL_SESSION_ID: session.id, names.LABEL_STATE: names.STATE_CLAIMING}


def _claimed_annotations(session: SessionKey, now: datetime) -> dict[str, str]:
    return {
        names.ANNOTATION_SESSION_OWNER: session.owner,
        names.ANNOTATION_CLAIMED_AT: _exact_timestamp(now),
        names.ANNOTATION_LAST_ACTIVITY: timestamp(now),
    }


def _swap(pod: SandboxPod, labels: dict[str, str], annotations: dict[str, str]) -> Object:
    """A compare-and-swap: refused when the pod is not at the revision that was looked at."""
    body = _patch(pod, labels, annotations)
    body["metadata"]["resourceVersion"] = pod.revision
    return body


def _patch(pod: SandboxPod, labels: dict[str, str], annotations: dict[str, str]) -> Object:
    """Refused when another pod has the name."""
    metadata: Object = {"uid": pod.uid}
    metadata |= {"labels": labels} if labels else {}
    metadata |= {"annotations": annotations} if annotations else {}
    return {"metadata": metadata}
