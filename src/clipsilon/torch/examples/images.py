"""Images with labels: scikit-learn's digits, and MNIST and CIFAR from folders of the user's."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib import get_data_path
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor

from clipsilon import datasets
from clipsilon._core import checks
from clipsilon.torch.examples.models import Shape

FOLDER = "CLIPSILON_CIFAR"  # the environment variable that names a folder with CIFAR-10 or CIFAR-100

_SIDE = 32
_PIXELS = 3 * _SIDE**2

_Reader = Callable[[Path, int], tuple[ArrayLike, ArrayLike]]  # of a file and the number of classes


class Images(NamedTuple):
    """Images with labels.

    Parameters
    ----------
    train, test : tuple of Tensor
        Images in [−1, 1], of shape (records, channels, side, side), and the number of the class of each.
    classes : int
        Number of classes.
    """

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]
    classes: int

    @property
    def shape(self) -> Shape:
        """The size of the images and the number of classes."""
        return Shape(self.train[0].shape[1], self.train[0].shape[2], self.classes)


def digits() -> Images:
    """Return 1,437 handwritten digits of 8 × 8 pixels to train on and 360 to test on; the split is fixed."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 8 - 1).reshape(-1, 1, 8, 8).astype(np.float32)
    parts = train_test_split(images, labels, test_size=360, random_state=0, stratify=labels)
    train_images, test_images, train_labels, test_labels = map(torch.from_numpy, parts)
    return Images((train_images, train_labels.long()), (test_images, test_labels.long()), 10)


def printed_digits(count: int = 3000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return digits in matplotlib's fonts, rotated, shifted and scaled to 8 × 8 pixels: public data for pretraining."""
    rng = np.random.default_rng(seed)
    fonts = [
        str(path)
        for path in sorted(Path(get_data_path(), "fonts", "ttf").glob("DejaVu*.ttf"))
        if "Display" not in path.name
    ]
    labels = rng.integers(10, size=checks.count("count", count))
    drawn = np.stack([_printed(str(label), str(rng.choice(fonts)), rng) for label in labels])
    return torch.from_numpy(drawn[:, np.newaxis] / np.float32(127.5) - 1), torch.from_numpy(labels)


def _printed(text: str, font: str, rng: np.random.Generator) -> NDArray[np.float32]:
    """Return one digit, with grey levels from 0 to 255."""
    canvas = Image.new("L", (64, 64))
    middle, stroke = tuple(32 + rng.uniform(-4, 4, size=2)), int(rng.integers(4))
    kind = ImageFont.truetype(font, rng.uniform(70, 92))
    ImageDraw.Draw(canvas).text(middle, text, 255, kind, anchor="mm", stroke_width=stroke)
    turned = canvas.rotate(rng.uniform(-15, 15), Image.Resampling.BILINEAR)
    return np.asarray(turned.resize((8, 8), Image.Resampling.BOX), dtype=np.float32)


def cifar(folder: str | PathLike[str] | None = None) -> Images:
    """Load CIFAR-10 or CIFAR-100 from a folder, in either format that its authors distribute.

    If `folder` is None, the environment variable `CLIPSILON_CIFAR` names it. Nothing is downloaded.
    """
    place = Path(os.environ.get(FOLDER, "") if folder is None else folder)
    for train, test, classes, read in _FORMATS:
        if all((place / name).is_file() for name in (*train, *test)):
            return Images(_joined(place, train, classes, read), _joined(place, test, classes, read), classes)
    raise ValueError(
        "folder must hold the files of CIFAR-10 or CIFAR-100, such as data_batch_1 to data_batch_5 and test_batch, "
        f"got {str(place)!r}."
    )


def mnist() -> Images:
    """Load MNIST from the user's folder, as `clipsilon.datasets.mnist` finds it, with a background of 0."""
    train, test = (
        (
            torch.from_numpy(each.images[:, np.newaxis] / np.float32(255)),
            torch.from_numpy(each.labels.astype(np.int64)),
        )
        for each in datasets.mnist()
    )
    return Images(train, test, 10)


def images(source: str) -> Images:
    """Return the images of a source: "digits", "mnist", or a folder with CIFAR."""
    named = {"digits": digits, "mnist": mnist}
    return named[source]() if source in named else cifar(source)


def _joined(place: Path, names: tuple[str, ...], classes: int, read: _Reader) -> tuple[Tensor, Tensor]:
    pixels, labels = zip(
        *(_checked(place / name, classes, *read(place / name, classes)) for name in names), strict=True
    )
    scaled = np.concatenate(pixels).reshape(-1, 3, _SIDE, _SIDE).astype(np.float32) / 127.5 - 1
    return torch.from_numpy(scaled), torch.from_numpy(np.concatenate(labels))


def _checked(
    path: Path, classes: int, pixels: ArrayLike, labels: ArrayLike
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    pixels, labels = np.asarray(pixels), np.asarray(labels)
    fits = pixels.dtype == np.uint8 and pixels.ndim == 2 and pixels.shape[1] == _PIXELS and len(labels) == len(pixels)
    if not fits or labels.dtype.kind not in "iu" or not labels.size or not ((labels >= 0) & (labels < classes)).all():
        raise ValueError(f"{path.name} must hold images of 32 × 32 pixels with labels below {classes}, got other data.")
    return pixels, labels.astype(np.int64)


def _read_binary(path: Path, classes: int) -> tuple[ArrayLike, ArrayLike]:
    """Read rows of bytes: a label (CIFAR-100: a coarse one and a fine one), then the pixels."""
    first = 1 if classes == 10 else 2
    content = np.fromfile(path, dtype=np.uint8)
    if content.size % (first + _PIXELS):
        raise ValueError(f"{path.name} must hold rows of {first + _PIXELS} bytes, got {content.size} bytes in all.")
    rows = content.reshape(-1, first + _PIXELS)
    return rows[:, first:], rows[:, first - 1]


def _read_pickle(path: Path, classes: int) -> tuple[ArrayLike, ArrayLike]:
    """Read a pickled dictionary, the Python format."""
    try:
        content = _Unpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        return content[b"data"], content[b"labels" if classes == 10 else b"fine_labels"]
    except (pickle.UnpicklingError, KeyError, TypeError, EOFError, ValueError) as problem:
        raise ValueError(f"{path.name} must be a file of CIFAR's Python format, got {problem}.") from None


_ARRAY = ("_reconstruct", "ndarray", "dtype")  # what NumPy pickles an array as


class _Unpickler(pickle.Unpickler):
    """Unpickles arrays and nothing else: a pickle could otherwise run any code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return a class that an array needs; refuse any other."""
        if (module.split(".")[0] == "numpy" and name in _ARRAY) or (module, name) == ("_codecs", "encode"):
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"{module}.{name} in it")


_FIVE = tuple(f"data_batch_{k}" for k in range(1, 6))
_FORMATS: tuple[tuple[tuple[str, ...], tuple[str, ...], int, _Reader], ...] = (
    (_FIVE, ("test_batch",), 10, _read_pickle),
    (tuple(f"{name}.bin" for name in _FIVE), ("test_batch.bin",), 10, _read_binary),
    (("train",), ("test",), 100, _read_pickle),
    (("train.bin",), ("test.bin",), 100, _read_binary),
)
