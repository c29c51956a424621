"""Small models for square images: a convolutional network and a vision transformer.

Every layer treats records one by one, and every layer's input has one row a record, as ghost clipping needs: positions
are rows of an embedding, looked up for each record, and not one parameter for all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from clipsilon._core import checks


class Shape(NamedTuple):
    """What a model must know of its images."""

    channels: int
    size: int  # pixels a side
    classes: int


def cnn(shape: Shape, width: int = 16) -> nn.Module:
    """Two convolutions, each halving the side, and two linear layers; 14 thousand parameters on digits."""
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


def vit(shape: Shape, width: int = 32, depth: int = 2, heads: int = 4) -> nn.Module:
    """A vision transformer of 4 × 4 patches, averaged over patches; 18 thousand parameters on digits."""
    return ViT(shape, width, depth, heads)


class ViT(nn.Module):
    """Patches, their positions, blocks of attention, and a linear layer on the mean."""

    def __init__(self, shape: Shape, width: int, depth: int, heads: int):
        super().__init__()
        side = shape.size // 4
        self.patches = nn.Conv2d(shape.channels, width, side, stride=side)
        self.positions = nn.Embedding(16, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, shape.classes)

    def forward(self, images: Tensor) -> Tensor:
        """The scores of all classes."""
        tokens = self.patches(images).flatten(2).mT
        places = torch.arange(16, device=images.device).repeat(len(images), 1)
        scores: Tensor = self.head(self.norm(self.blocks(tokens + self.positions(places))).mean(1))
        return scores


class Block(nn.Module):
    """Attention and two linear layers, each added to what came in."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_layers = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.layers = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens of the same shape."""
        tokens = tokens + self._attention(self.before_attention(tokens))
        return tokens + self.layers(self.before_layers(tokens))

    def _attention(self, tokens: Tensor) -> Tensor:
        records, length, width = tokens.shape
        parts = self.query_key_value(tokens).view(records, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(records, length, width))
        return out


MODELS: dict[str, Callable[[Shape], nn.Module]] = {"CNN": cnn, "ViT": vit}


def image_model(name: str, shape: Shape, seed: int) -> nn.Module:
    """A model by its name; its first parameters depend on the seed alone."""
    make: Any = checks.choice("model", name, MODELS)
    if shape.size % 4:
        raise ValueError(f"images must have a side that 4 divides, got {shape.size}.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = make(shape)
    return model
