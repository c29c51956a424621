"""What can be proven about a release: a privacy profile, and how it was found, in sentences.

One function for each kind of rule in docs/privacy.md, "The certificates". Nothing here looks at a run. Steps are
composed event by event; steps with nearly equal noise multipliers are merged, and count with the smallest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from clipsilon._core import checks
from clipsilon._core.vectors import is_moderate
from clipsilon.privacy.accounting import profiles
from clipsilon.privacy.accounting.profiles import Profile
from clipsilon.privacy.accounting.sampled import participations
from clipsilon.privacy.release import HiddenError, Release
from clipsilon.rules.clipping import REACH
from clipsilon.rules.correlation import Array, rounding, shift_norm
from clipsilon.rules.sampling import Full, Poisson, Uniform

_LEAST_MULTIPLIER = 2.0**-20  # with less noise the engine has no exact sums
_LEAST_SHIFT = 2.0**-10  # μ per unit that correlated noise rounds: with more noise, rounding is what counts
_MOST_EVENTS = 32  # kinds of steps that are composed separately

_HIDDEN_SIZE = (
    "Nothing can be certified: with a public rate, which hides the number of records, sums are too coarse for an error "
    "that is fed back with a cap; leave out the rate, or the feedback."
)

_TRACKED = (
    "Each record clips the change of its own gradient; given the noisy updates, its memory does not depend on the "
    "coins of other records (docs/proofs.md)."
)

ADJACENCIES = {
    "replace-one": "one record is replaced by another",
    "zero-out": "one record contributes to nothing: to no sum, no count and no histogram",
    "add-remove": "one record is added or removed",
}


def require_public_size(adjacency: str) -> None:
    """Raise ValueError unless neighbouring data sets have the same number of records, which the caller makes use of."""
    checks.choice("adjacency", adjacency, ADJACENCIES)
    if adjacency == "add-remove":
        raise ValueError(
            "adjacency must be 'replace-one' or 'zero-out' here, where settings follow from the number of records, got "
            "'add-remove', which hides it: for that, run a rule with a public rate by clipsilon.run."
        )


@dataclass(frozen=True)
class Certificate:
    """A profile and its reasons; the profile is None if nothing can be certified."""

    profile: Profile | None
    reasons: tuple[str, ...]

    def epsilon(self, delta: float) -> float:
        """Return the certified ε at δ; infinite if there is none."""
        checks.open_fraction("delta", delta)
        return np.inf if self.profile is None else self.profile.epsilon(delta)


def certify(released: Release, adjacency: str) -> Certificate:
    """Return the best certificate that is known for a release under an adjacency.

    Raises ValueError for an adjacency that the release does not admit.
    """
    checks.choice("adjacency", adjacency, ADJACENCIES)
    if adjacency == "add-remove" and (released.tracks or not released.has_public_rate):
        raise ValueError(_refused_removal(released))
    if released.selection == np.inf:
        return Certificate(None, ("Nothing can be certified: the output looks at updates before noise.",))
    if released.selection > 0:
        return _with_selection(certify(replace(released, selection=0.0), adjacency), released, adjacency)
    if released.personal is not None:
        return _personal(released.personal, adjacency)
    if released.radial is not None:
        return _radial(released, released.radial, adjacency)
    obstacle = _obstacle(released)
    if obstacle is not None:
        return Certificate(None, (obstacle,))
    if released.feedback is not None and released.feedback.residual > 0:  # else the error stays zero
        return _with_feedback(released, released.feedback, adjacency)
    if released.buffers is not None:
        return _correlated(released, released.buffers, adjacency)
    if released.counts:
        return _with_counts(released, adjacency)
    return _without_feedback(released, adjacency)


def _without_feedback(released: Release, adjacency: str) -> Certificate:
    if released.participations is not None:
        found = _fixed_participation(released, released.participations, adjacency)
    else:
        found = _sampled(released, adjacency)
    return replace(found, reasons=(*found.reasons, _TRACKED)) if released.tracks else found


def _with_counts(released: Release, adjacency: str) -> Certificate:
    """Certify an adaptive clip: sum and count are one Gaussian vector (docs/proofs.md, "Adaptive clipping")."""
    found = _without_feedback(released, adjacency)
    event = released.events[0]
    of_sum, together = event.noise_std * released.batch / event.bound, released.batch / event.ratio
    reason = (
        f"The threshold adapts to noisy counts of ±½ per record: sum (noise multiplier {of_sum:.4g}) and count (noise "
        f"of {event.count_std:.4g}) are one Gaussian of noise multiplier {together:.4g}, whatever the thresholds are."
    )
    return Certificate(found.profile, (*found.reasons, reason))


def _refused_removal(released: Release) -> str:
    """Return why add-remove is not certified for a release, and what to do instead."""
    if released.tracks:
        return (
            "adjacency must be 'replace-one' or 'zero-out' for tracked gradients, which are certified for a public "
            "number of records only, got 'add-remove'."
        )
    sampling = released.sampling
    about = f"{type(sampling).__name__} sampling, whose batches depend on the number of records"
    if isinstance(sampling, Poisson):
        about = f"Poisson sampling with batch={sampling.batch} alone, whose rate changes when a record leaves"
    return (
        f"adjacency must be 'replace-one' or 'zero-out' for {about}, got 'add-remove', which needs Poisson sampling "
        "with a public rate, such as sampling='poisson', rate=0.01."
    )


def _personal(mu: float, adjacency: str) -> Certificate:
    """Certify local noise: each report is a Gaussian mechanism, and nothing else is computed from the record."""
    if adjacency != "replace-one":
        raise ValueError(f"adjacency must be 'replace-one' for local noise, got {adjacency!r}.")
    reason = (
        f"Each user sends one report with noise for their own budget: μ_i-GDP for user i, and μ = {mu:.4g} for the "
        "least protected one, provided that the sensitivity the loss states is right, and that budgets, loss and start "
        "were chosen independently of the records; `account_users` lists the guarantee of every user."
    )
    return Certificate(profiles.gaussian(mu), (reason,))


def _radial(released: Release, scale: float, adjacency: str) -> Certificate:
    """Certify noise of Gamma length: a step is bound/(B·scale)-private for a record in it (docs/privacy.md)."""
    known = type(released.sampling) is Poisson and adjacency != "replace-one" and released.feedback is None
    known = known and not released.tracks
    if not known or not released.is_constant or not np.isfinite(released.bound):
        reason = (
            "Nothing can be certified: Gamma noise is for Poisson batches of clipped gradients, not for replace-one."
        )
        return Certificate(None, (reason,))
    multiplier = released.batch * scale / released.bound
    reason = f"Gamma noise: each step is {1 / multiplier:.4g}-private for those in it; subsampled and composed exactly."
    return Certificate(profiles.gamma(released.rate, multiplier, released.steps), (reason,))


def selection_epsilon(released: Release, adjacency: str) -> float:
    """Return the ε of the selection alone: a norm that changes by L/n and not by 2L/n costs half (docs/privacy.md)."""
    return released.selection if adjacency == "replace-one" else released.selection / 2


def _with_selection(descent: Certificate, released: Release, adjacency: str) -> Certificate:
    """Add report-noisy-min over the norms of the mean gradients at iterates that the descent has released already."""
    if descent.profile is None:
        return descent
    epsilon = selection_epsilon(released, adjacency)
    reason = (
        f"This is the descent; which iterate is selected adds ε = {epsilon:.4g} to it: Laplace noise of scale 4L/(nε') "
        f"with ε' = {released.selection:.4g}, on norms that one record changes by at most "
        f"{'2L/n' if adjacency == 'replace-one' else 'L/n'} at iterates that are released anyway."
    )
    return Certificate(profiles.add(descent.profile, epsilon), (*descent.reasons, reason))


def _obstacle(released: Release) -> str | None:
    """Return why nothing can be certified, or None."""
    if not released.is_known:
        return f"Nothing can be certified: the law of {type(released.sampling).__name__} sampling is not known."
    if released.tracks and not (type(released.sampling) is Full or _has_own_coins(released)):
        return (
            "Nothing can be certified: tracked gradients are for Poisson batches without a public rate, or full ones."
        )
    if released.counts and (released.feedback is not None or released.tracks or released.buffers is not None):
        return (
            "Nothing can be certified: feedback and correlated noise are certified for a constant clip only, not for "
            "one that adapts."
        )
    if not np.isfinite(released.bound):
        return "Nothing can be certified: nothing bounds what one record adds to a step."
    if any(event.noise_std * released.batch < _LEAST_MULTIPLIER * event.bound for event in released.events):
        return "Nothing can be certified: there is no Gaussian noise, or too little to count with."
    if not all(is_moderate(event.bound) and is_moderate(event.noise_std) for event in released.events):
        return "Nothing can be certified: clip and noise must be between 1e-90 and 1e90, where sums are exact."
    if released.counts and not all(_reaches(event.bound) and _reaches(event.noise_std) for event in released.events):
        return (
            "Nothing can be certified: start and noise of an adaptive clip must be 2**30 times above 1e-90 and below "
            "1e90, so that sums are exact at every threshold."
        )
    if released.feedback is not None and not released.is_constant:
        return "Nothing can be certified: error feedback is certified for a constant clip and constant noise only."
    if released.feedback is not None and not np.isfinite(released.feedback.bound):
        return "Nothing can be certified: nothing bounds what the fed-back error adds to a step."
    is_plain = released.feedback is None and not released.tracks and released.is_constant
    if released.buffers is not None and not is_plain:
        return "Nothing can be certified: correlated noise is for a constant clip without feedback."
    if released.buffers is not None and released.separation is None:
        return (
            "Nothing can be certified: correlated noise needs batches of which the next participation of a record is "
            f"known, as in a single pass, in cyclic order or of all records, not {type(released.sampling).__name__}."
        )
    if released.has_public_rate and released.feedback is not None and np.isfinite(released.feedback.residual):
        return _HIDDEN_SIZE
    if released.feedback is not None and _is_out_of_proportion(released, released.feedback):
        return "Nothing can be certified: the noise is too small for the error's clip or cap for sums to be exact."
    return None


def _has_own_coins(released: Release) -> bool:
    """Return whether a record is drawn by a coin of its own in every step, with a rate that follows from m."""
    return type(released.sampling) is Poisson and not released.has_public_rate


def _reaches(size: float) -> bool:
    """Return whether sums are exact at all thresholds that an adaptive clip of this start or noise can have."""
    return bool(is_moderate(size / REACH) and is_moderate(size * REACH))


def _is_out_of_proportion(released: Release, feedback: HiddenError) -> bool:
    """Return whether the error's clip or a finite cap exceeds the noise by so much that there are no exact sums."""
    cap = feedback.residual + released.bound if np.isfinite(feedback.residual) else 0.0
    return max(feedback.bound, cap / released.batch) * _LEAST_MULTIPLIER > released.noise_std


def _fixed_participation(released: Release, k: int, adjacency: str) -> Certificate:
    """Certify full or disjoint batches: the shifts are known, so the Gaussian is exact (or, shuffled, a bound)."""
    change = 2.0 if adjacency == "replace-one" else 1.0
    mu = change * _largest_shift(released, k) / released.batch
    reason = f"Each record takes part in at most {k} step(s): Gaussian differential privacy with μ = {mu:.4g}."
    return Certificate(profiles.gaussian(mu), (reason,))


def _correlated(released: Release, buffers: Array, adjacency: str) -> Certificate:
    """Certify correlated noise: C·(v + C⁻¹w) = C·v + w is one Gaussian mechanism (docs/proofs.md)."""
    k, apart = released.participations, released.separation
    assert k is not None  # _obstacle has seen to it
    assert apart is not None
    change = 2.0 if adjacency == "replace-one" else 1.0
    norm = shift_norm(buffers, released.steps, k, apart)
    mu = change * norm * released.bound / (released.batch * released.noise_std)
    mu = max(mu, change * _LEAST_SHIFT * rounding(buffers, released.steps))
    reason = (
        f"Correlated noise: each record takes part in at most {k} step(s), {apart} apart, which moves C·v by up to "
        f"{norm:.4g} times its bound: Gaussian differential privacy with μ = {mu:.4g}."
    )
    return Certificate(profiles.gaussian(mu), (reason,))


def _largest_shift(released: Release, k: int) -> float:
    """Return the largest √Σ (bound/noise)² over k steps: the record may take part in the least noisy ones."""
    largest = max(event.ratio for event in released.events)  # squares of very large ratios would overflow
    energy = 0.0
    for event in sorted(released.events, key=lambda event: -event.ratio):
        energy += min(k, event.steps) * (event.ratio / largest) ** 2
        k -= min(k, event.steps)
    return largest * float(np.sqrt(energy))


def _multipliers(released: Release) -> tuple[list[float], list[int]]:
    """Return noise multipliers s·B/c and their numbers of steps, at most `_MOST_EVENTS` of them.

    Steps are merged if their multipliers are equal up to rounding, or nearly equal if there would be too many, and all
    count with the smallest: the result is never more private than the release.
    """
    ratios = np.array([event.ratio for event in released.events])
    steps = np.array([event.steps for event in released.events])
    order = np.argsort(-ratios)
    ratios, steps = ratios[order], steps[order]
    width = max(1e-12, float(np.log(ratios[0] / ratios[-1])) / _MOST_EVENTS)
    # Slightly more than rounding, so that groups do not change when all noise is multiplied by a factor.
    group = np.floor(np.log(ratios[0] / ratios) / width + 1e-6).astype(np.int64)
    kinds, firsts = np.unique(group, return_index=True)
    counts = [int(steps[group == kind].sum()) for kind in kinds]
    return [float(released.batch / ratios[first]) for first in firsts], counts


def _sampled(released: Release, adjacency: str) -> Certificate:
    """Certify random batches: the subsampled Gaussian, composed."""
    multipliers, steps = _multipliers(released)
    if type(released.sampling) is Poisson and adjacency != "replace-one":
        profile = profiles.poisson(released.rate, multipliers, steps)
        reason = "Poisson-subsampled Gaussian, both directions composed numerically, the larger taken."
    elif type(released.sampling) is Uniform and adjacency == "zero-out":
        profile = profiles.subset_zero_out(released.rate, multipliers, steps)
        reason = "Gaussian on uniform subsets, with a record or without, both directions composed numerically."
    elif type(released.sampling) not in (Poisson, Uniform):
        name = type(released.sampling).__name__
        return Certificate(None, (f"Nothing can be certified: no certificate for random {name} batches is known.",))
    else:
        # A Poisson batch with a record against one with another is bounded by the same pair.
        profile = profiles.subset(released.rate, [multiplier / 2 for multiplier in multipliers], steps)
        reason = "Subsampled Gaussian for replacements, the worse direction of every step composed numerically."
    return Certificate(profile, (reason,))


def _with_feedback(released: Release, feedback: HiddenError, adjacency: str) -> Certificate:
    """Certify DiceSGD and its variants: the direct part and what the outputs reveal of the hidden error."""
    shift = dice_shift(released, feedback, "zero-out" if adjacency == "add-remove" else adjacency)
    if feedback.projects and np.isfinite(feedback.residual):
        reason = f"Error feedback: a participation leaves {feedback.residual:.4g} in the hidden error, at most"
    else:
        reason = "Error feedback without a cap that drains: at every step the hidden error may show up to its own clip"
    k = released.participations
    if k is not None:
        mu = shift(k)
        return Certificate(profiles.gaussian(mu), (f"{reason}; {k} participation(s) give μ = {mu:.4g}.",))
    counts, weights = participations(released.rate, released.steps)
    profile = profiles.mixture(weights, np.array([shift(int(count)) for count in counts]))
    return Certificate(profile, (f"{reason}; mixed over the binomial number of participations.",))


def dice_shift(released: Release, feedback: HiddenError, adjacency: str) -> Callable[[int], float]:
    """Return μ as a function of K, how often the record takes part (docs/explanation/dice-guarantee.md has the proof).

    replace-one: μ = (2/(B·s))·(√K·C1 + √min{(K·r)², K·r·B·C2, T·B²·C2²}), zero-out: μ = (1/(B·s))·(√K·C1 +
    √min{(K·r)², 2·K·r·B·C2, 4·T·B²·C2²}). For K = 1 direct and fed-back part never fall on the same step, and
    their squares add. An error that is normalised and not projected never drains: only the last bound holds.

    Parameters
    ----------
    released : Release
        A release with constant clip and noise.
    feedback : HiddenError
        Its hidden error.
    adjacency : str
        "replace-one" or "zero-out".

    Returns
    -------
    callable
        From the number of participations to μ.
    """
    b, r = released.batch, feedback.residual
    direct, fed_back = released.bound, b * feedback.bound
    change, opposite = (2.0, 1.0) if adjacency == "replace-one" else (1.0, 2.0)

    def shift(k: int) -> float:
        if k == 0:
            return 0.0
        energy = released.steps * (opposite * fed_back) ** 2
        if feedback.projects and np.isfinite(r):
            energy = min(energy, (k * r) ** 2, opposite * k * r * fed_back)
        total = np.sqrt(direct**2 + energy) if k == 1 else np.sqrt(k) * direct + np.sqrt(energy)
        return float(change * total / (b * released.noise_std))

    return shift
