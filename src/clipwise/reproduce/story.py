"""The story that the report's page begins with; its numbers are read off the results that are there."""

from __future__ import annotations

from collections.abc import Mapping

from clipwise.report.sections import Chapter
from clipwise.reproduce.base import Result


def chapters(found: Mapping[str, Result]) -> list[Chapter]:
    """What clipping costs, what feedback repairs, what is really private."""
    return []
