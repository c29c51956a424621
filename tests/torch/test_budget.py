"""A training that is charged to a budget file."""

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import clipsilon as cs
from clipsilon.torch import PrivacyEngine
from private_training import network, records


@pytest.fixture
def budget(tmp_path):
    return cs.Budget(tmp_path / "people.budget", epsilon=4.0, delta=1e-4, adjacency="replace-one")


def prepared(data=None, **settings):
    """Make a small model private for 40 records in batches of 5."""
    engine, model = PrivacyEngine(), network()
    parts = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(records() if data is None else data, batch_size=5),
        criterion=nn.BCEWithLogitsLoss(),
        clip=1.0,
        **{"noise_multiplier": 3.0, **settings},
    )
    return engine, *parts


def train(model, optimizer, loader, passes=1):
    for _ in range(passes):
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(model(x), y).backward()
            optimizer.step()


def test_planned_steps_are_charged_and_no_more_are_taken(budget):
    engine, *parts = prepared(budget=budget, epochs=2, delta=1e-6)
    assert [charge.what for charge in budget.charges()] == ["DPSGD with SGD"]
    planned = engine.statement(steps=16)
    assert (planned.delta, budget.spent().epsilon) == (1e-6, planned.certified)
    train(*parts, passes=2)
    assert engine.statement().certified == budget.spent().epsilon
    with pytest.raises(
        RuntimeError, match="The 16 steps that noise was planned for, or a budget file charged with, have been taken"
    ):
        train(*parts)
    assert engine.steps == 16


def test_abandoned_passes_do_not_exceed_what_was_charged(budget):
    _, model, optimizer, loader = prepared(budget=budget, epochs=1, poisson_sampling=False)
    train(model, optimizer, [next(iter(loader))])
    with pytest.raises(RuntimeError, match="have been taken"):
        train(model, optimizer, [next(iter(loader))])


def test_the_limit_refuses_before_anything_is_made(budget):
    prepared(budget=budget.path, epochs=2)
    model = network()
    engine = PrivacyEngine()
    with pytest.raises(cs.BudgetError, match="would pass the limit"):
        engine.make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=DataLoader(records(), batch_size=5),
            noise_multiplier=1.0,
            budget=budget,
            epochs=2,
        )
    assert len(budget.charges()) == 1
    assert not any(module._forward_hooks or module._backward_hooks for module in model.modules())


def test_seeds_another_adjacency_and_missing_epochs_are_refused(budget, tmp_path):
    with pytest.raises(cs.BudgetError, match="must be certified"):
        prepared(budget=budget, epochs=1, noise_generator=torch.Generator())
    other = cs.Budget(tmp_path / "other", 3.0, 1e-4, "zero-out")
    with pytest.raises(cs.BudgetError, match="is for adjacency"):
        prepared(budget=other, epochs=1)
    with pytest.raises(ValueError, match="epochs must be a whole number of at least 1, got None"):
        prepared(budget=budget)
    with pytest.raises(ValueError, match="epochs must be left out without a budget"):
        prepared(epochs=1)
    assert budget.charges() == other.charges() == []


def test_two_engines_on_one_data_set_add_up_in_the_file(budget):
    """Without the file nothing is certified of either."""
    data = records()
    one, *first = prepared(data, budget=budget, epochs=1, delta=1e-6)
    two, *second = prepared(data, budget=budget, epochs=1, delta=1e-6)
    train(*first)
    train(*second)
    assert one.statement().certified == two.statement().certified < float("inf")
    assert budget.spent().epsilon == 2 * one.statement().certified
    third, *parts = prepared(data)
    train(*parts)
    assert third.statement().certified == one.statement().certified == float("inf")


def test_a_resumed_training_keeps_to_the_first_charge(budget, tmp_path):
    engine, model, optimizer, loader = prepared(budget=budget, epochs=2)
    train(model, optimizer, loader)
    engine.save_checkpoint(path=tmp_path / "saved", module=model, optimizer=optimizer)
    again, *parts = prepared()
    again.load_checkpoint(path=tmp_path / "saved", module=parts[0], optimizer=parts[1])
    train(*parts)
    with pytest.raises(RuntimeError, match="have been taken"):
        train(*parts)
    assert len(budget.charges()) == 1


def test_an_error_that_another_training_left_is_not_charged(budget):
    """What a record leaves in it grows faster than the sums of both charges."""
    dice = {"algorithm": "dice", "error_clip": 1.0, "residual_cap": 1.0, "budget": budget, "epochs": 1, "delta": 1e-6}
    one, *first = prepared(noise_multiplier=60.0, **dice)
    train(*first)
    assert one.statement().certified < float("inf")
    two, *second = prepared(noise_multiplier=60.0, **dice)
    second[1].load_state_dict(first[1].state_dict())
    train(*second)
    assert two.statement().certified == float("inf")
    assert "what records left in the error" in two.statement().reasons[0]


def test_a_target_is_charged_with_its_epochs(budget):
    engine, model = PrivacyEngine(), network()
    engine.make_private_with_epsilon(
        target_epsilon=2.0,
        target_delta=1e-5,
        epochs=3,
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(records(), batch_size=5),
        budget=budget,
    )
    assert 1.9 < budget.spent().epsilon <= 2.0
    assert budget.spent().delta == 1e-5
