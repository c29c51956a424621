"""Small models for square images: convolutional networks and a vision transformer.

Models are sequences, so that their first layers can be frozen (`training.apply_layers`). Every layer treats records one
by one, and every layer's input has one row per record, as ghost clipping needs: positions are looked up in an embedding
for each record, instead of being one parameter that all records share.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clipsilon._core import checks


class Shape(NamedTuple):
    """The size of images and the number of their classes.

    Parameters
    ----------
    channels : int
        Colour channels: 1 or 3.
    size : int
        Pixels per side; a multiple of 4.
    classes : int
        Number of classes.
    """

    channels: int
    size: int
    classes: int


def cnn(shape: Shape, width: int = 16) -> nn.Sequential:
    """Return a network of two convolutions, each halving the side, and two linear layers; 14,000 weights on digits."""
    side = shape.size // 4
    return nn.Sequential(
        nn.Conv2d(shape.channels, width, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * side**2, 64),
        nn.Tanh(),
        nn.Linear(64, shape.classes),
    )


def strided_cnn(shape: Shape, width: int = 16) -> nn.Sequential:
    """Return a network of two convolutions with stride 2 and a linear layer: fast, with 29,000 weights on MNIST."""
    side = shape.size // 4
    return nn.Sequential(
        nn.Conv2d(shape.channels, width, 5, stride=2, padding=2),
        nn.Tanh(),
        nn.Conv2d(width, 2 * width, 5, stride=2, padding=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(2 * width * side**2, shape.classes),
    )


def vit(shape: Shape, width: int = 32, depth: int = 2, heads: int = 4) -> nn.Sequential:
    """Return a vision transformer of 4 × 4 patches, averaged over patches; 18,000 parameters on digits.

    Parameters
    ----------
    shape : Shape
        Size of the images and number of classes.
    width : int, default 32
        Entries per token; a multiple of `heads`.
    depth : int, default 2
        Number of attention blocks.
    heads : int, default 4
        Attention heads per block.

    Returns
    -------
    nn.Sequential
        Its last layer is `head`. The parameters come from PyTorch's global generator.
    """
    layers: list[tuple[str, nn.Module]] = [
        ("tokens", Tokens(shape, width)),
        *((f"block{number}", Block(width, heads)) for number in range(1, depth + 1)),
        ("norm", nn.LayerNorm(width)),
        ("mean", MeanOverTokens()),
        ("head", nn.Linear(width, shape.classes)),
    ]
    return nn.Sequential(OrderedDict(layers))


class Tokens(nn.Module):
    """Patches of an image as tokens, to which an embedding of their positions is added.

    Parameters
    ----------
    shape : Shape
        Size of the images.
    width : int
        Entries per token.
    """

    def __init__(self, shape: Shape, width: int):
        super().__init__()
        side = shape.size // 4
        self.patches = nn.Conv2d(shape.channels, width, side, stride=side)
        self.positions = nn.Embedding(16, width)

    def forward(self, images: Tensor) -> Tensor:
        """Return the tokens of all patches, (records, 16, width)."""
        places = torch.arange(16, device=images.device).repeat(len(images), 1)
        tokens: Tensor = self.patches(images).flatten(2).mT + self.positions(places)
        return tokens


class MeanOverTokens(nn.Module):
    """The mean of a record's tokens."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Return one row per record, (records, width)."""
        return tokens.mean(1)


class Block(nn.Module):
    """Attention and two linear layers, each with a residual connection."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_layers = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layers = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return tokens of the same shape."""
        tokens = tokens + self._attention(self.before_attention(tokens))
        return tokens + self.layers(self.before_layers(tokens))

    def _attention(self, tokens: Tensor) -> Tensor:
        records, length, width = tokens.shape
        parts = self.query_key_value(tokens).view(records, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(records, length, width))
        return out


MODELS: dict[str, Callable[[Shape], nn.Sequential]] = {"CNN": cnn, "strided CNN": strided_cnn, "ViT": vit}


def image_model(name: str, shape: Shape, seed: int) -> nn.Sequential:
    """Return a model by its name; its initial parameters depend on the seed alone.

    Parameters
    ----------
    name : str
        "CNN", "strided CNN" or "ViT".
    shape : Shape
        Size of the images and number of classes.
    seed : int
        Seed of the initial parameters; PyTorch's global generator is left as it was.

    Returns
    -------
    nn.Sequential
        The model, in training mode.
    """
    make = checks.choice("model", name, MODELS)
    if shape.size % 4:
        raise ValueError(f"images must have a side that is a multiple of 4, got {shape.size}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(shape)
