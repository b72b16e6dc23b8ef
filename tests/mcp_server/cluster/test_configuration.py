"""What the server knows of sandbox.json, from the watch on its ConfigMap."""

from __future__ import annotations

import pytest

from cli_mcp.sandbox_config import Gate, SandboxConfig, SessionLimits
from mcp_server.cluster.configuration import Configuration

CONFIG = SandboxConfig(
    gate=Gate(open=True),
    pool_hash="h",
    template={},
    owner_reference={"uid": "u"},
    limits=SessionLimits(idle_timeout_seconds=7),
    tools=("bash",),
)


def config_map(config: SandboxConfig | str = CONFIG) -> dict[str, object]:
    text = config if isinstance(config, str) else config.model_dump_json(by_alias=True)
    return {"data": {"sandbox.json": text}}


@pytest.fixture
def configuration() -> Configuration:
    return Configuration("cli-mcp-demo")


def test_an_open_gate_is_open(configuration: Configuration) -> None:
    configuration.listed([config_map()], "1")
    assert configuration.closed_because() == ""
    assert configuration.limits.idle_timeout_seconds == 7
    assert configuration.controller_uid == "u"


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (CONFIG.model_copy(update={"gate": Gate(open=False, reason="no proxy")}), "no proxy"),
        (CONFIG.model_copy(update={"gate": Gate(open=False)}), "gate is closed"),
        (CONFIG.model_copy(update={"template": None}), "template"),
        (CONFIG.model_copy(update={"pool_hash": None}), "template"),
        ("{", "cannot be read"),
        ('{"version": 2}', "cannot be read"),
    ],
)
def test_why_there_can_be_no_new_sandbox(
    configuration: Configuration, config: SandboxConfig | str, reason: str
) -> None:
    configuration.listed([config_map()], "1")
    configuration.changed("MODIFIED", config_map(config))
    assert reason in configuration.closed_because()
    configuration.changed("MODIFIED", config_map())
    assert configuration.closed_because() == ""


def test_before_the_first_news_nothing_is_claimed(configuration: Configuration) -> None:
    assert "has not been read yet" in configuration.closed_because()
    configuration.listed([], "1")
    assert "does not exist" in configuration.closed_because()


def test_sessions_go_on_by_what_was_known_last(configuration: Configuration) -> None:
    configuration.listed([config_map()], "1")
    configuration.changed("DELETED", config_map())
    assert "deleted" in configuration.closed_because()
    assert configuration.limits.idle_timeout_seconds == 7
    assert configuration.controller_uid == "u"
