"""From the engine's settings to the `Rule` that runs and is accounted for."""

from __future__ import annotations

from typing import NamedTuple

from clipsilon._core import checks
from clipsilon.rules.clipping import Norm, Normalise, Unclipped, bound_of
from clipsilon.rules.feedback import ErrorFeedback, NoFeedback
from clipsilon.rules.noise import Gaussian, std_of
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import Epochs, Poisson
from clipsilon.rules.schedules import Constant

ALGORITHMS = {"dpsgd": "DPSGD", "dice": "DiceSGD"}
CLIPPINGS = {"flat": Norm, "automatic": Normalise, "per-layer": Norm}  # as clips of the whole gradient


class UpdateSettings(NamedTuple):
    """The user's choices for the update; the fields are arguments of `PrivacyEngine.make_private`.

    Parameters
    ----------
    noise_multiplier : float
        Standard deviation of the noise on the sum of a batch, in units of `clip`.
    algorithm : str, default "dpsgd"
        "dpsgd" or "dice".
    clip : float, default 1.0
        C1, the bound on each record's gradient.
    error_clip, residual_cap : float, optional
        C2, which is `clip` unless given, and C3, which is infinite unless given; for "dice" only.
    clipping : str, default "flat"
        "flat", "automatic" to normalise gradients, or "per-layer" to clip the gradient of each layer.
    poisson_sampling : bool, default True
        Poisson batches, or else disjoint ones.
    """

    noise_multiplier: float
    algorithm: str = "dpsgd"
    clip: float = 1.0
    error_clip: float | None = None
    residual_cap: float | None = None
    clipping: str = "flat"
    poisson_sampling: bool = True


def build_rule(settings: UpdateSettings, optimizer: str, batch: int) -> Rule:
    """Return the rule of a training. Its step size is a placeholder: privacy does not depend on the optimiser.

    Parameters
    ----------
    settings : UpdateSettings
        The user's choices.
    optimizer : str
        Name of the optimiser, for the rule's name.
    batch : int
        Expected batch size B.

    Returns
    -------
    Rule
        With noise of standard deviation `noise_multiplier`·`clip`/B on the mean.
    """
    name = checks.choice("algorithm", settings.algorithm, ALGORITHMS)
    kind = checks.choice("clipping", settings.clipping, CLIPPINGS)
    clip = checks.positive("clip", settings.clip)
    if settings.algorithm == "dpsgd":
        _refuse_feedback(settings)
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


def noise_multiplier(rule: Rule) -> float:
    """Return the standard deviation of the noise on the sum of a batch, in units of `clip`."""
    return std_of(rule.noise) * sampling_of(rule).batch / bound_of(rule.clip)


def sampling_of(rule: Rule) -> Poisson | Epochs:
    """Return the rule's sampling; raise TypeError unless it is one of the two that `build_rule` chooses from."""
    if not isinstance(rule.sampling, Poisson | Epochs):
        raise TypeError(f"sampling must be Poisson or Epochs, got {rule.sampling}.")
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
    """Refuse thresholds of an error that DP-SGD does not have, rather than training another algorithm than meant."""
    for name in ("error_clip", "residual_cap"):
        if getattr(settings, name) is not None:
            raise ValueError(
                f"{name} must be None for algorithm='dpsgd', got {getattr(settings, name)}; \"dice\" has it."
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
