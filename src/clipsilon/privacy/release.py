"""What a rule releases, as the accountants need to know it: one description, derived from the rule itself.

The sampler that runs and the sampler that is accounted for are the same object, so they cannot differ. Steps are
described as events, stretches of steps with one bound and one noise, so that a rule with phases is one release.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from clipsilon._core import checks
from clipsilon._core.parts import all_ours
from clipsilon._core.vectors import LEAST, MOST
from clipsilon.rules import clipping
from clipsilon.rules.clipping import Adaptive, Clip, Norm, Normalise, Unclipped, counts_records
from clipsilon.rules.feedback import ErrorFeedback, NoFeedback, Tracked
from clipsilon.rules.noise import Correlated, Local, Noise, Proportional, Radial, stds
from clipsilon.rules.outputs import Output, Selected, considers
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import (
    Cyclic,
    Epochs,
    Full,
    InOrder,
    Poisson,
    Sampling,
    SinglePass,
    Uniform,
    expected_batch,
    participations,
    public_rate,
    sampling_rate,
    separation,
)

Array = NDArray[np.float64]

_MOST_EVENTS = 1000


class Event(NamedTuple):
    """Consecutive steps that release the same kind of sum.

    Parameters
    ----------
    steps : int
        The number of steps.
    bound : float
        The most that one record adds to the sum of a step (C1); infinite if nothing bounds it.
    noise_std : float
        The standard deviation of Gaussian noise on the mean; 0 without.
    count_std : float
        The standard deviation of the noise on a count to which one record adds ±½; infinite if nothing is counted.
    batch : int
        B, by which the sum is divided, and the count is not.
    """

    steps: int
    bound: float
    noise_std: float
    count_std: float = np.inf
    batch: int = 1

    @property
    def ratio(self) -> float:
        """What one record adds to sum and count together, in units of their noise, times B; infinite without noise."""
        if not self.noise_std > 0:
            return np.inf
        return math.hypot(self.bound / self.noise_std, 0.5 * self.batch / self.count_std)

    @property
    def counts(self) -> bool:
        """Whether a count is released, too."""
        return self.count_std < np.inf


@dataclass(frozen=True)
class HiddenError:
    """The hidden error: what it adds to an update, and what one record leaves in it.

    Parameters
    ----------
    bound : float
        C2, the most that the clipped error adds to an update.
    projects : bool
        Whether the error is clipped by projection, and not by normalising.
    residual : float
        r, the most that one participation leaves in the error; infinite without a cap.
    """

    bound: float
    projects: bool
    residual: float


@dataclass(frozen=True)
class Release:
    """Noisy mean updates, all of them, about m records.

    Parameters
    ----------
    records : int
        m, public.
    batch : int
        B, public: what sums are divided by.
    sampling : Sampling
        The rule's own sampler.
    events : tuple of Event
        All steps, in order.
    feedback : HiddenError or None
        The hidden error, if there is one.
    radial : float or None
        Scale of noise with the density ∝ exp(−‖z‖/scale) on the mean, in place of Gaussian noise.
    personal : float or None
        The largest budget μ_i, if each user adds noise for a budget of their own.
    selection : float
        ε under replacement of what is released besides the updates: which iterate is selected.
    buffers : array of shape (k, 2) or None
        The matrix C, if noise is correlated between steps: `noise_std` is then the standard deviation of w.
    tracks : bool
        Whether what is clipped and summed is the change of each record's gradient since it last took part.
    """

    records: int
    batch: int
    sampling: Sampling
    events: tuple[Event, ...]
    feedback: HiddenError | None
    radial: float | None = None
    personal: float | None = None
    selection: float = 0.0
    buffers: Array | None = None
    tracks: bool = False

    @property
    def steps(self) -> int:
        """T, the number of all steps."""
        return sum(event.steps for event in self.events)

    @property
    def bound(self) -> float:
        """C1, the most that one record adds to the sum of any step."""
        return max(event.bound for event in self.events)

    @property
    def noise_std(self) -> float:
        """The standard deviation on the mean; of several, the one that with `bound` has the least noise multiplier."""
        if self.is_constant:
            return self.events[0].noise_std
        worst = max(event.ratio for event in self.events)
        return self.bound / worst if np.isfinite(self.bound) else 0.0

    @property
    def is_constant(self) -> bool:
        """Whether all steps have the same bound and noise."""
        return len(self.events) == 1

    @property
    def counts(self) -> bool:
        """Whether the clip also releases how many records it clips."""
        return any(event.counts for event in self.events)

    @property
    def has_constant_multiplier(self) -> bool:
        """Whether all steps have the same noise multiplier, up to rounding."""
        ratios = [event.ratio for event in self.events]
        return max(ratios) <= min(ratios) * (1 + 1e-12)

    @property
    def rate(self) -> float:
        """The probability q that a record takes part in a step: B/m, or the sampler's public rate."""
        return sampling_rate(self.sampling, self.records)

    @property
    def has_public_rate(self) -> bool:
        """Whether what happens to a record does not depend on the number of records."""
        return public_rate(self.sampling) is not None

    @property
    def participations(self) -> int | None:
        """K, the number of steps in which one record takes part at most; None if it is random."""
        return participations(self.sampling, self.records, self.steps)

    @property
    def separation(self) -> int | None:
        """The number of steps from one participation of a record to the next; None if it changes."""
        return separation(self.sampling, self.records)

    @property
    def is_known(self) -> bool:
        """Whether the accountants know the sampler's law; a class derived from a known one may draw differently."""
        return type(self.sampling) in (Uniform, Poisson, SinglePass, InOrder, Cyclic, Epochs, Full)


def release(rule: Rule, records: int, steps: int) -> Release:
    """Describe what a rule releases.

    Parameters
    ----------
    rule : Rule
        The rule.
    records : int
        m, the number of records.
    steps : int
        T, the number of steps.

    Returns
    -------
    Release
    """
    checks.instance("rule", rule, Rule)
    records, steps = checks.count("records", records), checks.count("steps", steps)
    rule.check_sampling(records, steps)
    return Release(
        records,
        expected_batch(rule.sampling, records),
        rule.sampling,
        _events_of(rule, records, steps),
        None if type(rule.feedback) in (NoFeedback, Tracked) else _feedback(rule),
        float(rule.noise.scale) if type(rule.noise) is Radial else None,
        _personal(rule, records),
        _selection(rule.output),
        rule.noise.buffers if type(rule.noise) is Correlated else None,
        type(rule.feedback) is Tracked,
    )


def _events_of(rule: Rule, records: int, steps: int) -> tuple[Event, ...]:
    """Return all steps. An adaptive clip has a ratio of bound to noise with noise in proportion to it only."""
    clip, noise = rule.clip, rule.noise
    if type(clip) is Adaptive and type(noise) is Proportional:
        return _counted(rule, clip, noise, records, steps)
    return _events(rule, records, steps)


def _counted(rule: Rule, clip: Adaptive, noise: Proportional, records: int, steps: int) -> tuple[Event, ...]:
    """Return the steps of an adaptive clip, which all have the noise multiplier that they have at its start."""
    batch = expected_batch(rule.sampling, records)
    return (Event(steps, clip.start, _proportional(noise, clip.start, batch), clip.count_noise, batch),)


def _proportional(noise: Proportional, bound: float, batch: int) -> float:
    """Return the standard deviation to the last bit as the engine has it, on which depends whether there is a grid."""
    return noise.multiplier * (bound * (1.0 / batch))


def _events(rule: Rule, records: int, steps: int) -> tuple[Event, ...]:
    """Return the stretches of steps on which both bound and noise are constant.

    Very many stretches are merged, and count with the largest bound and the largest ratio of bound to noise; without
    noise if that of one of them is so small or so large that its sums are not exact.
    """
    ends, columns = [], []
    own = _bounds(rule.clip, steps)
    for stretches in (own, _stds(rule.noise, own, expected_batch(rule.sampling, records))):
        ends.append(np.cumsum([length for length, _ in stretches]))
        columns.append(np.array([value for _, value in stretches]))
    cuts = np.union1d(*ends)
    bounds, stds = (column[np.searchsorted(end, cuts)] for end, column in zip(ends, columns, strict=True))
    lengths = np.diff(cuts, prepend=0)
    if lengths.min() < 1 or lengths.sum() != steps:
        raise ValueError(f"schedules must cover {steps} steps in order, got stretches of {lengths.tolist()[:5]}.")
    if cuts.size > _MOST_EVENTS:
        firsts = np.arange(0, cuts.size, -(-cuts.size // _MOST_EVENTS))
        is_exact = (np.minimum(bounds, stds) >= LEAST) & (np.maximum(bounds, stds) <= MOST)
        ratios = np.maximum.reduceat(np.where(is_exact, bounds / np.maximum(stds, LEAST), np.inf), firsts)
        lengths, bounds = np.add.reduceat(lengths, firsts), np.maximum.reduceat(bounds, firsts)
        stds = bounds / ratios
    return tuple(Event(int(n), float(c), float(s)) for n, c, s in zip(lengths, bounds, stds, strict=True))


def _bounds(clip: Clip, steps: int) -> list[tuple[int, float]]:
    """Return the clip's bounds; nothing is taken on trust from users' clips, nor from clips that look at records."""
    trusted = all_ours(clip) and not counts_records(clip)
    return clipping.bounds(clip, steps) if trusted else [(steps, np.inf)]


def _stds(noise: Noise, bounds: list[tuple[int, float]], batch: int) -> list[tuple[int, float]]:
    """Return the standard deviations, as stretches; noise in proportion to the clip follows its bounds."""
    steps = sum(length for length, _ in bounds)
    if type(noise) is Proportional:
        return [(length, _proportional(noise, bound, batch) if bound < np.inf else 0.0) for length, bound in bounds]
    return stds(noise, steps) if all_ours(noise) else [(steps, 0.0)]


def _personal(rule: Rule, records: int) -> float | None:
    """Return the largest budget if a record adds nothing but its report: no error, no clip that could enlarge it."""
    if type(rule.noise) is not Local:
        return None
    rule.noise.check_users(records)
    alone = type(rule.feedback) is NoFeedback and type(rule.clip) is Unclipped
    return float(rule.noise.budgets.max()) if alone else None


def _selection(output: Output) -> float:
    """Return the ε of what an output reveals besides the noisy updates: 0 unless it looks at updates before noise."""
    if type(output) is Selected:
        return float(output.epsilon)
    return np.inf if considers(output) else 0.0


def _bound(clip: Clip) -> float:
    """Return the largest norm that leaves a constant clip of the package, ∞ for others."""
    return max(bound for _, bound in _bounds(clip, 1)) if not hasattr(clip, "bounds") else np.inf


def _feedback(rule: Rule) -> HiddenError:
    if type(rule.feedback) is not ErrorFeedback:
        return HiddenError(np.inf, False, np.inf)
    error, cap = rule.feedback
    return HiddenError(_bound(error), type(error) is Norm, _residual(rule.clip, cap))


def _residual(clip: Clip, cap: Clip) -> float:
    """Return r, the largest norm of cap(g) − clip(g)."""
    inner, outer = _bound(clip), _bound(cap)
    if type(clip) is Norm and type(cap) is Norm:
        return abs(outer - inner)  # both shorten the same vector
    if type(clip) is Normalise and type(cap) is Norm:
        return max(inner, outer - inner)  # a short gradient is lengthened to C1
    return inner + outer
