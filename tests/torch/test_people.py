"""People with several items: drawn, averaged and clipped as people."""

import numpy as np
import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn

from clipsilon.engine.checkpoint import CheckpointError
from private_training import Training, flat, records

WHO = np.sort(np.concatenate((np.arange(15), np.random.default_rng(0).integers(0, 15, 25))))
HOW = {"algorithm": "dpsgd", "groups": WHO, "noise_multiplier": 0.0, "clip": 0.7}


def gradients(model, data, rows):
    """The gradient of each row, one by one."""
    found = []
    for i in rows:
        x, y = data[i]
        loss = nn.functional.binary_cross_entropy_with_logits(model(x.unsqueeze(0)), y.unsqueeze(0))
        found.append(flat(torch.autograd.grad(loss, list(model.parameters()))))
    return torch.stack(found)


def drawn_people(training):
    return training.engine._training.batches


@pytest.mark.parametrize("more", [{}, {"poisson_sampling": False}, {"max_rows": 2}, {"clipping": "automatic"}], ids=str)
@pytest.mark.filterwarnings("ignore::clipsilon.PrivacyWarning")
def test_the_mean_of_a_persons_gradients_is_clipped(more):
    data = records()
    training = Training(data=data, batch=4, **HOW, **more)
    batches = training.engine._training.batches
    seen = []
    rows_of = batches._rows
    batches._rows = lambda people: seen.append((people.numpy(), rows_of(people))) or seen[-1][1]
    for batch in training.loader:
        before = [p.detach().clone() for p in training.model.parameters()]
        people, rows = seen[-1]
        expected = torch.zeros(flat(before).shape, dtype=torch.float64)
        for person in people:
            own = [row for row in rows if WHO[row] == person]
            assert own == np.flatnonzero(person == WHO)[: more.get("max_rows")].tolist()
            mean = gradients(
                training.model._module if hasattr(training.model, "_module") else training.model, data, own
            ).mean(0)
            length = mean.norm()
            expected += mean * (0.7 / length if more.get("clipping") else min(1.0, 0.7 / length))
        training.step(batch)
        torch.testing.assert_close(training.update(), expected / 4, rtol=1e-6, atol=1e-9)


@pytest.mark.filterwarnings("ignore::clipsilon.PrivacyWarning")
def test_the_statement_is_about_people():
    training = Training(batch=4, generator=None, noise_generator=None, **HOW | {"noise_multiplier": 2.0}).run(1)
    stated = training.engine.statement(1e-5)
    assert (stated.unit, stated.records) == ("person", 15)
    assert np.isfinite(stated.certified)
    assert len(training.loader) == 4  # passes over people
    rows = Training(batch=4, generator=None, noise_generator=None, **HOW | {"noise_multiplier": 2.0, "groups": None})
    assert rows.engine.statement(1e-5, steps=4).certified < stated.certified  # a smaller rate


def test_all_rows_of_a_person_move_the_update_by_no_more_than_the_clip():
    """Neighbours that differ in all rows of one person, on the same coins and without noise."""
    data, other = records(), records()
    other.tensors[0][WHO == 3] = 1e3 * torch.randn(int((WHO == 3).sum()), 4, dtype=torch.float64)
    other.tensors[1][WHO == 3] = 1 - other.tensors[1][WHO == 3]
    moves = []
    for start in range(12):
        generators = [torch.Generator().manual_seed(start) for _ in range(2)]
        pair = [
            Training(data=one, batch=9, generator=g, **HOW) for one, g in zip((data, other), generators, strict=True)
        ]
        batches = [next(iter(training.loader)) for training in pair]
        for training, batch in zip(pair, batches, strict=True):
            training.step(batch)
        moves.append(float((pair[0].update() - pair[1].update()).norm()) * 9 / 0.7)
    assert max(moves) <= 2 * (1 + 1e-9)
    assert max(moves) > 0.5
    assert min(moves) == 0.0  # where the person was not drawn


def test_what_cannot_be_proven_is_refused():
    with pytest.raises(ValueError, match="grad_sample_mode must be 'hooks' with groups"):
        Training("ghost", **HOW)
    with pytest.raises(ValueError, match="data_loader must have no workers with groups"):
        Training(workers=1, **HOW)
    with pytest.raises(ValueError, match="groups must name the person of every row"):
        Training(**HOW | {"groups": np.where(WHO == 3, np.nan, WHO)})
    with pytest.raises(ValueError, match="max_rows must be left out without groups"):
        Training(**HOW | {"groups": None}, max_rows=3)
    with pytest.raises(ValueError, match="for each of 40 rows"):
        Training(**HOW | {"groups": WHO[:-1]})


def test_pieces_of_batches_are_refused():
    training = Training(batch=9, **HOW)
    manager = BatchMemoryManager(data_loader=training.loader, max_physical_batch_size=2, optimizer=training.optimizer)
    with pytest.raises((RuntimeError, ValueError), match="With groups"), manager as loader:
        training.run(1, loader)


@pytest.mark.parametrize("wrong", [lambda x: x.flip(0), lambda x: x[:-1], lambda x: torch.cat((x, x[:1]))])
def test_rows_out_of_place_are_refused(wrong):
    training = Training(batch=9, **HOW)
    batch = next(batch for batch in training.loader if len(batch[0]) > 3)
    with pytest.raises(Exception, match="With groups"):
        training.step([wrong(batch[0]), wrong(batch[1])])


@pytest.mark.parametrize("is_backward_first", [False, True])
def test_a_batch_that_is_drawn_before_the_step_does_not_change_who_is_who(is_backward_first):
    """Both batches have four rows, of people with one and three rows, and with two and two."""
    who = np.repeat([0, 1, 2, 3], [1, 3, 2, 2])
    how = HOW | {"groups": who, "poisson_sampling": False, "data": records(8), "batch": 2}
    for seed in range(40):
        one, other = (Training(generator=torch.Generator().manual_seed(seed), **how) for _ in range(2))
        batches = iter(one.loader)
        batch = next(batches)
        if sorted(one.engine._training.state.rows_per_person) == [1, 3]:
            break
    other.step(next(iter(other.loader)))
    loss = one.loss(batch)
    if is_backward_first:
        loss.backward()
        one.private(next(batches)[0])
    else:
        next(batches)
        loss.backward()
    one.optimizer.step()
    torch.testing.assert_close(one.update(), other.update(), rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore::clipsilon.PrivacyWarning")
def test_steps_that_protect_rows_do_not_count_as_steps_that_protect_people(tmp_path):
    how = {"algorithm": "dpsgd", "noise_multiplier": 2.0, "generator": None, "noise_generator": None, "batch": 4}
    rows = Training(data=records(10), **how).run(1)
    rows.engine.save_checkpoint(path=tmp_path / "rows.pt", module=rows.private, optimizer=rows.optimizer)
    people = Training(data=records(20, seed=1), groups=np.arange(20) // 2, **how)
    with pytest.raises(CheckpointError, match="has another people: None, and not 10"):
        people.engine.load_checkpoint(path=tmp_path / "rows.pt", module=people.private, optimizer=people.optimizer)
    people.private.load_state_dict(rows.private.state_dict())
    stated = people.run(1).engine.statement(1e-5)
    assert stated.certified == np.inf
    assert "other settings" in stated.reasons[0]


def test_a_batch_that_was_drawn_before_is_refused():
    training = Training(batch=9, **HOW)
    batches = list(training.loader)
    with pytest.raises(Exception, match="the batch that the private loader gave last"):
        training.step(batches[0])
