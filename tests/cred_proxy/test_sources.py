"""Loading and exchanging what the proxy runs on, without any network."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from cli_mcp.api.endpoint import Endpoint
from cli_mcp.authority import generate_authority
from cli_mcp.proxy_config import UpstreamConfig
from cred_proxy.certificates import ADOPTION_SECONDS, Authority, parse_authorities
from cred_proxy.routes import AllowlistRoute
from cred_proxy.sources import (
    MAX_FILE_BYTES,
    InvalidSource,
    LiveState,
    Routing,
    Source,
    authorities_from_directory,
    routing_from_files,
)

NOW = datetime.now(UTC)
OLD, NEW = (parse_authorities(*generate_authority(name, NOW), NOW)[0] for name in ("old", "new"))
ROUTING = Routing({}, UpstreamConfig())


class Clock:
    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


def live_state(authorities: list[tuple[Authority, ...]], clock: Clock) -> LiveState:
    """Each reload finds the next of `authorities`."""
    remaining = iter(authorities)
    return LiveState(lambda: ROUTING, lambda: next(remaining), clock)


def test_a_new_authority_signs_after_its_time_even_when_the_old_key_is_gone() -> None:
    clock = Clock()
    live = live_state([(OLD,), (NEW,), (NEW,)], clock)
    assert live.authority == OLD
    live.reload()
    assert live.authority == OLD
    clock.seconds += ADOPTION_SECONDS / 2
    live.reload()  # the same files again do not start the time anew
    clock.seconds += ADOPTION_SECONDS / 2
    assert live.authority == NEW


def test_a_proxy_that_starts_amid_a_rotation_signs_with_the_older_authority_first() -> None:
    clock = Clock()
    live = live_state([(NEW, OLD)], clock)
    assert live.authority == OLD
    clock.seconds += ADOPTION_SECONDS
    assert live.authority == NEW


def test_one_invalid_source_does_not_hold_the_other_back() -> None:
    loads = iter([Routing({}, UpstreamConfig()), None])
    authorities = iter([(OLD,), (NEW,)])

    def load_routing() -> Routing:
        routing = next(loads)
        if routing is None:
            raise InvalidSource("broken")
        return routing

    clock = Clock()
    live = LiveState(load_routing, lambda: next(authorities), clock)
    before = live.routing
    assert live.reload() == {Source.ROUTING: "broken", Source.AUTHORITY: None}
    assert live.problems == {Source.ROUTING: "broken"}
    assert live.routing is before
    clock.seconds += ADOPTION_SECONDS
    assert live.authority == NEW


def test_files_become_routes(tmp_path: Path) -> None:
    config = tmp_path / "proxy-config.json"
    config.write_text('{"allowlist": [{"host": "a.b", "port": 443}]}')
    routing = routing_from_files(config, None)()
    assert routing.table == {Endpoint("a.b", 443): AllowlistRoute(Endpoint("a.b", 443))}


@pytest.mark.parametrize(
    ("config", "kubeconfig", "message"),
    [
        (None, "", "proxy-config.json cannot be read: No such file"),
        ("{", "", "proxy-config.json: "),
        ("{" + MAX_FILE_BYTES * " ", "", "proxy-config.json is larger"),
        ('{"kubernetes": [{"host": "a.b", "port": 443}]}', None, "kubeconfig cannot be read"),
        ('{"kubernetes": [{"host": "a.b", "port": 443}]}', "[", "kubeconfig is not valid YAML"),
        (
            '{"kubernetes": [{"host": "a.b", "port": 443}]}',
            "users: [{name: u, user: {exec: {command: aws}}}]",
            'no usable token for https://a.b:443; refused user "u": `exec`',
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_file(
    tmp_path: Path, config: str | None, kubeconfig: str | None, message: str
) -> None:
    for name, content in (("proxy-config.json", config), ("kubeconfig", kubeconfig)):
        if content is not None:
            (tmp_path / name).write_text(content)
    with pytest.raises(InvalidSource, match=message):
        routing_from_files(tmp_path / "proxy-config.json", tmp_path / "kubeconfig")()


@pytest.mark.parametrize(
    ("certificate", "key"),
    [(b"", b""), (b"\xff", b"\xff"), (None, b""), (b"-----BEGIN CERTIFICATE-----", b"x")],
)
def test_an_authority_that_cannot_be_used_is_named_with_its_directory(
    tmp_path: Path, certificate: bytes | None, key: bytes
) -> None:
    if certificate is not None:
        (tmp_path / "ca.crt").write_bytes(certificate)
    (tmp_path / "ca.key").write_bytes(key)
    with pytest.raises(InvalidSource, match=str(tmp_path)):
        authorities_from_directory(tmp_path)()
