"""How much each client may put into an audit log: what is beyond is counted, and the count is a line too.

A log holds so many bytes and no more. Without a budget whoever asks fastest pushes the records of all others
out of it, and their own. A client's records of each event have a budget of their own, so that what is refused
cannot hide what was not.
"""

import asyncio
import json
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TextIO

Fields = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A record, as far as a budget has to know it. `fields` are those of its line, with `event` and `time`.

    Entries of one `kind` differ in nothing that matters and may be counted together; with the same `detail`
    too they are repetitions. `added` names fields whose sum stands in the line of a count.
    """

    client: Hashable
    kind: Hashable
    detail: Hashable
    fields: Fields
    added: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """JSON, ASCII, without a line end whatever the fields hold."""
        return json.dumps(self.fields)


@dataclass(frozen=True, slots=True)
class BudgetLimits:
    """For the records of one client and one event. A line has some 250 bytes: at once 2,000 of them, and one
    each second for ever."""

    burst_bytes: int = 512 * 1024
    bytes_per_second: float = 256.0
    # For the first record of a kind, when the rest is used up.
    reserve_bytes: int = 64 * 1024
    reserve_bytes_per_second: float = 16.0
    # Counts are written as often, and so many repetitions in this time are written out.
    period_seconds: float = 60.0
    repetitions: int = 60
    # What is remembered of a client, and of how many clients.
    kinds: int = 512
    counts: int = 32
    accounts: int = 4096


@dataclass(slots=True)
class _Allowance:
    burst: float
    per_second: float
    left: float
    since: float

    def pay(self, size: int, now: float) -> bool:
        self._refill(now)
        if size > self.left:
            return False
        self.left -= size
        return True

    def is_full(self, now: float) -> bool:
        self._refill(now)
        return self.left >= self.burst

    def _refill(self, now: float) -> None:
        self.left = min(self.burst, self.left + (now - self.since) * self.per_second)
        self.since = now


@dataclass(slots=True)
class _Count:
    """Records that were not written: how many, the last of them, and when the first was."""

    last: AuditEntry
    since: object
    repeated: int = 0
    mixed: bool = False
    sums: dict[str, float] = field(default_factory=dict)

    def add(self, entry: AuditEntry) -> None:
        self.mixed = self.mixed or entry.kind != self.last.kind
        self.last = entry
        self.repeated += 1
        for name in entry.added:
            value = entry.fields[name]
            assert isinstance(value, int | float)
            self.sums[name] = self.sums.get(name, 0) + value

    @property
    def line(self) -> str:
        fields = {**self.last.fields, **self.sums, "repeated": self.repeated, "since": self.since}
        return json.dumps({**fields, "mixed": True} if self.mixed else fields)


@dataclass(slots=True)
class _Account:
    allowance: _Allowance
    reserve: _Allowance
    used_up: bool = False
    """Until all counts are written: then single records are, again."""
    kinds: set[Hashable] = field(default_factory=set)
    written: dict[Hashable, int] = field(default_factory=dict)
    """How often each record was, in this period."""
    counts: dict[Hashable, _Count] = field(default_factory=dict)


class AuditBudget:
    """Which lines to write. Pure: `now` is in seconds of a monotonic clock."""

    def __init__(self, limits: BudgetLimits | None = None) -> None:
        self._limits = limits or BudgetLimits()
        self._accounts: dict[Hashable, _Account] = {}
        self.counting = False
        """Whether there are counts that `settle` has to write."""

    def admit(self, entry: AuditEntry, now: float) -> Iterator[str]:
        """The line of `entry`, unless it is counted; before it what had to make room."""
        owner = (entry.client, entry.fields["event"])
        account = self._accounts.get(owner)
        if account is None:
            yield from self._make_room(now)
            account = self._accounts[owner] = self._open(now)
        line = entry.line
        if self._may_write(account, entry, len(line) + 1, now):
            yield line
        else:
            self._count(account, entry)

    def settle(self, now: float) -> Iterator[str]:
        """The lines of the counts, as far as the budgets go; to be called every `period_seconds`."""
        for account in self._accounts.values():
            account.written.clear()
            for kind, count in list(account.counts.items()):
                line = count.line
                if not account.allowance.pay(len(line) + 1, now):
                    break
                del account.counts[kind]
                yield line
            account.used_up = bool(account.counts)
        self.counting = any(account.counts for account in self._accounts.values())

    def close(self) -> Iterator[str]:
        """The lines of all counts."""
        for account in self._accounts.values():
            yield from (count.line for count in account.counts.values())
        self._accounts.clear()

    def _may_write(self, account: _Account, entry: AuditEntry, size: int, now: float) -> bool:
        limits = self._limits
        if entry.kind not in account.kinds and len(account.kinds) < limits.kinds:
            if account.allowance.pay(size, now) or account.reserve.pay(size, now):
                account.kinds.add(entry.kind)
                return True
            account.used_up = True
            return False
        repetition = (entry.kind, entry.detail)
        written = account.written.get(repetition, 0)
        if account.used_up or written >= limits.repetitions:
            return False
        if not account.allowance.pay(size, now):
            account.used_up = True
            return False
        account.written[repetition] = written + 1
        return True

    def _count(self, account: _Account, entry: AuditEntry) -> None:
        kind = entry.kind
        if kind not in account.counts and len(account.counts) >= self._limits.counts:
            kind = None
        count = account.counts.get(kind)
        if count is None:
            count = account.counts[kind] = _Count(entry, entry.fields["time"])
        count.add(entry)
        self.counting = True

    def _open(self, now: float) -> _Account:
        limits = self._limits
        return _Account(
            _Allowance(limits.burst_bytes, limits.bytes_per_second, limits.burst_bytes, now),
            _Allowance(limits.reserve_bytes, limits.reserve_bytes_per_second, limits.reserve_bytes, now),
        )

    def _make_room(self, now: float) -> Iterator[str]:
        """Forgets clients that have their whole budget again; when there are too many others, the oldest."""
        if len(self._accounts) < self._limits.accounts:
            return
        full = [
            owner
            for owner, account in self._accounts.items()
            if not account.counts and account.allowance.is_full(now) and account.reserve.is_full(now)
        ]
        for owner in full or list(self._accounts)[:1]:
            yield from (count.line for count in self._accounts.pop(owner).counts.values())


class BudgetedLog:
    """Writes entries within their budgets, and their counts while an event loop runs."""

    def __init__(
        self,
        write_line: Callable[[str], None],
        limits: BudgetLimits | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`write_line` takes a line of ASCII without its end."""
        self._write_line = write_line
        self._limits = limits or BudgetLimits()
        self._budget = AuditBudget(self._limits)
        self._monotonic = monotonic
        self._settling: asyncio.TimerHandle | None = None

    def write(self, entry: AuditEntry) -> None:
        for line in self._budget.admit(entry, self._monotonic()):
            self._write_line(line)
        if self._settling is None and self._budget.counting:
            self._settle_later()

    def close(self) -> None:
        """Writes what was counted."""
        if self._settling is not None:
            self._settling.cancel()
        for line in self._budget.close():
            self._write_line(line)

    def _settle_later(self) -> None:
        loop = asyncio.get_running_loop()
        self._settling = loop.call_later(self._limits.period_seconds, self._settle)

    def _settle(self) -> None:
        self._settling = None
        for line in self._budget.settle(self._monotonic()):
            self._write_line(line)
        if self._budget.counting:
            self._settle_later()


def lines_to(stream: TextIO) -> Callable[[str], None]:
    """Writes each line to `stream` at once."""

    def write(line: str) -> None:
        stream.write(f"{line}\n")
        stream.flush()

    return write
