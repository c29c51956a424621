"""The message about packages that are not installed."""

from __future__ import annotations


def needs_package(subject: str, packages: str, requirement: str) -> str:
    """Return a sentence that states what is missing and how to install it.

    >>> needs_package("clipsilon serve", "starlette and uvicorn", "clipsilon[serve]")
    "clipsilon serve needs starlette and uvicorn: run pip install 'clipsilon[serve]'."
    """
    return f"{subject} needs {packages}: run pip install '{requirement}'."
