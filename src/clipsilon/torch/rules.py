"""From the engine's settings to the `Rule` that runs, and that is accounted for."""

from __future__ import annotations

from typing import Any, NamedTuple

from clipsilon._core import checks
from clipsilon.rules.clipping import Norm, Normalise, Unclipped
from clipsilon.rules.feedback import ErrorFeedback, NoFeedback
from clipsilon.rules.noise import Gaussian
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import Epochs, Poisson
from clipsilon.rules.schedules import Constant

ALGORITHMS = {"dpsgd": "DPSGD", "dice": "DiceSGD"}
CLIPPINGS = {"flat": Norm, "automatic": Normalise}


class Settings(NamedTuple):
    """What a user chooses of the update; `PrivacyEngine.make_private` says what it means."""

    noise_multiplier: float
    algorithm: str = "dice"
    clip: float = 1.0
    error_clip: float | None = None
    residual_cap: float | None = None
    clipping: str = "flat"
    poisson_sampling: bool = True


def rule_of(settings: Settings, optimizer: str, batch: int) -> Rule:
    """The rule of a training. Its step is the optimiser's own matter, on which privacy does not depend."""
    name = checks.choice("algorithm", settings.algorithm, ALGORITHMS)
    cut = checks.choice("clipping", settings.clipping, CLIPPINGS)
    clip = checks.positive("clip", settings.clip)
    return Rule(
        f"{'Auto' if cut is Normalise else ''}{name} with {optimizer}",
        Constant(1.0),
        cut(clip),
        Poisson(batch) if checks.flag("poisson_sampling", settings.poisson_sampling) else Epochs(batch),
        Gaussian(checks.nonnegative("noise_multiplier", settings.noise_multiplier) * clip / batch),
        NoFeedback() if settings.algorithm == "dpsgd" else _feedback(settings, cut, clip),
    )


def multiplier(rule: Rule) -> float:
    """The noise on the sum of a batch, in units of `clip`."""
    return float(rule.noise.std * rule.sampling.batch / rule.clip.bound())


def _feedback(settings: Settings, cut: Any, clip: float) -> ErrorFeedback:
    error_clip = clip if settings.error_clip is None else checks.positive("error_clip", settings.error_clip)
    cap = settings.residual_cap
    if error_clip < clip:
        raise ValueError(
            f"error_clip must be at least clip ({clip}), else the error is not fed back, got {error_clip}."
        )
    if cap is None:
        return ErrorFeedback(cut(error_clip), Unclipped())
    if cut is Normalise:
        raise ValueError(f"residual_cap must be None for automatic clipping, which has no cap, got {cap!r}.")
    if checks.positive("residual_cap", cap) < clip:
        raise ValueError(f"residual_cap must be at least clip ({clip}), got {cap}.")
    return ErrorFeedback(cut(error_clip), Norm(float(cap)))
