"""The mirror of a cluster that the model of Metacontroller looks at."""

from __future__ import annotations

from typing import Any

from tests.e2e.model_controller import Mirror
from tests.kube.informer import Informer
from tests.kube.resources import Registry

SECRETS = Registry().by_plural("v1", "secrets")


def secret(name: str, revision: str = "7") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "a", "resourceVersion": revision}}


def test_a_cache_that_starts_late_holds_what_came_after_the_first_list() -> None:
    mirror = Mirror()
    mirror.replace(SECRETS, [secret("listed"), secret("goes")])
    mirror.show(SECRETS, secret("came"))
    mirror.show(SECRETS, secret("goes"), removed=True)
    informer = Informer(mirror, SECRETS)
    informer.start()
    assert informer.objects() == [secret("came"), secret("listed")]


def test_a_new_list_ends_what_is_not_in_it_and_what_is_known_makes_no_event() -> None:
    mirror = Mirror()
    mirror.replace(SECRETS, [secret("stays"), secret("changes"), secret("goes")])
    informer = Informer(mirror, SECRETS)
    informer.start()
    mirror.replace(SECRETS, [secret("stays"), secret("changes", "8")])
    assert [(it.type, it.object) for it in informer.deliver()] == [
        ("DELETED", secret("goes")),
        ("MODIFIED", secret("changes", "8")),
    ]
