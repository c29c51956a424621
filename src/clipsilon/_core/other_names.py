"""Arguments under the names that other libraries give them, and what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

#: Opacus's names, and the sentence that says what to write.
OTHER_NAMES = {
    "max_grad_norm": "it is called clip here, one number, which clipping='per-layer' divides among layers",
    "noise_multiplier": "noise_std is the noise on the mean, which is noise_multiplier times clip divided by batch",
    "sample_rate": "it is called rate here, with sampling='poisson'",
    "target_unclipped_quantile": "it is called quantile in AdaptiveDPSGD, and with clipping='adaptive' in PyTorch",
    "clipbound_learning_rate": "it is called clip_rate in AdaptiveDPSGD; clipping='adaptive' in PyTorch chooses it",
    "unclipped_num_std": "it is called count_noise in AdaptiveDPSGD; clipping='adaptive' in PyTorch chooses it",
    "accountant": "leave it out: there is one accountant, whose ε is a proven upper bound",
    "alphas": "leave it out: there is one accountant, which has no orders to choose from",
    "secure_mode": "leave it out: noise and batches always come from a cryptographic generator",
    "batch_first": "leave it out: the first dimension of every layer's input must be the record",
    "wrap_model": "leave it out: call the model that make_private returns",
    "rand_on_empty": "leave it out: empty batches are steps like any other",
    "strict": "leave it out: layers that cannot be measured are always refused",
    "normalize_clipping": "leave it out: clipping='automatic' normalises gradients to clip, 'flat' does not",
    "total_steps": "write epochs, the number of passes over the data",
    "max_clipbound": "leave it out: the clip that adapts has no limits",
    "min_clipbound": "leave it out: the clip that adapts has no limits",
    "noise_scheduler": "leave it out: the noise of a training does not change",
    "grad_clip_scheduler": "leave it out: the clip of a training does not follow a schedule",
    "module_state_dict_kwargs": "leave it out: a checkpoint holds the whole state of the model",
    "module_load_dict_kwargs": "leave it out: a checkpoint is loaded as a whole",
    "torch_save_kwargs": "leave it out: a checkpoint has one format",
    "torch_load_kwargs": "leave it out: a checkpoint has one format",
}


def refuse_other_names(where: str, names: Iterable[str]) -> None:
    """Raise TypeError for a name of another library, with what to write instead."""
    for name in names:
        if name in OTHER_NAMES:
            raise TypeError(f"{where} has no argument {name}: {OTHER_NAMES[name]}.")


def explain_other_names(function: Callable[P, R]) -> Callable[P, R]:
    """Let a function refuse arguments of other libraries by saying what to write instead (a decorator)."""
    own, name = inspect.signature(function).parameters, function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def call(*arguments: P.args, **named: P.kwargs) -> R:
        refuse_other_names(name, named.keys() - own.keys())
        return function(*arguments, **named)

    return call
