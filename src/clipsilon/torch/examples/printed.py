"""Printed digits in the format of MNIST, distorted as handwriting is: public images for pretraining.

Each digit is drawn once per font of matplotlib and thickness of the stroke. An image is such a drawing, slanted,
turned, scaled, moved and warped at random.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
import torch
from matplotlib import get_data_path
from PIL import Image, ImageDraw, ImageFilter, ImageFont
from torch import Tensor
from torch.nn import functional

from clipsilon._core import checks

SIDE = 28  # pixels, as in MNIST
_FONTS = ("DejaVuSans*", "DejaVuSerif*", "STIXGeneral*", "cmr10*", "cmb10*", "cmss10*", "cmtt10*", "cmti10*")
_BOX = 40  # of a drawing with twice the side: MNIST's digits fill a box of 20 pixels
_STROKES = (-2, -1, 0, 1)  # thinner or thicker, in steps of the filter below
_CHUNK = 2000  # images that are made at the same time


def distorted_digits(count: int = 20_000, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return printed digits of 28 × 28 pixels in [0, 1], and their labels; they depend on the seed alone."""
    generator = torch.Generator().manual_seed(checks.integer("seed", seed, least=0))
    drawings = _drawings()
    kinds, digits = len(drawings), torch.randint(10, (checks.count("count", count),), generator=generator)
    chosen = drawings[torch.randint(kinds, (count,), generator=generator), digits]
    distorted = [_distort(some, generator) for some in chosen.split(_CHUNK)]
    return torch.cat(distorted), digits


def _distort(drawn: Tensor, generator: torch.Generator) -> Tensor:
    """Return images of one channel, each a drawing under a random map of the plane."""
    count = len(drawn)
    places = functional.affine_grid(_random_maps(count, generator), [count, 1, SIDE, SIDE], align_corners=False)
    bends = 0.1 * torch.randn(count, 2, 4, 4, generator=generator)  # 0.1 is 1.4 pixels
    warp = functional.interpolate(bends, size=SIDE, mode="bicubic", align_corners=True).permute(0, 2, 3, 1)
    moved = functional.grid_sample(drawn.unsqueeze(1), places + warp, align_corners=False)
    return (1.3 * moved).clamp(0, 1)  # as in MNIST, white inside and grey at the edges only


def _random_maps(count: int, generator: torch.Generator) -> Tensor:
    """Return maps from places of the image to places of the drawing, (count, 2, 3)."""

    def uniform(least: float, most: float) -> Tensor:
        return least + (most - least) * torch.rand(count, generator=generator)

    angle, slant = uniform(-math.pi / 12, math.pi / 12), uniform(-0.2, 0.4)
    width, height = uniform(0.9, 1.4), uniform(0.9, 1.15)  # of what is seen of the drawing
    cos, sin = torch.cos(angle), torch.sin(angle)
    turn = torch.stack([cos * width, (slant * cos - sin) * height, sin * width, (slant * sin + cos) * height])
    shift = torch.stack([uniform(-0.12, 0.12), uniform(-0.12, 0.12)])
    return torch.cat([turn.reshape(2, 2, count), shift.unsqueeze(1)], dim=1).permute(2, 0, 1)


@cache
def _drawings() -> Tensor:
    """Return every digit in every font and thickness, (kinds, 10, side, side), with grey levels from 0 to 1."""
    folder = Path(get_data_path(), "fonts", "ttf")
    fonts = [path for pattern in _FONTS for path in sorted(folder.glob(f"{pattern}.ttf")) if "Display" not in path.name]
    drawn = [[_draw(str(digit), path, stroke) for digit in range(10)] for path in fonts for stroke in _STROKES]
    whole = torch.from_numpy(np.array(drawn, dtype=np.float32) / np.float32(255))
    return functional.avg_pool2d(whole, 3, stride=1, padding=1)  # an image takes every second pixel


def _draw(digit: str, font: Path, stroke: int) -> np.ndarray:
    """Draw a digit large, make its stroke thinner or thicker, and fit it into the box."""
    canvas = Image.new("L", (240, 240))
    kind = ImageFont.truetype(str(font), 160)
    ImageDraw.Draw(canvas).text((120, 120), digit, 255, kind, anchor="mm", stroke_width=6 * max(stroke, 0))
    if stroke < 0:
        canvas = _thin(canvas, -stroke)
    found = canvas.crop(canvas.getbbox())
    scale = _BOX / max(found.size)
    small = found.resize((max(1, round(found.width * scale)), max(1, round(found.height * scale))))
    place = Image.new("L", (2 * SIDE, 2 * SIDE))
    place.paste(small, (SIDE - small.width // 2, SIDE - small.height // 2))
    return np.asarray(place)


def _thin(canvas: Image.Image, times: int) -> Image.Image:
    """Take pixels off the edge, but not where nothing would be left of the stroke."""
    for _ in range(times):
        thinner = canvas.filter(ImageFilter.MinFilter(5))
        kept = thinner.filter(ImageFilter.MaxFilter(5))
        canvas = (
            thinner if np.asarray(kept, dtype=float).sum() > 0.9 * np.asarray(canvas, dtype=float).sum() else canvas
        )
    return canvas
