"""The checks: from facts to findings, each with its remedy. Neither clock nor network."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cli_mcp import names
from cli_mcp.crd import custom_resource_definition
from cli_mcp.doctor.facts import Facts, Manifest, Unread, name_of

MIN_KUBERNETES = (1, 28)
"""SelfSubjectReview, by which the server learns who calls, is stable since then."""
MIN_ADMISSION = (1, 30)
"""ValidatingAdmissionPolicy is stable since then."""
MIN_METACONTROLLER = (4, 17, 2)
MAX_METACONTROLLER_LOG_LEVEL = 4
"""Above it Metacontroller logs what it exchanges with the hooks, the contents of Secrets included."""
ADMISSION_POLICIES = (
    "cli-mcp-sandbox-class",
    "cli-mcp-sandbox-pods",
    "cli-mcp-sandboxes",
    "cli-mcp-workspaces",
)
CONTROLLER = "cli-mcp"
_DEFINITION = f"{names.PLURAL}.{names.GROUP}"
_CONTROLLER_DEFINITION = "compositecontrollers.metacontroller.k8s.io"
_INSTALL = "kubectl apply --server-side -k config/overlays/generic (or openshift, existing-metacontroller)"
_RELEASE = re.compile(r":v?(\d+)\.(\d+)\.(\d+)(?:[-@]|$)")
_LOG_LEVEL = re.compile(r"--zap-log-level=(\d+)")


class Level(StrEnum):
    """How a finding counts, as it is printed."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """`subject` is what was looked at, `text` what was found. Nothing is to be done when `remedy` is ""."""

    level: Level
    subject: str
    text: str
    remedy: str = ""


Check = Callable[[Facts], Iterable[Finding]]


def examine(facts: Facts) -> list[Finding]:
    """The findings of all checks, in the order in which an installation is put together."""
    return [finding for check in CHECKS for finding in check(facts)]


def _kubernetes(facts: Facts) -> Iterator[Finding]:
    shown = ".".join(map(str, facts.version))
    if facts.version < MIN_KUBERNETES:
        yield Finding(
            Level.PROBLEM, "Kubernetes", f"{shown} is too old to say who calls", "upgrade to 1.28 or newer"
        )
    else:
        yield Finding(Level.OK, "Kubernetes", shown)


def _definition(facts: Facts) -> Iterator[Finding]:
    subject, remedy = f"CRD {_DEFINITION}", "kubectl apply --server-side -k config/crd"
    if isinstance(facts.definitions, Unread):
        yield _unread(subject, facts.definitions)
        return
    found = _named(facts.definitions, _DEFINITION)
    if found is None:
        yield Finding(Level.PROBLEM, subject, "missing", remedy)
    elif _schema(found) != _schema(custom_resource_definition()):
        text = "of another version than this program: fields may be refused, or dropped in silence"
        yield Finding(Level.PROBLEM, subject, text, remedy)
    else:
        yield Finding(Level.OK, subject, "of this version")


def _metacontroller(facts: Facts) -> Iterator[Finding]:
    subject = "Metacontroller"
    if isinstance(facts.workloads, Unread):
        yield _unread(subject, facts.workloads)
        return
    found = [it for it in facts.workloads if _metacontroller_container(it)]
    if not found:
        yield Finding(Level.PROBLEM, subject, "no Deployment or StatefulSet runs it", _INSTALL)
    for workload in found:
        yield from _one_metacontroller(workload)


def _one_metacontroller(workload: Manifest) -> Iterator[Finding]:
    subject, container = f"Metacontroller {name_of(workload)}", _metacontroller_container(workload)
    image, arguments = str(container["image"]), " ".join(container.get("args") or ())
    release = _RELEASE.search(image)
    level = _LOG_LEVEL.search(arguments)
    ready = (workload.get("status") or {}).get("readyReplicas") or 0
    findings = []
    if not ready:
        namespace = workload["metadata"]["namespace"]
        remedy = f"kubectl -n {namespace} describe pods, and kubectl -n {namespace} logs"
        findings.append(Finding(Level.PROBLEM, subject, "no pod of it is ready", remedy))
    if release is None:
        text = f"its release cannot be told from {image}; 4.17.2 is the oldest that works"
        findings.append(Finding(Level.WARNING, subject, text))
    elif tuple(map(int, release.groups())) < MIN_METACONTROLLER:
        text = f"{'.'.join(release.groups())} is too old"
        findings.append(Finding(Level.PROBLEM, subject, text, "upgrade it to 4.17.2 or newer"))
    if level is not None and int(level[1]) > MAX_METACONTROLLER_LOG_LEVEL:
        text = f"logs the contents of Secrets at --zap-log-level={level[1]}"
        remedy = "set it to 4 or lower, and delete the logs"
        findings.append(Finding(Level.PROBLEM, subject, text, remedy))
    yield from findings or [Finding(Level.OK, subject, f"{ready} ready, {image}")]


def _controller(facts: Facts) -> Iterator[Finding]:
    subject = f"CompositeController {CONTROLLER}"
    if isinstance(facts.composite_controllers, Unread):
        yield _unread(subject, facts.composite_controllers)
    elif _named(facts.composite_controllers, CONTROLLER) is None:
        text = "missing, so that Metacontroller does nothing for instances"
        yield Finding(Level.PROBLEM, subject, text, _INSTALL)
    else:
        yield Finding(Level.OK, subject, "present")


def _admission(facts: Facts) -> Iterator[Finding]:
    subject = "admission policies"
    risk = "whoever takes over an MCP server can read every Secret of its namespace"
    if facts.version < MIN_ADMISSION:
        remedy = "upgrade to Kubernetes 1.30, or give each instance a namespace without other Secrets"
        yield Finding(Level.WARNING, subject, f"not in this Kubernetes: {risk}", remedy)
        return
    if isinstance(facts.policies, Unread) or isinstance(facts.bindings, Unread):
        unread = facts.policies if isinstance(facts.policies, Unread) else facts.bindings
        assert isinstance(unread, Unread)
        yield _unread(subject, unread)
        return
    present = {it["metadata"]["name"] for it in facts.policies}
    enforced = {
        it["spec"].get("policyName")
        for it in facts.bindings
        if "Deny" in it["spec"].get("validationActions", ())
    }
    missing = [name for name in ADMISSION_POLICIES if name not in present & enforced]
    if missing:
        text = f"{', '.join(missing)} missing or not enforced: {risk}"
        yield Finding(Level.PROBLEM, subject, text, "kubectl apply --server-side -k config/admission")
    else:
        yield Finding(Level.OK, subject, "enforced")


def _instances(facts: Facts) -> Iterator[Finding]:
    if isinstance(facts.instances, Unread):
        yield _unread("instances", facts.instances)
        return
    if not facts.instances:
        yield Finding(Level.OK, "instances", "none yet")
    for instance in facts.instances:
        yield from _one_instance(instance)


def _one_instance(instance: Manifest) -> Iterator[Finding]:
    subject, metadata = f"{names.KIND} {name_of(instance)}", instance["metadata"]
    status = instance.get("status") or {}
    ready = _condition(status, "Ready")
    if metadata.get("deletionTimestamp"):
        text = f"being deleted since {metadata['deletionTimestamp']}"
        remedy = "it goes when Metacontroller and the hooks have ended its sandboxes; both have to run"
        yield Finding(Level.WARNING, subject, text, remedy)
    elif status.get("observedGeneration") != metadata.get("generation") or not ready:
        text = "the hooks have not answered since it was last changed"
        remedy = (
            "see kubectl describe for its events, and the logs of the containers metacontroller and hooks"
        )
        yield Finding(Level.PROBLEM, subject, text, remedy)
    else:
        yield _readiness(subject, ready)
    sandbox = (instance.get("spec") or {}).get("sandbox") or {}
    if sandbox.get("isolationTest") is False:
        text = "does not test whether the network plugin enforces NetworkPolicies"
        remedy = "leave spec.sandbox.isolationTest out unless you test it yourself"
        yield Finding(Level.WARNING, subject, text, remedy)


def _readiness(subject: str, ready: Manifest) -> Finding:
    """Messages of conditions name the remedy themselves."""
    reason, message = ready.get("reason", ""), ready.get("message", "")
    if ready.get("status") != "True":
        return Finding(Level.PROBLEM, subject, f"not Ready, {reason}", message)
    if reason != "Ready":
        return Finding(Level.WARNING, subject, reason, message)
    return Finding(Level.OK, subject, "Ready")


CHECKS: tuple[Check, ...] = (
    _kubernetes,
    _definition,
    _metacontroller,
    _controller,
    _admission,
    _instances,
)


def _unread(subject: str, fact: Unread) -> Finding:
    return Finding(
        Level.WARNING, subject, f"not checked: {fact.reason}", "run the doctor as a cluster administrator"
    )


def _named(manifests: Iterable[Manifest], name: str) -> Manifest | None:
    return next((it for it in manifests if it["metadata"]["name"] == name), None)


def _schema(definition: Manifest) -> Any:
    """Numbers as the API server keeps the bounds of a schema, in floating point."""
    versions = {it["name"]: it["schema"] for it in definition["spec"]["versions"]}
    return json.loads(json.dumps(versions.get(names.VERSION)), parse_int=float)


def _condition(status: Manifest, kind: str) -> Manifest:
    return next((it for it in status.get("conditions") or () if it.get("type") == kind), {})


def _metacontroller_container(workload: Manifest) -> Manifest:
    """Its container that runs Metacontroller, by the name of the image; {} when none does."""
    containers = workload["spec"]["template"]["spec"]["containers"]
    images = {it["image"].rpartition("/")[2].partition("@")[0].partition(":")[0]: it for it in containers}
    found: Manifest = images.get("metacontroller", {})
    return found
