"""The proxy as a whole: real TLS on both sides, and what the origin received."""

from tests.cred_proxy.harness import TOKEN, Harness
from tests.cred_proxy.origin import Origin


def get(path: str, host: str, *lines: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", f"Host: {host}", *lines, "", ""]).encode("latin-1")


async def test_a_request_reaches_an_allowlisted_origin_and_its_answer_the_client(
    harness: Harness, origin: Origin
) -> None:
    async with await harness.tunnel(origin.endpoint) as client:
        response = await client.request(get("/a%2Fb/../c;d?q=%20", origin.endpoint, "X-Own: 1"))
    assert (response.status, response.body) == (200, b"ok")
    assert response.fields == [("Content-Length", "2")]
    received = origin.requests[0]
    assert received.line == "GET /a%2Fb/../c;d?q=%20 HTTP/1.1"
    assert received.fields == [("Host", origin.endpoint), ("X-Own", "1")]


async def test_a_kubernetes_origin_sees_the_injected_token_alone(
    harness: Harness, kubernetes: Origin
) -> None:
    async with await harness.tunnel(kubernetes.endpoint) as client:
        response = await client.request(
            get("/api/v1/pods", kubernetes.endpoint, "Authorization: Bearer stolen")
        )
    assert response.status == 200
    assert kubernetes.requests[0].values("authorization") == [f"Bearer {TOKEN}"]
