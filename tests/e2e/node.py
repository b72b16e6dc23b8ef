"""Acts from a node: kills what runs in its pods, as crashes do, and knocks at them, as the kubelet does."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.e2e.operator import apply, kubectl
from tests.e2e.probes import in_pod

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.operator import Object
    from tests.e2e.probes import RunPython

# First processes of containers see themselves as number 1; a pod's pause container is not one to kill. Where
# systemd manages cgroups the uid has underscores.
_KILL = r"""
killed=0
for process in /proc/[0-9]*; do
  [[ $(< $process/cgroup) =~ pod(${1}|${1//-/_}) ]] || continue
  [[ $(grep NSpid: $process/status) =~ [[:space:]]1$ && $(< $process/comm) != pause ]] || continue
  kill -KILL ${process#/proc/} && killed=$((killed + 1))
done 2> /dev/null
echo $killed
"""


class Nodes:
    """On each node that is needed a pod with its processes and its network."""

    def __init__(self, namespace: str) -> None:
        self.namespace = namespace
        self._there: set[str] = set()

    def kill(self, pod: Object) -> None:
        """End all containers of a pod with SIGKILL; the kubelet starts them again."""
        node = pod["spec"]["nodeName"]
        self._reach(node)
        program = ("exec", node, "--", "bash", "-c", _KILL, "kill", pod["metadata"]["uid"])
        killed = kubectl("-n", self.namespace, *program)
        assert int(killed) >= 1, f"nothing of {pod['metadata']['name']} runs"

    def python(self, node: str) -> RunPython:
        """Programs on that node."""
        self._reach(node)
        return in_pod(self.namespace, node)

    def _reach(self, node: str) -> None:
        if node in self._there:
            return
        container = {
            "name": "node",
            "image": os.environ["E2E_SANDBOX_IMAGE"],
            "command": ["sleep", "3600"],
            "resources": {"requests": {"cpu": "1m", "memory": "16Mi"}},
            "securityContext": {"runAsUser": 0},
        }
        spec = {
            "nodeName": node,
            "hostPID": True,
            "hostNetwork": True,
            "containers": [container],
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
        }
        apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": node, "namespace": self.namespace},
                "spec": spec,
            }
        )
        kubectl("-n", self.namespace, "wait", "--for=condition=Ready", f"pod/{node}", "--timeout=60s")
        self._there.add(node)


@contextmanager
def nodes() -> Iterator[Nodes]:
    """In a namespace of their own, whose pods may do what those of the tested ones may not."""
    namespace = f"e2e-nodes-{os.getpid()}"
    kubectl("create", "namespace", namespace)
    # Without the second one OpenShift writes another value into the first.
    labels = (
        "pod-security.kubernetes.io/enforce=privileged",
        "security.openshift.io/scc.podSecurityLabelSync=false",
    )
    kubectl("label", "namespace", namespace, "--overwrite", *labels)
    try:
        yield Nodes(namespace)
    finally:
        kubectl("delete", "namespace", namespace, "--wait=false", check=False)
