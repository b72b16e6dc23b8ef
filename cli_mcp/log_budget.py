"""How often a program's own log says the same: what clients can cause must not push all else out of it.

Records of one place in the code and one client are counted together. Who is meant by `client` is said by
`extra={"client": ...}`, where a message is one that a client can cause. What has its own budget already, such
as a line of the audit log that could not be written there, passes with `extra={"budgeted": True}`.
"""

import logging
from dataclasses import dataclass

MESSAGES = 20
PERIOD_SECONDS = 60.0
# The oldest are forgotten, with the number of what they kept back.
_MAX_PLACES = 1024


@dataclass(slots=True)
class _Place:
    since: float
    written: int = 1
    kept_back: int = 0


class RepeatFilter(logging.Filter):
    """Lets MESSAGES pass in PERIOD_SECONDS; the next that passes says how many did not."""

    def __init__(self) -> None:
        super().__init__()
        self._places: dict[object, _Place] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "budgeted", False):
            return True
        key = (record.name, record.lineno, getattr(record, "client", None))
        place = self._places.get(key)
        if place is not None and record.created - place.since < PERIOD_SECONDS:
            if place.written < MESSAGES:
                place.written += 1
                return True
            place.kept_back += 1
            return False
        self._places.pop(key, None)
        if len(self._places) >= _MAX_PLACES:
            self._places.pop(next(iter(self._places)))
        self._places[key] = _Place(record.created)
        if place is not None and place.kept_back:
            record.msg = f"{record.getMessage()} (before it {place.kept_back} more were not written)"
            record.args = ()
        return True


def limit_repetitions() -> None:
    """Of what the root logger's handlers write; they are there already."""
    repeats = RepeatFilter()
    for handler in logging.getLogger().handlers:
        handler.addFilter(repeats)
