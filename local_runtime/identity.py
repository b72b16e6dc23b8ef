"""Who a sandbox is to the kernel: the server's own user, or as root a user that nobody else is."""

import grp
import os
import pwd
import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

# Between the ids that containers use (up to 1,879,048,191) and those of foreign images (from 2,147,352,576):
# https://systemd.io/UIDS-GIDS/
FIRST_UID = 1_900_000_000
LAST_UID = 1_999_999_999
_ATTEMPTS = 1_000


@dataclass(frozen=True, slots=True)
class Identity:
    """uid and gid of a sandbox's processes outside it, and whether this process must change to them."""

    uid: int
    gid: int
    own: bool


class NoFreeUid(Exception):
    """Every uid that was tried is in use."""


def server_identity() -> Identity:
    return Identity(os.geteuid(), os.getegid(), own=False)


def session_identity(uid: int) -> Identity:
    return Identity(uid, uid, own=True)


def choose_uid(is_taken: Callable[[int], bool], pick: Callable[[int, int], int] = random.randint) -> int:
    """A uid of the range for which `is_taken` is false. Raises NoFreeUid."""
    for _ in range(_ATTEMPTS):
        uid = pick(FIRST_UID, LAST_UID)
        if not is_taken(uid):
            return uid
    raise NoFreeUid


def in_session_range(uid: int) -> bool:
    return FIRST_UID <= uid <= LAST_UID


def taken_on_this_host(among_sessions: Collection[int]) -> Callable[[int], bool]:
    """Tells whether a uid (or the gid of the same number) is one of `among_sessions`, has an entry in the
    user or group database, is handed out for containers, or has a process now."""
    running = set(_uids_of_processes())
    ranges = [*_subordinate_ranges(Path("/etc/subuid")), *_subordinate_ranges(Path("/etc/subgid"))]

    def is_taken(uid: int) -> bool:
        if uid in among_sessions or uid in running or any(uid in ids for ids in ranges):
            return True
        return _known(pwd.getpwuid, uid) or _known(grp.getgrgid, uid)

    return is_taken


def _known(look_up: Callable[[int], object], number: int) -> bool:
    try:
        look_up(number)
    except KeyError:
        return False
    return True


def _uids_of_processes() -> Iterable[int]:
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            yield entry.stat().st_uid
        except FileNotFoundError:
            continue  # it ended meanwhile


def _subordinate_ranges(table: Path) -> Iterable[range]:
    """The ranges of subuid(5) or subgid(5): `name:first:count` a line."""
    try:
        lines = table.read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        fields = line.split(":")
        if len(fields) == 3 and fields[1].isdecimal() and fields[2].isdecimal():
            yield range(int(fields[1]), int(fields[1]) + int(fields[2]))
