"""What `call`, `shell` and `sessions` share on the command line: the server, who asks, and how long."""

import argparse
import math
import shlex
from collections.abc import Sequence
from pathlib import Path

from cli_mcp.arguments import ArgumentParser
from cli_mcp.client.connection import (
    DEFAULT_URL,
    ClientError,
    Target,
    endpoint_url,
    is_on_loopback,
    looks_like_a_server,
)
from cli_mcp.state_dir import newest_token_file, own_state_directory

DEFAULT_SESSION = "cli"


class WrongUse(Exception):
    """The words of a command line mean nothing; the message has the remedy."""


def parser(name: str, description: str, usage: str, epilog: str | None = None) -> ArgumentParser:
    """`usage` is what comes after the options."""
    options = ArgumentParser(
        prog=f"cli-mcp {name}",
        usage=f"cli-mcp {name} [OPTIONS] {usage}",
        description=description,
        epilog=epilog,
        allow_abbrev=False,
    )
    options.add_argument("words", nargs="*", metavar=usage, help=f"URL: the server (default: {DEFAULT_URL})")
    options.add_argument(
        "--token-file", type=Path, metavar="FILE", help="default: the newest token of a local server"
    )
    options.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="who signed an https server's certificate (PEM)"
    )
    return options


def add_timeout(options: ArgumentParser) -> None:
    options.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="for each command (default: 60)")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not math.isfinite(seconds):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds


def parse(options: ArgumentParser, arguments: Sequence[str]) -> argparse.Namespace:
    """Options before, between and after the words. Ends the program for what is wrong."""
    chosen, unknown = options.parse_known_intermixed_args(arguments)
    if unknown:
        options.error(
            f"unknown option {unknown[0]}; if it belongs to the command, quote the whole command: 'ls -l'"
        )
    return chosen


def url_and_command(words: Sequence[str]) -> tuple[str, str]:
    """What the words of `call` mean: [URL] COMMAND, the command as one word. Raises WrongUse."""
    first_is_server = bool(words) and looks_like_a_server(words[0])
    url, command = (words[0], words[1:]) if first_is_server else (DEFAULT_URL, words)
    if not command:
        raise WrongUse(f"no command; for example: cli-mcp call {shlex.quote(url)} 'ls -l'")
    if len(command) > 1:
        server = f"{shlex.quote(url)} " if first_is_server else ""
        together = shlex.quote(" ".join(command))
        raise WrongUse(
            f"the command is one word, so quote it: cli-mcp call {server}{together}"
            + ("" if first_is_server else f" (a server's URL looks like {DEFAULT_URL})")
        )
    return url, command[0]


def only_url(words: Sequence[str]) -> str:
    """What the words mean where there may only be a server. Raises WrongUse."""
    if len(words) > 1 or (words and not looks_like_a_server(words[0])):
        raise WrongUse(f"{words[-1]!r} is one word too many, or no server's URL such as {DEFAULT_URL}")
    return words[0] if words else DEFAULT_URL


def target(options: argparse.Namespace, given_url: str, session: str) -> Target:
    """Raises ClientError."""
    url = endpoint_url(given_url)
    token = read_token(options.token_file, url, own_state_directory())
    return Target(url, session, token, options.ca_file)


def read_token(token_file: Path | None, url: str, state_directory: Path) -> str | None:
    """The token in `token_file`; for a local server, by default, the newest below `state_directory`.

    None when there is none: a token that was found is for nobody else to see, such as a server in a cluster
    behind `kubectl port-forward`, which has TLS as a local one never has. Raises ClientError.
    """
    is_local = url.startswith("http:") and is_on_loopback(url)
    try:
        file = token_file or (newest_token_file(state_directory) if is_local else None)
        token = file.read_text().strip() if file is not None else None
    except OSError as error:
        raise ClientError(f"Cannot read the token in {error.filename}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ClientError(f"The token file {file} is no text.") from None
    if token == "":
        raise ClientError(f"The token file {file} is empty. The server printed where its token is.")
    if token is not None and not (token.isascii() and token.isprintable() and " " not in token):
        raise ClientError(f"The token file {file} has more than one word of ASCII characters in it.")
    return token
