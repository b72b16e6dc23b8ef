import pytest
from starlette.types import Message

from mcp_server.plain_answer import PlainAnswer

HEAD: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")],
}
END: Message = {"type": "http.response.body", "body": b"", "more_body": False}
ANSWER = b'{"jsonrpc":"2.0","id":1,"result":{"text":"\\r\\n \xc3\xa9"}}'
PROGRESS = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1}}'


def event(data: bytes) -> Message:
    return {
        "type": "http.response.body",
        "body": b"event: message\r\ndata: " + data + b"\r\n\r\n",
        "more_body": True,
    }


async def sent(*messages: Message) -> list[Message]:
    passed: list[Message] = []

    async def send(message: Message) -> None:
        passed.append(message)

    answer = PlainAnswer(send)
    for message in messages:
        await answer(message)
    return passed


@pytest.mark.parametrize(
    "answer",
    [
        ANSWER,
        b'{"jsonrpc":"2.0","id":"a \\" b","result":{}}',
        b'{"jsonrpc":"2.0","id":-7,"error":{"code":-32602,"message":"no"}}',
    ],
)
async def test_an_answer_that_comes_first_is_plain_json(answer: bytes) -> None:
    head, body = await sent(HEAD, event(answer), END)
    length = str(len(answer)).encode()
    assert head["status"] == 200
    assert head["headers"] == [(b"content-type", b"application/json"), (b"content-length", length)]
    assert body == {"type": "http.response.body", "body": answer}


@pytest.mark.parametrize(
    "stream",
    [
        (HEAD, event(PROGRESS), event(ANSWER), END),
        (
            HEAD,
            {"type": "http.response.body", "body": b": ping\r\n\r\n", "more_body": True},
            event(ANSWER),
            END,
        ),
        # A request of the server's, and an event of a form that is not known here.
        (HEAD, event(b'{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage"}'), END),
        (HEAD, event(b'{"id":1,"jsonrpc":"2.0","result":{}}'), END),
        (HEAD, END),
    ],
)
async def test_every_other_stream_stays_as_it_is(stream: tuple[Message, ...]) -> None:
    assert await sent(*stream) == list(stream)


async def test_the_head_of_a_stream_waits_for_the_first_event() -> None:
    assert await sent(HEAD) == []


async def test_what_is_no_stream_stays_as_it_is() -> None:
    refusal: list[Message] = [
        {"type": "http.response.start", "status": 406, "headers": [(b"content-type", b"application/json")]},
        {"type": "http.response.body", "body": event(ANSWER)["body"]},
    ]
    assert await sent(*refusal) == refusal
