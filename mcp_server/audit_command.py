"""`cli-mcp audit`: who sent which request. Joins the logs of MCP servers and of credential proxies.

A server says which caller used which pod when; a proxy says which address asked for what when. A request
between two calls comes from a background process, and is that of the pod's session all the same.
"""

import argparse
import json
import sys
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cli_mcp.arguments import ArgumentParser

_LOCAL_FILE = "audit.jsonl"
# Of the clocks of two nodes, and of the moment in which a line is written.
TOLERANCE = timedelta(seconds=2)

_EPILOG = """\
  kubectl -n team logs --prefix=false --tail=-1 -l cli-mcp.redhat.com/component=server > server.log
  kubectl -n team logs --prefix=false --tail=-1 -l cli-mcp.redhat.com/component=proxy > proxy.log
  cli-mcp audit server.log proxy.log | jq 'select(.session == "s1")'

On one machine, with the state directory of `cli-mcp local` or that of one instance in it:

  cli-mcp audit ~/.local/state/cli-mcp
"""

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Use:
    """A call, as far as it says who had an address when."""

    started: datetime
    ended: datetime
    owner: str
    session: str
    pod_uid: str


class Uses:
    """The calls of each address in the order of their start."""

    def __init__(self, calls: Iterable[Line]) -> None:
        by_address: defaultdict[str, list[Use]] = defaultdict(list)
        for call in calls:
            by_address[call["pod_ip"]].append(_use(call))
        self._uses = {ip: sorted(uses, key=lambda use: use.started) for ip, uses in by_address.items()}

    def at(self, address: str, moment: datetime) -> Use | None:
        """The last call that had begun by then; addresses go to another pod only after a call of it."""
        uses = self._uses.get(address, [])
        index = bisect_right(uses, moment + TOLERANCE, key=lambda use: use.started)
        return uses[index - 1] if index else None


def join(requests: Iterable[Line], uses: Uses) -> Iterator[Line]:
    """Each line of a proxy with owner, session, pod_uid, and whether a call ran then; they are null where no
    call is known."""
    for request in requests:
        moment = _moment(request["time"])
        use = uses.at(request["client"], moment)
        yield {
            **request,
            "owner": use and use.owner,
            "session": use and use.session,
            "pod_uid": use and use.pod_uid,
            "during_call": use is not None and moment <= use.ended + TOLERANCE,
        }


def main(arguments: Sequence[str]) -> int:
    """Exit status 0, or 1 when a file cannot be read, or 2 for wrong arguments."""
    parser = ArgumentParser(
        prog="cli-mcp audit",
        description="Who sent which request: joins the logs of MCP servers and of credential proxies, in any "
        "number of files; other lines in them do not matter.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("logs", nargs="+", type=Path, metavar="FILE|DIRECTORY")
    given = parser.parse_args(arguments).logs
    try:
        for files in groups(given):
            uses = Uses(lines(files, _CALL))
            for joined in join(lines(files, _REQUEST), uses):
                print(json.dumps(joined))
    except NoAuditFile as error:
        print(f"cli-mcp audit: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"cli-mcp audit: {error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    return 0


class NoAuditFile(Exception):
    """A directory that no local server has written to."""


def groups(given: Iterable[Path]) -> list[list[Path]]:
    """The files that are joined with one another: all that were named, and those of each local instance,
    since another's sessions may have the same names. Raises NoAuditFile."""
    named: list[Path] = []
    found: list[list[Path]] = []
    for path in given:
        if not path.is_dir():
            named.append(path)
            continue
        instances = [path, *sorted(path.iterdir())]
        # The older file first: `audit.jsonl.1`, see local_runtime.audit_file.
        of_each = [sorted(instance.glob(f"{_LOCAL_FILE}*"), reverse=True) for instance in instances]
        if not any(of_each):
            raise NoAuditFile(
                f"{path} has no {_LOCAL_FILE}; give the directory that `cli-mcp local` has as --state-dir"
            )
        found += [files for files in of_each if files]
    return [*([named] if named else []), *found]


@dataclass(frozen=True, slots=True)
class _Kind:
    """By what audit lines are known."""

    events: frozenset[str]
    members: frozenset[str]


_CALL = _Kind(frozenset({"call"}), frozenset({"owner", "session", "pod_uid", "pod_ip", "started", "ended"}))
_REQUEST = _Kind(frozenset({"request", "connect"}), frozenset({"time", "client", "target"}))


def lines(files: Iterable[Path], kind: _Kind) -> Iterator[Line]:
    """The audit lines of one kind. Whatever else is in a log, or is cut off, is passed over."""
    for file in files:
        with file.open(encoding="utf-8", errors="replace") as log:
            for text in log:
                line = _object(text[text.find("{") :])
                if str(line.get("event")) in kind.events and kind.members <= line.keys():
                    yield line


def _object(text: str) -> Line:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _use(call: Line) -> Use:
    return Use(
        _moment(call["started"]), _moment(call["ended"]), call["owner"], call["session"], call["pod_uid"]
    )


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
