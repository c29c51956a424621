"""The page that a service shows to people: one HTML file without any request but to the service itself."""

from __future__ import annotations

from importlib.resources import files

PAGE = (files("clipsilon.live") / "page.html").read_text("utf-8")

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"
"""The content security policy of the page: nothing is loaded from elsewhere."""
