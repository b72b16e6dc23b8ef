"""Which uid a sandbox of root gets."""

import os

import pytest

from local_runtime import identity


def test_a_uid_that_is_taken_is_never_chosen() -> None:
    offered = iter([identity.FIRST_UID, identity.FIRST_UID + 1, identity.FIRST_UID + 2])
    taken = {identity.FIRST_UID, identity.FIRST_UID + 1}
    chosen = identity.choose_uid(taken.__contains__, lambda first, last: next(offered))
    assert chosen == identity.FIRST_UID + 2


def test_when_all_are_taken_it_says_so() -> None:
    with pytest.raises(identity.NoFreeUid):
        identity.choose_uid(lambda uid: True)


def test_users_processes_and_sessions_of_this_host_are_taken() -> None:
    is_taken = identity.taken_on_this_host({identity.FIRST_UID + 7})
    assert is_taken(0)
    assert is_taken(os.geteuid())
    assert is_taken(identity.FIRST_UID + 7)
    assert not is_taken(identity.LAST_UID)


def test_chosen_uids_are_in_the_range_that_is_recognised() -> None:
    uid = identity.choose_uid(lambda uid: False)
    assert identity.in_session_range(uid)
    assert not identity.in_session_range(1000)
    assert not identity.in_session_range(0)
