"""How many and how often: connections, logins, addresses, users."""

import ipaddress

import pytest

from ssh_gateway.admission import Admission, Limits, Rate, Refusal

A, B = ipaddress.ip_address("192.0.2.1"), ipaddress.ip_address("192.0.2.2")


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def admission(clock: Clock | None = None, **limits: int) -> Admission:
    return Admission(Limits(**limits), clock or Clock())


def test_one_address_cannot_take_the_places_of_all() -> None:
    them = admission(unauthenticated=4, unauthenticated_per_address=2)
    for _ in range(2):
        them.connect(A)
    with pytest.raises(Refusal, match="your address"):
        them.connect(A)
    them.connect(B)
    them.connect(B)
    with pytest.raises(Refusal, match="too many connections are logging in"):
        them.connect(ipaddress.ip_address("192.0.2.3"))


def test_a_place_is_free_again_after_the_login_and_after_the_end() -> None:
    them = admission(unauthenticated=1, connections_per_user=1)
    first = them.connect(A)
    first.log_in("alice")
    second = them.connect(A)
    with pytest.raises(Refusal, match="close one"):
        second.log_in("alice")
    assert (them.unauthenticated, them.logged_in) == (1, 1)
    first.leave()
    first.leave()
    second.log_in("alice")
    second.leave()
    assert (them.unauthenticated, them.logged_in) == (0, 0)


def test_all_users_together_have_a_limit() -> None:
    them = admission(connections=2)
    for name in ("alice", "bob"):
        them.connect(A).log_in(name)
    with pytest.raises(Refusal, match="too many connections"):
        them.connect(A).log_in("carol")


def test_connections_of_an_address_and_logins_of_a_user_have_a_rate() -> None:
    clock = Clock()
    them = admission(clock, connections_per_minute_per_address=3, logins_per_minute_per_user=2)
    for _ in range(3):
        them.connect(A).leave()
    with pytest.raises(Refusal, match="in a minute"):
        them.connect(A)
    for _ in range(2):
        ticket = them.connect(B)
        ticket.log_in("alice")
        ticket.leave()
    ticket = them.connect(B)
    with pytest.raises(Refusal, match="in a minute"):
        ticket.log_in("alice")
    ticket.log_in("bob")
    clock.now += 20
    them.connect(A)
    with pytest.raises(Refusal):
        them.connect(A)


def test_ipv6_addresses_of_one_network_count_as_one() -> None:
    them = admission(unauthenticated_per_address=1)
    them.connect(ipaddress.ip_address("2001:db8::1"))
    with pytest.raises(Refusal):
        them.connect(ipaddress.ip_address("2001:db8::ffff:1"))
    them.connect(ipaddress.ip_address("2001:db8:0:1::1"))


def test_what_is_remembered_of_strangers_is_bounded() -> None:
    rate = Rate(1, Clock())
    for number in range(25_000):
        rate.take(str(number))
    assert len(rate._buckets) == 20_000
