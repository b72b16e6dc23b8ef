"""A caller of one session who counts its commands, and takes no answer that contradicts another.

The shell counts as well, so that a command that ran twice, one that ran although that was denied, and a state
that was lost without a word all show in the next answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import requests

if TYPE_CHECKING:
    from tests.e2e.mcp_client import McpClient
    from tests.e2e_local.harness import Answer

COUNT = "COUNT=$((COUNT + 1)); echo $COUNT; sleep 0.2"
# What the server says when nothing ran, when something may have, and when session and state are gone.
_NOT_RUN = re.compile(r"^Not run|did not run|did not become ready|takes no new commands")
_UNKNOWN = re.compile(r"How far the command came is unknown|was interrupted")
_ENDED = re.compile(r"^The session ended: its sandbox was deleted\.")


class Contradiction(AssertionError):
    """An answer that cannot be true."""


@dataclass
class CountingCaller:
    """`may_end` says that the session's pod is, or was, taken away on purpose."""

    session: str
    counted: int = 0
    unknown: int = 0
    may_end: bool = False
    history: list[str] = field(default_factory=list)

    def ask(self, client: McpClient) -> bool:
        """Whether the shell has counted one more. Raises Contradiction."""
        try:
            answer = client.bash(self.session, COUNT, 30)
        except requests.HTTPError as error:
            # Who calls cannot be found out without the API server.
            self.check(error.response.status_code == 503, str(error))
            return False
        except requests.RequestException as error:
            self.history.append(type(error).__name__)
            self.unknown += 1
            return False
        self.history.append(answer.text.replace("\n", " "))
        if answer.structured:
            self._counts(answer)
            return True
        self._is_told(answer.text)
        return False

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            raise Contradiction(f"{self.session}: {what}, after {self.history}")

    def _counts(self, answer: Answer) -> None:
        count = int(answer.stdout)
        is_new = answer.structured["session"] == "new"
        if is_new or count <= self.counted:
            begins = self.counted == 0 or self.may_end
            self.check(begins, "it begins anew although its pod is there")
            self.check(is_new or self.unknown > 0, "it begins anew and does not say so")
            self.counted = 0
        lowest, greatest = self.counted + 1, self.counted + self.unknown + 1
        self.check(lowest <= count <= greatest, f"{count} is not among {lowest} to {greatest}")
        self.counted, self.unknown = count, 0

    def _is_told(self, text: str) -> None:
        if _ENDED.search(text):
            self.check(self.may_end, "it ended although its pod is there")
            self.unknown += 1
        elif not _NOT_RUN.search(text):
            self.check(
                bool(_UNKNOWN.search(text)), "an answer that says nothing of what became of the command"
            )
            self.unknown += 1
