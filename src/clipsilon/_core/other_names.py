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
    "max_grad_norm": "it is called clip here",
    "noise_multiplier": "noise_std is the noise on the mean, which is noise_multiplier times clip divided by batch",
    "sample_rate": "it is called rate here, with sampling='poisson'",
    "target_unclipped_quantile": "it is called quantile in AdaptiveDPSGD, and with clipping='adaptive' in PyTorch",
    "clipbound_learning_rate": "it is called clip_rate in AdaptiveDPSGD; clipping='adaptive' in PyTorch chooses it",
    "unclipped_num_std": "it is called count_noise in AdaptiveDPSGD; clipping='adaptive' in PyTorch chooses it",
    "accountant": "leave it out: there is one accountant, whose ε is a proven upper bound",
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
