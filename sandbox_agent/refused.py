"""The error that becomes the Refusal of a request."""

from cli_mcp.agent_api import RefusalKind


class Refused(Exception):
    """A request is not accepted and nothing ran. The message is for the operator of the calling server."""

    def __init__(self, kind: RefusalKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
