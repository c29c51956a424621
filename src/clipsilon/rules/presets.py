"""The papers' algorithms, each a `Rule` made of parts.

`sampling` selects the sampler by name: "uniform", "poisson", "single-pass", "in-order", "epochs", "cyclic", or "full"
(all records in every step). With "poisson", a `rate` fixes the probability with which a record is drawn. With
`deploy_every` above 1, the model is deployed only every `deploy_every` steps (lazy deployment).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from clipsilon._core import checks
from clipsilon._core.other_names import explain_other_names
from clipsilon.rules import correlation
from clipsilon.rules.clipping import Adaptive, Norm, Normalise, Unclipped
from clipsilon.rules.feedback import ErrorFeedback, Tracked
from clipsilon.rules.noise import Correlated, Gaussian, Local, Proportional, Radial
from clipsilon.rules.outputs import Average, Selected, TailAverage
from clipsilon.rules.preconditioning import Accumulated, Adam
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import Cyclic, Epochs, Full, InOrder, Poisson, Sampling, SinglePass, Uniform
from clipsilon.rules.schedules import Schedule

SAMPLERS: dict[str, Callable[..., Sampling]] = {
    "uniform": Uniform,
    "poisson": Poisson,
    "single-pass": SinglePass,
    "in-order": InOrder,
    "epochs": Epochs,
    "cyclic": Cyclic,
    "full": Full,
}


@explain_other_names
def SGD(
    step: Schedule,
    noise_std: float = 0.0,
    batch: int = 1,
    sampling: str = "uniform",
    deploy_every: int = 1,
    *,
    rate: float | None = None,
) -> Rule:
    """Build stochastic gradient descent with greedy deployment (paper 1, eq. 5), without clipping: never private.

    θ_{t+1} = project(θ_t − γ_{t+1}·∇ℓ(θ_t; Z_{t+1})), Z_{t+1} ~ D(θ_t).

    Parameters
    ----------
    step : Schedule
        The step sizes γ_t, a part of `clipsilon.schedules`.
    noise_std : float, default 0.0
        Standard deviation of the noise on each coordinate of the *mean* update, at least 0.
    batch : int, default 1
        The public, expected batch size B; must be 1 with sampling "full", which uses all records.
    sampling : {"uniform", "poisson", "single-pass", "in-order", "epochs", "cyclic", "full"}, default "uniform"
        How the records of a step are drawn; see `clipsilon.sampling`.
    deploy_every : int, default 1
        Number of steps between deployments; records react to the model deployed last.
    rate : float, optional
        With sampling "poisson", the public probability with which each record is drawn, whatever their number; B/m by
        default. The adjacency "add-remove" requires it.

    Returns
    -------
    Rule
        The rule, for `clipsilon.run`.
    """
    return Rule(
        "SGD", step, Unclipped(), _sampler(sampling, batch, rate), _gaussian(noise_std), deploy_every=deploy_every
    )


@explain_other_names
def PCSGD(
    step: Schedule,
    clip: float,
    noise_std: float,
    batch: int = 1,
    sampling: str = "uniform",
    deploy_every: int = 1,
    *,
    rate: float | None = None,
) -> Rule:
    """Build projected clipped SGD (paper 1, eq. 9), whose clipping bias grows where records react to the model.

    θ_{t+1} = project(θ_t − γ_{t+1}·(clip_c(∇ℓ(θ_t; Z_{t+1})) + ζ_{t+1})), ζ ~ N(0, noise_std²·I).

    Parameters
    ----------
    step : Schedule
        The step sizes γ_t, a part of `clipsilon.schedules`.
    clip : float
        The norm to which each record's gradient is clipped, above 0.
    noise_std : float
        Standard deviation of the noise on each coordinate of the *mean* update, at least 0.
    batch : int, default 1
        The public, expected batch size B; must be 1 with sampling "full", which uses all records.
    sampling : {"uniform", "poisson", "single-pass", "in-order", "epochs", "cyclic", "full"}, default "uniform"
        How the records of a step are drawn; see `clipsilon.sampling`.
    deploy_every : int, default 1
        Number of steps between deployments; records react to the model deployed last.
    rate : float, optional
        With sampling "poisson", the public probability with which each record is drawn, whatever their number; B/m by
        default. The adjacency "add-remove" requires it.

    Returns
    -------
    Rule
        The rule, for `clipsilon.run`.
    """
    return Rule(
        "PCSGD",
        step,
        _norm("clip", clip),
        _sampler(sampling, batch, rate),
        _gaussian(noise_std),
        deploy_every=deploy_every,
    )


@explain_other_names
def DPSGD(
    step: Schedule,
    clip: float,
    noise_std: float,
    batch: int,
    sampling: str = "poisson",
    deploy_every: int = 1,
    *,
    rate: float | None = None,
) -> Rule:
    """Build minibatch DP-SGD with gradient clipping, DPSGD-GC (paper 3, Algorithm 1).

    θ_{t+1} = project(θ_t − γ_{t+1}·((1/B) Σ clip_c(g_i) + ζ_{t+1})), ζ ~ N(0, noise_std²·I). The algorithm adds
    noise of standard deviation σ₁ to the sum; `noise_std` is σ₁/B.

    Parameters
    ----------
    step : Schedule
        The step sizes γ_t, a part of `clipsilon.schedules`.
    clip : float
        The norm to which each record's gradient is clipped, above 0.
    noise_std : float
        Standard deviation of the noise on each coordinate of the *mean* update, at least 0.
    batch : int
        The public, expected batch size B; must be 1 with sampling "full", which uses all records.
    sampling : {"uniform", "poisson", "single-pass", "in-order", "epochs", "cyclic", "full"}, default "poisson"
        How the records of a step are drawn; see `clipsilon.sampling`.
    deploy_every : int, default 1
        Number of steps between deployments; records react to the model deployed last.
    rate : float, optional
        With sampling "poisson", the public probability with which each record is drawn, whatever their number; B/m by
        default. The adjacency "add-remove" requires it.

    Returns
    -------
    Rule
        The rule, for `clipsilon.run`.
    """
    return Rule(
        "DPSGD",
        step,
        _norm("clip", clip),
        _sampler(sampling, batch, rate),
        _gaussian(noise_std),
        deploy_every=deploy_every,
    )


@explain_other_names
def AdaptiveDPSGD(
    step: Schedule,
    clip: float,
    noise_multiplier: float,
    batch: int,
    quantile: float,
    clip_rate: float | None = None,
    count_noise: float | None = None,
    sampling: str = "poisson",
    deploy_every: int = 1,
    *,
    rate: float | None = None,
) -> Rule:
    """Build DPSGD whose threshold follows a private quantile of the gradient norms (Andrew et al., 2021).

    θ_{t+1} = project(θ_t − γ_{t+1}·((1/B) Σ clip_{c_t}(g_i) + ζ_{t+1})), with noise in proportion to the threshold c_t,
    which follows noisy counts of the records that are not clipped (`clipsilon.clipping.Adaptive`). Sum and count
    together are certified as DPSGD with this noise multiplier is.

    Parameters
    ----------
    step : Schedule
        The step sizes γ_t, a part of `clipsilon.schedules`.
    clip : float
        c_1, the first threshold, above 0; not to be chosen by looking at the records.
    noise_multiplier : float
        z, the noise multiplier of sum and count together, at least 0 and below 2·count_noise. The noise on the sum has
        the deviation (z⁻² − (2·count_noise)⁻²)^(−½)·c_t. `clipsilon.calibrate` finds it, with `count_noise` as it is.
    batch : int
        The public, expected batch size B; must be 1 with sampling "full", which uses all records.
    quantile : float
        The fraction of records that should not be clipped, above 0 and below 1; see
        `clipsilon.clipping.suggest_quantile`. There is no default: the median, which is common elsewhere, is far too
        small for most problems.
    clip_rate : float, optional
        How fast the logarithm of the threshold follows the counts, above 0. The default is the paper's 0.2, which suits
        its count_noise of B/20, or 0.02·(B/count_noise)² if that is less: noise on the counts then makes the logarithm
        deviate by about 0.2 at most. With sampling "full" it is 0.2.
    count_noise : float, optional
        Standard deviation of the noise on the count, between 1/32 and 2³⁰. The default is the larger of B/20, as in the
        paper, and 5·noise_multiplier, so that the count adds at most 0.5 % to the noise on the sum; there is none with
        sampling "full".
    sampling : {"uniform", "poisson", "single-pass", "in-order", "epochs", "cyclic", "full"}, default "poisson"
        How the records of a step are drawn; see `clipsilon.sampling`.
    deploy_every : int, default 1
        Number of steps between deployments; records react to the model deployed last.
    rate : float, optional
        With sampling "poisson", the public probability with which each record is drawn, whatever their number; B/m by
        default. The adjacency "add-remove" requires it.

    Returns
    -------
    Rule
        The rule, for `clipsilon.run`.

    Examples
    --------
    >>> import clipsilon as cs
    >>> rule = cs.AdaptiveDPSGD(cs.schedules.Constant(0.5), clip=1.0, noise_multiplier=1.0, batch=250, quantile=0.95)
    >>> round(cs.account(rule, records=60_000, steps=240, delta=1e-5, adjacency="zero-out").certified, 2)
    0.39
    """
    sampler, z = _sampler(sampling, batch, rate), checks.nonnegative("noise_multiplier", noise_multiplier)
    if count_noise is None:
        if sampling == "full":
            raise ValueError("count_noise must be given for full batches, whose size is not known here, got None.")
        count_noise = max(batch / 20, 5 * z)
    if clip_rate is None:
        share = math.inf if sampling == "full" else batch / checks.count_noise("count_noise", count_noise)
        clip_rate = min(0.2, 0.02 * share**2)
    part = Adaptive(checks.positive("clip", clip), quantile, checks.positive("clip_rate", clip_rate), count_noise)
    if z >= 2 * part.count_noise:
        raise ValueError(
            f"noise_multiplier must be below twice count_noise ({part.count_noise:g}), got {noise_multiplier!r}: the "
            "count alone reveals more."
        )
    noise = Proportional(z / math.sqrt(1.0 - (z / (2 * part.count_noise)) ** 2))
    return Rule("AdaptiveDPSGD", step, part, sampler, noise, deploy_every=deploy_every)


@explain_other_names
def DiceSGD(
    step: Schedule,
    clip: float,
    error_clip: float,
    noise_std: float,
    residual_cap: float | None = None,
    batch: int = 1,
    sampling: str = "uniform",
    deploy_every: int = 1,
    *,
    rate: float | None = None,
) -> Rule:
    """Build clipped SGD with error feedback, which converges without bias (paper 1, Algorithm 1; paper 3, Algorithm 2).

    v = (1/B) Σ clip_{C1}(g_i) + clip_{C2}(e_t), θ_{t+1} = project(θ_t − γ_{t+1}·(v + ζ_{t+1})),
    e_{t+1} = e_t + (1/B) Σ g_i − v, with C1 = `clip`, C2 = `error_clip`. A `residual_cap` C3 replaces g_i in the last
    equation by clip_{C3}(g_i).

    Parameters
    ----------
    step : Schedule
        The step sizes γ_t, a part of `clipsilon.schedules`.
    clip : float
        C1, the norm to which each record's gradient is clipped, above 0.
    error_clip : float
        C2, the norm to which the fed-back error is clipped, above 0. A value below `clip` triggers a warning, because
        the fixed point may then be biased.
    noise_std : float
        Standard deviation of the noise on each coordinate of the *mean* update, at least 0.
    residual_cap : float, optional
        C3, the norm to which each record's contribution to e is clipped, at least `clip`. None leaves it unbounded, as
        in the papers; without a cap, the certified ε is much larger.
    batch : int, default 1
        The public, expected batch size B; must be 1 with sampling "full", which uses all records.
    sampling : {"uniform", "poisson", "single-pass", "in-order", "epochs", "cyclic", "full"}, default "uniform"
        How the records of a step are drawn; see `clipsilon.sampling`.
    deploy_every : int, default 1
        Number of steps between deployments; records react to the model deployed last.
    rate : float, optional
        With sampling "poisson", the public probability with which each record is drawn, whatever their number; B/m by
        default. The adjacency "add-remove" requires it.

    Returns
    -------
    Rule
        The rule, for `clipsilon.run`.
    """
    return Rule(
        "DiceSGD",
        step,
        _norm("clip", clip),
        _sampler(sampling, batch, rate),
        _gaussian(noise_std),
        _feedback(clip, error_clip, residual_cap),
        deploy_every=deploy_every,
    )


@explain_other_names
def AdamDiceSGD(
    step: Schedule,
    clip: float,
    error_clip: float,
    noise_std: float,
    residual_cap: float | None = None,
    batch: int = 1,
    sampling: str = "uniform",
    deploy_every: int = 1,
    beta1: float = 0.9,
    beta2: float = 0.999,
    stability: float = 1e-8,
    *,
    rate: float | None = None,
) -> Rule:
    """Build DiceSGD with Adam's moments of the private update (paper 3, Algorithm 3, corrected: see `Adam`).

    Parameters
    ----------
    step : Schedule
        The step sizes γ_t, a part of `clipsilon.schedules`.
    clip : float
        C1, the norm to which each record's gradient is clipped, above 0.
    error_clip : float
        C2, the norm to which the fed-back error is clipped, above 0. A value below `clip` triggers a warning, because
        the fixed point may then be biased.
    noise_std : float
        Standard deviation of the noise on each coordinate of the *mean* update, at least 0.
    residual_cap : float, optional
        C3, the norm to which each record's contribution to e is clipped, at least `clip`. None leaves it unbounded, as
        in the papers; without a cap, the certified ε is much larger.
    batch : int, default 1
        The public, expected batch size B; must be 1 with sampling "full", which uses all records.
    sampling : {"uniform", "poisson", "single-pass", "in-order", "epochs", "cyclic", "full"}, default "uniform"
        How the records of a step are drawn; see `clipsilon.sampling`.
    deploy_every : int, default 1
        Number of steps between deployments; records react to the model deployed last.
    beta1, beta2 : float, default 0.9 and 0.999
        Decay rates of the first and second moments, at least 0 and below 1.
    stability : float, default 1e-8
        ε₁, added to the second moment under the root, above 0.
    rate : float, optional
        With sampling "poisson", the public probability with which each record is drawn, whatever their number; B/m by
        default. The adjacency "add-remove" requires it.

    Returns
    -------
    Rule
        The rule, for `clipsilon.run`.
    """
    return Rule(
        "AdamDiceSGD",
        step,
        _norm("clip", clip),
        _sampler(sampling, batch, rate),
        _gaussian(noise_std),
        _feedback(clip, error_clip, residual_cap),
        Adam(beta1, beta2, stability),
        deploy_every=deploy_every,
    )


@explain_other_names
def AutoDiceSGD(
    step: Schedule,
    noise_std: float,
    batch: int = 1,
    sampling: str = "uniform",
    deploy_every: int = 1,
    *,
    rate: float | None = None,
) -> Rule:
    """Build DiceSGD without thresholds: gradients and error are normalised to length one (paper 3, Algorithm 4).

    v = (1/B) Σ g_i/‖g_i‖ + e_t/‖e_t‖, e_{t+1} = e_t + (1/B) Σ g_i − v.

    Parameters
    ----------
    step : Schedule
        The step sizes γ_t, a part of `clipsilon.schedules`.
    noise_std : float
        Standard deviation of the noise on each coordinate of the *mean* update, at least 0.
    batch : int, default 1
        The public, expected batch size B; must be 1 with sampling "full", which uses all records.
    sampling : {"uniform", "poisson", "single-pass", "in-order", "epochs", "cyclic", "full"}, default "uniform"
        How the records of a step are drawn; see `clipsilon.sampling`.
    deploy_every : int, default 1
        Number of steps between deployments; records react to the model deployed last.
    rate : float, optional
        With sampling "poisson", the public probability with which each record is drawn, whatever their number; B/m by
        default. The adjacency "add-remove" requires it.

    Returns
    -------
    Rule
        The rule, for `clipsilon.run`.
    """
    return Rule(
        "AutoDiceSGD",
        step,
        Normalise(1.0),
        _sampler(sampling, batch, rate),
        _gaussian(noise_std),
        ErrorFeedback(Normalise(1.0), Unclipped()),
        deploy_every=deploy_every,
    )


@explain_other_names
def LDPSGD(
    step: Schedule,
    budget: ArrayLike,
    deploy_every: int = 1,
    *,
    batch: int = 1,
    weights: str = "budget",
    variance: float | None = None,
) -> Rule:
    """Build SGD under local privacy, where each user takes part once with noise for their own budget (paper 4, eq. 2).

    A report is r_i = ∇ℓ(θ; x_i) + (2·C0/μ_i)·ω_i, ω ~ N(0, I). Nothing is clipped: the loss must state its
    `sensitivity`, 2·C0. A round takes the reports of `batch` users at the same θ, and θ ← θ − γ·Σ w_i·r_i/Σ w_i. For
    `batch=1` this is the paper's algorithm. A report's privacy does not depend on the round.

    Parameters
    ----------
    step : Schedule
        The step sizes γ_t, a part of `clipsilon.schedules`; t counts rounds.
    budget : array_like of float
        μ, above 0: one number for all users, or one per user.
    deploy_every : int, default 1
        Number of steps between deployments; records react to the model deployed last.
    batch : int, default 1
        b, the number of reports per round; the last round may have fewer.
    weights : {"budget", "equal"}, default "budget"
        "budget": w_i = 1/(V + d·(2·C0/μ_i)²), the weights of least variance. They depend on budgets alone, so the mean
        is unbiased where budgets do not depend on records; otherwise a population is learnt in which users with large
        budgets count more. "equal": all reports count the same.
    variance : float, optional
        V, a public guess at the variance of a gradient, at least 0; by default C0², which no variance exceeds. It
        affects the error only, and must not be computed from the records. For weights "budget" alone.

    Returns
    -------
    Rule
        A rule that allows as many steps as there are rounds.
    """
    noise = _local(budget, weights, variance)
    return Rule("LDPSGD", step, Unclipped(), SinglePass(batch), noise, deploy_every=deploy_every)


@explain_other_names
def LDPASGD(
    step: Schedule,
    budget: ArrayLike,
    deploy_every: int = 1,
    *,
    batch: int = 1,
    weights: str = "budget",
    variance: float | None = None,
) -> Rule:
    """Build LDPSGD that releases the mean of its iterates (paper 4, Polyak–Ruppert averaging).

    Parameters
    ----------
    step : Schedule
        The step sizes γ_t, a part of `clipsilon.schedules`; t counts rounds.
    budget : array_like of float
        μ, above 0: one number for all users, or one per user.
    deploy_every : int, default 1
        Number of steps between deployments; records react to the model deployed last.
    batch : int, default 1
        b, the number of reports per round; the last round may have fewer.
    weights : {"budget", "equal"}, default "budget"
        How the reports of a round are weighted, as in `LDPSGD`.
    variance : float, optional
        V of the weights, as in `LDPSGD`.

    Returns
    -------
    Rule
        A rule that allows as many steps as there are rounds.
    """
    noise = _local(budget, weights, variance)
    return Rule("LDPASGD", step, Unclipped(), SinglePass(batch), noise, output=Average(), deploy_every=deploy_every)


@explain_other_names
def CorrelatedSGD(
    step: Schedule,
    clip: float,
    noise_std: float,
    batch: int = 1,
    sampling: str = "single-pass",
    deploy_every: int = 1,
    *,
    buffers: ArrayLike | None = None,
) -> Rule:
    """Build clipped SGD with correlated noise, which releases the mean of the last half of its iterates.

    θ_{t+1} = project(θ_t − γ_{t+1}·((1/B) Σ clip_c(g_i) + (C⁻¹w)_{t+1})), w_t ~ N(0, noise_std²·I): later steps take
    noise of earlier ones back, so that little of it remains in the sum of all steps (matrix mechanism, DP-FTRL).

    Parameters
    ----------
    step : Schedule
        The step sizes γ_t, a part of `clipsilon.schedules`.
    clip : float
        The norm to which each record's gradient is clipped, above 0.
    noise_std : float
        Standard deviation of w on each coordinate, at least 0; `calibrate` sets it.
    batch : int, default 1
        The public batch size B; must be 1 with sampling "full", which uses all records.
    sampling : {"single-pass", "in-order", "cyclic", "full"}, default "single-pass"
        How the records of a step are drawn: nothing is certified where a record may take part at any time.
    deploy_every : int, default 1
        Number of steps between deployments; records react to the model deployed last.
    buffers : array of shape (k, 2), optional
        The matrix C, as for `noise.Correlated`; by default close to the square root of the matrix of prefix sums, for
        up to a million steps. `clipsilon.correlation` has functions that choose others.

    Returns
    -------
    Rule
        The rule, for `clipsilon.run`.
    """
    checks.choice("sampling", sampling, dict.fromkeys(("single-pass", "in-order", "cyclic", "full")))
    pairs = correlation.square_root(10**6, 6) if buffers is None else buffers
    return Rule(
        "CorrelatedSGD",
        step,
        _norm("clip", clip),
        _sampler(sampling, batch, None),
        Correlated(checks.nonnegative("noise_std", noise_std), pairs),  # type: ignore[arg-type]
        output=TailAverage(),
        deploy_every=deploy_every,
    )


@explain_other_names
def DPGD(step: Schedule, lipschitz: float, noise_std: float, deploy_every: int = 1) -> Rule:
    """Build private gradient descent on all records that releases the mean of its iterates (paper 5, Algorithm 1).

    θ_{t+1} = project(θ_t − γ_{t+1}·((1/n) Σ ∇ℓ(θ_t; z_i) + ζ_{t+1})), for losses whose gradients are no longer than L.
    Gradients are clipped at L: this changes nothing if the bound holds, and keeps the privacy statement true if it does
    not.

    Parameters
    ----------
    step : Schedule
        The step sizes γ_t, a part of `clipsilon.schedules`.
    lipschitz : float
        L, the bound on the norm of one record's gradient, above 0.
    noise_std : float
        Standard deviation of the noise on each coordinate of the *mean* update, at least 0.
    deploy_every : int, default 1
        Number of steps between deployments; records react to the model deployed last.

    Returns
    -------
    Rule
        The rule, for `clipsilon.run`.
    """
    clip = _norm("lipschitz", lipschitz)
    return Rule("DPGD", step, clip, Full(), _gaussian(noise_std), output=Average(), deploy_every=deploy_every)


@explain_other_names
def ClippedDPGD(step: Schedule, clip: float, noise_std: float, deploy_every: int = 1) -> Rule:
    """Build private gradient descent with clipping on all records, averaged (paper 5, eq. 7; its B is `clip`).

    For a convex generalised linear loss it minimises `losses.clipped_loss(loss, clip)` (Lemma 5.1).

    Parameters
    ----------
    step : Schedule
        The step sizes γ_t, a part of `clipsilon.schedules`.
    clip : float
        The norm to which each record's gradient is clipped, above 0.
    noise_std : float
        Standard deviation of the noise on each coordinate of the *mean* update, at least 0.
    deploy_every : int, default 1
        Number of steps between deployments; records react to the model deployed last.

    Returns
    -------
    Rule
        The rule, for `clipsilon.run`.
    """
    part = _norm("clip", clip)
    return Rule("ClippedDPGD", step, part, Full(), _gaussian(noise_std), output=Average(), deploy_every=deploy_every)


@explain_other_names
def NoisySelection(
    step: Schedule, lipschitz: float, noise_std: float, selection_epsilon: float, deploy_every: int = 1
) -> Rule:
    """Build DPGD that releases the iterate with the shortest gradient, selected privately (paper 5, Theorem 4.1).

    Laplace noise of scale 4L/(nε) is added to the norms of the mean gradients at θ_0, …, θ_{T−1}, and the iterate with
    the smallest noisy norm is released.

    Parameters
    ----------
    step : Schedule
        The step sizes γ_t, a part of `clipsilon.schedules`.
    lipschitz : float
        L, the bound on the norm of one record's gradient, above 0.
    noise_std : float
        Standard deviation of the noise on each coordinate of the *mean* update, at least 0.
    selection_epsilon : float
        ε of the selection, above 0; it is added to the ε of the descent.
    deploy_every : int, default 1
        Number of steps between deployments; records react to the model deployed last.

    Returns
    -------
    Rule
        The rule, for `clipsilon.run`.
    """
    output = Selected(checks.positive("selection_epsilon", selection_epsilon))
    parts = (_norm("lipschitz", lipschitz), Full(), _gaussian(noise_std))
    return Rule("NoisySelection", step, *parts, output=output, deploy_every=deploy_every)


@explain_other_names
def GammaDPSGD(
    step: Schedule,
    clip: float,
    scale: float,
    batch: int,
    sampling: str = "poisson",
    deploy_every: int = 1,
    *,
    rate: float | None = None,
) -> Rule:
    """Build minibatch DP-SGD with noise of Gamma-distributed length (paper 5, App. E).

    The noise on the *sum* of a batch has the density ∝ exp(−‖z‖/(scale·clip)), so a step is 1/scale-private for the
    records in its batch. The length of the noise grows with the dimension, unlike that of Gaussian noise within the
    span of the data.

    Parameters
    ----------
    step : Schedule
        The step sizes γ_t, a part of `clipsilon.schedules`.
    clip : float
        The norm to which each record's gradient is clipped, above 0.
    scale : float
        The scale of the noise on the sum in units of `clip`, above 0.
    batch : int
        The public, expected batch size B.
    sampling : {"uniform", "poisson", "single-pass", "epochs"}, default "poisson"
        How the records of a step are drawn; see `clipsilon.sampling`.
    deploy_every : int, default 1
        Number of steps between deployments; records react to the model deployed last.
    rate : float, optional
        With sampling "poisson", the public probability with which each record is drawn, whatever their number; B/m by
        default. The adjacency "add-remove" requires it.

    Returns
    -------
    Rule
        The rule, for `clipsilon.run`.
    """
    if sampling == "full":
        raise ValueError(
            "sampling must be one with batches for GammaDPSGD, whose noise depends on the batch size, got 'full'."
        )
    noise = Radial(checks.positive("scale", scale) * checks.positive("clip", clip) / checks.count("batch", batch))
    return Rule(
        "GammaDPSGD", step, _norm("clip", clip), _sampler(sampling, batch, rate), noise, deploy_every=deploy_every
    )


@explain_other_names
def TrackedSGD(
    step: Schedule,
    clip: float,
    noise_std: float,
    batch: int,
    sampling: str = "poisson",
    deploy_every: int = 1,
) -> Rule:
    """Build clipped SGD in which each record tracks its own gradient, so that clipping leaves no bias.

    For the records of the batch, Δ_i = clip_c(g_i − h_i) and h_i ← h_i + Δ_i, with a hidden h_i that is 0 at first;
    G ← G + (B/m)·((1/B) Σ Δ_i + ζ), ζ ~ N(0, noise_std²·I), and θ ← project(θ − γ·G). Noise of standard deviation σ on
    Σ Δ_i is a `noise_std` of σ/B, as in `DPSGD`, and the certificate is that of `DPSGD` with the same arguments: no
    record's memory depends on another record (docs/proofs.md, "Tracked gradients"). None of the papers has this rule.
    It is EF21 (Richtárik, Sokolov and Fatkhullin, 2021) with clipping, Clip21 (Khirirat et al., 2023), for sampled
    batches and central noise.

    Once a record has taken part ‖g_i‖/c times, h_i follows g_i, and the mean of G is the mean gradient whatever the
    clip. G keeps the noise of all steps. The memories take 8·m·d bytes per replicate; `clipsilon.run` refuses more
    than 2 GiB.

    Parameters
    ----------
    step : Schedule
        The step sizes γ_t, a part of `clipsilon.schedules`.
    clip : float
        c, the norm to which the change of each record's gradient is clipped, above 0.
    noise_std : float
        Standard deviation of the noise on each coordinate of the *mean* update (1/B) Σ Δ_i, at least 0.
    batch : int
        The public, expected batch size B; must be 1 with sampling "full", which uses all records.
    sampling : {"poisson", "full"}, default "poisson"
        How the records of a step are drawn; see `clipsilon.sampling`. The other samplers are refused, because nothing
        is certified for them.
    deploy_every : int, default 1
        Number of steps between deployments; records react to the model deployed last.

    Returns
    -------
    Rule
        The rule, for `clipsilon.run`.
    """
    checks.choice("sampling", sampling, SAMPLERS)
    if sampling not in ("poisson", "full"):
        raise ValueError(
            f"sampling must be 'poisson' or 'full' for TrackedSGD, which is certified for no other, got {sampling!r}."
        )
    return Rule(
        "TrackedSGD",
        step,
        _norm("clip", clip),
        _sampler(sampling, batch, None),
        _gaussian(noise_std),
        Tracked(),
        Accumulated(),
        deploy_every=deploy_every,
    )


_DICE = (DiceSGD, AdamDiceSGD, AutoDiceSGD)
_ALL = (
    *(SGD, PCSGD, DPSGD, AdaptiveDPSGD, *_DICE, TrackedSGD, CorrelatedSGD, LDPSGD, LDPASGD),
    *(DPGD, ClippedDPGD, NoisySelection, GammaDPSGD),
)
PRESETS = {preset.__name__: preset for preset in _ALL}


def _sampler(sampling: str, batch: int, rate: float | None) -> Sampling:
    kind = checks.choice("sampling", sampling, SAMPLERS)
    if rate is not None:
        if kind is not Poisson:
            raise ValueError(f"sampling must be 'poisson' with a rate, got {sampling!r} and rate={rate!r}.")
        return Poisson(batch, rate)
    if kind is not Full:
        return kind(batch)
    if batch != 1:
        raise ValueError(f"batch must be left at 1 for full batches, which hold all records, got {batch!r}.")
    return Full()


def _local(budget: ArrayLike, weights: str, variance: float | None) -> Local:
    by_budget = checks.choice("weights", weights, {"budget": True, "equal": False})
    if variance is not None and not by_budget:
        raise ValueError(f"variance must be left out with equal weights, which do not use it, got {variance!r}.")
    given = np.nan if variance is None else checks.nonnegative("variance", variance)
    return Local(checks.budgets("budget", budget), given if by_budget else np.inf)


def _gaussian(noise_std: float) -> Gaussian:
    return Gaussian(checks.nonnegative("noise_std", noise_std))


def _norm(name: str, threshold: float) -> Norm:
    return Norm(checks.positive(name, threshold))


def _feedback(clip: float, error_clip: float, residual_cap: float | None) -> ErrorFeedback:
    error = _norm("error_clip", error_clip)
    if error_clip < clip:
        warnings.warn(
            f"error_clip={error_clip} is below clip={clip}: the error may not be fed back in full, "
            "and the fixed point may be biased.",
            stacklevel=4,
        )
    if residual_cap is None:
        return ErrorFeedback(error, Unclipped())
    if checks.positive("residual_cap", residual_cap) < clip:
        raise ValueError(f"residual_cap must be at least clip ({clip}), got {residual_cap}.")
    return ErrorFeedback(error, _norm("residual_cap", residual_cap))
