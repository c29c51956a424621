"""From the engine's settings to the `Rule` that runs and is accounted for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon.rules import correlation
from clipsilon.rules.clipping import Adaptive, Norm, Normalise, Unclipped, bound_of
from clipsilon.rules.feedback import ErrorFeedback, NoFeedback
from clipsilon.rules.noise import Correlated, Gaussian, Proportional, std_of
from clipsilon.rules.presets import AdaptiveDPSGD
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import Cyclic, Epochs, Poisson
from clipsilon.rules.schedules import Constant

Array = NDArray[np.float64]

ALGORITHMS = {"dpsgd": "DPSGD", "dice": "DiceSGD", "correlated": "CorrelatedSGD"}
CLIPPINGS = {  # as clips of the whole gradient, in each step
    "flat": Norm,
    "automatic": Normalise,
    "per-layer": Norm,
    "adaptive": Norm,
}
_PREFIXES = 8  # sums of updates whose noise a matrix is fitted to


class UpdateSettings(NamedTuple):
    """The user's choices for the update; the fields are arguments of `PrivacyEngine.make_private`.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise on the sum of a batch, in units of `clip`.
    algorithm : str, default "dpsgd"
        "dpsgd", "dice" or "correlated".
    clip : float, default 1.0
        C1, the bound on each record's gradient.
    error_clip, residual_cap : float, optional
        C2, which is `clip` unless given, and C3, which is infinite unless given; for "dice" only.
    clipping : str, default "flat"
        "flat", "automatic" to normalise gradients, "per-layer" to clip the gradient of each layer, or "adaptive" to let
        the threshold follow a quantile of the norms.
    poisson_sampling : bool, default True
        Poisson batches, or else disjoint ones, for "correlated" in the same order in every pass.
    quantile : float, optional
        The fraction of records that should not be clipped; for "adaptive" only.
    """

    noise_multiplier: float
    algorithm: str = "dpsgd"
    clip: float = 1.0
    error_clip: float | None = None
    residual_cap: float | None = None
    clipping: str = "flat"
    poisson_sampling: bool = True
    quantile: float | None = None


class Passes(NamedTuple):
    """The planned length of a training.

    Parameters
    ----------
    number : int
        Number of passes over the data.
    length : int
        Number of steps per pass.
    """

    number: int
    length: int

    @property
    def steps(self) -> int:
        """The number of all steps."""
        return self.number * self.length


def build_rule(settings: UpdateSettings, optimizer: str, batch: int, passes: Passes | None = None) -> Rule:
    """Return the rule of a training. Its step size is a placeholder: privacy does not depend on the optimiser.

    Parameters
    ----------
    settings : UpdateSettings
        The user's choices.
    optimizer : str
        Name of the optimiser, for the rule's name.
    batch : int
        Expected batch size B.
    passes : Passes, optional
        The planned length of the training, which "correlated" needs.

    Returns
    -------
    Rule
        With noise of standard deviation `noise_multiplier`·`clip`/B on the mean; with an adaptive clip, that of
        `AdaptiveDPSGD`.
    """
    name = checks.choice("algorithm", settings.algorithm, ALGORITHMS)
    kind = checks.choice("clipping", settings.clipping, CLIPPINGS)
    clip = checks.positive("clip", settings.clip)
    if settings.algorithm != "dice":
        _refuse_feedback(settings)
    if settings.clipping == "adaptive":
        return _build_adaptive(settings, optimizer, batch)
    if settings.quantile is not None:
        raise ValueError(f"quantile must be None unless clipping is 'adaptive', got {settings.quantile!r}.")
    if settings.algorithm == "correlated":
        return _build_correlated(settings, optimizer, kind(clip), batch, passes)
    return Rule(
        f"{'Auto' if kind is Normalise else ''}{name} with {optimizer}{_clipped_how(settings)}",
        Constant(1.0),
        kind(clip),
        Poisson(batch) if checks.flag("poisson_sampling", settings.poisson_sampling) else Epochs(batch),
        Gaussian(checks.nonnegative("noise_multiplier", settings.noise_multiplier) * clip / batch),
        NoFeedback() if settings.algorithm == "dpsgd" else _build_feedback(settings, kind, clip),
    )


def _clipped_how(settings: UpdateSettings) -> str:
    """Return the part of a rule's name that says whether layers are clipped one by one, as its clip does not say it."""
    return ", clipped per layer" if settings.clipping == "per-layer" else ""


def _build_adaptive(settings: UpdateSettings, optimizer: str, batch: int) -> Rule:
    """Return `AdaptiveDPSGD` of the package, with its default noise on the count and its default rate."""
    if settings.algorithm != "dpsgd":
        raise ValueError(
            f"clipping must be 'flat' or 'automatic' for algorithm={settings.algorithm!r}, got 'adaptive'."
        )
    if settings.quantile is None:
        raise ValueError(
            "quantile must be given with clipping='adaptive': the fraction of records that should not be clipped, "
            "which clipsilon.clipping.suggest_quantile suggests, got None."
        )
    sampling = "poisson" if checks.flag("poisson_sampling", settings.poisson_sampling) else "epochs"
    rule = AdaptiveDPSGD(
        Constant(1.0), settings.clip, settings.noise_multiplier, batch, settings.quantile, sampling=sampling
    )
    return replace(rule, name=f"{rule.name} with {optimizer}", clip=adaptive_clip_of(rule).on(batch))


def _build_correlated(
    settings: UpdateSettings, optimizer: str, clip: Norm | Normalise, batch: int, passes: Passes | None
) -> Rule:
    """Return `CorrelatedSGD` in cyclic order, with a matrix for the planned steps; one pass is a single pass."""
    if checks.flag("poisson_sampling", settings.poisson_sampling):
        raise ValueError(
            "poisson_sampling must be False for algorithm='correlated', whose batches come in one order, the same in "
            "every pass, got True."
        )
    if passes is None:
        raise ValueError("epochs must be given for algorithm='correlated', whose noise is planned for them, got None.")
    std = checks.nonnegative("noise_multiplier", settings.noise_multiplier) * clip.bound() / batch
    name = f"CorrelatedSGD over {passes.steps} steps with {optimizer}{_clipped_how(settings)}"
    return Rule(name, Constant(1.0), clip, Cyclic(batch), Correlated(std, _fit_buffers(passes)))


def _fit_buffers(passes: Passes) -> Array:
    """Return the matrix with the least noise in the sums of all updates up to several steps, at equal privacy."""
    ends = np.linspace(0, passes.steps, _PREFIXES + 1)[1:]
    prefixes = np.where(np.arange(passes.steps) < ends[:, None], 1.0, 0.0)
    return correlation.fit(prefixes, passes.number, passes.length)


def noise_multiplier(rule: Rule) -> float:
    """Return the noise on the sum of a batch, in units of `clip`; with an adaptive clip, of sum and count together."""
    of_sum = noise_on_sum(rule) / clip_bound(rule)
    if not isinstance(rule.clip, Adaptive):
        return of_sum
    return of_sum / math.hypot(1.0, 0.5 * of_sum / rule.clip.count_noise)


def noise_on_sum(rule: Rule) -> float:
    """Return the standard deviation of the noise on the sum of a batch; with an adaptive clip, in the first step."""
    if isinstance(rule.noise, Proportional):
        return rule.noise.multiplier * clip_bound(rule)
    std = rule.noise.std if isinstance(rule.noise, Correlated) else std_of(rule.noise)
    return std * sampling_of(rule).batch


def scale_noise(rule: Rule, factor: float) -> Rule:
    """Return the rule with the noise on its sums multiplied by a factor."""
    if isinstance(rule.noise, Proportional):
        return replace(rule, noise=Proportional(rule.noise.multiplier * factor))
    if isinstance(rule.noise, Correlated):
        return replace(rule, noise=rule.noise._replace(std=rule.noise.std * factor))
    return replace(rule, noise=Gaussian(std_of(rule.noise) * factor))


def clip_bound(rule: Rule) -> float:
    """Return the bound on each record's gradient; of an adaptive clip, the first threshold."""
    return float(rule.clip.start) if isinstance(rule.clip, Adaptive) else bound_of(rule.clip)


def adaptive_clip_of(rule: Rule) -> Adaptive:
    """Return the rule's adaptive clip; raise TypeError if it has another one."""
    if not isinstance(rule.clip, Adaptive):
        raise TypeError(f"clip must be Adaptive, got {rule.clip}.")
    return rule.clip


def correlated_noise_of(rule: Rule) -> Correlated:
    """Return the rule's correlated noise; raise TypeError if it has another one."""
    if not isinstance(rule.noise, Correlated):
        raise TypeError(f"noise must be Correlated, got {rule.noise}.")
    return rule.noise


def sampling_of(rule: Rule) -> Poisson | Epochs | Cyclic:
    """Return the rule's sampling; raise TypeError unless it is one of those that `build_rule` chooses from."""
    if not isinstance(rule.sampling, Poisson | Epochs | Cyclic):
        raise TypeError(f"sampling must be Poisson, Epochs or Cyclic, got {rule.sampling}.")
    return rule.sampling


def error_feedback_of(rule: Rule) -> ErrorFeedback:
    """Return the rule's error feedback; raise TypeError if it has none."""
    if not isinstance(rule.feedback, ErrorFeedback):
        raise TypeError(f"feedback must be ErrorFeedback, got {rule.feedback}.")
    return rule.feedback


def is_uncapped(rule: Rule) -> bool:
    """Return whether a record may leave any length in the error, so that the certificate is weak."""
    return isinstance(rule.feedback, ErrorFeedback) and isinstance(rule.feedback.cap, Unclipped)


def _refuse_feedback(settings: UpdateSettings) -> None:
    """Refuse thresholds of an error that only DiceSGD has, rather than training another algorithm than meant."""
    for name in ("error_clip", "residual_cap"):
        if getattr(settings, name) is not None:
            raise ValueError(
                f'{name} must be None for algorithm={settings.algorithm!r}, got {getattr(settings, name)}; "dice" has '
                "it."
            )


def _build_feedback(settings: UpdateSettings, kind: type[Norm] | type[Normalise], clip: float) -> ErrorFeedback:
    if settings.clipping == "per-layer":
        raise ValueError("clipping must be 'flat' or 'automatic' for algorithm='dice', got 'per-layer'.")
    error_clip = clip if settings.error_clip is None else checks.positive("error_clip", settings.error_clip)
    cap = settings.residual_cap
    if error_clip < clip:
        raise ValueError(
            f"error_clip must be at least clip ({clip}), else the error is not fed back, got {error_clip}."
        )
    if cap is None:
        return ErrorFeedback(kind(error_clip), Unclipped())
    if kind is Normalise:
        raise ValueError(f"residual_cap must be None for automatic clipping, which has no cap, got {cap!r}.")
    if checks.positive("residual_cap", cap) < clip:
        raise ValueError(f"residual_cap must be at least clip ({clip}), got {cap}.")
    return ErrorFeedback(kind(error_clip), Norm(float(cap)))
