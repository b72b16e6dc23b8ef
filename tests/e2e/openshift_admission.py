"""What OpenShift does to new pods, as a mutating webhook: the SecurityContextConstraints `restricted-v2`.

Runs in a pod by itself, so it imports nothing but the standard library. OpenShift keeps the ranges of a
namespace in its annotations; here all namespaces have the same. It adds what OpenShift's own admission was
seen to add.
https://docs.openshift.com/container-platform/4.16/authentication/managing-security-context-constraints.html
"""

from __future__ import annotations

import base64
import copy
import json
import ssl
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

USERS = range(1_000_650_000, 1_000_660_000)
GROUPS = USERS
VOLUMES = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
PORT = 8443

Object = dict[str, Any]


def refusals(pod: Object) -> list[str]:
    """What of the pod is not within `restricted-v2`."""
    spec = pod["spec"]
    context = spec.get("securityContext", {})
    contexts = [context, *(it.get("securityContext", {}) for it in containers(spec))]
    users = [it["runAsUser"] for it in contexts if it.get("runAsUser") is not None]
    group = context.get("fsGroup", GROUPS[0])
    volumes = [name for volume in spec.get("volumes", ()) for name in volume.keys() - {"name"}]
    added = [name for it in contexts for name in (it.get("capabilities") or {}).get("add") or ()]
    return [
        *(f"runAsUser: {user} must be in {USERS}" for user in users if user not in USERS),
        *([f"fsGroup: {group} must be in {GROUPS}"] if group not in GROUPS else []),
        *(f"volumes: {name} is not allowed" for name in volumes if name not in VOLUMES),
        *(f"capabilities.add: {name}" for name in added if name != "NET_BIND_SERVICE"),
        *(name for name in ("hostNetwork", "hostPID", "hostIPC") if spec.get(name)),
        *("allowPrivilegeEscalation" for it in contexts if it.get("allowPrivilegeEscalation")),
    ]


def constrained(pod: Object) -> Object:
    """The pod with what `restricted-v2` adds to it."""
    made: Object = copy.deepcopy(pod)
    made["metadata"].setdefault("annotations", {}).update(
        {
            "openshift.io/scc": "restricted-v2",
            "seccomp.security.alpha.kubernetes.io/pod": "runtime/default",
            "security.openshift.io/validated-scc-subject-type": "user",
        }
    )
    context = made["spec"].setdefault("securityContext", {})
    context.setdefault("fsGroup", GROUPS[0])
    context.setdefault("seLinuxOptions", {"level": "s0:c26,c5"})
    context.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    for container in containers(made["spec"]):
        own = container.setdefault("securityContext", {})
        own.setdefault("runAsUser", context.get("runAsUser", USERS[0]))
        own.setdefault("runAsNonRoot", True)
        own.setdefault("allowPrivilegeEscalation", False)
        dropped = own.setdefault("capabilities", {}).setdefault("drop", [])
        dropped.extend({"ALL"} - set(dropped))
    return made


def containers(spec: Object) -> list[Object]:
    return [*spec.get("initContainers", ()), *spec["containers"]]


def review(asked: Object) -> Object:
    """The answer to an AdmissionReview of a new pod."""
    pod = asked["request"]["object"]
    answer: Object = {"uid": asked["request"]["uid"], "allowed": True}
    if found := refusals(pod):
        message = f"unable to validate against any security context constraint: {found}"
        answer |= {"allowed": False, "status": {"code": 403, "message": message}}
    else:
        made = constrained(pod)
        patch = [{"op": "replace", "path": f"/{part}", "value": made[part]} for part in ("metadata", "spec")]
        answer |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": answer}


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = json.dumps(review(asked)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def main(folder: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{folder}/tls.crt", f"{folder}/tls.key")
    server = ThreadingHTTPServer(("", PORT), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
