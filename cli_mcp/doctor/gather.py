"""Asks a cluster for the facts, by KUBECONFIG or as the pod that this runs in."""

from typing import Any

import httpx2
from lightkube.config.client_adapter import Client, ConnectionParams
from lightkube.config.kubeconfig import KubeConfig, SingleConfig
from lightkube.core.exceptions import ConfigError

from cli_mcp import names
from cli_mcp.doctor.facts import Facts, Manifest, Unread

_PAGE_OBJECTS = 500
_APPS = "/apis/apps/v1"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"


class NoCluster(Exception):
    """There is no answer to judge by. The message says why."""


def connected(kubeconfig: str | None, context: str | None) -> httpx2.Client:
    """Raises NoCluster. Without `kubeconfig` the file that kubectl would take."""
    try:
        config = KubeConfig.from_file(kubeconfig) if kubeconfig else KubeConfig.from_env()
        single = config.get(context)
    except (ConfigError, OSError) as error:
        raise NoCluster(f"no usable kubeconfig: {error}") from error
    assert isinstance(single, SingleConfig)
    return Client(single, ConnectionParams())


def gather(client: httpx2.Client) -> Facts:
    """Raises NoCluster when the API server does not even say its version."""
    try:
        return Facts(
            version=_version(client),
            definitions=_list(client, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"),
            composite_controllers=_list(client, "/apis/metacontroller.k8s.io/v1alpha1/compositecontrollers"),
            workloads=_both(_list(client, f"{_APPS}/deployments"), _list(client, f"{_APPS}/statefulsets")),
            policies=_list(client, f"{_ADMISSION}/validatingadmissionpolicies"),
            bindings=_list(client, f"{_ADMISSION}/validatingadmissionpolicybindings"),
            instances=_list(client, f"/apis/{names.API_VERSION}/{names.PLURAL}"),
        )
    except httpx2.HTTPError as error:
        raise NoCluster(f"the API server does not answer: {error}") from error


def _version(client: httpx2.Client) -> tuple[int, int]:
    answer = client.get("/version")
    if answer.status_code != httpx2.codes.OK:
        raise NoCluster(f"the API server refuses: {_refusal(answer)}")
    version = answer.json()
    # Some platforms write 30+.
    return int(version["major"]), int(version["minor"].rstrip("+"))


def _list(client: httpx2.Client, path: str) -> tuple[Manifest, ...] | Unread:
    items: list[Manifest] = []
    query: dict[str, Any] = {"limit": _PAGE_OBJECTS}
    while True:
        answer = client.get(path, params=query)
        if answer.status_code == httpx2.codes.NOT_FOUND:
            return ()  # the API server does not have this kind
        if answer.status_code != httpx2.codes.OK:
            return Unread(_refusal(answer))
        page = answer.json()
        items += page["items"]
        query["continue"] = page["metadata"].get("continue")
        if not query["continue"]:
            return tuple(items)


def _both(
    one: tuple[Manifest, ...] | Unread, other: tuple[Manifest, ...] | Unread
) -> tuple[Manifest, ...] | Unread:
    if isinstance(one, Unread) or isinstance(other, Unread):
        return one if isinstance(one, Unread) else other
    return one + other


def _refusal(answer: httpx2.Response) -> str:
    try:
        message = answer.json().get("message")
    except ValueError:
        message = None
    return str(message or f"status {answer.status_code}")
