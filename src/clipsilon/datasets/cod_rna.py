"""Cod-RNA: which genome sequences are non-coding RNA (Uzilov, Keegan and Mathews, 2006), as LIBSVM distributes it.

The two files, `cod-rna.txt.xz` and `cod-rna.t.xz`, are compressed LIBSVM text. Users provide them; the package neither
contains nor downloads them. Their digests are checked.
"""

from __future__ import annotations

import hashlib
import lzma
import os
import warnings
from os import PathLike
from pathlib import Path

import numpy as np
from scipy.special import expit

from clipsilon._core import checks
from clipsilon.datasets.base import Dataset

FOLDER = "CLIPSILON_COD_RNA"  # the environment variable that names the folder

TRAIN_ROWS = 59_535
TEST_ROWS = 271_617

_FILES = ("cod-rna.txt.xz", "cod-rna.t.xz")
_DIGESTS = (
    "6f0595937cf48ab75d154448edf2616b9a186a4bf94c40d973e0bf0ea40f63f5",
    "8c939854c7b6d3d913bfe828f5ae1479bf56c8b4e0d4cf558dab83c38a63b6d8",
)
_COLUMNS = (
    "free_energy_change",
    "length_of_shorter",
    *(f"{base}_frequency_{sequence}" for sequence in (1, 2) for base in "AUC"),
)


class DataError(ValueError):
    """A file has unexpected content."""


def codrna(folder: str | PathLike[str] | None = None) -> tuple[Dataset, Dataset]:
    """Load the Cod-RNA data: 59,535 records for training and 271,617 for testing, 8 features, a third positive.

    Parameters
    ----------
    folder : path, optional
        The folder with the two files. The default is the environment variable `CLIPSILON_COD_RNA`.

    Returns
    -------
    train, test : Dataset
        The two sets. If there is no folder with both files, they are generated, with a warning.

    Raises
    ------
    DataError
        If a file has the wrong digest.
    """
    place = Path(os.environ.get(FOLDER, "") if folder is None else folder)
    paths = [place / name for name in _FILES]
    if (folder is None and not os.environ.get(FOLDER)) or not all(path.is_file() for path in paths):
        warnings.warn(
            f"folder must hold {_FILES[0]} and {_FILES[1]}, which LIBSVM's data set pages offer for download. "
            "Generated data of the same shape is used instead.",
            stacklevel=2,
        )
        return generated_codrna()
    train, test = (_read(path, digest) for path, digest in zip(paths, _DIGESTS, strict=True))
    return train, test


def generated_codrna(
    train_rows: int = TRAIN_ROWS, test_rows: int = TEST_ROWS, seed: int = 0
) -> tuple[Dataset, Dataset]:
    """Generate records of the shape of Cod-RNA.

    The features are correlated, and the labels follow a steep logistic model; a third of them is positive.

    Parameters
    ----------
    train_rows, test_rows : int
        The numbers of records; the defaults are those of the real data.
    seed : int, default 0
        The seed of the generator.

    Returns
    -------
    train, test : Dataset
        The two sets, with `real=False`.
    """
    rng = np.random.default_rng(seed)
    rows = checks.count("train_rows", train_rows) + checks.count("test_rows", test_rows)
    width = len(_COLUMNS)
    features = rng.standard_normal((rows, width)) @ (np.eye(width) + 0.3 * rng.standard_normal((width, width)))
    margin = features @ rng.standard_normal(width) * 2.0
    labels = (rng.random(rows) < expit(margin - np.quantile(margin, 2 / 3))).astype(float)
    whole = Dataset(features, labels, _COLUMNS, "generated", False)
    return whole.first(train_rows), whole._replace(features=features[train_rows:], labels=labels[train_rows:])


def _read(path: Path, digest: str) -> Dataset:
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != digest:
        raise DataError(f"{path.name} must be the file that LIBSVM distributes, got a file with another digest.")
    table = _parse(lzma.decompress(content).decode())
    return Dataset(np.ascontiguousarray(table[:, 1:]), (table[:, 0] > 0).astype(float), _COLUMNS, "Cod-RNA", True)


def _parse(text: str) -> np.ndarray:
    """Return the label and features of each line "±1 1:… 2:… …"; features that are left out are zero."""
    lines = text.splitlines()
    table = np.zeros((len(lines), 1 + len(_COLUMNS)))
    for row, line in zip(table, lines, strict=True):
        label, *entries = line.split()
        row[0] = float(label)
        for entry in entries:
            column, value = entry.split(":")
            row[int(column)] = float(value)
    return table
