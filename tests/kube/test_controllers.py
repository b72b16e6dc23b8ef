"""What pods and Deployments look like from outside once a cluster has done its part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.kube import controllers, garbage
from tests.kube.api import Api
from tests.kube.samples import of_kind, pod

if TYPE_CHECKING:
    from tests.kube.objects import Object


def created(api: Api, obj: Object) -> Object:
    return api.create({**obj, "metadata": {**obj["metadata"], "namespace": "default"}})


def stored(api: Api, kind: str, name: str) -> Any:
    found = api.find(kind, "default", name)
    assert found is not None
    return found


def test_a_pod_is_scheduled_started_and_ended() -> None:
    api = Api()
    created(api, pod())
    controllers.start_pods(api)
    assert stored(api, "pods", "p")["status"]["phase"] == "Pending"
    controllers.schedule_pods(api)
    controllers.start_pods(api)
    running = stored(api, "pods", "p")
    assert running["status"]["podIP"]
    assert running["status"]["conditions"][0]["status"] == "True"
    api.delete("pods", "default", "p")
    assert stored(api, "pods", "p")["metadata"]["deletionGracePeriodSeconds"] == 30
    controllers.end_terminating_pods(api)
    assert api.find("pods", "default", "p") is None


def test_nothing_is_written_twice() -> None:
    api = Api()
    created(api, pod())
    created(api, of_kind("Deployment", "d"))
    created(api, of_kind("Service", "s", spec={"ports": [{"port": 80}], "selector": {"a": "b"}}))
    for _ in range(2):
        before = api.storage.revision
        controllers.schedule_pods(api)
        controllers.start_pods(api)
        controllers.roll_out_deployments(api)
    assert api.storage.revision == before


def test_a_condition_keeps_its_time_until_it_changes() -> None:
    api = Api()
    created(api, pod())
    controllers.schedule_pods(api)
    times = []
    for ready in (False, False, True):
        api.clock.advance(60)  # type: ignore[attr-defined]
        controllers.start_pods(api, lambda _, ready=ready: ready)  # type: ignore[misc]
        times.append(stored(api, "pods", "p")["status"]["conditions"][0]["lastTransitionTime"])
    assert times[0] == times[1] < times[2]


def test_the_slices_of_a_service_count_ready_replicas_of_what_it_selects() -> None:
    api = Api()
    deployment = of_kind("Deployment", "d")
    deployment["spec"]["replicas"] = 2
    created(api, deployment)
    created(api, of_kind("Service", "s", spec={"ports": [{"port": 80}], "selector": {"a": "b"}}))
    for available, endpoints in ((False, 0), (True, 2)):
        controllers.roll_out_deployments(api, lambda _, available=available: available)  # type: ignore[misc]
        found = stored(api, "endpointslices.discovery.k8s.io", "s-slice")["endpoints"]
        assert len(found or []) == endpoints
    api.delete("services", "default", "s")
    garbage.settle(api)
    assert api.find("endpointslices.discovery.k8s.io", "default", "s-slice") is None


def test_a_failed_pod_says_how_its_containers_ended() -> None:
    api = Api()
    created(api, pod())
    controllers.schedule_pods(api)
    controllers.start_pods(api)
    controllers.fail_pod(api, "default", "p", exit_code=77)
    status = stored(api, "pods", "p")["status"]
    assert status["phase"] == "Failed"
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 77
