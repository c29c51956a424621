"""Adaptive clipping: the threshold of the compiled engine, exact counts and sums, and the price of both."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import clipsilon as cs
import reference
from clipsilon.engine.streams import spawn
from clipsilon.privacy.accounting import profiles
from clipsilon.rules.clipping import REACH, noisy_count
from clipsilon.torch import PrivacyEngine, exact_sums
from clipsilon.torch.generators import RandomStream
from clipsilon.torch.rules import adaptive_clip_of
from private_training import Training, network, records

MODES = ("hooks", "ghost")
ADAPTIVE = {"algorithm": "dpsgd", "clipping": "adaptive", "quantile": 0.7}
UNSEEDED = {"noise_generator": None, "generator": None}
STEPS, BATCH, CLIP, START, SEED = 200, 4, 0.4, 0.3, 4


def preset(multiplier, sampling="poisson", batch=BATCH, clip=CLIP, quantile=0.7):
    return cs.AdaptiveDPSGD(cs.schedules.Constant(0.2), clip, multiplier, batch, quantile, sampling=sampling)


# The same steps as the compiled engine's


def path(mode, problem, batches, multiplier):
    """Return θ_t and the thresholds c_t of a torch training on given batches, with the engine's stream of noise."""
    features, labels = torch.tensor(problem.features), torch.tensor(problem.labels)
    model = nn.Sequential(nn.Linear(features.shape[1], 1, bias=False), nn.Flatten(0)).double()
    nn.init.constant_(model[0].weight, START)
    given = {**ADAPTIVE, "clip": CLIP, "noise_multiplier": multiplier, "lr": 0.2}
    training = Training(mode, TensorDataset(features, labels), model, BATCH, **given)
    training.engine._training.batches._draw = lambda: iter(batches)
    training.optimizer.noise.stream = RandomStream(SEED)
    thetas, thresholds = [training.theta()], [training.optimizer.threshold.value]
    for batch in training.loader:
        training.step(batch)
        thetas.append(training.theta())
        thresholds.append(training.optimizer.threshold.value)
    return torch.stack(thetas).numpy(), np.array(thresholds)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("multiplier", [0.0, 0.5])
def test_both_modes_are_the_engine(mode, multiplier, monkeypatch):
    """Batches, noise of counts and noise of sums are drawn from the same streams; some batches are empty."""
    monkeypatch.setattr(exact_sums, "GHOST_NOISE", 0.0)  # which would make a difference of 2^-14
    problem, rule = reference.problem(cs.losses.Logistic(0.0)), preset(multiplier)
    sampler = reference.Sampler(rule.sampling, problem.records, spawn(SEED, 1)[0].records)
    batches = [torch.as_tensor(list(sampler.batch(t)), dtype=torch.int64) for t in range(STEPS)]
    assert {len(batch) for batch in batches} > {0, 1, BATCH}
    trace = cs.run(problem, rule, STEPS, START, seed=SEED, record=range(STEPS + 1))
    thetas, thresholds = path(mode, problem, batches, multiplier)
    np.testing.assert_allclose(thetas, trace.theta[0], rtol=0, atol=1e-7)
    assert thresholds.min() < 0.9 * CLIP or thresholds.max() > 1.1 * CLIP


# What a record changes


def lone_gradients(rows, clip=1.0, mode="hooks", **settings):
    """Return a training whose records have these rows as their gradients: y = ⟨w, x⟩ at w = 0, with targets −1."""
    x = torch.tensor(rows, dtype=torch.float64).reshape(-1, 2)
    model = nn.Sequential(nn.Linear(2, 1, bias=False), nn.Flatten(0)).double()
    nn.init.zeros_(model[0].weight)
    data = TensorDataset(x, torch.full((len(x),), -1.0, dtype=torch.float64))
    half = _HalfSquares()
    given = {**ADAPTIVE, "clip": clip, "noise_multiplier": 1.0, "lr": 0.0, **settings}
    return Training(mode, data, model, batch=1, criterion=half, **given)


class _HalfSquares(nn.MSELoss):
    """½(y − target)², whose slope at y = 0 is 1 where the target is −1."""

    def forward(self, scores, targets):
        return 0.5 * super().forward(scores, targets)


def sums_of(mode, rows, places, threshold):
    """Return sums, in units, unit, and twice the count of a batch of some of the records, before any noise."""
    training = lone_gradients(rows, mode=mode)
    training.optimizer._set_threshold(threshold)
    x, y = training.loader.dataset.tensors
    training.optimizer.signal_skip_step(True)
    training.step((x[places], y[places]))
    whole = training.optimizer.sum_of(0)
    assert torch.equal(whole, whole.round())
    return whole.flatten(), training.optimizer.noise.grid.unit, training.optimizer.threshold._doubled


THRESHOLD = 0.7
LENGTHS = [THRESHOLD, np.nextafter(THRESHOLD, 0), np.nextafter(THRESHOLD, 1), 0.0, 1e-250, 1e-20, 1e20, 1e150]
row = st.tuples(st.one_of(st.sampled_from(LENGTHS), st.floats(0, 5)), st.floats(0, 6.3)).map(
    lambda polar: [polar[0] * math.cos(polar[1]), polar[0] * math.sin(polar[1])]
)


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=25, deadline=None, derandomize=True)
@given(others=st.lists(row, max_size=3), first=row, second=row, growth=st.sampled_from([1.0, 3.7, 1 / REACH, REACH]))
@example(others=[], first=[1e20, 0.0], second=[0.0, 0.0], growth=1.0)  # the others are an empty batch
def test_no_record_changes_sum_and_count_by_more_than_is_certified(mode, others, first, second, growth):
    """In exact arithmetic, at every threshold that can occur; in ghost mode, up to what is charged for rounding."""
    rows, threshold = [first, second, *others], max(min(THRESHOLD * growth, REACH), 1 / REACH)
    rest = list(range(2, len(rows)))
    with_first, with_second, without = (sums_of(mode, rows, some + rest, threshold) for some in ([0], [1], []))
    assert without[2] == (0 if not others else without[2])
    for one, other, most in ((with_first, without, 1), (with_second, without, 1), (with_first, with_second, 2)):
        changes = [int(a) - int(b) for a, b in zip(one[0].tolist(), other[0].tolist(), strict=True)]
        slack = Fraction(0) if mode == "hooks" else Fraction(2) ** -14
        assert sum(q * q for q in changes) * Fraction(one[1]) ** 2 <= (most * Fraction(threshold) * (1 + slack)) ** 2
        assert abs(one[2] - other[2]) in ((1,) if most == 1 else (0, 2))


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_batch_counts_nobody(mode):
    """Its placeholder is no record: it would otherwise count ½, and one record would change the count by 1."""
    training = lone_gradients([[0.1, 0.0], [9.0, 0.0]], mode=mode, noise_multiplier=0.0)
    clip, before = adaptive_clip_of(training.optimizer.rule), training.optimizer.threshold.value
    training.optimizer.noise.stream = RandomStream(0)
    training.engine._training.state.draw(0)
    x, y = training.loader.dataset.tensors
    training.step((x[:0], y[:0]))
    noise = noisy_count(clip.count_noise, 0.0, RandomStream(0).generator)
    expected = before * math.exp(-clip.rate * (noise / clip.batch + 0.5 - clip.quantile))
    assert training.optimizer.threshold.value == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("growth", [1 / REACH, 3.0**-5, 1.0, 3.0**5, REACH])
@pytest.mark.parametrize("is_ghost", [False, True])
def test_noise_and_grid_follow_the_threshold(growth, is_ghost):
    training = Training("ghost" if is_ghost else "hooks", noise_multiplier=1.3, **ADAPTIVE)
    rule, noise = training.optimizer.rule, training.optimizer.noise
    first = noise.grid
    training.optimizer._set_threshold(growth)
    assert Fraction(noise.grid.std) >= Fraction(rule.noise.multiplier) * Fraction(growth)
    assert noise.grid.std <= rule.noise.multiplier * growth * (1 + is_ghost * 2.0**-14) * (1 + 2.0**-48)
    assert noise.grid.unit / noise.grid.std == first.unit / first.std
    assert noise.grid.rows * growth <= 2.0**51 * noise.grid.unit
    assert noise.grid[2:] == first[2:]


# What is certified


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sampling", ["poisson", "epochs"])
def test_statements_are_those_of_the_preset(mode, sampling):
    training = Training(mode, noise_multiplier=1.1, clip=CLIP, poisson_sampling=sampling == "poisson", **ADAPTIVE)
    stated = training.engine.statement(1e-3, steps=30)
    expected = cs.account(preset(1.1, sampling, batch=5), records=40, steps=30, delta=1e-3)
    assert stated.nominal == expected.certified < math.inf
    assert any("counts of ±½ per record" in reason for reason in stated.reasons)


@pytest.mark.parametrize("mode", MODES)
def test_the_certificate_is_attained_by_sum_and_count_together(mode):
    """All records in one batch: μ follows from what a long gradient really adds, and from the noise that is drawn.

    Without the count, or with counts of 0 and 1 priced as ±½, μ would be off by 0.5 % or more.
    """
    z, delta = 0.8, 1e-5
    training = lone_gradients([[3.0, 4.0], [0.1, 0.0]], mode=mode, noise_multiplier=z, poisson_sampling=False)
    clip, grid = adaptive_clip_of(training.optimizer.rule), training.optimizer.noise.grid
    rows = [[3.0, 4.0], [0.1, 0.0]]
    (both, unit, counted), (alone, _, others) = (sums_of(mode, rows, some, 1.0) for some in ([0, 1], [1]))
    of_sum = float((both - alone).norm()) * unit / grid.std
    of_count = 0.5 * abs(counted - others) / clip.count_noise
    mu = math.hypot(of_sum, of_count)
    training.engine.adjacency = "zero-out"
    stated = training.engine.statement(delta, steps=1).nominal
    tight = 1e-6 if mode == "hooks" else 2.0**-13  # ghost mode has more noise than is stated
    assert (
        profiles.gaussian(mu).epsilon(delta) <= stated == pytest.approx(profiles.gaussian(mu).epsilon(delta), rel=tight)
    )
    assert profiles.gaussian(of_sum).epsilon(delta) < stated * (1 - 2e-3)
    assert profiles.gaussian(math.hypot(of_sum, 2 * of_count)).epsilon(delta) > stated * (1 + 5e-3)


@pytest.mark.parametrize("target", [0.01, 1.0, 20.0])
def test_noise_for_a_target(target):
    """Also where it exceeds by far the noise on the count that a multiplier of 1 would have."""
    model, engine = network(), PrivacyEngine()
    _, optimizer, _ = engine.make_private_with_epsilon(
        target_epsilon=target,
        target_delta=1e-3,
        epochs=3,
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(records(), batch_size=5),
        clipping="adaptive",
        quantile=0.7,
    )
    assert 0.98 * target <= engine.statement(steps=24).certified <= target
    assert optimizer.noise_multiplier < 2 * adaptive_clip_of(optimizer.rule).count_noise


def test_low_bits_at_the_threshold_are_named():
    training = Training(noise_multiplier=1.0, **ADAPTIVE, **UNSEEDED)
    assert any("counts as clipped" in reason for reason in training.engine.statement(steps=1).reasons)


# Pieces, states and checkpoints


@pytest.mark.parametrize("mode", MODES)
def test_pieces_of_a_batch_are_the_batch(mode):
    whole = Training(mode, noise_multiplier=0.2, **ADAPTIVE).run(3)
    pieces = Training(mode, noise_multiplier=0.2, **ADAPTIVE)
    options = {"data_loader": pieces.loader, "max_physical_batch_size": 2, "optimizer": pieces.optimizer}
    with BatchMemoryManager(**options) as loader:
        pieces.run(3, loader)
    assert pieces.engine.steps == whole.engine.steps
    assert pieces.optimizer.threshold.value == whole.optimizer.threshold.value != 1.0
    assert pieces.optimizer.max_grad_norm == pieces.optimizer.threshold.value
    torch.testing.assert_close(pieces.theta(), whole.theta(), rtol=0, atol=0 if mode == "hooks" else 1e-9)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("poisson", [True, False])
def test_a_checkpoint_resumes_bit_for_bit(mode, poisson, tmp_path):
    given = {**ADAPTIVE, "noise_multiplier": 0.5, "poisson_sampling": poisson}
    whole, first, resumed = (Training(mode, **given) for _ in range(3))
    whole.run(4)
    first.run(2)
    first.engine.save_checkpoint(path=tmp_path / "c", module=first.private, optimizer=first.optimizer)
    resumed.engine.load_checkpoint(path=tmp_path / "c", module=resumed.private, optimizer=resumed.optimizer)
    assert resumed.optimizer.threshold.value == first.optimizer.threshold.value != 1.0
    assert resumed.optimizer.noise.grid == first.optimizer.noise.grid
    resumed.run(2)
    assert torch.equal(resumed.theta(), whole.theta())
    assert resumed.optimizer.threshold.value == whole.optimizer.threshold.value
    assert resumed.engine.statement(1e-3).nominal == whole.engine.statement(1e-3).nominal


def test_going_back_keeps_all_steps_counted_and_draws_new_noise(tmp_path):
    """A threshold is a function of what was released: to return to an earlier one reveals nothing."""
    training = Training(noise_multiplier=1.0, **ADAPTIVE, **UNSEEDED).run(1)
    place = {"path": tmp_path / "c", "module": training.private, "optimizer": training.optimizer}
    training.engine.save_checkpoint(**place)
    kept = training.optimizer.threshold.value
    training.run(1)
    left = training.optimizer.threshold.value
    training.engine.load_checkpoint(**place)
    assert training.optimizer.threshold.value == kept
    training.run(1)
    assert training.optimizer.threshold.value not in (kept, left)
    assert training.engine.steps == 24
    whole = cs.account(preset(1.0, batch=5, clip=1.0), records=40, steps=24, delta=1e-3)
    assert training.engine.statement(1e-3).certified == whole.certified < math.inf


def test_states_carry_the_threshold():
    one, other = (Training(noise_multiplier=1.0, **ADAPTIVE) for _ in range(2))
    one.run(1)
    state = one.optimizer.state_dict()
    other.optimizer.load_state_dict(state)
    assert other.optimizer.threshold.value == one.optimizer.threshold.value != 1.0
    assert other.optimizer.noise.grid == one.optimizer.noise.grid
    for bad in (0.0, math.nan, math.inf, -1.0, 2.0 * REACH, 1 / (2 * REACH), "1", True):
        with pytest.raises(ValueError, match="state_dict must hold a threshold between"):
            other.optimizer.load_state_dict({**state, "threshold": bad})
    plain = torch.optim.SGD(network().parameters(), lr=0.1).state_dict()
    other.optimizer.load_state_dict(plain)  # of an optimiser without a threshold
    assert other.optimizer.threshold.value == one.optimizer.threshold.value


@pytest.mark.parametrize("difference", [{"quantile": 0.8}, {"clip": 2.0}, {"clipping": "flat", "quantile": None}])
def test_a_state_of_another_clip_certifies_nothing(difference, tmp_path):
    one = Training(noise_multiplier=1.0, **ADAPTIVE, **UNSEEDED).run(1)
    other = Training(noise_multiplier=1.0, **{**ADAPTIVE, **UNSEEDED, **difference})
    one.engine.save_checkpoint(path=tmp_path / "c", module=one.private, optimizer=one.optimizer)
    with pytest.raises(ValueError, match="has another"):
        other.engine.load_checkpoint(path=tmp_path / "c", module=other.private, optimizer=other.optimizer)
    other.optimizer.load_state_dict(one.optimizer.state_dict())
    other.run(1)
    assert other.engine.statement(1e-3).certified == math.inf
    assert "other settings" in " ".join(other.engine.statement(1e-3).faults)


# What is refused


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"clipping": "adaptive"}, "quantile must be given with clipping='adaptive'.*suggest_quantile.*got None"),
        ({"quantile": 0.5}, "quantile must be None unless clipping is 'adaptive', got 0.5"),
        ({"clipping": "per-layer", "quantile": 0.5}, "quantile must be None unless clipping is 'adaptive', got 0.5"),
        ({"clipping": "adaptive", "quantile": 1.0}, "quantile must be a number above 0 and below 1, got 1.0"),
        (
            {"clipping": "adaptive", "quantile": 0.5, "algorithm": "dice"},
            "clipping must be 'flat' or 'automatic' for algorithm='dice', got 'adaptive'",
        ),
        ({"clipping": "adaptive", "quantile": 0.5, "clip": 0.0}, "clip must be a number above 0"),
        ({"clipping": "adaptive", "quantile": 0.5, "clip": math.inf}, "clip must be"),
        ({"clipping": "adaptive", "quantile": 0.5, "clip": 1e-200}, "clip must be a number of ordinary size"),
    ],
)
def test_settings_that_do_not_fit(given, message):
    with pytest.raises(ValueError, match=message):
        Training(noise_multiplier=1.0, **{"algorithm": "dpsgd", **given})


@pytest.mark.parametrize("name", ["target_unclipped_quantile", "clipbound_learning_rate", "unclipped_num_std"])
def test_names_of_opacus_are_explained(name):
    with pytest.raises(TypeError, match=f"has no argument {name}: .*clipping='adaptive'"):
        Training(noise_multiplier=1.0, **ADAPTIVE, **{name: 0.5})


@pytest.mark.parametrize("clip", [1e-85, 1e85])
def test_clips_whose_thresholds_might_have_no_exact_sums_are_not_certified(clip):
    training = Training(noise_multiplier=1.0, clip=clip, **ADAPTIVE)
    stated = training.engine.statement(1e-3, steps=1)
    assert stated.nominal == math.inf
    assert any("exact at every threshold" in reason for reason in stated.reasons)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_is_neither_counted_nor_released(mode, value):
    training = lone_gradients([[0.1, 0.0], [value, 0.0]], mode=mode, **UNSEEDED)
    x, y = training.loader.dataset.tensors
    training.engine._training.state.draw(2)
    with pytest.raises(RuntimeError, match="gradient is not finite"):
        training.step((x, y))
    assert training.engine.steps == 0
    assert training.optimizer.threshold.value == 1.0
    assert training.engine.statement(1e-3, steps=1).certified == math.inf


def test_people_are_counted_once_each():
    """By the norm of the mean of their items: 0.5, 3 and 0 of three people with five items."""
    rows = [[0.5, 0.0], [3.0, 0.0], [3.0, 0.0], [5.0, 0.0], [-5.0, 0.0]]
    training = lone_gradients(rows, groups=[0, 1, 1, 2, 2], poisson_sampling=False)
    training.engine._training.batches.sampling = cs.sampling.Epochs(3)
    for batch in training.loader:
        training.optimizer.signal_skip_step(True)  # so that the count is kept
        training.step(batch)
    assert training.optimizer.threshold._doubled == 1 - 1 + 1
