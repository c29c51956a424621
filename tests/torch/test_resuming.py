"""Going back to an earlier state: noise is never drawn twice, and every step that was taken is counted."""

import copy
import gc
import math
import pickle
from itertools import islice

import pytest
import torch
from torch.utils.data import TensorDataset

import clipsilon as cs
from clipsilon.engine.checkpoint import CheckpointError
from clipsilon.torch import lineage
from clipsilon.torch.generators import RandomStream
from private_training import Training, flat, records

UNSEEDED = {"noise_generator": None, "generator": None, "noise_multiplier": 1.0}
DPSGD = {"algorithm": "dpsgd", **UNSEEDED}
CAPPED = {"algorithm": "dice", "residual_cap": 1.5, **UNSEEDED}


def parts_of(training, folder):
    return {"path": folder / "c", "module": training.private, "optimizer": training.optimizer}


def steps_of(training, count):
    """Make a few steps of a new pass; return their updates and batches."""
    updates, batches = [], []
    for batch in islice(training.loader, count):
        training.step(batch)
        updates.append(training.update())
        batches.append(batch[0])
    return updates, batches


def test_an_engine_that_goes_back_to_its_checkpoint_draws_new_noise(tmp_path):
    """With another step size, or another model in the first step, a difference of releases would have no noise."""
    training = Training(**DPSGD)
    steps_of(training, 3)
    training.engine.save_checkpoint(**parts_of(training, tmp_path))
    first, batches = steps_of(training, 4)
    training.engine.load_checkpoint(**parts_of(training, tmp_path))
    second, others = steps_of(training, 4)
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(batches, others, strict=True))


CORRELATED = {"algorithm": "correlated", "poisson_sampling": False, "epochs": 3, **UNSEEDED}


@pytest.mark.parametrize("settings", [DPSGD, CAPPED, CORRELATED], ids=str)
def test_an_engine_that_was_another_training_meanwhile_draws_new_noise(settings, tmp_path):
    """Loading another training's checkpoint does not make an engine forget which of its own it has gone on from."""
    data = records()
    training, other = (Training(data=data, **settings) for _ in range(2))
    other.engine.save_checkpoint(**{**parts_of(other, tmp_path), "path": tmp_path / "other"})
    steps_of(training, 2)
    training.engine.save_checkpoint(**parts_of(training, tmp_path))
    first, _ = steps_of(training, 2)
    training.engine.load_checkpoint(**{**parts_of(training, tmp_path), "path": tmp_path / "other"})
    training.engine.load_checkpoint(**parts_of(training, tmp_path))
    second, _ = steps_of(training, 2)
    assert training.engine.steps == 6
    assert not any(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert (training.engine.statement().certified < math.inf) is (settings is DPSGD)


def test_a_training_that_an_engine_has_left_is_remembered(tmp_path):
    """Two engines go on from one checkpoint, of which one has become another training since."""
    data = records()
    training, other, resumed = (Training(data=data, **DPSGD) for _ in range(3))
    other.engine.save_checkpoint(**{**parts_of(other, tmp_path), "path": tmp_path / "other"})
    steps_of(training, 2)
    training.engine.save_checkpoint(**parts_of(training, tmp_path))
    steps_of(training, 2)
    training.engine.load_checkpoint(**{**parts_of(training, tmp_path), "path": tmp_path / "other"})
    resumed.engine.load_checkpoint(**parts_of(resumed, tmp_path))
    steps_of(resumed, 2)
    assert resumed.engine.statement().certified == math.inf


@pytest.mark.parametrize("poisson", [True, False])
def test_steps_that_were_taken_stay_counted(poisson, tmp_path):
    training, whole = (Training(poisson_sampling=poisson, **DPSGD) for _ in range(2))
    steps_of(training, 3)
    training.engine.save_checkpoint(**parts_of(training, tmp_path))
    steps_of(training, 4)
    training.engine.load_checkpoint(**parts_of(training, tmp_path))
    steps_of(training, 2)
    assert training.engine.steps == 9
    for count in (3, 4, 2):
        steps_of(whole, count)
    assert training.engine.statement().certified == whole.engine.statement().certified < math.inf


def test_the_optimizer_of_another_engine_is_refused(tmp_path):
    """Its noise would be repeated, and its steps be counted by the other engine only."""
    training, other = (Training(**DPSGD) for _ in range(2))
    training.engine.save_checkpoint(**parts_of(training, tmp_path))
    for optimizer in (other.optimizer, other.optimizer.original_optimizer):
        parts = {**parts_of(training, tmp_path), "optimizer": optimizer}
        with pytest.raises(ValueError, match="optimizer must be the one that make_private of this engine has returned"):
            training.engine.save_checkpoint(**parts)
        with pytest.raises(ValueError, match="optimizer must be the one that make_private of this engine has returned"):
            training.engine.load_checkpoint(**parts)


def test_parameters_go_back_to_the_checkpoint(tmp_path):
    training = Training(**DPSGD)
    steps_of(training, 3)
    kept = training.theta()
    training.engine.save_checkpoint(**parts_of(training, tmp_path))
    steps_of(training, 4)
    training.engine.load_checkpoint(**parts_of(training, tmp_path))
    assert torch.equal(training.theta(), kept)


def test_loading_without_steps_in_between_resumes_bit_for_bit(tmp_path):
    training, resumed = (Training(**DPSGD) for _ in range(2))
    steps_of(training, 3)
    training.engine.save_checkpoint(**parts_of(training, tmp_path))
    for _ in range(2):
        resumed.engine.load_checkpoint(**parts_of(resumed, tmp_path))
    training.engine.load_checkpoint(**parts_of(training, tmp_path))
    assert all(torch.equal(*pair) for pair in zip(steps_of(training, 4)[0], steps_of(resumed, 4)[0], strict=True))


def test_own_steps_are_counted_after_the_checkpoint_of_another_training_was_loaded(tmp_path):
    data = records()
    first, second = Training(data=data, **DPSGD), Training(data=data, **DPSGD)
    steps_of(first, 3)
    first.engine.save_checkpoint(**parts_of(first, tmp_path))
    steps_of(second, 5)
    second.engine.load_checkpoint(**parts_of(second, tmp_path))
    assert second.engine.steps == 8


def test_a_seed_is_not_forgotten(tmp_path):
    """Steps whose noise can be drawn again stay a part of the training."""
    first, second = Training(**DPSGD), Training(algorithm="dpsgd", noise_multiplier=1.0)
    steps_of(first, 3)
    first.engine.save_checkpoint(**parts_of(first, tmp_path))
    steps_of(second, 2)
    second.engine.load_checkpoint(**parts_of(second, tmp_path))
    assert second.engine.statement().certified == math.inf
    assert len(second.engine.statement().faults) == 2


def test_batches_of_another_loader_are_not_forgotten(tmp_path):
    training = Training(**DPSGD)
    steps_of(training, 2)
    training.engine.save_checkpoint(**parts_of(training, tmp_path))
    training.step(records()[:5])
    training.step(records()[:5])
    training.engine.load_checkpoint(**parts_of(training, tmp_path))
    with pytest.warns(UserWarning, match="did not draw"):
        assert training.engine.statement().certified == math.inf


@pytest.mark.parametrize("seeded", ["noise_generator", "generator"])
def test_a_seed_is_not_forgotten_by_states_of_pytorch(seeded):
    """Neither the model's nor the optimiser's ordinary state hides that steps before were seeded."""
    data = records()
    first = Training(data=data, **{**DPSGD, seeded: torch.Generator().manual_seed(0)})
    steps_of(first, 3)
    for part in ("private", "optimizer"):
        second = Training(data=data, **DPSGD)
        getattr(second, part).load_state_dict(getattr(first, part).state_dict())
        steps_of(second, 2)
        assert second.engine.statement().certified == math.inf


# An older checkpoint after newer weights


def newer_weights_then_an_older_checkpoint(first, second, folder):
    """Let a second engine load the weights of a first one after six steps, and then its checkpoint after two."""
    steps_of(first, 2)
    first.engine.save_checkpoint(**parts_of(first, folder))
    steps_of(first, 4)
    second.private.load_state_dict(first.private.state_dict())
    second.engine.load_checkpoint(**parts_of(second, folder))


def test_newer_weights_do_not_hide_that_a_checkpoint_was_seeded(tmp_path):
    data = records()
    first, second = Training(data=data, algorithm="dpsgd", noise_multiplier=1.0), Training(data=data, **DPSGD)
    newer_weights_then_an_older_checkpoint(first, second, tmp_path)
    steps_of(second, 2)
    assert second.engine.statement().certified == math.inf


def test_newer_weights_do_not_lift_the_limit_of_a_charge(tmp_path):
    data, budget = records(), cs.Budget(tmp_path / "budget", 50.0, 1e-3, "replace-one")
    first = Training(data=data, budget=budget, epochs=1, delta=1e-5, **DPSGD)
    second = Training(data=data, **DPSGD)
    newer_weights_then_an_older_checkpoint(first, second, tmp_path)
    while second.engine.steps < 8:
        steps_of(second, 1)
    with pytest.raises(RuntimeError, match="The 8 steps that noise was planned for, or a budget file charged with"):
        steps_of(second, 1)


def test_newer_weights_of_a_training_whose_noise_is_drawn_again_certify_nothing(tmp_path):
    """The process of the first training is gone, so that only its state tells of its later steps."""
    data = records()
    first, second = (Training(data=data, **DPSGD) for _ in range(2))
    before = len(lineage._branches)
    newer_weights_then_an_older_checkpoint(first, second, tmp_path)
    first.engine._training.lineage.branch.run = "of another process"
    del lineage._branches[before:]
    steps_of(second, 2)
    assert second.engine.statement().certified == math.inf


def test_an_engine_that_loads_its_own_latest_checkpoint_stays_forked(tmp_path):
    """Two engines took steps with the same noise, and one of them has since resumed from where it was."""
    data = records()
    first, second = (Training(data=data, **DPSGD) for _ in range(2))
    steps_of(first, 2)
    first.engine.save_checkpoint(**parts_of(first, tmp_path))
    updates, _ = steps_of(first, 2)
    latest = {**parts_of(first, tmp_path), "path": tmp_path / "latest"}
    first.engine.save_checkpoint(**latest)
    first.engine.load_checkpoint(**latest)
    assert first.engine.statement().certified < math.inf
    second.engine.load_checkpoint(**parts_of(second, tmp_path))
    same, _ = steps_of(second, 2)
    assert all(map(torch.equal, updates, same))
    for training in (first, second):
        assert training.engine.statement().certified == math.inf


def test_an_engine_whose_charge_is_used_up_refuses_other_trainings(tmp_path):
    data, budget = records(), cs.Budget(tmp_path / "budget", 50.0, 1e-3, "replace-one")
    training = Training(data=data, budget=budget, epochs=1, delta=1e-5, **DPSGD)
    other = Training(data=data, **DPSGD)
    other.engine.save_checkpoint(**parts_of(other, tmp_path))
    for _ in range(8):
        steps_of(training, 1)
    before = training.theta()
    with pytest.raises(CheckpointError, match="is of another training, whose steps the charge of this engine does not"):
        training.engine.load_checkpoint(**parts_of(training, tmp_path))
    assert training.engine.steps == 8
    assert torch.equal(training.theta(), before)


# The error of DiceSGD


def lone_record(size):
    """A model y = w·x at w = 0, of whose records one has a long gradient."""
    model = torch.nn.Sequential(torch.nn.Linear(1, 1, bias=False), torch.nn.Flatten(0)).double()
    torch.nn.init.zeros_(model[0].weight)
    x = torch.zeros(40, 1, dtype=torch.float64)
    x[0] = size
    return model, TensorDataset(x, torch.ones(40, dtype=torch.float64))


def test_an_error_that_is_put_back_would_be_fed_back_twice():
    """Going back to the same error for each step releases what one record left in it as often as wanted."""
    model, data = lone_record(100.0)
    training = Training(model=model, data=data, algorithm="dice", residual_cap=20.0, **UNSEEDED)
    training.engine._training.state.draw(1)
    training.step(data[:1])
    state = copy.deepcopy(training.optimizer.state_dict())
    left = [e.clone() for e in training.optimizer.residual]
    for _ in range(3):
        training.optimizer.load_state_dict(state)
        training.engine._training.state.draw(1)
        training.step(data[1:2])
        assert flat(training.optimizer.residual).abs() < flat(left).abs()
    stated = training.engine.statement()
    assert stated.certified == math.inf
    assert any("error" in fault and "fed back twice" in fault for fault in stated.faults)


def test_going_back_with_an_error_certifies_nothing(tmp_path):
    training = Training(**CAPPED)
    steps_of(training, 3)
    training.engine.save_checkpoint(**parts_of(training, tmp_path))
    training.engine.load_checkpoint(**parts_of(training, tmp_path))
    assert training.engine.statement().certified < math.inf  # nothing has changed
    steps_of(training, 4)
    training.engine.load_checkpoint(**parts_of(training, tmp_path))
    assert training.engine.statement().certified == math.inf
    assert "fed back twice" in training.engine.statement().faults[0]


# Other ways to the same noise


def test_a_training_that_was_deleted_is_remembered(tmp_path):
    """Two trainings from one checkpoint share their noise, also where the first is gone when the second begins."""
    first = Training(**DPSGD)
    steps_of(first, 3)
    first.engine.save_checkpoint(**parts_of(first, tmp_path))
    steps_of(first, 2)
    del first
    gc.collect()
    second = Training(**DPSGD)
    second.engine.load_checkpoint(**parts_of(second, tmp_path))
    steps_of(second, 2)
    stated = second.engine.statement()
    assert stated.certified == math.inf
    assert "two engines went on from the same checkpoint" in stated.faults[0]


def test_a_training_that_went_on_after_its_state_was_taken_is_another_one():
    data = records()
    first = Training(data=data, **DPSGD)
    steps_of(first, 3)
    state = copy.deepcopy(first.optimizer.state_dict())
    second = Training(data=data, **DPSGD)
    second.optimizer.load_state_dict(state)
    steps_of(second, 2)
    assert second.engine.steps == 5
    assert second.engine.statement().certified < math.inf
    steps_of(first, 2)
    assert second.engine.statement().certified == math.inf


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_streams_cannot_be_copied(copied):
    with pytest.raises(TypeError, match="would draw the same numbers"):
        copied(RandomStream())
