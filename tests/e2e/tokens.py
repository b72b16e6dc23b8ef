"""Tokens as an attacker, or the passage of time, makes them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key

_DAY_SECONDS = 86_400


def expired(token: str) -> str:
    """`token` as it would be a day after its time."""
    ended = int(time.time()) - _DAY_SECONDS
    return signed_like_the_cluster(token, iat=ended - 3600, nbf=ended - 3600, exp=ended)


def signed_like_the_cluster(token: str, **changes: object) -> str:
    """`token` with other claims, signed with the cluster's key; where that is not to be had the test is
    skipped."""
    key_file = Path(os.environ["KUBECONFIG"]).parent / "pki/sa.key"
    if not key_file.exists():
        pytest.skip("the cluster's signing key is not here")
    header = jwt.get_unverified_header(token)
    claims = jwt.decode(token, options={"verify_signature": False})
    key = load_pem_private_key(key_file.read_bytes(), password=None)
    return jwt.encode(
        {**claims, **changes},
        key,  # type: ignore[arg-type]
        algorithm=header["alg"],
        headers={"kid": header["kid"]},
    )
