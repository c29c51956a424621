"""Enrolment: who may report. The token of a user is a signature of their name, so that no list of users is stored."""

from __future__ import annotations

import base64
import hmac
import os
import secrets
from pathlib import Path

from clipsilon._core import checks

_PURPOSE = "clipsilon-enrolment"


def enrolment_token(secret: bytes, user: str) -> str:
    """Return the token that proves that a user is enrolled.

    Parameters
    ----------
    secret : bytes
        The secret of the service.
    user : str
        The user's name.

    Returns
    -------
    str
    """
    content = f"{_PURPOSE}\0{checks.person('user', user)}".encode()
    return base64.urlsafe_b64encode(hmac.digest(secret, content, "sha256")).rstrip(b"=").decode()


def is_enrolled(secret: bytes, user: object, token: str) -> bool:
    """Return whether a token is that of a user; the comparison takes the same time for all.

    Parameters
    ----------
    secret : bytes
        The secret of the service.
    user : object
        The name that is claimed.
    token : str
        The token that is presented.

    Returns
    -------
    bool
    """
    try:
        expected = enrolment_token(secret, user)  # type: ignore[arg-type]
    except ValueError:
        return False
    return hmac.compare_digest(expected.encode(), token.encode("utf-8", "replace"))


def read_secret(path: Path, create: bool = False) -> bytes:
    """Return the secret in a file of at least 16 characters; with `create`, write a new one if there is no file."""
    if create and not path.exists():
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as new:
            new.write(f"{secrets.token_urlsafe(32)}\n")
    return checks.token(f"the secret in {path}", path.read_text("utf-8").strip()).encode()
