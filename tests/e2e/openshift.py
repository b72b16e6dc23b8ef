"""What of OpenShift an installation depends on: user ids that it chooses, its service CA.

On OpenShift these are its own; on any other cluster something stands in for each of them.
"""

from __future__ import annotations

import base64
import os
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tests.e2e import openshift_admission
from tests.e2e.certificate import server_certificate
from tests.e2e.operator import Object, apply, eventually, get, kubectl

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.instances import Instance

NAMESPACE = "e2e-openshift"
NAME = "scc"
# Of namespaces whose pods are constrained.
LABEL = "example.com/openshift"
USER_RANGE = "openshift.io/sa.scc.uid-range"
INJECT_AUTHORITY = "service.beta.openshift.io/inject-cabundle"
SERVING_CERTIFICATE = "service.beta.openshift.io/serving-cert-secret-name"
SIGNED_BY = "service.beta.openshift.io/serving-cert-signed-by"
PULL_SECRET = "builder-dockercfg-e2e"


@cache
def is_here() -> bool:
    return get("", "customresourcedefinition", "securitycontextconstraints.security.openshift.io") is not None


@contextmanager
def admission() -> Iterator[None]:
    """While this is entered, new pods in namespaces that are `constrain`ed are OpenShift's."""
    if is_here():
        yield
        return
    try:
        _install()
        yield
    finally:
        kubectl("delete", "mutatingwebhookconfiguration", NAME, "--ignore-not-found")
        kubectl("delete", "namespace", NAMESPACE, "--wait=false")


def constrain(namespace: str) -> None:
    """OpenShift itself does so with all namespaces."""
    kubectl("label", "namespace", namespace, f"{LABEL}=", "--overwrite")


def user_of(namespace: str) -> int:
    """The id with which the pods of a namespace run."""
    found = get("", "namespace", namespace)
    assert found is not None
    users = found["metadata"].get("annotations", {}).get(USER_RANGE)
    return int(users.partition("/")[0]) if users else openshift_admission.USERS[0]


def trust_server_certificate(instance: Instance) -> None:
    """Have the service CA sign the certificate that the annotation of the server's Service asks for."""
    if is_here():
        _trust_service_authority(instance)
    else:
        _sign_server_certificate(instance)


def add_pull_secret(instance: Instance, account: str) -> None:
    """What OpenShift does to every ServiceAccount, for its own registry. Admission adds it to the pods."""
    eventually(lambda: get(instance.namespace, "serviceaccount", account), 60)
    patch = f'{{"imagePullSecrets": [{{"name": "{PULL_SECRET}"}}]}}'
    kubectl("-n", instance.namespace, "patch", "serviceaccount", account, "--patch", patch)


def _trust_service_authority(instance: Instance) -> None:
    name = "service-authority"
    metadata = {"name": name, "namespace": instance.namespace, "annotations": {INJECT_AUTHORITY: "true"}}
    apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
    eventually(lambda: instance.child("configmap", name).get("data"))
    instance.authority_file.write_text(instance.child("configmap", name)["data"]["service-ca.crt"])


def _sign_server_certificate(instance: Instance) -> None:
    name = f"cli-mcp-{instance.name}"
    eventually(lambda: get(instance.namespace, "service", name), 60)
    service = instance.child("service", name)
    secret = service["metadata"]["annotations"][SERVING_CERTIFICATE]
    made = server_certificate(instance.service_name)
    instance.authority_file.write_text(made.authority)
    owner = {"apiVersion": "v1", "kind": "Service", "name": name, "uid": service["metadata"]["uid"]}
    apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "kubernetes.io/tls",
            "metadata": {"name": secret, "namespace": instance.namespace, "ownerReferences": [owner]},
            "stringData": {"tls.crt": made.chain, "tls.key": made.key},
        }
    )
    kubectl(
        "-n", instance.namespace, "annotate", "service", name, f"{SIGNED_BY}=openshift-service-serving-signer"
    )


def _install() -> None:
    made = server_certificate(f"{NAME}.{NAMESPACE}.svc")
    metadata = {"name": NAME, "namespace": NAMESPACE, "labels": {"app": NAME}}
    apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    apply(
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata,
            "stringData": {"tls.crt": made.chain, "tls.key": made.key},
        },
        _pod(metadata),
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {
                "selector": {"app": NAME},
                "ports": [{"port": 443, "targetPort": openshift_admission.PORT}],
            },
        },
    )
    kubectl("-n", NAMESPACE, "wait", "--for=condition=Ready", f"pod/{NAME}", "--timeout=60s")
    apply(_webhook(made.authority))


def _pod(metadata: Object) -> Object:
    container: Object = {
        "name": NAME,
        "image": os.environ["E2E_IMAGE"],
        "command": ["python3", "-c", Path(openshift_admission.__file__).read_text(), "/tls"],
        "readinessProbe": {"tcpSocket": {"port": openshift_admission.PORT}, "periodSeconds": 1},
        "volumeMounts": [{"name": "tls", "mountPath": "/tls"}],
    }
    volumes = [{"name": "tls", "secret": {"secretName": NAME}}]
    spec = {"containers": [container], "volumes": volumes, "terminationGracePeriodSeconds": 0}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _webhook(authority: str) -> Object:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": [
            {
                "name": f"{NAME}.example.com",
                "clientConfig": {
                    "service": {"namespace": NAMESPACE, "name": NAME},
                    "caBundle": base64.b64encode(authority.encode()).decode(),
                },
                "namespaceSelector": {"matchExpressions": [{"key": LABEL, "operator": "Exists"}]},
                "rules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["pods"],
                    }
                ],
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
            }
        ],
    }
