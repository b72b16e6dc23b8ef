"""How all subcommands parse arguments: what is wrong is said in one line, with where to read on."""

import argparse
import sys
from typing import TYPE_CHECKING, NoReturn

from cli_mcp.exit_status import USAGE

if TYPE_CHECKING:
    from _typeshed import SupportsWrite


class ArgumentParser(argparse.ArgumentParser):
    """As argparse's own, but for the error: one line, which no usage pushes out of sight."""

    def print_help(self, file: "SupportsWrite[str] | None" = None) -> None:
        """Raises OSError, which argparse itself would swallow."""
        print(self.format_help(), end="", file=file or sys.stdout)

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message.rstrip('.')}. See {self.prog} --help\n")
