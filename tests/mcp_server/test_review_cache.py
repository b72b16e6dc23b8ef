import asyncio
from dataclasses import dataclass, field

import jwt
import pytest

from mcp_server.authentication import (
    Action,
    AuthenticationError,
    AuthenticationUnavailable,
    Caller,
    Forbidden,
    TooManyFailures,
    Unauthenticated,
)
from mcp_server.failure_limit import FAILURES_AT_ONCE
from mcp_server.review_cache import ENTRIES, ExpiringCache, ReviewAuthenticator, seconds_left

GOOD = "good-token"
START = 1_000_000.0
HERE, THERE = "10.0.0.1", "10.0.0.2"


@dataclass
class FakeReviewer:
    """Knows what `answers` has; everything else is nobody."""

    answers: dict[str, Caller | AuthenticationError] = field(default_factory=lambda: {GOOD: Caller("good")})
    asked: list[tuple[str, Action]] = field(default_factory=list)
    hold: asyncio.Event | None = None
    away: bool = False

    async def review(self, token: str, action: Action) -> Caller:
        self.asked.append((token, action))
        if self.hold is not None:
            await self.hold.wait()
        if self.away:
            raise AuthenticationUnavailable("away")
        answer = self.answers.get(token, Unauthenticated("nobody"))
        if isinstance(answer, AuthenticationError):
            raise answer
        return answer


@dataclass
class World:
    reviewer: FakeReviewer = field(default_factory=FakeReviewer)
    now: float = 0
    verdicts: list[str] = field(default_factory=list)
    authenticator: ReviewAuthenticator = field(init=False)

    def __post_init__(self) -> None:
        self.authenticator = ReviewAuthenticator(
            self.reviewer,
            on_verdict=self.verdicts.append,
            monotonic=lambda: self.now,
            wall=lambda: START + self.now,
        )

    async def ask(
        self, token: str | None = GOOD, action: Action = Action.CALL, address: str = HERE
    ) -> str | type[Exception]:
        """The owner, or what was raised."""
        try:
            return (await self.authenticator.authenticate(token, action, address)).owner
        except AuthenticationError as error:
            assert token is None or token not in str(error)
            return type(error)


async def test_what_was_allowed_holds_for_ten_seconds() -> None:
    world = World()
    for world.now in (0, 5, 5.9):
        assert await world.ask() == "good"
    await asyncio.sleep(0)
    assert len(world.reviewer.asked) == 1
    world.now = 10
    world.reviewer.answers[GOOD] = Unauthenticated("revoked")
    assert await world.ask() is Unauthenticated
    assert world.verdicts == ["allowed", "cached", "cached", "refused"]


async def test_who_calls_all_the_time_never_waits_for_a_review() -> None:
    world = World()
    await world.ask()
    world.reviewer.hold = asyncio.Event()
    for world.now in (6, 6, 9.9):
        assert await world.ask() == "good"
        await asyncio.sleep(0)
    assert len(world.reviewer.asked) == 2, "one at a time"
    world.reviewer.hold.set()
    await asyncio.sleep(0)
    world.now = 15.9
    assert await world.ask() == "good", "ten seconds from when the second was asked"


async def test_a_caller_who_was_revoked_is_out_as_soon_as_a_review_says_so() -> None:
    world = World()
    await world.ask()
    world.reviewer.answers[GOOD] = Unauthenticated("revoked")
    world.now = 6
    assert await world.ask() == "good"
    await asyncio.sleep(0)
    assert await world.ask() is Unauthenticated


async def test_what_was_refused_holds_for_two_seconds() -> None:
    world = World(FakeReviewer({GOOD: Forbidden("not yet")}))
    for world.now in (0, 1.9):
        assert await world.ask() is Forbidden
    assert len(world.reviewer.asked) == 1
    world.now = 2
    world.reviewer.answers[GOOD] = Caller("good")
    assert await world.ask() == "good"


async def test_each_action_is_allowed_by_itself() -> None:
    world = World()
    for action in (*Action, *Action):
        await world.ask(action=action)
    assert world.reviewer.asked == [(GOOD, action) for action in Action]


@pytest.mark.parametrize(("expires_in", "asked_again"), [(3, True), (60, False), (-5, True)])
async def test_a_token_is_not_believed_past_its_expiry(expires_in: float, asked_again: bool) -> None:
    token = jwt.encode({"exp": START + expires_in}, "k" * 32, algorithm="HS256")
    world = World(FakeReviewer({token: Caller("short")}))
    await world.ask(token)
    world.now = 4
    await world.ask(token)
    assert (len(world.reviewer.asked) == 2) is asked_again


@pytest.mark.parametrize(
    "token", ["sha256~opaque", "a.b.c", "eyJhbGciOiJub25lIn0.e30.", "eyJhbGciOiJub25lIn0.eyJleHAiOiJ4In0."]
)
def test_a_token_whose_expiry_cannot_be_read_has_none(token: str) -> None:
    assert seconds_left(token, START) == float("inf")


@pytest.mark.parametrize(
    "token",
    [
        None,
        "x" * 16_385,
        "with space",
        "line\nfeed",
        "null\0",
        "ümlaut",
        'quote"',
        "semi;colon",
        "=",
        "\udcff",
    ],
)
async def test_what_is_no_token_is_refused_without_asking(token: str | None) -> None:
    world = World()
    assert await world.ask(token) is Unauthenticated
    assert world.reviewer.asked == []


async def test_calls_at_the_same_time_share_one_review() -> None:
    world = World(FakeReviewer(hold=asyncio.Event()))
    calls = [asyncio.create_task(world.ask()) for _ in range(50)]
    await asyncio.sleep(0)
    calls[0].cancel()  # which must not take the others with it
    await asyncio.sleep(0)
    assert world.reviewer.hold is not None
    world.reviewer.hold.set()
    assert await asyncio.gather(*calls[1:]) == ["good"] * 49
    assert len(world.reviewer.asked) == 1


async def test_without_an_answer_nobody_new_is_let_in_and_who_was_stays_for_the_ten_seconds() -> None:
    world = World()
    assert await world.ask() == "good"
    world.reviewer.away = True
    world.now = 9
    assert await world.ask() == "good"
    assert await world.ask("another") is AuthenticationUnavailable
    world.now = 10
    assert await world.ask() is AuthenticationUnavailable
    world.reviewer.away = False
    assert await world.ask() == "good"


async def test_failures_are_limited_for_each_address() -> None:
    world = World()
    results = [await world.ask(f"guess-{number}") for number in range(FAILURES_AT_ONCE + 5)]
    assert results == [Unauthenticated] * FAILURES_AT_ONCE + [TooManyFailures] * 5
    assert len(world.reviewer.asked) == FAILURES_AT_ONCE
    assert await world.ask("guess-x", address=THERE) is Unauthenticated
    world.now = 2
    assert await world.ask("guess-y") is Unauthenticated


async def test_failures_at_the_same_time_are_limited_too() -> None:
    world = World(FakeReviewer(hold=asyncio.Event()))
    calls = [asyncio.create_task(world.ask(f"guess-{number}")) for number in range(100)]
    await asyncio.sleep(0)
    assert world.reviewer.hold is not None
    world.reviewer.hold.set()
    assert (await asyncio.gather(*calls)).count(TooManyFailures) == 100 - FAILURES_AT_ONCE


async def test_a_good_caller_behind_an_address_of_guessers_goes_on() -> None:
    world = World()
    assert await world.ask() == "good"
    for number in range(100):
        await world.ask(f"guess-{number}")
    assert await world.ask() == "good"
    world.now = 10.5  # no longer in the cache, but it was good lately
    for number in range(100, 200):
        await world.ask(f"guess-{number}")
    assert await world.ask() == "good"
    assert world.verdicts[-1] == "allowed"


async def test_many_good_callers_of_one_address_are_not_limited() -> None:
    tokens = [f"token-{number}" for number in range(5 * FAILURES_AT_ONCE)]
    world = World(FakeReviewer({token: Caller(token) for token in tokens}))
    assert [await world.ask(token) for token in tokens] == tokens


async def test_an_api_server_that_is_away_is_nobodys_failure() -> None:
    world = World(FakeReviewer(away=True))
    for number in range(5 * FAILURES_AT_ONCE):
        assert await world.ask(f"token-{number}") is AuthenticationUnavailable


async def test_guesses_do_not_push_out_who_was_allowed() -> None:
    world = World()
    await world.ask()
    for number in range(ENTRIES + 10):
        await world.ask(f"guess-{number}", address=f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert await world.ask() == "good"
    assert world.reviewer.asked.count((GOOD, Action.CALL)) == 1
    assert len(world.authenticator._refused) == ENTRIES


async def test_no_token_stays_in_the_cache() -> None:
    world = World()
    await world.ask()
    await world.ask("guess-1")
    kept = repr(vars(world.authenticator._allowed)) + repr(vars(world.authenticator._refused))
    assert GOOD not in kept
    assert "guess-1" not in kept


def test_a_cache_drops_its_oldest_entry() -> None:
    cache: ExpiringCache[int, str] = ExpiringCache(2)
    for key in (1, 2, 1, 3):
        cache.put(key, "x", until=10)
    assert [cache.get(key, 0) for key in (1, 2, 3)] == ["x", None, "x"]
    assert cache.get(1, 10) is None
