"""The webhooks over HTTP: whole answers or a 500, metrics, and nothing said to a stranger."""

import logging
from datetime import UTC, datetime
from typing import Any

import pytest
from flask.testing import FlaskClient

from cli_mcp import names
from hooks.app import create_app
from hooks.wire import CHILD_KINDS
from tests.hooks.world import ALLOWLIST, SETTINGS, CountingKeys

PARENT = {
    "apiVersion": names.API_VERSION,
    "kind": names.KIND,
    "metadata": {"name": "demo", "namespace": "ns", "uid": "u", "generation": 1},
    "spec": {"proxy": ALLOWLIST},
}
REQUEST = {
    "controller": {},
    "parent": PARENT,
    "children": {kind.key: {} for kind in CHILD_KINDS},
    "related": {},
    "finalizing": False,
}
HOOKS = ("/sync", "/finalize", "/customize")


def client(**options: Any) -> FlaskClient:
    app = create_app(SETTINGS, CountingKeys(), lambda: datetime(2026, 1, 1, tzinfo=UTC), **options)
    return app.test_client()


def test_each_hook_answers_with_the_fields_that_metacontroller_reads() -> None:
    fields = {
        "/sync": {"status", "children"},
        "/finalize": {"status", "children", "finalized", "resyncAfterSeconds"},
        "/customize": {"relatedResources"},
    }
    for path, expected in fields.items():
        answer = client().post(path, json=REQUEST)
        assert answer.status_code == 200
        assert answer.content_type == "application/json"
        assert set(answer.get_json()) == expected


@pytest.mark.parametrize("path", HOOKS)
@pytest.mark.parametrize(
    "body", [b"", b"{", b"null", b"[]", b"{}", b'{"parent": null}', b'{"a": NaN}', b"\xff"]
)
def test_what_is_no_request_of_metacontroller_is_a_500(path: str, body: bytes) -> None:
    answer = client().post(path, data=body)
    assert answer.status_code == 500
    assert "children" not in answer.get_json()


def test_a_defect_is_a_500_and_its_cause_is_in_the_log_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise KeyError("cause")

    monkeypatch.setattr("hooks.app.sync", broken)
    with caplog.at_level(logging.ERROR):
        answer = client().post("/sync", json=REQUEST)
    assert answer.status_code == 500
    assert b"cause" not in answer.data
    assert "KeyError: 'cause'" in caplog.text


def test_requests_are_counted_by_hook_and_outcome() -> None:
    asked = client(expected_token=lambda: "right")
    right = {"Authorization": "Bearer right"}
    asked.post("/sync", json=REQUEST, headers=right)
    asked.post("/sync", data=b"{", headers=right)
    asked.post("/sync", json=REQUEST)
    metrics = asked.get("/metrics").text
    for outcome in ("ok", "malformed", "unauthorized"):
        assert f'cli_mcp_hook_requests_total{{hook="sync",outcome="{outcome}"}} 1.0' in metrics
    assert 'cli_mcp_hook_seconds_count{hook="sync"} 2.0' in metrics


@pytest.mark.parametrize("path", HOOKS)
@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer wrong", 401),
        ("Bearer righ", 401),
        ("Basic right", 401),
        ("Bearer right", 200),
        ("bearer right", 200),
    ],
)
def test_with_a_token_only_its_bearer_is_answered(path: str, header: str | None, code: int) -> None:
    headers = {} if header is None else {"Authorization": header}
    asked = client(expected_token=lambda: "right")
    assert asked.post(path, json=REQUEST, headers=headers).status_code == code


def test_an_empty_token_file_opens_nothing() -> None:
    asked = client(expected_token=lambda: "")
    assert asked.post("/sync", json=REQUEST, headers={"Authorization": "Bearer "}).status_code == 401


def test_health_needs_no_token_and_nothing_else_is_served() -> None:
    asked = client(expected_token=lambda: "right")
    assert asked.get("/healthz").status_code == 200
    assert asked.get("/sync").status_code == 405
    assert asked.get("/").status_code == 404


def test_no_content_of_a_secret_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    secret = {
        "metadata": {"name": "cli-mcp-demo-kubeconfig", "namespace": "ns"},
        "data": {"kubeconfig": "Z2VoZWlt"},
    }
    parent = {**PARENT, "spec": {"proxy": {"targets": [{"type": "kubernetes"}]}}}
    related = {"Secret.v1": {"ns/cli-mcp-demo-kubeconfig": secret}}
    request = {**REQUEST, "parent": parent, "related": related}
    with caplog.at_level(logging.DEBUG):
        client().post("/sync", json=request)
        client().post("/sync", json={**request, "children": {}})
    assert "Z2VoZWlt" not in caplog.text
    assert "geheim" not in caplog.text
