"""One line of JSON for each call: who used which pod, and when. Never the command nor its output.

The credential proxy writes what left the pod, by its IP address; the two together say who sent a request.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TextIO


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call that reached a pod, from when it was sent until it ended one way or the other."""

    owner: str
    session_id: str
    pod_uid: str
    pod_ip: str
    started_at: datetime
    ended_at: datetime


class AuditLog:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, call: CallRecord) -> None:
        self._stream.write(call_line(call) + "\n")
        self._stream.flush()


def call_line(call: CallRecord) -> str:
    """The line of `call`, without its line feed. Times are UTC with milliseconds."""
    return json.dumps(
        {
            "event": "call",
            "time": _time(call.ended_at),
            "owner": call.owner,
            "session": call.session_id,
            "pod_uid": call.pod_uid,
            "pod_ip": call.pod_ip,
            "started": _time(call.started_at),
            "ended": _time(call.ended_at),
        },
        separators=(",", ":"),
    )


def _time(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
