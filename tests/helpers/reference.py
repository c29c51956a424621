"""The update in plain NumPy, written from the papers' equations and not from the package's code.

It draws from the same generators in the same order as the engine (records, then the response of each
record, then noise), so runs can be compared draw by draw. Slow, and meant to be read beside the papers.
Where noise is certified, contributions and noise are whole numbers on a grid (docs/proofs.md, "Exact sums in the
engine"). A sum that is a hair away from a half may be rounded the other way: `allowance` says how far runs may differ.
"""

from typing import NamedTuple

import numpy as np
from scipy.integrate import quad
from scipy.special import poch

import clipsilon as cs
from clipsilon._core.exact_laplace import integer_laplace
from clipsilon._core.exact_normal import integer_normal
from clipsilon.engine.streams import spawn
from clipsilon.problems.losses.base import gradient_center_of
from clipsilon.rules.clipping import Adaptive, Norm, Normalise, PerClass, Scheduled, Unclipped, _CountedNorm
from clipsilon.rules.correlation import coefficients, rounding, shift_norm
from clipsilon.rules.feedback import ErrorFeedback, Tracked
from clipsilon.rules.noise import Correlated, Gaussian, Local, Proportional, Radial, ScheduledGaussian
from clipsilon.rules.outputs import Average, Selected, TailAverage
from clipsilon.rules.preconditioning import Accumulated, Adam
from clipsilon.rules.sampling import (
    Cyclic,
    Epochs,
    Full,
    InOrder,
    Poisson,
    SinglePass,
    Uniform,
    participations,
    separation,
)


def gradient(loss, theta, x, y):
    margin = x @ theta[: x.size]
    sign = 2 * y - 1
    match type(loss).__name__:
        case "Quadratic":  # ½‖θ + a z‖²
            return theta + loss.a * x
        case "Linear":  # the canaries' loss
            return x
        case "Logistic":  # paper 1, eq. 7
            weight = loss.positive_weight if y == 1 else 1.0
            return weight * (np.exp(margin) / (1 + np.exp(margin)) - y) * x + loss.l2 * theta
        case "SquaredError":
            return (margin - y) * x + loss.l2 * theta
        case "Huber":
            return np.clip(margin - y, -loss.c, loss.c) * x + loss.l2 * theta
        case "Absolute":
            return np.sign(margin - y) * x
        case "Pinball":  # a subgradient of max{q·(y − margin), (q − 1)·(y − margin)}
            return (np.heaviside(margin - y, loss.quantile) - loss.quantile) * x + loss.l2 * theta
        case "PoissonDeviance":  # d/ds (exp(s) − y·s)
            return (np.exp(margin) - y) * x + loss.l2 * theta
        case "GammaDeviance":  # d/ds (s + y/exp(s))
            return (1 - y / np.exp(margin)) * x + loss.l2 * theta
        case "Clipped":  # paper 5, Lemma 5.1
            return clip(Norm(loss.clip), gradient(loss.loss, theta, x, y))
        case "Anticipating":  # ∇_θ ℓ + Aᵀ∇_x ℓ, with A = −β·I and ∇_x ℓ = φ'·θ
            unpenalised = gradient(loss.loss._replace(l2=0.0), theta, x, y)
            return gradient(loss.loss, theta, x, y) - loss.response.beta * (unpenalised @ x) / (x @ x) * theta
        case "Sigmoid":
            p = 1 / (1 + np.exp(sign * margin))
            return -sign * p * (1 - p) * x
        case "Savage":
            p = 1 / (1 + np.exp(sign * margin))
            return -2 * sign * p**2 * (1 - p) * x
        case "MallowsLogistic":  # paper 4, section 5.2
            return min(1, 2 / (x @ x)) * (1 / (1 + np.exp(-margin)) - y) * x
        case "HuberRegression":  # paper 4, section 5.1, where σ is above the least scale
            scale, kappa = max(theta[-1], loss.least_scale), mean_square_within(loss.c)
            r = (y - margin) / scale
            rho = 0.5 * r**2 if abs(r) <= loss.c else loss.c * abs(r) - 0.5 * loss.c**2
            psi = np.clip(r, -loss.c, loss.c)  # ρ'
            by_scale = rho - r * psi + 0.5 * kappa if theta[-1] >= loss.least_scale else 0.5 * (kappa - loss.c**2)
            return min(1, 2 / (x @ x)) * np.append(-psi * x, by_scale)
        case "Softmax":
            scores = theta.reshape(loss.classes, x.size) @ x
            shares = np.exp(scores) / np.exp(scores).sum()
            return np.outer(shares - (np.arange(loss.classes) == y), x).ravel() + loss.l2 * theta
        case "Tangent":
            return 4 * (2 * np.arctan(sign * margin) - 1) * sign / (1 + margin**2) * x
    raise AssertionError(loss)


def mean_square_within(c):
    """E[min(Z², c²)] for Z ~ N(0, 1), by quadrature."""
    return quad(lambda z: min(z * z, c * c) * np.exp(-z * z / 2) / np.sqrt(2 * np.pi), -12, 12, points=[-c, c])[0]


def respond(response, theta, x, y, rng):
    theta = theta[: x.size]
    match type(response).__name__:
        case "Identity":
            return x
        case "LocationShift":
            return x - response.beta * theta
        case "BestResponse":  # paper 1, eq. 8
            return x - response.beta * y * theta / max(response.floor, np.linalg.norm(theta))
        case "LinearShift":
            mask = np.isin(np.arange(x.size), response.columns)
            return x - response.strength * theta * mask
        case "Slow":
            return respond(response.response, theta, x, y, rng)
        case "MatrixShift":
            matrix = response.strengths[int(np.clip(y, 0, len(response.strengths) - 1))]  # the nearest class
            return x - matrix @ theta * min(1.0, response.saturation / np.linalg.norm(theta))
        case "FixedIntercept":  # the last column is that of ones
            return np.append(respond(response.response, theta[:-1], x[:-1], y, rng), x[-1])
        case "Shaken":  # a random response that the tests define
            return x + response.scale * rng.standard_normal(x.size)
    raise AssertionError(response)


def clip(part, g):
    norm = np.linalg.norm(g)
    match part:
        case Unclipped():
            return g
        case Norm() | _CountedNorm():  # paper 1, eq. 1
            return g * min(1.0, part.threshold / norm) if norm > 0 else g
        case Normalise():  # paper 3, App. C.4, corrected to C·x/‖x‖
            return part.length * g / norm if norm > 0 else g
        case PerClass():
            blocks = [clip(Norm(part.threshold), block) for block in np.split(g, part.classes)]
            return np.concatenate(blocks)
    raise AssertionError(part)


def project(region, theta):
    match type(region).__name__:
        case "Everywhere":
            return theta
        case "Box":
            return np.clip(theta, region.low, region.high)
        case "Ball":
            norm = np.linalg.norm(theta)
            return theta * min(1.0, region.size / norm) if norm > 0 else theta
    raise AssertionError(region)


def step_size(step, t):
    match type(step).__name__:
        case "Constant":
            return step.gamma
        case "InverseTime":
            return step.a0 / (step.a1 + t)
        case "Power":
            return step.eta / t**step.alpha
        case "Piecewise":
            return step.values[np.flatnonzero(step.starts <= t)[-1]]
    raise AssertionError(step)


class Sampler:
    """Batches from a generator, as the docstrings of `clipsilon.sampling` describe them."""

    def __init__(self, sampling, m, rng):
        self.sampling, self.m, self.rng = sampling, m, rng
        self.order = np.arange(m)

    def batch(self, t):
        m, rng, sampling = self.m, self.rng, self.sampling
        if isinstance(sampling, Full):
            return range(m)
        if isinstance(sampling, Poisson):
            chosen, position = [], -1
            q = sampling.batch / m if sampling.rate is None else sampling.rate
            while True:
                u = (int(rng.bit_generator.random_raw()) // 4 + 0.5) / 2**62 if q < 1 else 1.0
                position += 1 + int(np.log(u) / np.log1p(-q))
                if position >= m:
                    return chosen
                chosen.append(position)
        if isinstance(sampling, Uniform):
            if sampling.batch == 1:
                return [rng.integers(0, m)]
            return self._shuffled(np.arange(m), sampling.batch)[: sampling.batch]
        batches = -(-m // sampling.batch)
        if isinstance(sampling, InOrder):
            return range(t * sampling.batch, min((t + 1) * sampling.batch, m))
        if t == 0 or (t % batches == 0 and not isinstance(sampling, Cyclic)):
            self.order = self._shuffled(self.order, m - 1)
        first = (t % batches) * sampling.batch
        return self.order[first : first + sampling.batch]

    def _shuffled(self, order, places):
        for k in range(places):  # Fisher and Yates
            other = self.rng.integers(k, self.m)
            order[[k, other]] = order[[other, k]]
        return order


class Grid(NamedTuple):
    """The factor of clipped gradients in units, the unit, and the digits of the noise below it."""

    weight: float
    unit: float
    shift: int


def grid(problem, rule, t, steps, clip_t=None):
    """The grid of step t, or None without noise or without a bound (docs/proofs.md, "Exact sums in the engine")."""
    clip_t, root = clip_at(rule, t) if clip_t is None else clip_t, problem.dimension**0.5
    bound = np.inf if isinstance(clip_t, Unclipped) else clip_t.bound()
    batch = getattr(rule.sampling, "batch", problem.records)
    std = deviation(rule.noise, t, bound / batch)
    if not (1e-90 <= std <= 1e90 and 1e-90 <= bound <= 1e90 and bound / batch / std <= 2**21):
        return None
    most = batch if isinstance(rule.sampling, Uniform | SinglePass | InOrder | Epochs | Cyclic) else problem.records
    if isinstance(rule.sampling, Poisson) and rule.sampling.rate is not None:
        most = 2**31
    most, has_error, longest, error = float(most), isinstance(rule.feedback, ErrorFeedback), bound, 0.0
    if getattr(problem.loss, "l2", 0.0) > 0:
        most *= 2**6
    if has_error:
        most, error = 8 * most, 8 * rule.feedback.clip.bound()
        cap = rule.feedback.cap.bound()
        longest = max(bound, cap) if cap < np.inf else bound
    share = max(longest / batch / std * most, error / std)
    shift = max(0, int(np.ceil(np.log2(share))) - 18)  # share·2^(32 − shift) is at most 2^50
    per_std = 2.0 ** (32 - shift)
    if isinstance(rule.noise, Correlated):  # covered by as much noise
        times, apart = participations(rule.sampling, problem.records, steps), separation(rule.sampling, problem.records)
        most_moved = shift_norm(rule.noise.buffers, steps, times, apart)
        more = 2 * rounding(rule.noise.buffers, steps) * (steps * problem.dimension) ** 0.5 / most_moved
        per_std /= 1 + min(more / (bound / batch / std * per_std), 1)
    if has_error:
        record, fullness = bound / batch / std * per_std, share * per_std / 2**50
        per_std /= 1 + _growth(problem.dimension, steps, record, cap / bound, fullness)
    slack = 5 * root + 4
    if has_error:
        residual = abs(cap / bound - 1)
        slack = max(16 * root + 16, (6 * root + 4) / residual if residual >= 2**-6 else 0)
    limit = bound / batch / std * per_std * (1 - (problem.dimension + 64) * 2**-52) - slack
    return Grid(max(limit, 0) / bound, std / per_std, shift)


def _growth(d, steps, record, cap, fullness):
    """How much more noise makes up for rounding; `record` is one record's bound in units, `cap` C3/C1."""
    drift = steps**0.5 * (2 * d**0.5 + fullness * (d + 24) / 64)
    if cap < np.inf:
        of_error = steps * d**0.5 / 2
        drift += fullness * steps * (d + 24) / 64
        drift += of_error * min(max(2**-11 * record / of_error, fullness), 2**64)
        drift += steps * (6 * d**0.5 + 4) * (abs(cap - 1) < 2**-6)
    return min(2 * drift / record, 1)


def deviation(part, t, contribution):
    match part:
        case Proportional():
            return part.multiplier * contribution
        case Gaussian() | Correlated():
            return part.std
        case ScheduledGaussian():
            return step_size(part.std, t)
    return 0.0


def clip_at(rule, t, threshold=None):
    """The clip of step t; an adaptive one with its present threshold, or with its first one."""
    if isinstance(rule.clip, Adaptive):
        return Norm(rule.clip.start if threshold is None else threshold)
    return Norm(step_size(rule.clip.threshold, t)) if isinstance(rule.clip, Scheduled) else rule.clip


def adapted(clip, threshold, gradients, batch, rng):
    """The threshold after a step whose records have these gradients (Andrew et al., 2021, Algorithm 1)."""
    count = sum(0.5 if np.linalg.norm(g) <= threshold else -0.5 for g in gradients)
    units = int((1 - 2**-50) * 2**31 / clip.count_noise)  # of the noise's grid per half
    noisy = (int(2 * count) * units + int(integers(1, rng)[0]) + 0.5) / (2 * units)
    moved = np.log(threshold) - clip.rate * (noisy / batch + 0.5 - clip.quantile)
    return float(np.exp(np.clip(moved, np.log(clip.start) - 30 * np.log(2), np.log(clip.start) + 30 * np.log(2))))


def allowance(problem, rule, steps):
    """How far θ and e of two runs may be apart: one unit per record and step, and what rounding adds to 10⁻¹²."""
    units = [cell.unit for t in range(1, steps + 1) if (cell := grid(problem, rule, t, steps)) is not None]
    return {"rtol": 1e-12, "atol": 1e-12 + problem.records * sum(units)}


def noise(part, t, problem, rng):
    """What is added to the mean update of a step, if there is no grid."""
    d = problem.dimension
    match part:
        case Gaussian() | ScheduledGaussian():
            std = deviation(part, t, np.nan)
            return std * (integers(d, rng) + 0.5) * 2.0**-32 if std > 0 else np.zeros(d)
        case Radial():  # paper 5, App. E
            direction = rng.standard_normal(d)
            return part.scale * rng.standard_gamma(d) * direction / np.linalg.norm(direction)
    raise AssertionError(part)


def mean_report(part, problem, drawn, gradients, rng):
    """Σ w_i·r_i / Σ w_i for reports r_i = g_i + N(0, (Δ/μ_i)²), paper 4, eq. 2, and w_i = 1/(V + d·(Δ/μ_i)²)."""
    sensitivity, d = problem.loss.sensitivity(), problem.dimension
    middle = gradient_center_of(problem.loss, d)
    variance = sensitivity**2 / 4 if np.isnan(part.variance) else part.variance
    total, weights = np.zeros(d), 0.0
    for i, g in zip(drawn, gradients, strict=True):
        std = sensitivity / np.broadcast_to(part.budgets, problem.records)[i]
        grid = std * 2.0**-32
        report = middle + grid * (np.trunc((g - middle) / grid) + integers(d, rng) + 0.5)
        weight = 1.0 if variance == np.inf else 1 / (variance + d * std**2)
        total, weights = total + weight * report, weights + weight
    return total / weights


def integers(size, rng):
    """Whole normal noise of deviation 2³²."""
    return np.array([integer_normal(rng.bit_generator) for _ in range(size)], dtype=np.int64)


def run(problem, rule, steps, start, seed):
    """θ_t and e_t for t = 0 … steps of the first replicate, and the output."""
    streams = spawn(seed, 1)[0]
    features = problem.features.toarray() if hasattr(problem.features, "toarray") else problem.features
    features = features.astype(float)
    own = np.ones(problem.rows) if problem.weights is None else problem.weights
    theta = np.full(problem.dimension, float(start))
    e = np.zeros_like(theta)
    m1, m2, total = np.zeros_like(theta), np.zeros_like(theta), np.zeros_like(theta)
    weights, direction = 0.0, np.zeros_like(theta)
    memory = np.zeros((problem.records, theta.size))
    sampler = Sampler(rule.sampling, problem.records, streams.records)
    batch = getattr(rule.sampling, "batch", problem.records)
    thetas, errors, lengths = [theta], [e], []
    deployed, threshold = theta, None
    taken, lags = [], coefficients(rule.noise.buffers, steps)[1:] if isinstance(rule.noise, Correlated) else ()
    for t in range(steps):
        if t % rule.deploy_every == 0:
            speed = getattr(problem.response, "speed", 1.0)  # of a response with memory
            deployed = (1 - speed) * deployed + speed * theta
        drawn = list(sampler.batch(t))
        gradients = [
            np.mean([own[i] * gradient(problem.loss, theta, respond(problem.response, deployed, features[i],
                                       problem.labels[i], streams.response), problem.labels[i])
                     for i in rows_of(problem, record)], axis=0)
            for record in drawn
        ]  # fmt: skip
        zero = np.zeros_like(theta)
        part = clip_at(rule, t + 1, threshold)
        cell = grid(problem, rule, t + 1, steps, part)

        def mean(clip_part, cell=cell, gradients=gradients, zero=zero):
            if cell is None:
                return sum((clip(clip_part, g) for g in gradients), zero) / batch
            return cell.unit * sum((np.rint(cell.weight * clip(clip_part, g)) for g in gradients), zero)

        v = mean(part)
        if isinstance(rule.feedback, Tracked):
            v, memory = track(part, cell, drawn, gradients, memory, batch)
        if isinstance(rule.feedback, ErrorFeedback):
            v = v + clip(rule.feedback.clip, e)
            e = e + mean(rule.feedback.cap) - v
            if cell is not None:
                v = cell.unit * np.rint(v / cell.unit)
        if isinstance(rule.output, Selected):  # paper 5, Theorem 4.1, with the scale of docs/errata.md
            more = 1 + 2**-20 * (1 + 1 / rule.output.epsilon)  # for rounding
            scale = more * 4 * rule.clip.bound() / (problem.records * rule.output.epsilon)
            lengths.append(np.rint(np.linalg.norm(v) / scale * 2**32) + integer_laplace(streams.noise.bit_generator))
        if isinstance(rule.clip, Adaptive):
            counted = [g for i, g in zip(drawn, gradients, strict=True) if own[rows_of(problem, i)].any()]
            threshold = adapted(rule.clip, part.threshold, counted, batch, streams.noise)
        if isinstance(rule.noise, Local):
            noisy = mean_report(rule.noise, problem, drawn, gradients, streams.noise)
        elif cell is None:
            noisy = v + noise(rule.noise, t + 1, problem, streams.noise)
        else:
            fresh = integers(theta.size, streams.noise) >> cell.shift
            if isinstance(rule.noise, Correlated):  # y = w − Σ c_k·y_{t−k}
                fresh = fresh - np.rint(sum((c * y for c, y in zip(lags, taken[::-1], strict=False)), zero))
                taken.append(fresh)
            noisy = v + cell.unit * (fresh + 0.5)
        if isinstance(rule.preconditioner, Adam):  # paper 3, Algorithm 3, with t + 1 and β₂
            adam = rule.preconditioner
            m1 = adam.beta1 * m1 + (1 - adam.beta1) * noisy
            m2 = adam.beta2 * m2 + (1 - adam.beta2) * noisy**2
            noisy = (m1 / (1 - adam.beta1 ** (t + 1))) / np.sqrt(m2 / (1 - adam.beta2 ** (t + 1)) + adam.stability)
        if isinstance(rule.preconditioner, Accumulated):
            direction = direction + batch / problem.records * noisy
            noisy = direction
        theta = project(problem.region, theta - step_size(rule.step, t + 1) * noisy)
        weight = poch(t + 1, rule.output.power) if isinstance(rule.output, Average) else 0.0  # of θ_{t+1}
        weight = weight + (isinstance(rule.output, TailAverage) and t >= steps // 2)
        total, weights = total + weight * theta, weights + weight
        thetas.append(theta)
        errors.append(e)
    output = total / weights if isinstance(rule.output, Average | TailAverage) else theta
    if isinstance(rule.output, Selected):
        output = thetas[int(np.argmin(lengths))]  # of θ_0, …, θ_{T−1}
    return np.array(thetas), np.array(errors), output


def rows_of(problem, record):
    """The rows of a record: one, or those of a person."""
    return [record] if problem.starts is None else list(range(problem.starts[record], problem.starts[record + 1]))


def track(part, cell, drawn, gradients, memory, batch):
    """(1/B) Σ Δ_i and the new memories, Δ_i = clip(g_i − h_i): docs/proofs.md, "Tracked gradients".

    On a grid, h_i is whole numbers of units over the factor of gradients.
    """
    v, memory = np.zeros(memory.shape[1]), memory.copy()
    for i, g in zip(drawn, gradients, strict=True):
        change = clip(part, g - memory[i])
        if cell is None:
            v, memory[i] = v + change / batch, memory[i] + change
        else:
            whole = np.rint(cell.weight * change)
            v, memory[i] = v + cell.unit * whole, memory[i] + whole / cell.weight
    return v, memory


def data(kind="binary", records=60, features=4, seed=3):
    """A small table with labels of one kind."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((records, features)) * np.geomspace(0.5, 3, features)
    y = x @ np.linspace(-1, 1, features) + 0.5 * rng.standard_normal(records)
    if kind == "class":
        return x, np.digitize(y, [-0.7, 0.7]).astype(float)
    if kind == "nonnegative":
        return x, np.maximum(y, 0.0)
    return x, ((y > 0).astype(float) if kind == "binary" else y)


def problem(loss, response=None, region=None, **sizes):
    """A small problem with labels that suit the loss."""
    kind = getattr(loss, "labels", "real")
    x, y = data(kind, **sizes)
    return cs.Problem(x, None if kind == "none" else y, loss=loss, response=response, region=region)


def descent(step, noise_std, clip=None):
    """Paper 5, Algorithm 1: noisy gradient descent on all records, which releases the average; clipped, eq. 7.

    Without a clip there is one that nothing reaches, so that one kernel serves both.
    """
    part = Norm(1e100 if clip is None else clip)
    return cs.Rule("DPGD", cs.schedules.Constant(step), part, Full(), Gaussian(noise_std), output=Average())
