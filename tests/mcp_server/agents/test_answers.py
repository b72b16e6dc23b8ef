import pytest

from cli_mcp.agent_api import AgentIdentity, Failure, FailureKind, Refusal, RefusalKind
from cli_mcp.execution import SandboxUnavailable, SessionBusy, ToolFailed
from mcp_server.agents.agent import AgentMisbehaved, AgentUnreachable
from mcp_server.agents.answers import check_identity, failure_error, printable, refusal_error

IDENTITY = AgentIdentity("pod-uid", "0" * 32)
# What no correct request of ours can be answered with.
IMPOSSIBLE = {
    RefusalKind.MALFORMED,
    RefusalKind.METHOD_NOT_ALLOWED,
    RefusalKind.LENGTH_REQUIRED,
    RefusalKind.HEAD_TOO_LARGE,
    RefusalKind.WRONG_BOOT,
}


@pytest.mark.parametrize("kind", RefusalKind)
def test_a_refusal_has_words_of_ours_and_none_of_the_agents(kind: RefusalKind) -> None:
    error = refusal_error(Refusal(kind, "text of the agent", IDENTITY))
    assert "text of the agent" not in str(error)
    assert isinstance(error, AgentMisbehaved) is (kind in IMPOSSIBLE)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        (RefusalKind.OTHER_SESSION, AgentUnreachable),
        (RefusalKind.NOT_ISOLATED, SandboxUnavailable),
        (RefusalKind.TOO_MANY_CALLS, SessionBusy),
    ],
)
def test_a_refusal_says_whether_to_try_again(kind: RefusalKind, error: type[Exception]) -> None:
    assert type(refusal_error(Refusal(kind, "", IDENTITY))) is error


@pytest.mark.parametrize(
    ("pod_uid", "boot", "words"),
    [
        ("pod-uid", "0" * 32, ""),
        ("pod-uid", None, ""),
        ("other", None, "pod"),
        ("pod-uid", "1" * 32, "start"),
    ],
)
def test_an_answer_must_come_from_the_pod_and_the_start_that_was_asked(
    pod_uid: str, boot: str | None, words: str
) -> None:
    if not words:
        check_identity(IDENTITY, pod_uid, boot)
        return
    with pytest.raises(AgentMisbehaved, match=f"another {words}"):
        check_identity(IDENTITY, pod_uid, boot)


def test_a_failure_keeps_its_kind_and_a_printable_piece_of_its_reason() -> None:
    error = failure_error(Failure(FailureKind.TOOL, "no such\n\x1b[31mfile"))
    assert type(error) is ToolFailed
    assert str(error) == "The tool failed: no such [31mfile"


@pytest.mark.parametrize(
    ("text", "shown"), [("", "no reason given"), ("\0\n ", "no reason given"), ("x" * 5_000, "x" * 1_000)]
)
def test_what_an_agent_says_is_short_and_on_one_line(text: str, shown: str) -> None:
    assert printable(text) == shown
