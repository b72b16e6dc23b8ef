"""Signed tokens, also wrong ones, made without any code of the agent."""

import base64
import json
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def token(payload: Mapping[str, Any], key: Ed25519PrivateKey, **header: Any) -> str:
    """A JWT; `header` changes or adds to what usually stands there."""
    head = {"alg": "EdDSA", "typ": "JWT", "kid": "a1", **header}
    signed = f"{_base64url(json.dumps(head).encode())}.{_base64url(json.dumps(payload).encode())}"
    return f"{signed}.{_base64url(key.sign(signed.encode()))}"


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
