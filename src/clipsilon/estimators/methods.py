"""The methods that an estimator can train with: each states its preset, which choices it takes, and its default step.

To add a method, add an entry to `METHODS`; only the choices of `clipsilon fit` repeat the names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, NamedTuple

from clipsilon._core import checks
from clipsilon.estimators.defaults import Settings
from clipsilon.rules import presets
from clipsilon.rules.clipping import Adaptive, suggest_quantile
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Constant, Power, Schedule, size


class Choices(NamedTuple):
    """The settings that the user chose; None leaves a setting to the default rule.

    Parameters
    ----------
    clip : float, optional
        Largest norm of the gradient of one record.
    batch : int, optional
        Expected batch size.
    epochs : float, optional
        Passes over the records.
    step : float or Schedule, optional
        Step size, or a part of `clipsilon.schedules`.
    """

    clip: float | None = None
    batch: int | None = None
    epochs: float | None = None
    step: float | Schedule | None = None


class Budget(NamedTuple):
    """What a fit may spend, and for which neighbouring data sets.

    Parameters
    ----------
    epsilon, delta : float
        The target of the certificate.
    adjacency : str
        "zero-out" or "replace-one".
    """

    epsilon: float
    delta: float
    adjacency: str


# -- default clips ----------------------------------------------------------------------------------------------------


def _usual_clip(settings: Settings, epochs: float) -> float:
    """Return the clip of the default rule."""
    return settings.clip


def _initial_clip(settings: Settings, epochs: float) -> float:
    """Return a clip near the high quantile that it will follow, so that a step moves θ about as far as intended."""
    return max(settings.clip, settings.reach / 4)


def _tracked_clip(settings: Settings, epochs: float) -> float:
    """Return the small part of a gradient that a record may add each time."""
    return settings.reach / max(1.0, epochs)


# -- default steps ----------------------------------------------------------------------------------------------------


class Move(NamedTuple):
    """What default steps follow from.

    Parameters
    ----------
    distance : float
        How far one step of the default rule moves θ.
    clip : float
        The clip in use.
    stable_step : float
        A step at which descent along unclipped gradients is stable.
    """

    distance: float
    clip: float
    stable_step: float


def _clipped_step(move: Move) -> Schedule:
    """Move θ by the default distance, whatever the clip."""
    return Constant(move.distance / move.clip)


def _normalised_step(move: Move) -> Schedule:
    """Move θ by the default distance when gradients have norm 1."""
    return Constant(move.distance)


def _adam_step(move: Move) -> Schedule:
    """Return a fixed step: Adam moves each entry by about the step, whatever the norm of the gradients."""
    return Constant(0.05)


def _stable_step(move: Move) -> Schedule:
    """Return the step for gradients that clipping does not shorten in the end."""
    return Constant(move.stable_step)


def _local_step(move: Move) -> Schedule:
    """Return a falling step, for one record per step."""
    return Power(0.5, 0.5)


# -- methods ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Method:
    """What the estimators know about a method.

    Parameters
    ----------
    preset : callable
        The function of `clipsilon.rules.presets` that makes its rule.
    choices : tuple of str
        The fields of `Choices` that it takes; others are refused.
    default_clip : callable
        From the default settings and the number of epochs to the clip to use unless the user chose one.
    default_step : callable
        From a `Move` to the step sizes to use unless the user chose one.
    averages : bool, default True
        Whether to release the default average of the iterates instead of the preset's own output.
    poisson_only : bool, default False
        Whether it can be accounted for with Poisson batches only, so that a full batch is drawn as one of these.
    cycles : bool, default False
        Whether batches come in the same order in every pass, instead of being drawn at random.
    is_local : bool, default False
        Whether it is for local privacy: one pass, and a loss that knows its sensitivity.
    rescales : bool, default False
        Whether the last steps of a default fit set the length of the slopes and the intercept.
    """

    preset: Callable[..., Rule]
    choices: tuple[str, ...] = Choices._fields
    default_clip: Callable[[Settings, float], float] = _usual_clip
    default_step: Callable[[Move], Schedule] = _clipped_step
    averages: bool = True
    poisson_only: bool = False
    cycles: bool = False
    is_local: bool = False
    rescales: bool = False


_FULL_BATCH = ("clip", "epochs", "step")

#: The methods by name.
METHODS: dict[str, Method] = {
    "dpsgd": Method(preset=presets.DPSGD, rescales=True),
    "adaptive-dpsgd": Method(preset=presets.AdaptiveDPSGD, default_clip=_initial_clip),
    "pcsgd": Method(preset=presets.PCSGD),
    "dice": Method(preset=presets.DiceSGD),
    "adam-dice": Method(preset=presets.AdamDiceSGD, default_step=_adam_step),
    "auto-dice": Method(preset=presets.AutoDiceSGD, choices=("batch", "epochs", "step"), default_step=_normalised_step),
    "tracked": Method(preset=presets.TrackedSGD, default_clip=_tracked_clip, default_step=_stable_step),
    "correlated": Method(preset=presets.CorrelatedSGD, averages=False, cycles=True),
    "dpgd": Method(preset=presets.DPGD, choices=_FULL_BATCH, averages=False),
    "clipped-dpgd": Method(preset=presets.ClippedDPGD, choices=_FULL_BATCH, averages=False),
    "noisy-selection": Method(preset=presets.NoisySelection, choices=_FULL_BATCH, averages=False),
    "gamma-dpsgd": Method(preset=presets.GammaDPSGD, poisson_only=True),
    "ldpsgd": Method(preset=presets.LDPSGD, choices=("step",), default_step=_local_step, averages=False, is_local=True),
    "ldpasgd": Method(
        preset=presets.LDPASGD, choices=("step",), default_step=_local_step, averages=False, is_local=True
    ),
}


def refuse_unused(method: str, choices: Choices) -> None:
    """Raise ValueError if the user chose a setting that the method would ignore."""
    for name, value in choices._asdict().items():
        if value is not None and name not in METHODS[method].choices:
            raise ValueError(f"{name} must be left out for method {method!r}, which has no use for it, got {value!r}.")


def apply_choices(method: Method, settings: Settings, choices: Choices, epochs: float, records: int) -> Settings:
    """Replace default settings by the user's choices and the method's own step.

    Parameters
    ----------
    method : Method
        The method that will use the settings.
    settings : Settings
        The default settings.
    choices : Choices
        What the user chose.
    epochs : float
        Passes over the records.
    records : int
        Number of records.

    Returns
    -------
    Settings
        The settings to use. Unless the user chose a step or records track their gradients, all steps together move θ no
        farther than the default ones.
    """
    clip = method.default_clip(settings, epochs) if choices.clip is None else _check_clip(choices.clip)
    batch = settings.batch if choices.batch is None else checks.count("batch", choices.batch)
    if choices.step is None:
        steps = epochs * records / (batch or records)
        distance = settings.clip * size(settings.step, 1) * min(1.0, settings.steps / steps)
        step = method.default_step(Move(distance, clip, settings.stable_step))
    else:
        step = choices.step if isinstance(choices.step, tuple) else Constant(checks.positive("step", choices.step))
    return settings._replace(clip=clip, batch=batch, step=step)


def _check_clip(clip: object) -> float:
    """Return a clip that the user chose, or say how to get one that changes from step to step."""
    if isinstance(clip, str) and clip == "adaptive":
        raise ValueError(
            "clip must be a number above 0 or left out, got 'adaptive': method='adaptive-dpsgd' adapts its clip, from "
            "that number on."
        )
    if isinstance(clip, tuple):  # a part, such as a schedule
        raise ValueError(
            f"clip must be a number above 0, got {checks.short_repr(clip)}: for a clip that changes with the step, "
            "give a Rule that has it as method."
        )
    return checks.positive("clip", clip)


def build_method_rule(method: Method, settings: Settings, budget: Budget, epochs: float, records: int) -> Rule:
    """Build the rule of a method, with noise of size 1, which is to be calibrated.

    Parameters
    ----------
    method : Method
        The method.
    settings : Settings
        Its settings, from `apply_choices`.
    budget : Budget
        Determines the share of a noisy selection.
    epochs : float
        Passes over the records.
    records : int
        Number of records.

    Returns
    -------
    Rule
        The preset, called with those of the settings that are among its parameters.
    """
    arguments = {
        "step": settings.step,
        "clip": settings.clip,
        "lipschitz": settings.clip,
        "error_clip": settings.clip,
        "residual_cap": settings.clip * (1 + 1 / sqrt(max(1.0, epochs))),
        "noise_std": 1.0,
        "noise_multiplier": 1.0,
        "count_noise": 1.0,  # as the quantile, to be chosen when the noise is known (`aim_clip`)
        "quantile": 0.9,
        "scale": 1.0,
        "budget": 1.0,
        "selection_epsilon": budget.epsilon / 2,  # costs half of this unless a record is replaced
    }
    arguments |= _sampling(method, settings.batch, records)
    known = inspect.signature(method.preset).parameters
    rule = method.preset(**{name: arguments[name] for name in arguments.keys() & known.keys()})
    return replace(rule, output=settings.output) if method.averages else rule


def aim_clip(clip: Adaptive, multiplier: float, dimension: int, batch: int, steps: int) -> Adaptive:
    """Return an adaptive clip with the quantile, rate and noise on the count that suit a calibrated noise multiplier.

    Parameters
    ----------
    clip : Adaptive
        The clip.
    multiplier : float
        z, the noise multiplier that the budget requires.
    dimension : int
        The length of θ.
    batch, steps : int
        Expected batch size and number of steps.

    Returns
    -------
    Adaptive
        With noise of at least 5z on the count, which adds 0.5 % to the noise on the sum. Where this is much for the
        batch, the rate is lower: over all steps, noise alone changes the threshold by a factor of about e^½ at most.
    """
    count_noise = max(batch / 20, 5 * multiplier)
    rate = min(0.2, batch / (2 * count_noise * sqrt(steps)))
    return clip._replace(
        quantile=suggest_quantile(dimension, multiplier, batch, steps), rate=rate, count_noise=count_noise
    )


def _sampling(method: Method, batch: int | None, records: int) -> dict[str, Any]:
    """Return the sampling arguments of a preset: all records, or batches if chosen or required."""
    if batch is None and not method.poisson_only:
        return {"sampling": "full", "batch": 1}
    return {"sampling": "cyclic" if method.cycles else "poisson", "batch": batch or records}
