"""What a browser loads: the client in JavaScript, and a page for people; `FILES` maps paths to content and headers."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files
from typing import NamedTuple

_FOLDER = files("clipsilon.local")


class File(NamedTuple):
    """A file of the service, with the headers of its answer.

    Parameters
    ----------
    content : bytes
        The body of the answer.
    kind : str
        The type of the content.
    headers : dict
        Further headers by name.
    """

    content: bytes
    kind: str
    headers: dict[str, str]


def _digest(page: str, tag: str) -> str:
    """Return the source of the page's one inline element of this kind, as a content security policy names it."""
    (content,) = re.findall(rf"<{tag}[^>]*>(.*?)</{tag}>", page, re.DOTALL)
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"


def _policy(page: str) -> str:
    """Return the content security policy of the page: its own script and style, `client.js`, and nothing else.

    Forms lead nowhere, so that a record is not sent as it is even if the script does not run.
    """
    rules = {
        "default-src": "'none'",
        "script-src": f"'self' {_digest(page, 'script')}",
        "style-src": _digest(page, "style"),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
        "require-trusted-types-for": "'script'",
    }
    return "; ".join(f"{name} {sources}" for name, sources in rules.items())


def _file(name: str, kind: str, **headers: str) -> File:
    content = (_FOLDER / name).read_bytes()
    common = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer"}
    return File(content, f"{kind}; charset=utf-8", {**common, **headers})


FILES = {
    "/": _file(
        "page.html", "text/html", **{"Content-Security-Policy": _policy((_FOLDER / "page.html").read_text("utf-8"))}
    ),
    "/client.js": _file("client.js", "text/javascript"),
}
