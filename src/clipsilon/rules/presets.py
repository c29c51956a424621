"""The papers' algorithms, each a choice of parts.

In all of them `noise_std` is the standard deviation of the noise on the *mean* update v, `clip` bounds one record's
gradient, `batch` is the public, expected batch size, and `sampling` is one of "uniform", "poisson", "single-pass",
"epochs", "full" (all records at every step; leave `batch` at 1). `deploy_every=k` deploys the model every k steps only
(lazy deployment); records react to the last deployed one.
"""

from __future__ import annotations

import warnings
from typing import Any

from clipsilon._core import checks
from clipsilon.rules.clipping import Norm, Normalise, Unclipped
from clipsilon.rules.feedback import ErrorFeedback
from clipsilon.rules.noise import Gaussian, Local, Radial
from clipsilon.rules.outputs import Average, Selected
from clipsilon.rules.preconditioning import Adam
from clipsilon.rules.rule import Rule
from clipsilon.rules.sampling import Epochs, Full, Poisson, SinglePass, Uniform

SAMPLERS = {"uniform": Uniform, "poisson": Poisson, "single-pass": SinglePass, "epochs": Epochs, "full": Full}


def SGD(step: Any, noise_std: float = 0.0, batch: int = 1, sampling: str = "uniform", deploy_every: int = 1) -> Rule:
    """Stochastic gradient descent with greedy deployment (paper 1, eq. 5): no clipping, so never private.

    θ_{t+1} = project(θ_t − γ_{t+1}·∇ℓ(θ_t; Z_{t+1})), Z_{t+1} ~ D(θ_t).
    """
    return Rule("SGD", step, Unclipped(), _sampler(sampling, batch), _gaussian(noise_std), deploy_every=deploy_every)


def PCSGD(
    step: Any, clip: float, noise_std: float, batch: int = 1, sampling: str = "uniform", deploy_every: int = 1
) -> Rule:
    """Projected clipped SGD (paper 1, eq. 9): biased where clipping bites, and more so where records react.

    θ_{t+1} = project(θ_t − γ_{t+1}·(clip_c(∇ℓ(θ_t; Z_{t+1})) + ζ_{t+1})), ζ ~ N(0, noise_std²·I).
    """
    return Rule(
        "PCSGD", step, _norm("clip", clip), _sampler(sampling, batch), _gaussian(noise_std), deploy_every=deploy_every
    )


def DPSGD(
    step: Any, clip: float, noise_std: float, batch: int, sampling: str = "poisson", deploy_every: int = 1
) -> Rule:
    """Minibatch DP-SGD with gradient clipping, DPSGD-GC (paper 3, Algorithm 1).

    The algorithm adds noise of deviation σ₁ to the sum; here `noise_std` is σ₁/B.
    """
    return Rule(
        "DPSGD", step, _norm("clip", clip), _sampler(sampling, batch), _gaussian(noise_std), deploy_every=deploy_every
    )


def DiceSGD(
    step: Any,
    clip: float,
    error_clip: float,
    noise_std: float,
    residual_cap: float | None = None,
    batch: int = 1,
    sampling: str = "uniform",
    deploy_every: int = 1,
) -> Rule:
    """Clipped SGD whose clipping error is fed back, so that it converges without bias.

    Paper 1, Algorithm 1 and paper 3, Algorithm 2: v = (1/B) Σ clip_{C1}(g_i) + clip_{C2}(e_t),
    e_{t+1} = e_t + (1/B) Σ g_i − v, with C1 = `clip`, C2 = `error_clip`. `residual_cap` (C3) clips what each
    record adds to e; None is the papers' algorithm.
    """
    return Rule(
        "DiceSGD",
        step,
        _norm("clip", clip),
        _sampler(sampling, batch),
        _gaussian(noise_std),
        _feedback(clip, error_clip, residual_cap),
        deploy_every=deploy_every,
    )


def AdamDiceSGD(
    step: Any,
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
) -> Rule:
    """DiceSGD with Adam's moments of the private update (paper 3, Algorithm 3, corrected: see `Adam`)."""
    return Rule(
        "AdamDiceSGD",
        step,
        _norm("clip", clip),
        _sampler(sampling, batch),
        _gaussian(noise_std),
        _feedback(clip, error_clip, residual_cap),
        Adam(beta1, beta2, stability),
        deploy_every=deploy_every,
    )


def AutoDiceSGD(step: Any, noise_std: float, batch: int = 1, sampling: str = "uniform", deploy_every: int = 1) -> Rule:
    """DiceSGD without thresholds: gradients and error are normalised to length one (paper 3, Algorithm 4)."""
    return Rule(
        "AutoDiceSGD",
        step,
        Normalise(1.0),
        _sampler(sampling, batch),
        _gaussian(noise_std),
        ErrorFeedback(Normalise(1.0), Unclipped()),
        deploy_every=deploy_every,
    )


def LDPSGD(step: Any, budget: Any, deploy_every: int = 1) -> Rule:
    """SGD under local privacy: each user takes part once and adds noise for a budget of their own (paper 4, eq. 2).

    θ_i = θ_{i−1} − η_i·(∇ℓ(θ_{i−1}; x_i) + (2·C0/μ_i)·ω_i), ω ~ N(0, I). `budget` is μ: one number, or one for each
    user. Nothing is clipped: the loss must know its `sensitivity`, 2·C0.
    """
    noise = Local(checks.budgets("budget", budget))
    return Rule("LDPSGD", step, Unclipped(), SinglePass(1), noise, deploy_every=deploy_every)


def LDPASGD(step: Any, budget: Any, deploy_every: int = 1) -> Rule:
    """LDPSGD that releases the mean of its iterates (paper 4, Polyak–Ruppert averaging)."""
    noise = Local(checks.budgets("budget", budget))
    return Rule("LDPASGD", step, Unclipped(), SinglePass(1), noise, output=Average(), deploy_every=deploy_every)


def DPGD(step: Any, lipschitz: float, noise_std: float, deploy_every: int = 1) -> Rule:
    """Private gradient descent on all records, which releases the mean of its iterates (paper 5, Algorithm 1).

    For losses whose gradients are no longer than L = `lipschitz`. They are clipped there, which changes nothing if that
    is so, and keeps the statement true if it is not.
    """
    clip = _norm("lipschitz", lipschitz)
    return Rule("DPGD", step, clip, Full(), _gaussian(noise_std), output=Average(), deploy_every=deploy_every)


def ClippedDPGD(step: Any, clip: float, noise_std: float, deploy_every: int = 1) -> Rule:
    """Private gradient descent with clipping on all records, averaged (paper 5, eq. 7; its B is `clip`).

    For a convex generalised linear loss it descends `losses.clipped_loss(loss, clip)` (Lemma 5.1).
    """
    part = _norm("clip", clip)
    return Rule("ClippedDPGD", step, part, Full(), _gaussian(noise_std), output=Average(), deploy_every=deploy_every)


def NoisySelection(
    step: Any, lipschitz: float, noise_std: float, selection_epsilon: float, deploy_every: int = 1
) -> Rule:
    """DPGD that releases the iterate with the shortest gradient, chosen privately (paper 5, Theorem 4.1).

    Laplace noise of scale 4L/(nε) on the norms of the mean gradients at θ_0, …, θ_{T−1} hides which is the shortest,
    with L = `lipschitz` and ε = `selection_epsilon`; this ε is added to that of the descent.
    """
    output = Selected(checks.positive("selection_epsilon", selection_epsilon))
    parts = (_norm("lipschitz", lipschitz), Full(), _gaussian(noise_std))
    return Rule("NoisySelection", step, *parts, output=output, deploy_every=deploy_every)


def GammaDPSGD(
    step: Any, clip: float, scale: float, batch: int, sampling: str = "poisson", deploy_every: int = 1
) -> Rule:
    """Minibatch DP-SGD whose noise has a length that is Gamma distributed (paper 5, App. E).

    The noise on the *sum* of a batch has the density ∝ exp(−‖z‖/(scale·clip)): a step is 1/scale-private for those in
    it. Its length grows with the dimension, unlike that of Gaussian noise in the span of the data.
    """
    if sampling == "full":
        raise ValueError("sampling must be one with batches for GammaDPSGD, whose noise is set by them, got 'full'.")
    noise = Radial(checks.positive("scale", scale) * checks.positive("clip", clip) / checks.count("batch", batch))
    return Rule("GammaDPSGD", step, _norm("clip", clip), _sampler(sampling, batch), noise, deploy_every=deploy_every)


_DICE = (DiceSGD, AdamDiceSGD, AutoDiceSGD)
_ALL = (SGD, PCSGD, DPSGD, *_DICE, LDPSGD, LDPASGD, DPGD, ClippedDPGD, NoisySelection, GammaDPSGD)
PRESETS = {preset.__name__: preset for preset in _ALL}


def _sampler(sampling: str, batch: int) -> Any:
    kind = checks.choice("sampling", sampling, SAMPLERS)
    if kind is not Full:
        return kind(batch)
    if batch != 1:
        raise ValueError(f"batch must be left at 1 for full batches, which hold all records, got {batch!r}.")
    return Full()


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
            stacklevel=3,
        )
    if residual_cap is None:
        return ErrorFeedback(error, Unclipped())
    if checks.positive("residual_cap", residual_cap) < clip:
        raise ValueError(f"residual_cap must be at least clip ({clip}), got {residual_cap}.")
    return ErrorFeedback(error, _norm("residual_cap", residual_cap))
