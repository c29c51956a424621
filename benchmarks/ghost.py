"""DP-SGD and DiceSGD of PyTorch models compared with Opacus's own DP-SGD: time per step, and peak tensor memory.

    python benchmarks/ghost.py [--quick]

Ghost clipping (norms only) and hooks (a gradient for every record) are each compared with Opacus in the same mode, on a
CNN, a ViT, a GPT-2 (of `transformers`) and adapters of rank 4 for a frozen GPT-2 (LoRA, of `peft`), randomly
initialised, in float32 and with one thread. Contenders take turns step by step. Opacus, which has no rules for GPT-2's
Conv1D, is given ours. Rows without noise leave it out on both sides, and show what exact noise costs apart from the
rest. Memory is the total of all tensors, from the creation of the model to the end of its second step.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler would report each start and stop

import torch
from opacus import PrivacyEngine as Opacus
from opacus.grad_sample import register_norm_sampler
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from clipsilon.torch import PrivacyEngine
from clipsilon.torch.exact_sums import ExactNoise, plan_grid
from clipsilon.torch.generators import RandomStream
from clipsilon.torch.layers import register_conv1d
from clipsilon.torch.rules import UpdateSettings, build_rule
from results import Row, ahead, cost, main
from timing import ratio, seconds, turns

TOPIC = "PyTorch"
# Opacus's figure over ours. With error feedback, that is beside Opacus's DP-SGD in ghost mode.
LIMIT = 1 / 1.05
FEEDBACK_LIMITS = {"DiceSGD": 1 / 1.5, "DiceSGD, capped": 1 / 1.6}
FEEDBACK_MEMORY = 1 / 1.25
PACKAGES = {"GPT-2": ("transformers",), "LoRA": ("transformers", "peft")}
RULES: dict[str, dict[str, Any]] = {
    "DP-SGD": {"algorithm": "dpsgd"},
    "DiceSGD": {"algorithm": "dice"},
    "DiceSGD, capped": {"algorithm": "dice", "residual_cap": 1.5},
}


class Block(nn.Module):
    """A transformer block, of layers that Opacus has rules for."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens after attention and a perceptron, each with a residual connection."""
        n, length, width = x.shape
        parts = self.mix(self.before(x)).view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(n, length, width)
        x = x + self.out(seen)
        return x + self.down(functional.gelu(self.up(self.after(x))))


class ViT(nn.Module):
    """A vision transformer on 4 × 4 pixel patches of 32 × 32 images."""

    def __init__(self, width: int = 128, depth: int = 4):
        super().__init__()
        self.patches, self.places = nn.Linear(48, width), nn.Embedding(64, width)
        self.blocks = nn.Sequential(*[Block(width, 4) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of ten classes."""
        patches = x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).reshape(len(x), 64, 48)
        places = self.places(torch.arange(64).repeat(len(x), 1))
        return self.head(self.norm(self.blocks(self.patches(patches) + places).mean(1)))


class GPT2(nn.Module):
    """GPT-2 with a row of position ids per record, which per-sample gradients need."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel  # only needed here

        dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        ends = {"bos_token_id": 0, "eos_token_id": 0, "tie_word_embeddings": False}
        config = GPT2Config(vocab_size=1000, n_positions=64, n_embd=128, n_layer=4, n_head=4, **dropout, **ends)
        self.model = GPT2LMHeadModel(config)

    def forward(self, ids: Tensor) -> Tensor:
        """Return the scores of the next word at every place."""
        places = torch.arange(ids.shape[1]).repeat(len(ids), 1)
        return self.model(input_ids=ids, position_ids=places, use_cache=False).logits


def lora() -> nn.Module:
    """Return a frozen GPT-2 with adapters of rank 4, which alone are trained."""
    from peft import LoraConfig, get_peft_model  # only needed here

    model = GPT2()
    settings = LoraConfig(r=4, lora_alpha=8, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True)
    model.model = get_peft_model(model.model, settings)
    return model.train()


def cnn() -> nn.Module:
    """Return a network of three convolutions."""
    first = [nn.Conv2d(3, 32, 3, padding=1), nn.GroupNorm(8, 32), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(32, 64, 3, padding=1), nn.GroupNorm(8, 64), nn.ReLU(), nn.MaxPool2d(2)]
    third = [nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()]
    return nn.Sequential(*first, *second, *third, nn.Linear(1024, 10))


def image_batch() -> tuple[Tensor, Tensor]:
    """Return a batch of random images and labels."""
    return torch.randn(32, 3, 32, 32), torch.randint(10, (32,))


def sentence_batch() -> tuple[Tensor, Tensor]:
    """Return a batch of random sentences and the words that follow."""
    words = torch.randint(1000, (16, 65))
    return words[:, :-1].contiguous(), words[:, 1:].contiguous()


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]]]] = {
    "CNN": (cnn, image_batch),
    "ViT": (ViT, image_batch),
    "GPT-2": (GPT2, sentence_batch),
    "LoRA": (lora, sentence_batch),
}


def conv1d_norms(layer: nn.Module, activations: list[Tensor], gradient: Tensor) -> dict[Tensor, Tensor]:
    """Return the gradient norms of GPT-2's Conv1D by Gram matrices, for Opacus, which has no rule for them.

    Parameters
    ----------
    layer : nn.Module
        The layer.
    activations : list of Tensor
        Its input, as the only entry.
    gradient : Tensor
        The gradient of its output.
    """
    x, g = activations[0], gradient
    squares = ((x @ x.mT) * (g @ g.mT)).sum(2).sum(1).clamp(min=0)
    return {layer.weight: squares.sqrt(), layer.bias: g.sum(1).norm(dim=1)}


def register_norms(model: nn.Module) -> None:
    """Give Opacus the rule for the Conv1D layers of a model."""
    for kind in {type(layer) for layer in model.modules() if type(layer).__name__ == "Conv1D"}:
        register_norm_sampler(kind)(conv1d_norms)


def make_private(
    name: str, mode: str, parts: dict[str, Any], noise: float = 1.0
) -> tuple[nn.Module, Any, Callable[..., Tensor]]:
    """Make a model private by Opacus or by one of our rules.

    Parameters
    ----------
    name : str
        "Opacus" or a key of `RULES`.
    mode : str
        "ghost" or "hooks".
    parts : dict
        Model, optimiser and loader.
    noise : float, default 1.0
        The noise multiplier.

    Returns
    -------
    tuple
        The private model, optimiser and criterion.
    """
    settings: dict[str, Any] = {"noise_multiplier": noise, "grad_sample_mode": mode}
    criterion = nn.CrossEntropyLoss()
    settings |= {"criterion": criterion} if mode == "ghost" else {}
    if name == "Opacus":
        made = Opacus().make_private(**parts, **settings, max_grad_norm=1.0, poisson_sampling=False)
    else:
        made = PrivacyEngine().make_private(**parts, **settings, **RULES[name])
    return made[0], made[1], made[2] if mode == "ghost" else lambda scores, targets, shape: criterion(scores, targets)


def make_step(
    privatise: Callable[[dict[str, Any]], tuple[nn.Module, Any, Callable[..., Tensor]]],
    make: Callable[[], nn.Module],
    batch: tuple[Tensor, Tensor],
) -> Callable[[], None]:
    """Return a function that takes one training step.

    Parameters
    ----------
    privatise : callable
        Makes model, optimiser and loader private, and returns the private model, optimiser and criterion.
    make : callable
        Creates the model.
    batch : tuple of Tensor
        Inputs and targets of every step.

    Returns
    -------
    callable
        Without arguments.
    """
    model = make()
    register_conv1d(model)
    register_norms(model)
    loader = DataLoader(TensorDataset(*batch), batch_size=len(batch[0]))
    parts = {"module": model, "optimizer": torch.optim.SGD(model.parameters(), lr=1e-3), "data_loader": loader}
    private, optimizer, criterion = privatise(parts)

    def step() -> None:
        scores = private(batch[0])
        shape = scores.shape if scores.dim() == 3 else None
        criterion(scores.flatten(0, -2), batch[1].flatten(), shape=shape).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def peak_memory(make: Callable[[], Callable[[], None]]) -> int:
    """Return the peak memory, in bytes, of all tensors in two steps; `make` creates the model and returns its step."""
    gc.collect()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step = make()
        step()
        step()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    total = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        total += event.nbytes()
        most = max(most, total)
    return most


def measure_times(rows: list[Row], model: str, mode: str, batch: tuple[Tensor, Tensor], repeats: int) -> None:
    """Time a step of each rule and one of Opacus, and append their ratios.

    Parameters
    ----------
    rows : list of Row
        The results so far.
    model : str
        A key of `MODELS`.
    mode : str
        "ghost" or "hooks".
    batch : tuple of Tensor
        Inputs and targets of every step.
    repeats : int
        Steps per contender.
    """
    names, make = ["Opacus", *rules_of(model)], MODELS[model][0]
    steps = {name: make_step(partial(make_private, name, mode), make, batch) for name in names}
    for name in ("Opacus", "DP-SGD"):
        steps[f"{name} without noise"] = make_step(partial(make_private, name, mode, noise=0.0), make, batch)
    found = turns({name: lambda step=step: seconds(step) for name, step in steps.items()}, repeats)
    how = f"time per step, {mode}, {repeats} turns"
    for name in names[1:]:
        least = LIMIT if name == "DP-SGD" else FEEDBACK_LIMITS[name] if mode == "ghost" else None
        rows.append(ahead(TOPIC, f"{name}, {model}", "Opacus's DP-SGD", ratio(found, "Opacus", name), how, least))
    apart = ratio(found, "Opacus without noise", "DP-SGD without noise")
    rows.append(ahead(TOPIC, f"DP-SGD without noise, {model}", "Opacus's, without noise", apart, how))


def rules_of(model: str) -> list[str]:
    """Return the rules that are measured with a model: adapters have DP-SGD alone."""
    return ["DP-SGD"] if model == "LoRA" else list(RULES)


def measure_memory(rows: list[Row], model: str, mode: str, batch: tuple[Tensor, Tensor]) -> None:
    """Append the ratios of peak memory.

    Parameters
    ----------
    rows : list of Row
        The results so far.
    model : str
        A key of `MODELS`.
    mode : str
        "ghost" or "hooks".
    batch : tuple of Tensor
        Inputs and targets of every step.
    """
    names, make = rules_of(model) if mode == "ghost" else ["DP-SGD"], MODELS[model][0]
    peaks = {
        name: peak_memory(partial(make_step, partial(make_private, name, mode), make, batch))
        for name in ["Opacus", *names]
    }
    for name in names:
        least, found = LIMIT if name == "DP-SGD" else FEEDBACK_MEMORY, peaks["Opacus"] / peaks[name]
        rows.append(ahead(TOPIC, f"{name}, {model}", "Opacus's DP-SGD", found, f"peak memory, {mode}", least))


def measure_release(rows: list[Row], repeats: int) -> None:
    """Append what exact noise costs over noise of PyTorch, for a million parameters in float32.

    Parameters
    ----------
    rows : list of Row
        The results so far.
    repeats : int
        Releases per contender.
    """
    total, generator = torch.zeros(10**6), torch.Generator().manual_seed(0)
    whole = torch.zeros(10**6, dtype=torch.float64)
    noise = ExactNoise(plan_grid(build_rule(UpdateSettings(1.0), "SGD", 250)), RandomStream())
    contenders = {
        "exact": lambda: seconds(lambda: noise.release(whole, 250, total)),
        "torch": lambda: seconds(lambda: total.add_(torch.empty_like(total).normal_(generator=generator)).div(250)),
    }
    found = turns(contenders, repeats)
    how = f"time, 1 thread, {repeats} turns"
    rows.append(
        cost(TOPIC, "release with exact noise", "normal_ and add_", ratio(found, "exact", "torch"), how, most=2.0)
    )


def measure(rows: list[Row], quick: bool) -> None:
    """Measure all models in both modes."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    measure_release(rows, 3 if quick else 60)
    for model, (_, data) in MODELS.items():
        missing = [package for package in PACKAGES.get(model, ()) if importlib.util.find_spec(package) is None]
        if missing:
            rows.append(Row("peer", TOPIC, model, "Opacus", None, f"not run: needs the package {missing[0]}"))
            continue
        batch = data()
        for mode in ("ghost", "hooks"):
            measure_times(rows, model, mode, batch, 3 if quick else 60)
            measure_memory(rows, model, mode, batch)


if __name__ == "__main__":
    sys.exit(main("ghost", measure, __doc__))
