"""Retiring pods while others claim them: which protocols lose claimed pods, as it was measured.

Only retiring in two steps, together with claims that carry the resourceVersion of a read, loses none.
"""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import pytest

from tests.kube.errors import ApiError
from tests.kube.objects import is_terminating, labels_of, name_of, revision_of, uid_of
from tests.kube.samples import last_applied_echo, observed_pods, pod
from tests.kube.worlds import ModelWorld

if TYPE_CHECKING:
    from tests.kube.connection import Call
    from tests.kube.objects import Object

POOL_SIZE = 4
ROUNDS = 250
RETIRED_SHARE = 0.2


class Race:
    """A hook that retires at random, and a claimer that acts between any two requests of Metacontroller."""

    def __init__(self, seed: int, *, two_steps: bool, claims_with_revision: bool) -> None:
        self.claimed = 0
        self.lost = 0
        self._random = random.Random(seed)
        self._two_steps = two_steps
        self._claims_with_revision = claims_with_revision
        self._sessions = itertools.count(1)
        self._live: set[str] = set()  # uids of pods that a session holds
        self._seen: list[Object] = []  # what the claimer read last
        self._world = ModelWorld()
        self._world.hooks.desired = self._desired
        self._world.before(self._between_requests)
        self._world.parent()

    def run(self) -> None:
        for _ in range(ROUNDS):
            self._world.touch()
            self._world.controller.deliver(limit=self._random.choice((1, 2, 3, None)))
            self._world.controller.sync_next()
            self._claim_or_look()
            self._end_a_session()
            self._count_lost()

    def _desired(self, request: Object) -> list[Object]:
        kept: list[Object] = []
        for observed in observed_pods(request):
            labels = labels_of(observed)
            if labels.get("state") == "retiring":
                continue
            echo = last_applied_echo(observed)
            if "session-id" not in labels and self._random.random() < RETIRED_SHARE:
                if not self._two_steps:
                    continue
                echo["metadata"]["labels"]["state"] = "retiring"
            kept.append(echo)
        taken = {name_of(observed) for observed in observed_pods(request)}
        free = (name for name in (f"p{slot}" for slot in itertools.count()) if name not in taken)
        return [*kept, *(pod(next(free)) for _ in range(POOL_SIZE - len(kept)))]

    def _between_requests(self, call: Call) -> None:
        if call.resource == "pods" and self._random.random() < 0.5:
            self._claim_or_look()

    def _claim_or_look(self) -> None:
        if self._random.random() < 0.5 or not self._seen:
            self._seen = self._world.api.list("pods").items
            return
        chosen = self._random.choice(self._seen)
        if labels_of(chosen).keys() & {"session-id", "state"} or is_terminating(chosen):
            return
        metadata: Object = {"uid": uid_of(chosen), "labels": {"session-id": f"s{next(self._sessions)}"}}
        if self._claims_with_revision:
            metadata["resourceVersion"] = revision_of(chosen)
        try:
            self._world.patch("Pod", name_of(chosen), {"metadata": metadata})
        except ApiError as error:
            assert error.code in (404, 409, 422)
            return
        self.claimed += 1
        self._live.add(uid_of(chosen))

    def _end_a_session(self) -> None:
        held = [it for it in self._world.api.objects("pods") if uid_of(it) in self._live]
        if len(held) >= POOL_SIZE:
            ended = self._random.choice(held)
            self._live.discard(uid_of(ended))
            self._world.label(name_of(ended), state="retiring")

    def _count_lost(self) -> None:
        there = {uid_of(it) for it in self._world.api.objects("pods") if not is_terminating(it)}
        self.lost += len(self._live - there)
        self._live &= there


@pytest.mark.parametrize("seed", range(3))
def test_two_steps_and_claims_with_a_revision_lose_no_claimed_pod(seed: int) -> None:
    race = Race(seed, two_steps=True, claims_with_revision=True)
    race.run()
    assert race.claimed > 15
    assert race.lost == 0


def test_retiring_in_one_step_loses_claimed_pods() -> None:
    race = Race(0, two_steps=False, claims_with_revision=True)
    race.run()
    assert race.lost > 0


def test_claims_without_a_revision_lose_claimed_pods_even_in_two_steps() -> None:
    race = Race(0, two_steps=True, claims_with_revision=False)
    race.run()
    assert race.lost > 0
