import io
import json
from datetime import UTC, datetime, timedelta

from mcp_server.audit import AuditLog, CallRecord

ENDED = datetime(2024, 6, 1, 12, 0, 1, 250_000, tzinfo=UTC)
CALL = CallRecord("owner\n", "s1", "pod-uid", "10.0.0.7", ENDED - timedelta(seconds=1), ENDED)


def test_a_call_is_one_line_of_json_that_says_who_where_and_when() -> None:
    stream = io.StringIO()
    log = AuditLog(stream)
    log.write(CALL)
    log.write(CALL)
    first, second = stream.getvalue().splitlines()
    assert first == second
    assert json.loads(first) == {
        "event": "call",
        "time": "2024-06-01T12:00:01.250Z",
        "owner": "owner\n",
        "session": "s1",
        "pod_uid": "pod-uid",
        "pod_ip": "10.0.0.7",
        "started": "2024-06-01T12:00:00.250Z",
        "ended": "2024-06-01T12:00:01.250Z",
    }
