"""Clips and noise that change with the step or have a state: in memory, in threads, resumed, and in Dask chunks."""

from typing import NamedTuple

import numpy as np
import pytest

import clipsilon as cs
import reference
from clipsilon._core.parts import implements, traits
from clipsilon.engine import remote, replicate
from clipsilon.engine.arrays import Records, Sums
from clipsilon.engine.streams import spawn
from clipsilon.rules.clipping import Norm, Scheduled, Unclipped, adapt, add_clipped, at_step, scale, tally
from clipsilon.rules.noise import ScheduledGaussian, add_noise
from clipsilon.rules.rule import join_phases
from clipsilon.rules.sampling import Full, Poisson, Uniform
from registry import STEP


@traits(counts=1)
class Quantile(NamedTuple):
    """A clip whose threshold, its state, follows a quantile of the norms by noisy counts."""

    quantile: float
    rate: float
    noise: float
    threshold: float = 1.0

    def initial_state(self):
        return [self.threshold]


@implements(at_step, Quantile)
def _(clip, t, state):
    return Quantile(clip.quantile, clip.rate, clip.noise, state[0])


@implements(add_clipped, Quantile)
def _(clip, vector, weight, total):
    add_clipped(Norm(clip.threshold), vector, weight, total)


@implements(scale, Quantile)
def _(clip, amount, norm):
    return scale(Norm(clip.threshold), amount, norm)


@implements(tally, Quantile)
def _(clip, norm, counts):
    counts[0] += 0.5 if norm <= clip.threshold else -0.5


@implements(adapt, Quantile)
def _(clip, t, counts, state, rng):
    share = (counts[0] + clip.noise * rng.standard_normal()) / 40.0
    state[0] *= np.exp(-clip.rate * (share + 0.5 - clip.quantile))


@traits(memory=2)
class TwoSteps(NamedTuple):
    """Noise correlated with the noise of the two previous steps: y_t = s·z_t − ½·y_{t−1} − ¼·y_{t−2}."""

    std: float


@implements(add_noise, TwoSteps)
def _(noise, t, drawn, update, state, rng):
    for j in range(update.size):
        fresh = noise.std * rng.standard_normal() - 0.5 * state[0, j] - 0.25 * state[1, j]
        state[1, j] = state[0, j]
        state[0, j] = fresh
        update[j] += fresh


ADAPTIVE = cs.Rule("adaptive", STEP, Quantile(0.6, 0.3, 2.0), Poisson(40), TwoSteps(0.05))
SCHEDULE = cs.schedules.Piecewise([1, 6, 11], [0.4, 1.5, 0.2])
PHASES = [(0.1, 0.8, 0.2), (0.3, 0.3, 0.1), (0.05, 0.5, 0.3)]
PHASED = cs.Rule("phased", STEP, Scheduled(SCHEDULE), Poisson(40), ScheduledGaussian(cs.schedules.Power(0.2, 0.5)))


OURS = cs.AdaptiveDPSGD(STEP, clip=0.7, noise_multiplier=1.0, batch=40, quantile=0.6, count_noise=2.0)


def plain_run(case, rule, steps, seed):
    """Run the two parts above in plain NumPy, and return θ and the threshold of every step."""
    streams = spawn(seed, 1)[0]
    sampler = reference.Sampler(rule.sampling, case.records, streams.records)
    theta, threshold, thetas, thresholds = np.zeros(case.dimension), rule.clip.threshold, [], []
    before, earlier = np.zeros_like(theta), np.zeros_like(theta)
    for t in range(1, steps + 1):
        chosen = sampler.batch(t - 1)
        responses = [
            reference.respond(case.response, theta, case.features[i], case.labels[i], streams.response) for i in chosen
        ]
        gradients = [
            reference.gradient(case.loss, theta, x, case.labels[i]) for x, i in zip(responses, chosen, strict=True)
        ]
        norms = np.array([np.linalg.norm(g) for g in gradients])
        v = sum((g * min(1, threshold / n) for g, n in zip(gradients, norms, strict=True)), np.zeros_like(theta)) / 40
        count = np.where(norms <= threshold, 0.5, -0.5).sum() + rule.clip.noise * streams.noise.standard_normal()
        threshold *= np.exp(-rule.clip.rate * (count / 40 + 0.5 - rule.clip.quantile))
        fresh = rule.noise.std * streams.noise.standard_normal(theta.size) - before / 2 - earlier / 4
        before, earlier = fresh, before
        theta = theta - reference.step_size(rule.step, t) * (v + fresh)
        thetas.append(theta)
        thresholds.append(threshold)
    return np.array(thetas), np.array(thresholds)


@pytest.mark.parametrize("response", [None, cs.responses.LocationShift(0.2)])
def test_a_clip_that_adapts_and_noise_that_remembers_are_the_written_out_run(response):
    case = reference.problem(cs.losses.Logistic(), response, records=200)
    trace = cs.run(case, ADAPTIVE, 30, seed=4, record=range(31))
    theta, thresholds = plain_run(case, ADAPTIVE, 30, 4)
    np.testing.assert_allclose(trace.theta[0, 1:], theta, rtol=1e-9, atol=1e-11)
    assert np.ptp(thresholds) > 0.1  # it did adapt


@pytest.mark.parametrize(
    ("loss", "response"),
    [
        (cs.losses.Logistic(), None),
        (cs.losses.Logistic(), cs.responses.LocationShift(0.2)),
        (cs.losses.Softmax(classes=3), None),
    ],
    ids=["margins", "records", "scores"],
)
def test_a_record_that_is_zeroed_out_is_not_counted(loss, response):
    """A run with a record of weight 0 is the run without it: it is in no sum, and in no count."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((60, 3)), rng.integers(0, 2, 60).astype(float)
    rule = cs.AdaptiveDPSGD(STEP, clip=0.7, noise_multiplier=1.0, batch=40, quantile=0.6, count_noise=2.0, rate=1.0)
    runs = [
        cs.run(cs.Problem(x[:rows], y[:rows], loss=loss, response=response, weights=own[:rows]), rule, 20, seed=1).theta
        for own in (np.append(np.ones(59), 0.0), np.ones(60))
        for rows in (59, 60)
    ]
    without, zeroed, _, counted = runs
    np.testing.assert_array_equal(zeroed, without)
    assert abs(counted - without).max() > 1e-6  # the record does matter


@pytest.mark.parametrize("sampling", [Poisson(40), Uniform(1), Full()])
def test_parts_that_change_with_the_step_are_the_reference(sampling):
    case = reference.problem(cs.losses.Logistic(l2=0.1), records=200)
    rule = cs.Rule("phased", STEP, PHASED.clip, sampling, PHASED.noise)
    trace = cs.run(case, rule, 25, start=0.3, seed=5, record=range(26))
    np.testing.assert_allclose(trace.theta[0], reference.run(case, rule, 25, 0.3, 5)[0], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("rule", [ADAPTIVE, OURS, PHASED], ids=lambda rule: rule.name)
def test_threads_do_not_change_the_result(rule):
    x, y = reference.data("binary", records=2_000, features=5)
    case = cs.Problem(x, y, loss=cs.losses.Logistic())
    rule = cs.Rule(rule.name, rule.step, rule.clip, Poisson(900), rule.noise)
    runs = [cs.run(case, rule, 60, seed=2, n_jobs=jobs).theta for jobs in (1, 2, 3)]
    np.testing.assert_array_equal(runs[1], runs[0])
    np.testing.assert_array_equal(runs[2], runs[0])


@pytest.mark.parametrize("rule", [ADAPTIVE, OURS, PHASED], ids=lambda rule: rule.name)
def test_a_run_resumes_to_the_bit(rule, tmp_path, monkeypatch):
    case = reference.problem(cs.losses.Logistic(), records=200)
    whole = cs.run(case, rule, 60, seed=1)

    advance, calls = replicate.advance, []

    def interrupted(*arguments):
        calls.append(1)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return advance(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(replicate, "advance", interrupted)
        with pytest.raises(cs.Interrupted) as stopped:
            cs.run(case, rule, 60, seed=1, checkpoint=tmp_path / "run", n_jobs=1)
    assert 0 < stopped.value.trace.steps_done[0] < 60
    again = cs.run(case, rule, 60, seed=1, checkpoint=tmp_path / "run")
    np.testing.assert_array_equal(again.theta, whole.theta)


CYCLIC = cs.CorrelatedSGD(STEP, 0.5, 0.2, batch=60, sampling="cyclic")
TRACKED = cs.TrackedSGD(STEP, 0.1, 0.05, batch=60)


@pytest.mark.parametrize("rule", [ADAPTIVE, OURS, PHASED, CYCLIC, TRACKED], ids=lambda rule: rule.name)
def test_records_in_chunks_give_the_same_run(rule):
    x, y = reference.data("binary", records=200)
    loss, sizes, firsts = cs.losses.Logistic(), [70, 1, 129], [0, 70, 71]
    problem = remote.RemoteProblem(200, x.shape[1], loss=loss, response=None)
    job, memory = remote.Job(loss, problem.response, rule.feedback, rule.sampling, 200), np.zeros(x.shape)

    def sum_up(step):
        parts = []
        for draws, first, size in zip(step.draws, firsts, sizes, strict=True):
            rows = first + remote.drawn_rows(job, draws, size)
            sums, own = remote.no_sums(job, step), memory[rows]
            remote.add_records(job, step, Records(x[rows], y[rows], None), sums, own)
            memory[rows] = own
            parts.append(sums)
        return Sums(*remote.add_up(*parts))

    remotely = remote.run_chunked(problem, rule, 40, 0.0, seed=3, progress=False, sizes=sizes, sum_up=sum_up)
    here = cs.run(cs.Problem(x, y, loss=loss), rule, 40, seed=3)
    if rule is ADAPTIVE:  # without a bound of the package, sums depend on their order
        np.testing.assert_allclose(remotely.output, here.output, rtol=1e-9, atol=1e-12)
    else:
        np.testing.assert_array_equal(remotely.output, here.output)


def test_a_step_in_chunks_keeps_its_model():
    """A task that Dask runs again much later must find the model of its own step."""
    problem = remote.RemoteProblem(200, 3, loss=cs.losses.Logistic(), response=None)
    steps, seen = [], []

    def sum_up(step):
        steps.append(step)
        seen.append([model.copy() for model in step.models])
        return Sums(np.ones(3), np.zeros(0), np.zeros(2), np.zeros(0))

    rule = cs.DPSGD(STEP, 0.5, 0.1, batch=60, deploy_every=4)
    remote.run_chunked(problem, rule, 10, 0.0, seed=3, progress=False, sizes=[200], sum_up=sum_up)
    for k, (step, models) in enumerate(zip(steps, seen, strict=True)):
        assert step.done == k
        np.testing.assert_array_equal(step.models, models)
    assert len({float(step.models.theta[0]) for step in steps}) == 10
    assert len({float(step.models.deployed[0]) for step in steps}) == 3


def test_joined_phases_run_one_after_the_other():
    rules = [cs.DPSGD(cs.schedules.Constant(step), clip, std, batch=40) for step, clip, std in PHASES]
    joined = join_phases([(rules[0], 5), (rules[1], 3), (rules[2], 4)])
    case = reference.problem(cs.losses.Logistic(), records=200)
    np.testing.assert_allclose(
        cs.run(case, joined, 12, seed=5, record=range(13)).theta[0],
        reference.run(case, joined, 12, 0.0, 5)[0],
        rtol=1e-9,
        atol=1e-11,
    )
    assert cs.schedules.stretches(joined.clip.threshold, 12) == [(5, 0.8), (3, 0.3), (4, 0.5)]
    assert join_phases([(rules[0], 5)]) is rules[0]


@pytest.mark.parametrize(
    "other",
    [
        cs.DPSGD(cs.schedules.Constant(0.1), 1.0, 0.1, batch=41),
        cs.DPSGD(STEP, 1.0, 0.1, batch=40),
        cs.DiceSGD(cs.schedules.Constant(0.1), 1.0, 1.0, 0.1, batch=40, sampling="poisson"),
    ],
    ids=["batch", "step", "feedback"],
)
def test_phases_that_differ_in_more_are_refused(other):
    rule = cs.DPSGD(cs.schedules.Constant(0.1), 1.0, 0.1, batch=40)
    with pytest.raises(ValueError, match="phases must differ in constant step, clip and noise only"):
        join_phases([(rule, 5), (other, 5)])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([2, 5], [0.1, 0.2]), "starts must be increasing step numbers that begin with 1"),
        (([1, 1], [0.1, 0.2]), "starts must be increasing step numbers that begin with 1"),
        (([1, 5], [0.1, -0.2]), "values must be one or more numbers above 0"),
        (([1, 5], [0.1]), r"values must be one per start \(2\), got 1"),
    ],
)
def test_bad_schedules(arguments, message):
    with pytest.raises(ValueError, match=message):
        cs.schedules.Piecewise(*arguments)


def test_parts_that_follow_a_schedule_want_one():
    with pytest.raises(TypeError, match="threshold must be a part"):
        Scheduled(1.0)
    with pytest.raises(TypeError, match="std must be a part"):
        ScheduledGaussian(0.1)


def test_stretches_cover_all_steps():
    assert cs.schedules.stretches(cs.schedules.Constant(0.1), 7) == [(7, 0.1)]
    assert cs.schedules.stretches(SCHEDULE, 8) == [(5, 0.4), (3, 1.5)]
    assert cs.schedules.stretches(cs.schedules.Power(2.0, 1.0), 2) == [(1, 2.0), (1, 1.0)]


class Unstated(NamedTuple):
    """A clip that counts records without saying how many numbers it needs."""

    threshold: float


@implements(add_clipped, Unstated)
def _(clip, vector, weight, total):
    add_clipped(Norm(clip.threshold), vector, weight, total)


@implements(tally, Unstated)
def _(clip, norm, counts):
    counts[0] += 1.0


def test_a_clip_that_counts_must_state_how_many_numbers():
    with pytest.raises(TypeError, match="clip Unstated implements tally; its class must state `counts`"):
        cs.Rule("unstated", STEP, Unstated(1.0), Poisson(40))


@pytest.mark.parametrize("name", ["Norm", "Scheduled"])
def test_a_part_of_the_package_runs_its_own_math_beside_one_of_the_same_name(name):
    """Numba tells NamedTuples apart by name, and two clips need not implement the same operations."""
    if name == "Norm":
        mine, ours = NamedTuple("Norm", [("threshold", float)]), Norm(1.0)
        implements(at_step, mine)(lambda clip, t, state: Unclipped())
        own = mine(1.0)
    else:
        mine, ours = (
            NamedTuple("Scheduled", [("threshold", cs.schedules.Constant)]),
            Scheduled(cs.schedules.Constant(1.0)),
        )
        implements(add_clipped, mine)(
            lambda clip, vector, weight, total: add_clipped(Unclipped(), vector, weight, total)
        )
        own = mine(cs.schedules.Constant(1.0))
    case = cs.Problem(np.full((8, 1), 100.0), loss=cs.losses.Quadratic())
    free, clipped = (
        cs.run(case, cs.Rule("one", cs.schedules.Constant(1.0), clip, Full()), 1, start=1.0, seed=1).output[0, 0]
        for clip in (own, ours)
    )
    assert free == pytest.approx(1.0 - 101.0)
    assert clipped == pytest.approx(0.0)
