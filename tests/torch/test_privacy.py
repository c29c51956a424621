"""The noise has the scale that the statement assumes, and one record changes no more than it assumes."""

import itertools
import math

import pytest
import torch
from opacus.accountants import create_accountant
from torch import nn
from torch.utils.data import TensorDataset

import clipsilon as cs
from clipsilon.privacy.statement import SEEDED
from clipsilon.torch import PrivacyEngine
from private_training import Training, flat, network, records

MODES = ("hooks", "ghost")


def training_without_gradients(mode, **settings):
    """A training whose gradients are zero, so that updates are noise."""
    data = TensorDataset(torch.zeros(40, 100, dtype=torch.float64), torch.zeros(40, dtype=torch.float64))
    model = nn.Sequential(nn.Linear(100, 200, bias=False), nn.Linear(200, 1, bias=False), nn.Flatten(0)).double()
    return Training(mode, data, model, **settings)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("algorithm", ["dpsgd", "dice"])
def test_noise_has_the_deviation_of_the_rule(mode, algorithm):
    """20,200 normal numbers: their mean square is off by 5.5·√(2/20200) with probability 4e-8, as is a correlation
    by 5.5/√20200; sixteen such tests raise a false alarm with probability 6e-7."""
    training = training_without_gradients(mode, algorithm=algorithm, clip=0.7, noise_multiplier=1.3, batch=8)
    updates = []
    for batch in itertools.islice(training.loader, 2):
        training.step(batch)
        updates.append(training.update())
    n = updates[0].numel()
    for update in updates:
        assert float(update.square().mean()) / (1.3 * 0.7 / 8) ** 2 == pytest.approx(1, abs=5.5 * math.sqrt(2 / n))
    assert abs(float(torch.corrcoef(torch.stack(updates))[0, 1])) < 5.5 / math.sqrt(n)
    assert abs(float(updates[0].mean())) < 5.5 * 1.3 * 0.7 / 8 / math.sqrt(n)
    if algorithm == "dice":
        assert not training.error().any()  # the error takes v before noise


def neighbours():
    x, y = (t.clone() for t in records()[:])
    changed, flipped = x.clone(), y.clone()
    changed[7], flipped[7] = 1e4 * torch.ones(4, dtype=torch.float64), 1 - (x[7].sum() > 0).double()
    return TensorDataset(x, y), TensorDataset(changed, flipped)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("settings", [{}, {"clipping": "automatic"}], ids=str)
def test_a_record_changes_the_sum_by_no_more_than_twice_the_clip(mode, settings):
    updates = []
    for data in neighbours():
        training = Training(mode, data, batch=4, algorithm="dpsgd", clip=0.3, **settings)
        training.step(data[:])
        updates.append(training.update())
    change = float((updates[0] - updates[1]).norm())
    assert 0.15 / 4 < change <= 2 * 0.3 / 4 * (1 + 1e-12)
    training.step([column[7:8] for column in data[:]])  # the record alone, whose gradient is long
    assert float(training.update().norm()) == pytest.approx(0.3 / 4, rel=1e-9)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("passes", [1, 3])
def test_the_certificate_covers_what_a_run_reveals(mode, passes):
    """While θ stays put, updates of neighbours differ by one record's part: their energy is at most (μ·s)².

    Batches are the same, and so are all other records' gradients.
    """
    settings = {"algorithm": "dice", "clip": 0.3, "error_clip": 0.3, "residual_cap": 0.5, "poisson_sampling": False}
    runs = []
    for data in neighbours():
        training = Training(mode, data, lr=0.0, **settings)
        runs.append([(training.step(batch), training.update())[1] for _ in range(passes) for batch in training.loader])
    energy = sum(float((one - other).square().sum()) for one, other in zip(*runs, strict=True))
    stated = Training(mode, lr=0.0, **settings, noise_multiplier=2.0)
    deviation = 2.0 * 0.3 / 5
    mu = stated.engine.statement(steps=8 * passes).mended.gaussian_mu
    assert 0.2 * mu < math.sqrt(energy) / deviation <= mu * (1 + 1e-9)


def test_statements_are_those_of_the_rule():
    settings = {"algorithm": "dice", "clip": 0.5, "error_clip": 0.6, "residual_cap": 0.7, "noise_multiplier": 3.0}
    training = Training("ghost", **settings).run(2)
    rule = cs.DiceSGD(cs.schedules.Constant(1.0), 0.5, 0.6, 3.0 * 0.5 / 5, 0.7, batch=5, sampling="poisson")
    expected = cs.account(rule, 40, 16, 1e-5)
    stated = training.engine.statement()
    assert training.engine.steps == stated.steps == 16
    assert stated.nominal == expected.certified
    assert stated.certified == training.engine.get_epsilon(1e-5) == math.inf  # its noise and its loader are seeded
    assert stated.claimed == expected.claimed
    assert stated.mended.claim_holds == expected.claim_holds
    assert stated.claim_holds is False
    assert stated.rule == "DiceSGD with SGD"
    assert training.engine.statement(1e-3).nominal == cs.account(rule, 40, 16, 1e-3).certified < stated.nominal
    assert training.engine.statement(delta=1e-3, steps=5).steps == 5


def test_statements_say_whether_the_noise_had_a_seed(tmp_path):
    seeded, fresh = Training(noise_multiplier=1.0).run(1), Training(noise_multiplier=1.0, noise_generator=None)
    assert SEEDED in seeded.engine.statement().faults
    assert "eeded" not in str(fresh.engine.statement(steps=1))
    assert "which records were drawn, which must stay secret" in str(
        fresh.engine.statement(steps=1)
    )  # its loader has a generator
    path = {"path": tmp_path / "c"}
    seeded.engine.save_checkpoint(**path, module=seeded.private, optimizer=seeded.optimizer)
    fresh.engine.load_checkpoint(**path, module=fresh.private, optimizer=fresh.optimizer)
    assert SEEDED in fresh.engine.statement().faults  # its noise goes on from the seed


def test_a_checkpoint_keeps_that_the_batches_had_a_generator(tmp_path):
    given, resumed = Training(noise_multiplier=1.0).run(1), Training(noise_multiplier=1.0, generator=None)
    assert "which records were drawn" not in str(resumed.engine.statement(steps=1))
    alone = Training(noise_multiplier=1.0, noise_generator=None).engine.statement(steps=1)
    assert len(alone.faults) == 1
    assert "which records were drawn" in alone.reasons[0]
    assert (alone.certified, math.isfinite(alone.nominal)) == (math.inf, True)
    fresh = Training(noise_multiplier=1.0, noise_generator=None, generator=None).engine.statement(steps=1)
    assert fresh.certified == alone.nominal
    given.engine.save_checkpoint(path=tmp_path / "c", module=given.private, optimizer=given.optimizer)
    resumed.engine.load_checkpoint(path=tmp_path / "c", module=resumed.private, optimizer=resumed.optimizer)
    assert "which records were drawn" in str(resumed.engine.statement())


def test_nothing_is_spent_before_the_first_step():
    training = Training(noise_multiplier=1.0)
    assert training.engine.get_epsilon(1e-5) == 0
    with pytest.raises(ValueError, match="steps must be given before any step"):
        training.engine.statement()


def test_a_single_pass_is_one_pass():
    training = Training(poisson_sampling=False, algorithm="dpsgd", noise_multiplier=2.0).run(1)
    rule = cs.DPSGD(cs.schedules.Constant(1.0), 1.0, 2.0 / 5, 5, "single-pass")
    assert training.engine.statement().nominal == cs.account(rule, 40, 8, 1e-5).certified


def test_unfinished_passes_count_as_participations():
    training = Training(poisson_sampling=False, algorithm="dpsgd", noise_multiplier=2.0)
    for _ in range(3):
        training.step(next(iter(training.loader)))
    rule = cs.DPSGD(cs.schedules.Constant(1.0), 1.0, 2.0 / 5, 5, "epochs")
    assert training.engine.steps == 3
    assert training.engine.statement().nominal == cs.account(rule, 40, 3 * 8, 1e-5).certified


def test_looking_at_a_batch_is_not_a_pass(tmp_path):
    """A pass counts from its first step on, also in a training that is resumed from before that step."""
    settings = {"poisson_sampling": False, "algorithm": "dpsgd", "noise_multiplier": 2.0}
    plain, looked, resumed = (Training(**settings) for _ in range(3))
    next(iter(looked.loader))
    batches = iter(looked.loader)
    first = next(batches)
    looked.engine.save_checkpoint(path=tmp_path / "c", module=looked.private, optimizer=looked.optimizer)
    resumed.engine.load_checkpoint(path=tmp_path / "c", module=resumed.private, optimizer=resumed.optimizer)
    looked.run(1, itertools.chain([first], batches))
    resumed.run(1)
    assert torch.equal(resumed.theta(), looked.theta())
    stated = plain.run(1).engine.statement().nominal
    assert looked.engine.statement().nominal == resumed.engine.statement().nominal == stated


def test_with_workers_a_pass_counts_from_its_first_batch():
    """A step may be made of a batch of the previous pass, which was fetched ahead."""
    training = Training(poisson_sampling=False, algorithm="dpsgd", noise_multiplier=2.0, workers=1)
    for batch in [next(iter(training.loader)) for _ in range(2)]:
        training.step(batch)
    rule = cs.DPSGD(cs.schedules.Constant(1.0), 1.0, 2.0 / 5, 5, "epochs")
    assert training.engine.statement().nominal == cs.account(rule, 40, 2 * 8, 1e-5).certified


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
@pytest.mark.parametrize("how", ["certified", "paper"])
def test_noise_for_a_target(adjacency, how):
    model, engine = network(), PrivacyEngine(adjacency=adjacency)
    loader = torch.utils.data.DataLoader(records(), batch_size=5)
    _, optimizer, _ = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=loader,
        algorithm="dice",
        residual_cap=1.2,
        target_epsilon=5.0,
        target_delta=1e-4,
        epochs=3,
        how=how,
    )
    stated = engine.statement(steps=3 * len(loader))
    assert stated.delta == 1e-4
    assert stated.adjacency == adjacency
    if how == "certified":
        assert 0.98 * 5 <= stated.certified <= 5
    else:
        assert stated.claimed == pytest.approx(5)
    assert optimizer.noise_multiplier == pytest.approx(engine._training.rule.noise.std * 5)


@pytest.mark.parametrize("name", ["rdp", "prv"])
def test_the_accountants_of_opacus_agree(name):
    """For the same multiplier, rate and steps; Rényi accounting is looser, the other as tight."""
    accountant = create_accountant(name)
    accountant.history = [(1.1, 0.01, 500)]
    rule = cs.DPSGD(cs.schedules.Constant(1.0), clip=1.0, noise_std=1.1 / 250, batch=250, rate=0.01)
    ours = cs.account(rule, 25_000, 500, 1e-5, "add-remove").certified
    assert ours <= 1.01 * accountant.get_epsilon(delta=1e-5) <= (1.6 if name == "rdp" else 1.03) * ours


def test_no_noise_certifies_nothing():
    assert Training().run(1).engine.get_epsilon(1e-5) == math.inf


def test_ghost_clipping_leaves_no_unclipped_gradients():
    training = Training("ghost", noise_multiplier=1.0)
    training.loss(training.loader.dataset[:]).backward()
    assert all(p.grad is None for p in training.model.parameters())


def test_updates_do_not_depend_on_what_was_left_behind():
    """Without zero_grad, no gradient is used twice."""
    plain, lazy = Training("hooks"), Training("hooks")
    plain.run(2)
    for _ in range(2):
        for batch in lazy.loader:
            lazy.loss(batch).backward()
            lazy.optimizer.step()
    torch.testing.assert_close(flat(lazy.model.parameters()), plain.theta(), rtol=0, atol=0)
