"""Private fine-tuning of a small part of a pretrained model: its last layer, or adapters of low rank (LoRA).

A vision transformer learns printed digits, which are public, and is then fine-tuned on handwritten ones, which are not.
"""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

from torch import nn

from clipsilon._core import checks
from clipsilon._core.extras import needs_package
from clipsilon.torch.examples.images import Images, digits, printed_digits
from clipsilon.torch.examples.models import image_model
from clipsilon.torch.examples.training import TrainingConfig, train_images

PUBLIC = TrainingConfig(algorithm="sgd", step=3e-3, batch=50, steps=400, optimizer="Adam")
PRIVATE = TrainingConfig(
    algorithm="dpsgd", step=1e-2, batch=200, steps=60, optimizer="Adam", clip=1.0, noise_multiplier=2.0
)


class FineTuned(NamedTuple):
    """The result of one way of fine-tuning.

    Parameters
    ----------
    name : str
        What was trained.
    trained : int
        Number of trained parameters.
    accuracy : float
        Fraction of test images that are classified correctly.
    """

    name: str
    trained: int
    accuracy: float


def train_last_layer(model: nn.Module, head: str = "head") -> nn.Module:
    """Freeze all of a model but one layer, in place, and return it."""
    for name, p in model.named_parameters():
        p.requires_grad_(name.startswith(f"{head}."))
    return model


def add_lora(model: nn.Module, targets: list[str], rank: int = 4, head: str = "head") -> nn.Module:
    """Return a frozen model with trained adapters of low rank, and a trained last layer.

    Parameters
    ----------
    model : nn.Module
        The pretrained model.
    targets : list of str
        Names of the linear layers that get an adapter.
    rank : int, default 4
        Rank of the adapters.
    head : str, default "head"
        The last layer.

    Returns
    -------
    nn.Module
        A `PeftModel`.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ModuleNotFoundError:
        raise ImportError(needs_package("add_lora", "peft", "clipsilon[trainers]")) from None
    settings = LoraConfig(
        r=checks.count("rank", rank), lora_alpha=2 * rank, target_modules=targets, modules_to_save=[head]
    )
    adapted: Any = get_peft_model(model, settings)
    return adapted  # type: ignore[no-any-return]


def compare_parts(public: TrainingConfig = PUBLIC, private: TrainingConfig = PRIVATE) -> list[FineTuned]:
    """Fine-tune all parameters, adapters, and the last layer, each from the same public model with the same noise.

    Parameters
    ----------
    public, private : TrainingConfig
        Settings of the pretraining and of the fine-tuning.

    Returns
    -------
    list of FineTuned
        One result each, and first that of the public model alone.
    """
    data = digits()
    base = image_model("ViT", data.shape, seed=0)
    start = train_images(public, base, Images(printed_digits(), data.test, data.classes))
    parts = {
        "all parameters": copy.deepcopy(base),
        "adapters": add_lora(copy.deepcopy(base), ["query_key_value", "out"]),
        "the last layer": train_last_layer(copy.deepcopy(base)),
    }
    counts = {name: sum(p.numel() for p in model.parameters() if p.requires_grad) for name, model in parts.items()}
    found = [FineTuned(name, counts[name], train_images(private, model, data)) for name, model in parts.items()]
    return [FineTuned("nothing", 0, start), *found]
