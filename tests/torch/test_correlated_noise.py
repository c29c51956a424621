"""Correlated noise: the noise and memory of the compiled engine, in one order, for all planned steps and no others."""

import copy
import math
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import clipsilon as cs
import reference
from clipsilon.engine.checkpoint import CheckpointError
from clipsilon.engine.streams import spawn
from clipsilon.rules.correlation import rounding, shift_norm
from clipsilon.torch import PrivacyEngine, exact_sums
from clipsilon.torch.correlated_noise import plan_correlated
from clipsilon.torch.generators import RandomStream
from clipsilon.torch.rules import Passes, UpdateSettings, build_rule, correlated_noise_of
from private_training import Training, flat, network, records

MODES = ("hooks", "ghost")
CORRELATED = {"algorithm": "correlated", "poisson_sampling": False, "epochs": 3}
UNSEEDED = {"noise_generator": None, "generator": None}
BATCH, CLIP, START, SEED = 7, 0.4, 0.3, 4


def place_of(training, folder):
    return {"path": folder / "c", "module": training.private, "optimizer": training.optimizer}


def memory_of(training):
    return flat(training.optimizer.noise.get_memory().values())


# The same steps as the compiled engine's


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("multiplier", [0.0, 2.0])
def test_both_modes_are_the_engine(mode, multiplier, monkeypatch):
    """Order and noise are drawn from the same streams, over three passes; the last batch of each is smaller."""
    monkeypatch.setattr(exact_sums, "GHOST_NOISE", 0.0)  # which would make a difference of 2^-14
    problem = reference.problem(cs.losses.Logistic(0.0))
    x, y = torch.tensor(problem.features), torch.tensor(problem.labels)
    model = nn.Sequential(nn.Linear(x.shape[1], 1, bias=False), nn.Flatten(0)).double()
    nn.init.constant_(model[0].weight, START)
    given = {**CORRELATED, "clip": CLIP, "noise_multiplier": multiplier, "lr": 0.2}
    training = Training(mode, TensorDataset(x, y), model, BATCH, **given)
    rule, steps = replace(training.optimizer.rule, step=cs.schedules.Constant(0.2)), 3 * len(training.loader)
    assert len(x) % BATCH
    sampler = reference.Sampler(rule.sampling, problem.records, spawn(SEED, 1)[0].records)
    batches = [torch.as_tensor(list(sampler.batch(t)), dtype=torch.int64) for t in range(len(training.loader))]
    training.engine._training.batches._draw = lambda: iter(batches)
    training.optimizer.noise.stream = RandomStream(SEED)
    thetas = [training.theta()]
    for _ in range(3):
        for batch in training.loader:
            training.step(batch)
            thetas.append(training.theta())
    trace = cs.run(problem, rule, steps, START, seed=SEED, record=range(steps + 1))
    np.testing.assert_allclose(torch.stack(thetas).numpy(), trace.theta[0], rtol=0, atol=1e-6)


# What a record changes


class _HalfSquares(nn.MSELoss):
    """½(y − target)², whose slope at y = 0 is 1 where the target is −1."""

    def forward(self, scores, targets):
        return 0.5 * super().forward(scores, targets)


def released(mode, rows, clip=1.0):
    """Return the sums before noise and the releases of all steps, in units, of records with these gradients."""
    x = torch.tensor(rows, dtype=torch.float64)
    model = nn.Sequential(nn.Linear(x.shape[1], 1, bias=False), nn.Flatten(0)).double()
    nn.init.zeros_(model[0].weight)
    data = TensorDataset(x, torch.full((len(x),), -1.0, dtype=torch.float64))
    given = {**CORRELATED, "clip": clip, "noise_multiplier": 3.0, "lr": 0.0, "criterion": _HalfSquares()}
    training = Training(mode, data, model, batch=2, **given)
    noise, sums, outputs = training.optimizer.noise, [], []
    original = noise.release

    def kept(whole, divisor, like, number=0):
        sums.append(whole.flatten().clone())
        result = original(whole, divisor, like, number)
        outputs.append((result.flatten() * (divisor / noise.grid.unit) - 0.5).round())
        return result

    noise.release = kept
    training.run(3)
    return training, torch.stack(sums).numpy(), torch.stack(outputs).numpy()


def needed_draws(buffers, sums, outputs):
    """Return the normal draws, in units, that lead from given sums to given releases."""
    (decays, weights), memory, draws = buffers.T, np.zeros((len(buffers), sums.shape[1])), []
    for q, output in zip(sums, outputs, strict=True):
        taken_back = np.zeros(sums.shape[1])
        for weight, row in zip(weights, memory, strict=True):
            taken_back += weight * row
        y = output - q
        draws.append(y + np.rint(taken_back))
        memory = decays[:, None] * memory + y
    return np.array(draws)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("change", [1, 2])
def test_no_record_moves_all_steps_by_more_than_is_certified(mode, change):
    """The draws that would give the same releases on a neighbouring data set are as far away as stated, and no more."""
    others = [[0.3, 0.1], [-0.2, 5.0], [0.0, 0.0], [1e9, -1e9], [0.5, 0.5]]
    training, sums, outputs = released(mode, [[6.0, 8.0], *others])
    neighbour = [[0.0, 0.0]] if change == 1 else [[-6.0, -8.0]]
    _, other_sums, _ = released(mode, neighbour + others)
    noise, grid = correlated_noise_of(training.optimizer.rule), training.optimizer.noise.grid
    drawn, needed = (needed_draws(noise.buffers, some, outputs) for some in (sums, other_sums))
    takes_part = np.abs(sums - other_sums).sum(axis=1) > 0
    assert takes_part.tolist() == takes_part[:3].tolist() * 3  # once per pass
    assert takes_part.sum() == 3
    moved = np.linalg.norm(needed - drawn) * grid.unit / grid.std
    norm = shift_norm(noise.buffers, 9, 3, 3)
    true = np.linalg.norm(np.convolve(cs.correlation.coefficients(noise.buffers, 9), takes_part)[:9])
    assert moved == pytest.approx(change * true / 3.0, rel=2e-4)
    assert moved <= change * norm / 3.0
    assert true > 0.9 * norm
    assert rounding(noise.buffers, 9) * math.sqrt(18) * grid.unit <= norm * (grid.std / 3.0 - 1.0)


def test_noise_makes_up_for_rounding():
    rule = build_rule(UpdateSettings(10.0, "correlated", poisson_sampling=False), "SGD", 10, Passes(2, 50))
    noise = correlated_noise_of(rule)
    for entries in (10, 10**6, 10**10):
        grid = plan_correlated(rule, False, entries, 500, 100)
        added = rounding(noise.buffers, 100) * math.sqrt(100 * entries) * grid.unit
        assert grid.std / 10.0 >= 1 + added / shift_norm(noise.buffers, 100, 2, 50)
    with pytest.raises(ValueError, match="noise_multiplier must be smaller for 10000000000000000 parameters"):
        plan_correlated(rule, False, 10**16, 500, 100)


# What is certified


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("epochs", "sampling"), [(1, "single-pass"), (3, "cyclic")])
def test_statements_are_those_of_the_preset(mode, epochs, sampling):
    """Of all planned steps from the first on: that training is stopped may depend on what it has released."""
    given = {**CORRELATED, "epochs": epochs, "noise_multiplier": 4.0, "clip": CLIP}
    training = Training(mode, **given, **UNSEEDED)
    buffers, std = correlated_noise_of(training.optimizer.rule).buffers, 4.0 * CLIP / 5
    rule = cs.CorrelatedSGD(cs.schedules.Constant(1.0), CLIP, std, 5, sampling, buffers=buffers)
    expected = cs.account(rule, records=40, steps=8 * epochs, delta=1e-3).certified
    assert expected < math.inf
    for batch in islice(training.loader, 2):
        training.step(batch)
    assert training.engine.statement(1e-3).certified == expected
    training.run(epochs)
    assert training.engine.steps == 8 * epochs
    assert training.engine.statement(1e-3).certified == expected
    assert training.engine.statement(1e-3, steps=1).certified == expected
    with pytest.raises(ValueError, match=f"steps must be at most the {8 * epochs} that noise was planned for"):
        training.engine.statement(1e-3, steps=8 * epochs + 1)


@pytest.mark.parametrize("epochs", [1, 4])
def test_noise_for_a_target(epochs):
    model, engine = network(), PrivacyEngine()
    engine.make_private_with_epsilon(
        target_epsilon=2.0,
        target_delta=1e-3,
        epochs=epochs,
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(records(), batch_size=5),
        algorithm="correlated",
        poisson_sampling=False,
    )
    assert 0.98 * 2.0 <= engine.statement(steps=8 * epochs).certified <= 2.0


def test_the_matrix_leaves_less_noise_in_sums_than_independent_noise():
    """At equal privacy, in the sum of all updates of three passes: by a factor of about 3."""
    buffers = correlated_noise_of(Training(noise_multiplier=1.0, **CORRELATED).optimizer.rule).buffers
    correlated = cs.correlation.output_norm(buffers, np.ones(24)) * shift_norm(buffers, 24, 3, 8)
    assert correlated < 0.6 * math.sqrt(24) * math.sqrt(3)


# Order


def test_all_passes_have_one_order():
    training = Training(noise_multiplier=1.0, **CORRELATED, **UNSEEDED)
    passes = []
    for _ in range(3):
        seen = []
        for batch in training.loader:
            seen.append(batch[0].clone())
            training.step(batch)
        passes.append(torch.cat(seen))
    assert all(torch.equal(one, passes[0]) for one in passes)
    assert not torch.equal(passes[0], records()[:][0])
    assert torch.equal(passes[0].sort(0).values, records()[:][0].sort(0).values)


def test_a_pass_that_was_left_goes_on():
    """Records would otherwise take part again before a whole pass is over."""
    whole, left = (Training(noise_multiplier=1.0, **CORRELATED) for _ in range(2))
    whole.run(1)
    for batch in islice(left.loader, 3):
        left.step(batch)
    next(iter(left.loader))  # looking at a batch changes nothing
    left.run(1)
    assert left.engine.steps == whole.engine.steps == 8
    assert torch.equal(left.theta(), whole.theta())


def test_no_batch_can_be_left_out():
    training, whole = (Training(noise_multiplier=1.0, **CORRELATED) for _ in range(2))
    batches = iter(training.loader)
    training.step(next(batches))
    next(batches)
    with pytest.raises(RuntimeError, match="a step must be made of every batch, in order"):
        next(batches)
    training.run(1)
    assert training.engine.steps == 8
    assert torch.equal(training.theta(), whole.run(1).theta())


@pytest.mark.parametrize("mode", MODES)
def test_steps_beyond_the_plan_are_refused(mode):
    training = Training(mode, noise_multiplier=1.0, **CORRELATED).run(3)
    before = training.theta()
    with pytest.raises(RuntimeError, match="The 24 steps that noise was planned for"):
        training.run(1)
    assert torch.equal(training.theta(), before)


def test_batches_of_another_loader_certify_nothing():
    training = Training(noise_multiplier=1.0, **CORRELATED, **UNSEEDED)
    training.step(records()[:5])
    with pytest.warns(cs.PrivacyWarning, match="did not draw"):
        assert training.engine.statement(1e-3).certified == math.inf


# Pieces, states and checkpoints


@pytest.mark.parametrize("mode", MODES)
def test_pieces_of_a_batch_are_the_batch(mode):
    whole, pieces = (Training(mode, noise_multiplier=0.2, **CORRELATED) for _ in range(2))
    whole.run(3)
    options = {"data_loader": pieces.loader, "max_physical_batch_size": 2, "optimizer": pieces.optimizer}
    with BatchMemoryManager(**options) as loader:
        pieces.run(3, loader)
    assert pieces.engine.steps == whole.engine.steps == 24
    torch.testing.assert_close(pieces.theta(), whole.theta(), rtol=0, atol=0 if mode == "hooks" else 1e-9)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("taken", [3, 8, 11])
def test_a_checkpoint_resumes_bit_for_bit(mode, taken, tmp_path):
    whole, first, resumed = (Training(mode, noise_multiplier=0.5, **CORRELATED) for _ in range(3))
    whole.run(3)
    while first.engine.steps < taken:
        for batch in islice(first.loader, taken - first.engine.steps):
            first.step(batch)
    first.engine.save_checkpoint(**place_of(first, tmp_path))
    resumed.engine.load_checkpoint(**place_of(resumed, tmp_path))
    assert torch.equal(memory_of(resumed), memory_of(first))
    while resumed.engine.steps < 24:
        resumed.run(1)
    assert torch.equal(resumed.theta(), whole.theta())
    assert torch.equal(memory_of(resumed), memory_of(whole))
    assert resumed.engine.statement(1e-3).nominal == whole.engine.statement(1e-3).nominal


def test_a_checkpoint_resumes_with_its_statement(tmp_path):
    data = records()
    first = Training(data=data, noise_multiplier=4.0, **CORRELATED, **UNSEEDED).run(1)
    first.engine.save_checkpoint(**place_of(first, tmp_path))
    resumed = Training(data=data, noise_multiplier=4.0, **CORRELATED, **UNSEEDED)
    resumed.engine.load_checkpoint(**place_of(resumed, tmp_path))
    resumed.run(2)
    assert resumed.engine.steps == 24
    assert resumed.engine.statement(1e-3).certified == first.engine.statement(1e-3).certified < math.inf


def test_going_back_certifies_nothing(tmp_path):
    training = Training(noise_multiplier=4.0, **CORRELATED, **UNSEEDED).run(1)
    training.engine.save_checkpoint(**place_of(training, tmp_path))
    training.engine.load_checkpoint(**place_of(training, tmp_path))
    assert training.engine.statement(1e-3).certified < math.inf  # nothing has changed
    training.run(1)
    training.engine.load_checkpoint(**place_of(training, tmp_path))
    assert training.engine.statement(1e-3).certified == math.inf
    assert "went back to a checkpoint" in training.engine.statement(1e-3).faults[0]


def test_a_loaded_state_does_not_take_the_noise_back():
    """Of PyTorch's own means; a repeated memory would repeat noise."""
    training = Training(noise_multiplier=4.0, **CORRELATED, **UNSEEDED)
    model, optimizer = (copy.deepcopy(part.state_dict()) for part in (training.private, training.optimizer))
    training.run(1)
    before = memory_of(training)
    assert before.abs().max() > 0
    training.private.load_state_dict(model)
    training.optimizer.load_state_dict(optimizer)
    assert torch.equal(memory_of(training), before)
    training.run(2)
    assert training.engine.statement(1e-3).certified < math.inf
    with pytest.raises(RuntimeError, match="have been taken"):
        training.run(1)


def test_a_state_of_another_training_certifies_nothing():
    """Two matrices do not make one: records of both may take part within less than a pass."""
    data = records()
    first, second = (Training(data=data, noise_multiplier=4.0, **CORRELATED, **UNSEEDED) for _ in range(2))
    first.run(1)
    second.optimizer.load_state_dict(first.optimizer.state_dict())
    second.run(1)
    stated = second.engine.statement(1e-3)
    assert stated.certified == math.inf
    assert any("planned for all steps of one training" in fault for fault in stated.faults)


@pytest.mark.parametrize("difference", [{"epochs": 4}, {"clip": 2.0}, {"noise_multiplier": 5.0}])
def test_a_checkpoint_of_another_plan_is_refused(difference, tmp_path):
    one = Training(**{"noise_multiplier": 4.0, **CORRELATED}).run(1)
    other = Training(**{"noise_multiplier": 4.0, **CORRELATED, **difference})
    one.engine.save_checkpoint(**place_of(one, tmp_path))
    with pytest.raises(ValueError, match="has another"):
        other.engine.load_checkpoint(**place_of(other, tmp_path))


@pytest.mark.parametrize("is_frozen", [(True, False), (False, True)])
def test_a_checkpoint_of_other_trained_parameters_is_refused(is_frozen, tmp_path):
    """The memory of the noise would be that of other parameters, and be read beyond its end."""

    def train(frozen):
        model = network()
        model[0].weight.requires_grad_(not frozen)
        everything = lambda trained, lr: torch.optim.SGD(model.parameters(), lr)  # noqa: E731
        return Training(model=model, optimizer=everything, noise_multiplier=1.0, **CORRELATED, **UNSEEDED)

    saved, resumed = map(train, is_frozen)
    saved.step(next(iter(saved.loader)))
    saved.engine.save_checkpoint(**place_of(saved, tmp_path))
    with pytest.raises(CheckpointError, match="noise of other trained parameters; freeze the same ones"):
        resumed.engine.load_checkpoint(**place_of(resumed, tmp_path))


def test_a_second_engine_on_the_data_certifies_nothing():
    data = records()
    first, second = (Training(data=data, noise_multiplier=4.0, **CORRELATED, **UNSEEDED).run(1) for _ in range(2))
    for training in (first, second):
        assert training.engine.statement(1e-3).certified == math.inf


# What is refused


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"poisson_sampling": True}, "poisson_sampling must be False for algorithm='correlated'"),
        ({"epochs": None}, "epochs must be given for algorithm='correlated'"),
        ({"epochs": 0}, "epochs must be a whole number of at least 1, got 0"),
        (
            {"clipping": "adaptive", "quantile": 0.5},
            "clipping must be 'flat' or 'automatic' for algorithm='correlated', got 'adaptive'",
        ),
        ({"residual_cap": 1.0}, "residual_cap must be None for algorithm='correlated'"),
        ({"workers": 1}, "data_loader must have no workers with algorithm='correlated'"),
        ({"algorithm": "dpsgd"}, "epochs must be left out without a budget"),
    ],
)
def test_settings_that_do_not_fit(given, message):
    with pytest.raises(ValueError, match=message):
        Training(**{"noise_multiplier": 1.0, **CORRELATED, **given})


@pytest.mark.parametrize("clipping", ["per-layer", "automatic"])
def test_other_clips_of_the_same_bound_have_the_same_certificate(clipping):
    stated = [
        Training(noise_multiplier=4.0, **CORRELATED, clipping=one).engine.statement(1e-3, steps=24).nominal
        for one in ("flat", clipping)
    ]
    assert stated[0] == stated[1] < math.inf
