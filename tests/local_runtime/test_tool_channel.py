"""The server's end of the pipes, with a hostile or broken other end."""

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cli_mcp import strict_json
from cli_mcp.execution import ExecutionError, SandboxUnavailable, SessionBusy, ToolFailed
from local_runtime import tool_channel
from local_runtime.tool_channel import ANSWER_LIMIT_BYTES, MAX_WAITING_CALLS, ToolChannel
from local_runtime.tool_helper import ENDED_LINE
from sandbox_agent.tools.runner import READY, START

Answer = Callable[[dict[str, Any]], bytes]


class OtherEnd:
    """Says that it is ready at each start, and answers requests as a test wants."""

    def __init__(self) -> None:
        self.requests, self._requests_write = os.pipe()
        self._answers_read, self.answers = os.pipe()
        self.starts = 0
        self.seen: list[dict[str, Any]] = []
        self.answer: Answer = lambda request: line({"id": request["id"], "result": {"ok": True}})
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def channel(self) -> ToolChannel:
        self._thread.start()
        return ToolChannel(self._requests_write, self._answers_read)

    def _serve(self) -> None:
        with open(self.requests, "rb") as requests, open(self.answers, "wb", buffering=0) as answers:
            for request in requests:
                if request == START:
                    self.starts += 1
                    answers.write(READY)
                elif request.strip():
                    self.seen.append(json.loads(request))
                    data = self.answer(self.seen[-1])
                    if data == b"die":
                        return
                    answers.write(data)


def line(value: object) -> bytes:
    return json.dumps(value).encode() + b"\n"


@pytest.fixture
def other_end() -> OtherEnd:
    return OtherEnd()


@pytest.fixture
async def channel(other_end: OtherEnd) -> Any:
    channel = other_end.channel()
    yield channel
    channel.close()


async def test_calls_are_answered_and_the_program_is_started_once(
    channel: ToolChannel, other_end: OtherEnd
) -> None:
    for number in range(3):
        assert await channel.call("read_file", {"path": f"{number}"}, 20) == {"ok": True}
    assert other_end.starts == 1
    assert [request["arguments"]["path"] for request in other_end.seen] == ["0", "1", "2"]


async def test_a_large_request_goes_through_a_small_pipe(channel: ToolChannel, other_end: OtherEnd) -> None:
    calls = [channel.call("write_file", {"content": "x" * 2_000_000}, 30) for _ in range(3)]
    assert await asyncio.gather(*calls) == [{"ok": True}] * 3
    assert [len(request["arguments"]["content"]) for request in other_end.seen] == [2_000_000] * 3


async def test_what_the_tool_says_no_with_is_cut(channel: ToolChannel, other_end: OtherEnd) -> None:
    other_end.answer = lambda request: line({"id": request["id"], "error": "no " * 5000})
    with pytest.raises(ToolFailed, match="no no") as failed:
        await channel.call("read_file", {}, 20)
    assert len(str(failed.value)) == 2_000


LIES: dict[str, Answer] = {
    "no JSON": lambda request: b"nonsense\n",
    "not UTF-8": lambda request: b"\xff\xff\n",
    "no object": lambda request: b"[1]\n",
    "no id": lambda request: line({"result": {}}),
    "an id that is no number": lambda request: line({"id": True, "result": {}}),
    "the id of no call": lambda request: line({"id": 10**9, "result": {}}),
    "a result that is no object": lambda request: line({"id": request["id"], "result": [1]}),
    "both": lambda request: line({"id": request["id"], "result": {}, "error": "x"}),
    "something besides": lambda request: line({"id": request["id"], "result": {}, "x": 1}),
    "an error that is no text": lambda request: line({"id": request["id"], "error": {"a": 1}}),
    "a key twice": lambda request: b'{"id": %d, "id": 1, "result": {}}\n' % request["id"],
    "NaN": lambda request: b'{"id": %d, "result": {"x": NaN}}\n' % request["id"],
    "a lone surrogate": lambda request: b'{"id": %d, "result": {"x": "\\ud800"}}\n' % request["id"],
    "nesting": lambda request: b'{"id": %d, "result": {"x": %s}}\n' % (request["id"], b"[" * 10**5),
}


@pytest.mark.parametrize("lie", LIES)
async def test_an_answer_that_is_none_fails_the_call_and_not_the_next(
    channel: ToolChannel, other_end: OtherEnd, lie: str
) -> None:
    honest = other_end.answer
    other_end.answer = LIES[lie]
    with pytest.raises(ExecutionError, match="no valid answer"):
        await channel.call("read_file", {}, 20)
    other_end.answer = honest
    assert await channel.call("read_file", {}, 20) == {"ok": True}


async def test_an_answer_without_end_is_not_kept(channel: ToolChannel, other_end: OtherEnd) -> None:
    other_end.answer = lambda request: b"x" * (ANSWER_LIMIT_BYTES + 10_000_000) + b"\n"
    with pytest.raises(ExecutionError, match="no valid answer"):
        await channel.call("read_file", {}, 20)


async def test_a_flood_is_not_read_while_nobody_waits(channel: ToolChannel, other_end: OtherEnd) -> None:
    assert await channel.call("read_file", {}, 20) == {"ok": True}
    written = threading.Event()

    def flood() -> None:
        os.write(other_end.answers, b"y\n" * 100_000)  # more than a pipe holds
        written.set()

    threading.Thread(target=flood, daemon=True).start()
    await asyncio.sleep(0.5)
    assert not written.is_set()


async def test_a_late_answer_belongs_to_no_later_call(channel: ToolChannel, other_end: OtherEnd) -> None:
    other_end.answer = lambda request: b""
    with pytest.raises(ExecutionError, match="gave no answer within"):
        await channel.call("read_file", {}, 0.3)
    other_end.answer = lambda request: (
        line({"id": 1, "result": {"late": True}}) + line({"id": request["id"], "result": {"ok": True}})
    )
    assert await channel.call("read_file", {}, 20) == {"ok": True}


async def test_a_program_that_dies_is_started_again(channel: ToolChannel, other_end: OtherEnd) -> None:
    honest = other_end.answer
    other_end.answer = lambda request: ENDED_LINE
    with pytest.raises(ExecutionError, match="was killed while"):
        await channel.call("read_file", {}, 20)
    other_end.answer = honest
    assert await channel.call("read_file", {}, 20) == {"ok": True}
    os.write(other_end.answers, ENDED_LINE)  # while nobody waits: no call has to fail for that
    assert await channel.call("read_file", {}, 20) == {"ok": True}
    assert other_end.starts == 3


async def test_when_nothing_is_left_the_call_says_so(channel: ToolChannel, other_end: OtherEnd) -> None:
    other_end.answer = lambda request: b"die"
    assert not channel.gone
    with pytest.raises(SandboxUnavailable, match="was killed"):
        await channel.call("read_file", {}, 20)
    assert channel.gone
    with pytest.raises(SandboxUnavailable, match="was killed"):
        await channel.call("read_file", {}, 20)


async def test_a_program_that_never_gets_ready_is_given_up(
    monkeypatch: pytest.MonkeyPatch, other_end: OtherEnd
) -> None:
    monkeypatch.setattr(tool_channel, "_START_SECONDS", 0.3)
    silent, requests = os.pipe()
    answers, kept = os.pipe()
    channel = ToolChannel(requests, answers)
    with pytest.raises(SandboxUnavailable):
        await channel.call("read_file", {}, 20)
    channel.close()
    os.close(silent)
    os.close(kept)


async def test_closing_ends_a_call_whose_request_nobody_reads() -> None:
    silent, requests = os.pipe()
    answers, kept = os.pipe()
    channel = ToolChannel(requests, answers)
    os.write(kept, READY)
    call = asyncio.create_task(channel.call("write_file", {"content": "x" * 1_000_000}, 60))
    await asyncio.sleep(0.2)
    os.write(kept, READY)
    await asyncio.sleep(0.2)
    assert not call.done()
    channel.close()
    for attempt in (call, channel.call("read_file", {}, 60)):
        with pytest.raises(SandboxUnavailable, match="ended"):
            await attempt
    os.close(silent)
    os.close(kept)


async def test_only_so_many_calls_wait(channel: ToolChannel, other_end: OtherEnd) -> None:
    other_end.answer = lambda request: b""
    calls = [asyncio.create_task(channel.call("read_file", {}, 60)) for _ in range(MAX_WAITING_CALLS)]
    await asyncio.sleep(0.3)
    with pytest.raises(SessionBusy):
        await channel.call("read_file", {}, 20)
    channel.close()
    for result in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(result, SandboxUnavailable)


_FLOODS = {
    "empty lines": b"\n" * (1 << 18),
    "small objects": b"{}\n" * (1 << 16),
    "ready": READY * (1 << 14),
    "answers to nobody": b'{"id":1}\n' * (1 << 15),
    "answers to nobody with a result": b'{"id":1,"result":{}}\n' * (1 << 14),
    "ended": ENDED_LINE * (1 << 14),
    "integers": b'{"id":2,"result":{"x":[' + b"1," * (1 << 19) + b"1]}}\n",
    "keys": b'{"id":2,"result":{' + b",".join(b'"%x":1' % n for n in range(1 << 16)) + b"}}\n",
}


@pytest.mark.parametrize("name", _FLOODS)
async def test_of_a_flood_little_is_looked_at_and_the_call_ends(
    name: str, channel: ToolChannel, other_end: OtherEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    await channel.call("first", {}, 10)
    parsed: list[int] = []
    decode = strict_json._DECODER.decode

    def counting(text: str) -> Any:
        parsed.append(len(text))
        return decode(text)

    monkeypatch.setattr(strict_json, "_DECODER", SimpleNamespace(decode=counting))
    other_end.answer = lambda request: _FLOODS[name]
    with pytest.raises(ExecutionError):
        await channel.call("second", {}, 10)
    assert len(parsed) <= 40
    assert sum(parsed) <= 1 << 12


async def test_an_answer_in_small_pieces_is_not_copied_for_each(
    channel: ToolChannel, other_end: OtherEnd
) -> None:
    """Quadratic work would take minutes."""
    whole = line({"id": 1, "result": {"x": "y" * 1_000_000}})

    def trickle(request: dict[str, Any]) -> bytes:
        for at in range(0, len(whole), 40):
            os.write(other_end.answers, whole[at : at + 40])
        return b""

    other_end.answer = trickle
    begun = time.thread_time()
    assert (await channel.call("read", {}, 30))["x"] == "y" * 1_000_000
    assert time.thread_time() - begun < 2


async def test_a_late_answer_to_an_earlier_call_disturbs_nobody(
    channel: ToolChannel, other_end: OtherEnd
) -> None:
    other_end.answer = lambda request: b""
    with pytest.raises(ExecutionError):
        await channel.call("first", {}, 0.2)
    other_end.answer = lambda request: (
        READY + b"".join(line({"id": number, "result": {}}) for number in (1, request["id"]))
    )
    assert await channel.call("second", {}, 10) == {}
