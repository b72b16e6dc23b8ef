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
    line, _, fields = head.partition(b"\r\n")
    assert line == f"HTTP/1.1 {refusal.answer.status} {refusal.answer.phrase}: d?tail ".encode()
    assert f"Content-Length: {len(body)}\r\n".encode() in fields + b"\r\n"
    written = refusal.as_status_object
    status = json.loads(written.text)
    assert (status["kind"], status["code"]) == ("Status", refusal.answer.status)
    assert 400 <= status["code"] <= 599
    assert "détail" in status["message"]
    assert written.content_type == "application/json"


@pytest.mark.parametrize("reason", ANSWERS)
def test_where_no_object_is_expected_the_status_is_one_whose_text_kubectl_shows(reason: Reason) -> None:
    refusal = Refusal(reason, "detail")
    written = refusal.as_text_for_discovery
    assert written.content_type == "text/plain"
    assert written.text == f"{refusal.answer.phrase}: detail\n"
    # NewGenericServerResponse, k8s.io/apimachinery
    assert written.status == 403 or (written.status >= 500 and written.status not in (503, 504))
    assert (written.status >= 500) is (refusal.answer.status >= 500)


def test_a_long_answer_to_a_connect_has_a_phrase_that_clients_take() -> None:
    line = Refusal(Reason.DOMAIN_NOT_ALLOWED, 5000 * "x").before_tls().partition(b"\r\n")[0]
    assert line.startswith(b"HTTP/1.1 403 domain not allowed: xxx")
    assert len(line) < 350
