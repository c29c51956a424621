"""DiceSGD by ghost clipping against Opacus's own ghost DP-SGD: time a step, and peak tensor memory.

    python benchmarks/ghost.py [--quick]

A CNN, a ViT and a GPT-2 (of `transformers`), randomly initialised, float32, one thread. Contenders take turns step by
step, and times are medians. Opacus is given the norms of GPT-2's Conv1D, which it does not know by itself. Memory is
that of all tensors together, from the making of the model to the end of its second step.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler would report each start and stop

import torch
from opacus import PrivacyEngine as Opacus
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from clipwise.torch import PrivacyEngine
from clipwise.torch.layers import register_conv1d

LIMITS = {"dice": 1.10, "dice, capped": 1.15}  # of Opacus's time
REPEATS = 60
RULES: dict[str, dict[str, Any]] = {
    "dpsgd": {"algorithm": "dpsgd"},
    "dice": {"algorithm": "dice"},
    "dice, capped": {"algorithm": "dice", "residual_cap": 1.5},
}


class Block(nn.Module):
    """A transformer's block, of layers that Opacus knows."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attention and a perceptron, each added to its input."""
        n, length, width = x.shape
        parts = self.mix(self.before(x)).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(n, length, width)
        x = x + self.out(seen)
        return x + self.down(functional.gelu(self.up(self.after(x))))


class ViT(nn.Module):
    """Patches of 4 × 4 of a picture of 32 × 32."""

    def __init__(self, width: int = 128, depth: int = 4):
        super().__init__()
        self.patches, self.places = nn.Linear(48, width), nn.Embedding(64, width)
        self.blocks = nn.Sequential(*[Block(width, 4) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of ten classes."""
        patches = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(len(x), 64, 48)
        places = self.places(torch.arange(64).repeat(len(x), 1))
        return self.head(self.norm(self.blocks(self.patches(patches) + places).mean(1)))


class Words(nn.Module):
    """GPT-2 with position ids of each record's own, which per-sample gradients need."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel  # only needed here

        dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        ends = {"bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": False}
        config = GPT2Config(vocab_size=1000, n_positions=64, n_embd=128, n_layer=4, n_head=4, **dropout, **ends)
        self.model = GPT2LMHeadModel(config)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of the next word at every place."""
        places = torch.arange(ids.shape[1]).repeat(len(ids), 1)
        return self.model(input_ids=ids, position_ids=places, use_cache=False).logits


def cnn() -> nn.Module:
    """Three convolutions."""
    first = [nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.ReLU(), nn.MaxPool2d(2)]
    third = [nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()]
    return nn.Sequential(*first, *second, *third, nn.Linear(1024, 10))


def pictures() -> tuple[Tensor, Tensor]:
    """A batch of random pictures."""
    return torch.randn(32, 3, 32, 32), torch.randint(10, (32,))


def sentences() -> tuple[Tensor, Tensor]:
    """A batch of random sentences and the words that follow."""
    words = torch.randint(1000, (16, 65))
    return words[:, :-1].contiguous(), words[:, 1:].contiguous()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]]]] = {
    "CNN": (cnn, pictures),
    "ViT": (ViT, pictures),
    "GPT-2": (Words, sentences),
}


def contender(name: str, make: Callable[[], nn.Module], batch: tuple[Tensor, Tensor]) -> Callable[[], None]:
    """A function that takes one step of training."""
    model = make()
    register_conv1d(model)
    loader = DataLoader(TensorDataset(*batch), batch_size=len(batch[0]))
    parts = {"module": model, "optimizer": torch.optim.SGD(model.parameters(), lr=1e-3), "data_loader": loader}
    settings = {"criterion": nn.CrossEntropyLoss(), "noise_multiplier": 1.0, "grad_sample_mode": "ghost"}
    if name == "Opacus":
        private, optimizer, criterion, _ = Opacus().make_private(
            **parts, **settings, max_grad_norm=1.0, poisson_sampling=False
        )
    else:
        private, optimizer, criterion, _ = PrivacyEngine().make_private(**parts, **settings, **RULES[name])

    def step() -> None:
        scores = private(batch[0])
        shape = scores.shape if scores.dim() == 3 else None
        loss = criterion(scores.flatten(0, -2), batch[1].flatten(), shape=shape)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def medians(steps: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Seconds a step of each, taking turns, after two turns to warm up."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(repeats + 2):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            if turn > 1:
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(found) for name, found in times.items()}


def peak(name: str, make: Callable[[], nn.Module], batch: tuple[Tensor, Tensor]) -> int:
    """The most bytes that all tensors of a training took together."""
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step = contender(name, make, batch)
        step()
        step()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    total = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        total += event.nbytes()
        most = max(most, total)
    return most


def main() -> int:
    """Measure, print, and say by the exit code whether the limits are kept."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    table = Table("model", "algorithm", "ms a step", "of Opacus's", "limit", "peak MB", "over Opacus's, in copies")
    kept = True
    for model, (make, data) in MODELS.items():
        if model == "GPT-2" and importlib.util.find_spec("transformers") is None:
            print("GPT-2 is left out: it needs the package transformers.")
            continue
        batch = data()
        copy = sum(p.numel() * p.element_size() for p in make().parameters())
        names = ["Opacus", *RULES]
        peaks = {name: peak(name, make, batch) for name in names}
        steps = {name: contender(name, make, batch) for name in names}
        times = medians(steps, REPEATS // 4 if "--quick" in sys.argv else REPEATS)
        for name in names:
            ratio, over = times[name] / times["Opacus"], (peaks[name] - peaks["Opacus"]) / copy
            limit = LIMITS.get(name)
            kept &= (limit is None or ratio <= limit) and over <= 1.01
            shown = (f"{1e3 * times[name]:.1f}", f"{ratio:.2f}", "" if limit is None else f"{limit:.2f}")
            table.add_row(model, name, *shown, f"{peaks[name] / 1e6:.1f}", f"{over:.2f}")
    Console().print(table)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
