"""session-keys.json: the keys that sign the server's calls to sandboxes, and which of them signs now.

Written by the hooks into the Secret `cli-mcp-<instance>-session-key`, read by server and SSH gateway. The
public halves are in the ConfigMap `cli-mcp-<instance>-session-keys`, one `<kid>.pem` each, for the
sandboxes.
"""

from datetime import datetime, timedelta
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

PUBLICATION = timedelta(minutes=2)
"""How long a public key is out before its private half signs: mounted ConfigMaps lag by 60 to 90 s."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, validate_by_name=True)


class SessionKey(_Model):
    """An Ed25519 key, both halves in PEM. `kid` is hexadecimal."""

    kid: str
    published_at: AwareDatetime
    private_key: str = Field(repr=False)
    public_key: str

    @property
    def file_name(self) -> str:
        """Of the public half, where sandboxes look for it."""
        return f"{self.kid}.pem"


class SessionKeys(_Model):
    """At least one key, the oldest first."""

    version: Literal[1] = 1
    keys: tuple[SessionKey, ...] = Field(min_length=1)

    def signing_key(self, now: datetime) -> SessionKey:
        """The newest key that has been out for PUBLICATION; the first while there is none."""
        published = [key for key in self.keys if key.published_at + PUBLICATION <= now]
        return published[-1] if published else self.keys[0]
