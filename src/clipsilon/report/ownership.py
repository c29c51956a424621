"""Recognise files that this tool wrote, so that no other file is ever overwritten.

Pages, pictures and results carry `GENERATOR` in a place of their format; a folder of results is recognised by its
`result.json`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from clipsilon._core.storage import require_writable
from clipsilon.version import __version__

GENERATOR = f"clipsilon {__version__}"
_MARKS = {
    ".html": b'<meta name="generator" content="clipsilon ',
    ".json": b'"generator": "clipsilon ',
    ".svg": b"<dc:title>clipsilon ",
    ".png": b"Software\0clipsilon ",
    ".pdf": b"/Creator (clipsilon ",
}


def is_own_file(path: Path) -> bool:
    """Return whether this tool wrote the file, judged by the mark that its format carries."""
    mark = _MARKS.get(path.suffix)
    return mark is not None and path.is_file() and mark in path.read_bytes()


def check_replaceable(path: Path, argument: str = "output") -> None:
    """Raise ValueError, naming the argument, if `path` cannot be written or holds what this tool did not write."""
    require_writable(path, argument)
    if _occupied(path) and not is_own_file(path):
        raise ValueError(f"{argument} must not replace {path}, which clipsilon did not write: choose another name.")


def check_page(path: Path) -> None:
    """Raise ValueError unless a page can be written there without replacing a file that this tool did not write."""
    if path.suffix != ".html" or not path.parent.is_dir():
        raise ValueError(f"report must be an .html file in an existing folder, got {path}.")
    check_replaceable(path, "report")


def check_report_folder(folder: Path, names: Iterable[str]) -> None:
    """Raise ValueError if a report would replace anything that this tool did not write.

    Parameters
    ----------
    folder : Path
        Folder of the report; it need not exist.
    names : iterable of str
        Names of the experiments, each of which has its own folder in the report.

    Raises
    ------
    ValueError
        If `folder` is a file, its `index.html` is foreign, or the folder of a result holds foreign files.
    """
    if _occupied(folder) and not folder.is_dir():
        raise ValueError(f"output must be a folder, got the file {folder}.")
    check_replaceable(folder / "index.html")
    for name in names:
        inner = folder / name
        foreign = _occupied(inner) and (not inner.is_dir() or any(inner.iterdir()))
        if foreign and not is_own_file(inner / "result.json"):
            raise ValueError(f"output must not replace {inner}, which clipsilon did not write: choose another name.")


def _occupied(path: Path) -> bool:
    return path.exists() or path.is_symlink()
