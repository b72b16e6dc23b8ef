"""Tells who serves a client, at once, what was refused to it and why: most tools show a model nothing but
`CONNECT tunnel failed`.

Nothing is kept for who asks later: an address may be another sandbox's by then. Who asks hears of the
connections of its own address and of no other, which is as much as the proxy's audit records rest on.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable

from cred_proxy.audit import AuditRecord
from cred_proxy.refusal import ANSWERS, Reason

_SHOWN_HOSTS = 10

Hear = Callable[[str], None]
End = Callable[[], None]


class Subscriptions:
    """Who wants to hear of refusals, by client."""

    def __init__(self) -> None:
        self._hearers: defaultdict[str, dict[object, tuple[Hear, End]]] = defaultdict(dict)

    def subscribe(self, client: str, hear: Hear, end: End = lambda: None) -> End:
        """`hear` gets a line for each refusal from now on; `end` is called when no more will come. Returns
        what ends it from outside."""
        key = object()
        self._hearers[client][key] = hear, end

        def unsubscribe() -> None:
            self._hearers[client].pop(key, None)
            if not self._hearers[client]:
                del self._hearers[client]

        return unsubscribe

    def close(self) -> None:
        for hearers in list(self._hearers.values()):
            for _, end in list(hearers.values()):
                end()

    def tell(self, record: AuditRecord, hosts: Iterable[object]) -> None:
        """`hosts` are those that the sandbox may reach."""
        hearers = self._hearers.get(record.client)
        if hearers and (text := explanation(record, hosts)) is not None:
            for hear, _ in list(hearers.values()):
                hear(text)


def explanation(record: AuditRecord, hosts: Iterable[object]) -> str | None:
    """One line about a request that the rules of the instance forbid; None for every other outcome."""
    if record.reason is Reason.DOMAIN_NOT_ALLOWED:
        names = [str(host).removesuffix(":443") for host in hosts]
        more = ["…"] if len(names) > _SHOWN_HOSTS else []
        reached = ", ".join(names[:_SHOWN_HOSTS] + more) or "there are none"
        return f"refused: {record.target} is not among the hosts of this sandbox ({reached})"
    if record.reason is Reason.NOT_CONNECT:
        return f"refused: plain http to {record.target} does not leave the sandbox; use https"
    if record.reason in _FORBIDDEN:
        return f"refused: {record.method} {record.target}: {ANSWERS[record.reason].phrase}"
    return None


_FORBIDDEN = (
    Reason.METHOD_NOT_ALLOWED,
    Reason.PATH_NOT_ALLOWED,
    Reason.PATH_OUTSIDE_SERVER,
    Reason.UPGRADE_NOT_ALLOWED,
    Reason.TOO_MANY_CONNECTIONS,
)
