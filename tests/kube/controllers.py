"""What runs around an operator, reduced to what others see of it: scheduler, kubelet and Deployments.

One call, one step; each moves everything that can move. Deployments get no pods, only the status and the
EndpointSlices that pods would bring about.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.kube.clock import timestamp
from tests.kube.deletion import DeleteOptions
from tests.kube.objects import (
    Object,
    is_terminating,
    labels_of,
    metadata,
    name_of,
    namespace_of,
    same_json,
    uid_of,
)
from tests.kube.rbac import MASTERS, User
from tests.kube.selectors import from_object, match_labels

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.kube.api import Api

KUBELET = User("system:node:node-1", groups=("system:nodes", MASTERS))
SCHEDULER = User("system:kube-scheduler", groups=(MASTERS,))
CONTROLLER_MANAGER = User("system:kube-controller-manager", groups=(MASTERS,))
NODE = "node-1"


def schedule_pods(api: Api) -> None:
    """Bind every pod that waits for a node."""
    for pod in api.objects("pods"):
        if not pod["spec"].get("nodeName") and not is_terminating(pod):
            api.bind(namespace_of(pod), name_of(pod), NODE, user=SCHEDULER)


def start_pods(api: Api, ready: Callable[[Object], bool] = lambda pod: True) -> None:
    """Give every bound pod an address and say whether it is ready."""
    for number, pod in enumerate(api.objects("pods")):
        if (
            not pod["spec"].get("nodeName")
            or is_terminating(pod)
            or pod["status"]["phase"] in ("Succeeded", "Failed")
        ):
            continue
        address = pod["status"].get("podIP") or f"10.244.{number // 250}.{number % 250 + 1}"
        status = {
            **pod["status"],
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [_condition(api, pod, "Ready", holds=ready(pod))],
        }
        _write_status(api, pod, status, KUBELET)


def fail_pod(api: Api, namespace: str, name: str, exit_code: int = 1) -> None:
    """The pod's containers end with this code and are not started again."""
    pod = api.get("pods", namespace, name, user=KUBELET)
    ended = {"terminated": {"exitCode": exit_code, "reason": "Error", "finishedAt": timestamp(api.clock())}}
    containers = [
        {"name": it["name"], "ready": False, "restartCount": 0, "state": ended}
        for it in pod["spec"]["containers"]
    ]
    status = {
        **pod["status"],
        "phase": "Failed",
        "conditions": [_condition(api, pod, "Ready", holds=False)],
        "containerStatuses": containers,
    }
    _write_status(api, pod, status, KUBELET)


def end_terminating_pods(api: Api) -> None:
    """What a kubelet does at the end of the grace period: the pod goes, unless a finalizer holds it."""
    for pod in api.objects("pods"):
        if is_terminating(pod) and metadata(pod).get("deletionGracePeriodSeconds"):
            options = DeleteOptions(uid=uid_of(pod), grace_seconds=0)
            api.delete("pods", namespace_of(pod), name_of(pod), options, user=KUBELET)


def roll_out_deployments(api: Api, available: Callable[[Object], bool] = lambda deployment: True) -> None:
    """Report every Deployment as rolled out, and publish endpoints of the Services that select its pods."""
    for deployment in api.objects("deployments.apps"):
        replicas = deployment["spec"]["replicas"] if available(deployment) else 0
        counts = dict.fromkeys(
            ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), replicas
        )
        status = {
            "observedGeneration": metadata(deployment)["generation"],
            **{name: count for name, count in counts.items() if count},
            "conditions": [_condition(api, deployment, "Available", holds=available(deployment))],
        }
        _write_status(api, deployment, status, CONTROLLER_MANAGER)
    for service in api.objects("services"):
        if not is_terminating(service):
            _publish_endpoints(api, service)


def _publish_endpoints(api: Api, service: Object) -> None:
    selector = service["spec"].get("selector") or {}
    if not selector:
        return
    namespace = namespace_of(service)
    wanted = from_object({"matchLabels": selector})
    ready = sum(
        deployment.get("status", {}).get("readyReplicas", 0)
        for deployment in api.objects("deployments.apps", namespace)
        if match_labels(wanted, labels_of(deployment["spec"]["template"]))
    )
    endpoints = [
        {
            "addresses": [f"10.244.100.{number + 1}"],
            "conditions": {"ready": True, "serving": True, "terminating": False},
        }
        for number in range(ready)
    ]
    ports = [
        {"port": it["targetPort"], "protocol": it["protocol"]} for it in service["spec"].get("ports", ())
    ]
    name = f"{name_of(service)}-slice"
    content = {"addressType": "IPv4", "endpoints": endpoints, "ports": ports}
    existing = api.find("endpointslices.discovery.k8s.io", namespace, name)
    if existing is not None:
        api.update({**existing, **content}, user=CONTROLLER_MANAGER)
        return
    owner = {
        "apiVersion": "v1",
        "kind": "Service",
        "name": name_of(service),
        "uid": uid_of(service),
        "controller": True,
    }
    meta = {
        "name": name,
        "namespace": namespace,
        "labels": {"kubernetes.io/service-name": name_of(service)},
        "ownerReferences": [owner],
    }
    slice_ = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta, **content}
    api.create(slice_, user=CONTROLLER_MANAGER)


def _condition(api: Api, obj: Object, kind: str, *, holds: bool) -> Object:
    status = "True" if holds else "False"
    for condition in obj.get("status", {}).get("conditions") or ():
        if condition["type"] == kind and condition["status"] == status:
            return dict(condition)
    return {"type": kind, "status": status, "lastTransitionTime": timestamp(api.clock())}


def _write_status(api: Api, obj: Object, status: Object, user: User) -> None:
    if not same_json(obj.get("status"), status):
        api.update({**obj, "status": status}, "status", user=user)
