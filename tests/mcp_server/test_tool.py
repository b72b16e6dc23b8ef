import json

import jsonschema  # type: ignore[import-untyped]
import pytest

from cli_mcp.sandbox_config import CommandLimits
from mcp_server.catalogue import ALL_GROUPS, catalogue
from mcp_server.tool import (
    BashCall,
    InvalidCall,
    bash_tool,
    check_session_id,
    default_session_id,
    egress_hint,
    parse_arguments,
    parse_session_id,
    session_of_caller,
)


@pytest.mark.parametrize(
    ("timeout", "seconds", "too_long"),
    [
        (5, 5, None),
        (0.5, 0.5, None),
        (300, 300, None),
        (300.5, 300, 300.5),
        (10**30, 300, 1e30),
        ("120", 120, None),
        (" 7.5 ", 7.5, None),
        ("1e3", 300, 1000),
        ("+2", 2, None),
    ],
)
def test_a_timeout_is_a_number_of_seconds_and_cut_to_the_maximum(
    timeout: object, seconds: float, too_long: float | None
) -> None:
    assert parse_arguments({"command": "ls", "timeout": timeout}) == BashCall("ls", seconds, too_long)


@pytest.mark.parametrize(
    ("default", "ends"), [(60, 55), (90, 85), (20, 15), (10, 7.5), (2, 1.5), (3600, 3595)]
)
def test_the_default_time_is_enough_for_the_command_and_its_answer(default: float, ends: float) -> None:
    limits = CommandLimits(default_seconds=default, max_seconds=3600)
    for arguments in ({}, {"timeout": None}, {"timeout": default}, {"timeout": str(default)}):
        assert parse_arguments({"command": "ls", **arguments}, limits) == BashCall("ls", ends)


@pytest.mark.parametrize(
    ("default", "most", "output"), [(60, 300, 50_000), (5, 7.5, 1_000), (600, 3600, 65_536)]
)
def test_a_model_is_told_the_limits_of_its_instance(default: float, most: float, output: int) -> None:
    limits = CommandLimits(default_seconds=default, max_seconds=most, output_bytes=output)
    tools = catalogue(ALL_GROUPS, "No network.", limits=limits)
    for name in ("bash", "shell_exec"):
        timeout = tools[name].definition.input_schema["properties"]["timeout"]
        assert timeout["default"] == default
        assert f"Default {default:g}, at most {most:g}." in timeout["description"]
        prepared = tools[name].prepare({"command": "ls", "timeout": 10_000})
        assert prepared.timeout_seconds == most
    description = str(tools["bash"].definition.description)
    assert f"(default {default:g}, at most {most:g})" in description
    assert f"over {output:,} bytes" in description


@pytest.mark.parametrize(
    "timeout",
    [
        *(0, 0.0, -1, -0.5, "0", "-3", True, False, [], {}, "", "soon", "60s", "1_0", "0x10", "١٢"),
        *(float("nan"), float("inf"), -float("inf"), "nan", "inf", "Infinity", "9e999", 10**400, -(10**400)),
    ],
)
def test_a_timeout_that_cannot_be_meant_is_refused_by_its_name(timeout: object) -> None:
    with pytest.raises(InvalidCall, match="`timeout`"):
        parse_arguments({"command": "ls", "timeout": timeout})


@pytest.mark.parametrize(
    "command", ["", "   ", "\n\t", "a\0b", "x\ud800y", None, 5, ["ls"], {"a": 1}], ids=repr
)
def test_a_command_that_bash_cannot_run_is_refused_by_its_name(command: object) -> None:
    with pytest.raises(InvalidCall, match="`command`"):
        parse_arguments({"command": command})


def test_a_missing_command_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidCall, match="`command`"):
        parse_arguments({})


def test_a_command_keeps_every_character() -> None:
    command = "  printf 'é€😀\\n'\n\n# end \r\n"
    assert parse_arguments({"command": command}).command == command


def test_unknown_arguments_are_refused_and_listed() -> None:
    with pytest.raises(InvalidCall, match=r"`cwd`, `x\?`.*takes `command` and `timeout`"):
        parse_arguments({"command": "ls", "cwd": "/", "x\ud800": 1})


@pytest.mark.parametrize("session", ["a", "0", "s1", "my-session", "a--b", "a" * 63, "sshd"])
def test_a_session_id_is_one_label_of_a_host_name(session: str) -> None:
    assert check_session_id(session) == session
    assert parse_session_id([session]) == session


@pytest.mark.parametrize(
    "session",
    [
        *("", "-a", "a-", "-", "A", "ä", "a_b", "a.b", "a b", " a", "a\n", "a" * 64, "a, b"),
        *("ssh-x", "../x", "a/b", "%61", "\uff41"),
    ],
)
def test_every_other_session_id_is_refused_with_the_rule(session: str) -> None:
    with pytest.raises(InvalidCall, match="lower-case letters, digits and hyphens"):
        parse_session_id([session])


def test_without_a_session_the_answer_says_which_header_to_send() -> None:
    with pytest.raises(InvalidCall, match="X-Session-ID: my-session"):
        parse_session_id([])


OWNERS = (
    "local",
    "system:serviceaccount:a:b uid1",
    "system:serviceaccount:a:b uid2",
    "",
    "\ud800",
    "x" * 9_000,
)


def test_who_names_no_session_has_one_of_their_own() -> None:
    ids = {session_of_caller([], owner, has_default=True) for owner in OWNERS}
    assert len(ids) == len(OWNERS)
    for owner in OWNERS:
        session = session_of_caller([], owner, has_default=True)
        assert check_session_id(session) == session
        assert session_of_caller([session], owner, has_default=False) == session


@pytest.mark.parametrize("has_default", [True, False])
def test_nobody_takes_the_default_session_of_another_caller(has_default: bool) -> None:
    taken = default_session_id("victim")
    with pytest.raises(InvalidCall, match="another caller's"):
        session_of_caller([taken], "attacker", has_default=has_default)


@pytest.mark.parametrize("session", ["default", "default-1", "default-" + "0" * 31, "default-" + "g" * 32])
def test_names_that_only_look_like_it_are_free(session: str) -> None:
    assert session_of_caller([session], "anybody", has_default=True) == session


@pytest.mark.parametrize("values", [["a", "a"], [""], ["ssh-x"], ["default-A"]])
def test_a_default_is_for_no_header_and_not_for_a_wrong_one(values: list[str]) -> None:
    with pytest.raises(InvalidCall):
        session_of_caller(values, "anybody", has_default=True)


def test_where_sessions_must_be_named_the_answer_says_how() -> None:
    with pytest.raises(InvalidCall, match="X-Session-ID: my-session"):
        session_of_caller([], "anybody", has_default=False)


def test_two_session_headers_are_refused_even_when_equal() -> None:
    with pytest.raises(InvalidCall, match="2 times"):
        parse_session_id(["a", "a"])


def test_a_refusal_shows_no_more_of_a_value_than_fits_a_line() -> None:
    with pytest.raises(InvalidCall) as refusal:
        check_session_id("A" * 10_000)
    assert len(str(refusal.value)) < 300


def test_the_input_schema_is_one_that_every_era_accepts() -> None:
    schema = bash_tool("No network.").input_schema
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert validator.is_valid({"command": "ls"})
    assert validator.is_valid({"command": "ls", "timeout": 600})
    assert not validator.is_valid({"timeout": 5})
    # Not said by the schema, which Gemini's converters could not read; the call is refused all the same.
    assert "additionalProperties" not in schema


def test_the_description_tells_a_model_what_it_cannot_find_out_cheaply() -> None:
    description = bash_tool("Only example.com:443 can be reached, by the proxy.").description
    assert description is not None
    for fact in (
        "Only example.com:443",
        "timeout",
        "300",
        "124",
        "50,000",
        "output_file",
        "X-Session-ID",
        "&",
    ):
        assert fact in description
    assert len(description) < 1_600


def test_a_model_is_told_where_it_can_get_and_when_nowhere() -> None:
    assert "these hosts only: a.test:443, b.test:5000. " in egress_hint(("a.test:443", "b.test:5000"))
    assert "no network" in egress_hint(())


def test_the_hints_warn_of_a_tool_that_can_do_anything() -> None:
    annotations = json.loads(bash_tool("").model_dump_json(by_alias=True))["annotations"]
    assert annotations["readOnlyHint"] is False
    assert annotations["destructiveHint"] is True
    assert annotations["idempotentHint"] is False
    assert annotations["openWorldHint"] is True
