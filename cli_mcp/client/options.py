"""The options that `call` and `shell` share."""

import argparse
from pathlib import Path

from cli_mcp.client.connection import DEFAULT_URL, ClientError, Target, endpoint_url, is_on_loopback
from cli_mcp.state_dir import newest_token_file, own_state_directory

EXIT_INTERRUPTED = 130  # 128 + SIGINT
EXIT_NO_RESULT = 125
"""As with timeout(1) and docker: the command did not run, or what became of it is unknown."""


def parser(name: str, description: str) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(prog=f"cli-mcp {name}", description=description)
    options.add_argument("url", nargs="?", default=DEFAULT_URL, help=f"the server (default: {DEFAULT_URL})")
    options.add_argument(
        "--token-file", type=Path, metavar="FILE", help="default: the newest token of a local server"
    )
    options.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="who signed an https server's certificate (PEM)"
    )
    options.add_argument("--timeout", type=float, metavar="SECONDS", help="for each command (default: 60)")
    return options


def target(options: argparse.Namespace, session: str) -> Target:
    """Raises ClientError."""
    url = endpoint_url(options.url)
    token = read_token(options.token_file, url, own_state_directory())
    return Target(url, session, token, options.ca_file)


def read_token(token_file: Path | None, url: str, state_directory: Path) -> str | None:
    """The token in `token_file`; for a local server, by default, the newest below `state_directory`.

    None when there is none: a token that was found is for nobody else to see, such as a server in a cluster
    behind `kubectl port-forward`, which has TLS as a local one never has. Raises ClientError.
    """
    is_local = url.startswith("http:") and is_on_loopback(url)
    file = token_file or (newest_token_file(state_directory) if is_local else None)
    if file is None:
        return None
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ClientError(f"Cannot read the token: {error}") from None
