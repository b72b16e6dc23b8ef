"""How all subcommands parse arguments: what is wrong is said in one line, with where to read on."""

import argparse
from typing import NoReturn

from cli_mcp.exit_status import USAGE


class ArgumentParser(argparse.ArgumentParser):
    """As argparse's own, but for the error: one line, which the usage does not push out of sight."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"{self.prog}: {message.rstrip('.')}. See {self.prog} --help\n")
