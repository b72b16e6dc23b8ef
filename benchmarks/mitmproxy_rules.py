"""The credential proxy's rules as a script for mitmproxy, to be loaded with `mitmdump --scripts`.

From the environment: BENCHMARK_TARGET is the one host:port to reach, BENCHMARK_TOKEN its bearer token.
"""

import os
import re

from mitmproxy import http  # type: ignore[import-not-found]

TARGET = os.environ["BENCHMARK_TARGET"]
TOKEN = os.environ["BENCHMARK_TOKEN"]
CREDENTIALS = re.compile(
    r"(proxy-)?authorization|x-api-key|cookie|impersonate-.*|x-remote-.*|sec-websocket-.*|x-forwarded-.*"
)
DENIED = re.compile(r"/(exec|attach|portforward|proxy)(/|$)")


def http_connect(flow: http.HTTPFlow) -> None:
    if f"{flow.request.host}:{flow.request.port}" != TARGET:
        flow.response = http.Response.make(403, "domain not allowed\n")


def requestheaders(flow: http.HTTPFlow) -> None:
    if flow.request.headers.get("host") != TARGET or DENIED.search(flow.request.path):
        flow.response = http.Response.make(403, "not allowed\n")
        return
    for name in [name for name in flow.request.headers if CREDENTIALS.fullmatch(name.lower())]:
        del flow.request.headers[name]
    flow.request.headers["Authorization"] = f"Bearer {TOKEN}"
    flow.request.stream = True


def responseheaders(flow: http.HTTPFlow) -> None:
    assert flow.response is not None
    flow.response.stream = True
