"""Generated Secrets: made once, read back, rotated."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cli_mcp import names
from cli_mcp.session_keys import PUBLICATION
from hooks import generated
from hooks.generated import GeneratedSecret, decoded_data, encoded_data, parse_session_keys
from hooks.wire import CHILD_KINDS, SECRET, HookRequest, Parent
from tests.hooks.world import CountingKeys

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def request(secret: GeneratedSecret | None = None, **annotations: str) -> HookRequest:
    """A request that observes `secret`, by an instance with these annotations."""
    parent = Parent({"metadata": {"annotations": annotations}}, "demo", "ns", "u", 1)
    children: dict[str, dict[str, Any]] = {kind.key: {} for kind in CHILD_KINDS}
    if secret is not None:
        done = {names.ANNOTATION_ROTATED_FOR: secret.rotated_for} if secret.rotated_for else {}
        children[SECRET.key][secret.name] = {
            "metadata": {"name": secret.name, "annotations": done},
            "data": encoded_data(secret.data),
        }
    return HookRequest(parent, children, {})


def rotate(what: str, value: str) -> dict[str, str]:
    return {what: value}


def test_a_secret_that_is_not_there_is_made_and_counts_only_once_observed() -> None:
    keys = CountingKeys()
    made = generated.session_key(request(), NOW, keys, None)
    assert not made.observed
    assert generated.public_keys(made) is None
    observed = generated.session_key(request(made), NOW, keys, None)
    assert observed.observed
    assert observed.data == made.data
    assert [key.kid for key in generated.public_keys(observed) or ()] == ["0000000000000001"]
    assert keys.made == 1


def test_a_new_authority_comes_first_and_only_the_one_before_it_stays() -> None:
    keys = CountingKeys()
    secret = generated.proxy_ca(request(), NOW, keys)
    for value in ("a", "b"):
        rotated = request(secret, **rotate(names.ANNOTATION_ROTATE_PROXY_CA, value))
        secret = generated.proxy_ca(rotated, NOW, keys)
        assert (
            generated.proxy_ca(request(secret, **rotate(names.ANNOTATION_ROTATE_PROXY_CA, value)), NOW, keys)
            == secret
        )
    certificates = secret.data["ca.crt"].split("-----END CERTIFICATE-----\n")
    assert ["ca 3" in certificates[0], "ca 2" in certificates[1], certificates[2:]] == [True, True, [""]]
    assert secret.data["ca.key"].count("BEGIN PRIVATE KEY") == 2


def test_an_instance_that_is_born_with_a_rotation_makes_one_key() -> None:
    keys = CountingKeys()
    annotated = rotate(names.ANNOTATION_ROTATE_SESSION_KEY, "a")
    made = generated.session_key(request(None, **annotated), NOW, keys, None)
    assert generated.session_key(request(made, **annotated), NOW, keys, None).data == made.data
    assert keys.made == 1


def test_removing_the_annotation_rotates_nothing() -> None:
    keys = CountingKeys()
    made = generated.session_key(
        request(None, **rotate(names.ANNOTATION_ROTATE_SESSION_KEY, "a")), NOW, keys, None
    )
    after = generated.session_key(request(made), NOW, keys, None)
    assert (after.data, after.rotated_for) == (made.data, "a")


@pytest.mark.parametrize(
    ("later", "oldest_sandbox", "kept"),
    [
        (timedelta(), None, 2),
        (PUBLICATION - timedelta(seconds=1), None, 2),
        (PUBLICATION, None, 1),
        (PUBLICATION * 2, NOW, 2),
        (PUBLICATION * 2, NOW + PUBLICATION, 1),
    ],
)
def test_an_old_session_key_goes_when_the_new_one_signs_and_no_sandbox_is_from_before(
    later: timedelta, oldest_sandbox: datetime | None, kept: int
) -> None:
    keys = CountingKeys()
    annotated = rotate(names.ANNOTATION_ROTATE_SESSION_KEY, "a")
    first = generated.session_key(request(), NOW - timedelta(days=1), keys, None)
    both = generated.session_key(request(first, **annotated), NOW, keys, NOW)
    settled = generated.session_key(request(both, **annotated), NOW + later, keys, oldest_sandbox)
    assert len(generated.public_keys(settled) or ()) == kept


def test_the_new_session_key_signs_only_after_its_publication() -> None:
    keys = CountingKeys()
    first = generated.session_key(request(), NOW - timedelta(days=1), keys, None)
    annotated = rotate(names.ANNOTATION_ROTATE_SESSION_KEY, "a")
    both = parse_session_keys(generated.session_key(request(first, **annotated), NOW, keys, NOW).data)
    assert both is not None
    assert both.signing_key(NOW + PUBLICATION - timedelta(seconds=1)).kid == "0000000000000001"
    assert both.signing_key(NOW + PUBLICATION).kid == "0000000000000002"


def test_a_session_key_secret_that_cannot_be_read_is_left_alone_until_a_rotation() -> None:
    keys = CountingKeys()
    broken = GeneratedSecret(
        "cli-mcp-demo-session-key", "server", {names.SESSION_KEYS_KEY: "{}"}, "", observed=True
    )
    assert generated.session_key(request(broken), NOW, keys, None).data == broken.data
    assert generated.public_keys(broken) is None
    annotated = rotate(names.ANNOTATION_ROTATE_SESSION_KEY, "a")
    mended = generated.session_key(request(broken, **annotated), NOW, keys, None)
    assert len(generated.public_keys(mended) or ()) == 1


def test_a_secret_that_somebody_emptied_is_made_again() -> None:
    keys = CountingKeys()
    emptied = GeneratedSecret("cli-mcp-demo-session-key", "server", {}, "", observed=True)
    made = generated.session_key(request(emptied), NOW, keys, None)
    assert made.data
    assert not made.observed


def test_data_is_base64_and_what_is_no_text_is_left_out() -> None:
    assert decoded_data({"data": encoded_data({"a": "ä"}) | {"b": "/w==", "c": "?"}}) == {"a": "ä"}


def test_no_key_shows_in_a_repr() -> None:
    key = CountingKeys().session_key(NOW)
    assert "private" not in repr(key)
