"""Routes: the file that the hooks write, and which session a user name gets."""

import re

import pytest

from cli_mcp.api.instance import Ssh
from hooks.ssh import routes_json
from ssh_gateway.routes import MalformedRoutes, parse_routes, route_for, session_key

SPEC = Ssh.model_validate(
    {
        "routes": [
            {"username": "alice", "authorizedKeysSecret": "first"},
            {"usernamePattern": "^a[a-z]+$", "authorizedKeysSecret": "second"},
            {"usernamePattern": "^agent-[0-9]+$", "authorizedKeysSecret": "third"},
        ]
    }
)


def test_what_the_hooks_write_is_read_as_it_was_in_the_spec() -> None:
    assert parse_routes(routes_json(SPEC)) == tuple(SPEC.routes)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version":2,"routes":[]}',
        '{"version":1,"routes":[{"username":"a"}]}',
        '{"version":1,"routes":[],"more":1}',
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(MalformedRoutes):
        parse_routes(text)


@pytest.mark.parametrize(
    ("username", "secret"),
    [
        ("alice", "first"),
        ("alicia", "second"),
        ("agent-7", "third"),
        ("agent-", None),
        ("xagent-7", None),
        ("agent-7x", None),
        ("agent-7\n", None),
        ("", None),
        ("Alice", None),
        ("a" * 10_000, None),
    ],
)
def test_the_first_route_that_fits_the_whole_name_counts(username: str, secret: str | None) -> None:
    route = route_for(username, tuple(SPEC.routes))
    assert (route and route.authorized_keys_secret) == secret


def test_every_user_name_has_a_session_of_its_own_whose_id_is_a_label_value() -> None:
    names = ["alice", "Alice", "alice.", "_a", "a" * 64]
    keys = [session_key(name) for name in names]
    assert len({key.id for key in keys}) == len({key.owner for key in keys}) == len(names)
    assert all(re.fullmatch("ssh-[0-9a-f]{32}", key.id) for key in keys)
    assert keys[0] == session_key("alice")
