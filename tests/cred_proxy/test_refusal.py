"""The proxy's own answers."""

import json

import pytest

from cred_proxy.refusal import ANSWERS, Reason, Refusal

# These end an exchange in which no answer can be given any more.
WITHOUT_ANSWER = {Reason.TLS_FAILED, Reason.CUT_OFF, Reason.CLIENT_GONE}


def test_every_reason_has_an_answer_or_comes_too_late_for_one() -> None:
    assert set(ANSWERS) == set(Reason) - WITHOUT_ANSWER


@pytest.mark.parametrize("reason", ANSWERS)
def test_an_answer_is_well_formed_in_every_way_it_is_written(reason: Reason) -> None:
    refusal = Refusal(reason, "détail \u2028")
    head, _, body = refusal.before_tls().partition(b"\r\n\r\n")
    assert head.startswith(f"HTTP/1.1 {refusal.answer.status} {refusal.answer.phrase}\r\n".encode())
    assert f"Content-Length: {len(body)}\r\n".encode() in head
    status = json.loads(refusal.kubernetes_status())
    assert (status["kind"], status["code"]) == ("Status", refusal.answer.status)
    assert 400 <= status["code"] <= 599
    assert "détail" in status["message"]
