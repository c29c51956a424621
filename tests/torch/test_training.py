"""Private training loops: pieces, processes, checkpoints, schedulers, frozen and mixed parameters."""

import numpy as np
import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import TensorDataset

import private_training as pt
from clipsilon.torch.batch_state import BatchState
from clipsilon.torch.generators import RandomStream, make_generator
from clipsilon.torch.processes import Processes
from clipsilon.torch.sampling import CollateWithEmpty, PrivateBatchSampler
from private_training import Training

MODES = ("hooks", "ghost")
DICE = {"algorithm": "dice", "clip": 0.5, "residual_cap": 0.8}
EXACT = {"rtol": 0, "atol": 0}
# Sums are exact in hooks mode. In ghost mode PyTorch rounds them, and then the grid, which is above 1e-11 here.
CLOSE = {"hooks": EXACT, "ghost": {"rtol": 0, "atol": 1e-9}}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("settings", [DICE, {"algorithm": "dice"}, {"algorithm": "dpsgd"}], ids=str)
def test_pieces_of_a_batch_are_the_batch(mode, settings):
    whole = Training(mode, noise_multiplier=0.2, **settings).run(3)
    pieces = Training(mode, noise_multiplier=0.2, **settings)
    with BatchMemoryManager(data_loader=pieces.loader, max_physical_batch_size=2, optimizer=pieces.optimizer) as loader:
        seen = []
        for _ in range(3):
            for batch in loader:
                seen.append(len(batch[0]))
                pieces.step(batch)
    assert 0 < max(seen) <= 2
    assert len(seen) > whole.engine.steps
    assert pieces.engine.steps == whole.engine.steps
    torch.testing.assert_close(pieces.theta(), whole.theta(), **CLOSE[mode])
    if settings["algorithm"] == "dice":
        torch.testing.assert_close(pieces.error(), whole.error(), **CLOSE[mode])


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_in_pieces_cannot_be_left(mode):
    """Pieces of two batches would otherwise make one update, in which a record might count twice."""
    training = Training(mode)
    options = {"data_loader": training.loader, "max_physical_batch_size": 1, "optimizer": training.optimizer}
    with BatchMemoryManager(**options) as loader:
        batches = iter(loader)
        while training.engine.steps < 1:
            training.step(next(batches))
        next(batches)  # fetched, and left out
        training.run(1, loader)
        assert training.engine.steps == 9
        for batch in loader:
            training.step(batch)
            if training.optimizer._is_last_step_skipped:
                break
        with pytest.raises(RuntimeError, match="A pass was left within a batch"):
            training.run(1, loader)


def test_processes_are_one_process(tmp_path):
    torch.multiprocessing.spawn(pt.run_process, (2, str(tmp_path)), nprocs=2)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    for (mode, _, settings), one, other in zip(pt.SETTINGS, first, second, strict=True):
        alone = pt.train(mode, None, settings)
        assert alone["steps"] == one["steps"] == 16
        for name in ("theta", "error", "clip"):
            torch.testing.assert_close(one[name], other[name], **EXACT)
            torch.testing.assert_close(one[name], alone[name], **CLOSE[mode])
    assert any(one["error"].abs().max() > 0.01 for one in first if one["error"].numel())


def scheduled(mode, poisson):
    settings = {**DICE, "clip": 0.1, "noise_multiplier": 0.4, "poisson_sampling": poisson}
    training = Training(mode, optimizer=torch.optim.Adam, **settings)
    return training, torch.optim.lr_scheduler.StepLR(training.optimizer, step_size=3, gamma=0.7)


def train(training, scheduler, steps):
    while steps:
        for batch in training.loader:
            training.step(batch)
            scheduler.step()
            steps -= 1
            if not steps:
                return


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("poisson", [True, False])
@pytest.mark.parametrize("before", [5, 8, 11])  # within a pass of 8, at its end, within the next
def test_a_resumed_training_is_the_uninterrupted_one(mode, poisson, before, tmp_path):
    whole, scheduler = scheduled(mode, poisson)
    train(whole, scheduler, 20)
    begun, scheduler = scheduled(mode, poisson)
    train(begun, scheduler, before)
    parts = {"path": tmp_path / "c", "module": begun.private, "optimizer": begun.optimizer}
    begun.engine.save_checkpoint(**parts, checkpoint_dict={"scheduler": scheduler.state_dict()})
    resumed, scheduler = scheduled(mode, poisson)
    with torch.no_grad():
        resumed.model[0].weight.zero_()
    parts |= {"module": resumed.private, "optimizer": resumed.optimizer}
    scheduler.load_state_dict(resumed.engine.load_checkpoint(**parts)["scheduler"])
    train(resumed, scheduler, 20 - before)
    torch.testing.assert_close(resumed.theta(), whole.theta(), **EXACT)
    torch.testing.assert_close(resumed.error(), whole.error(), **EXACT)
    assert whole.error().abs().max() > 0
    assert resumed.engine.steps == 20
    assert resumed.engine.get_epsilon(1e-5) == whole.engine.get_epsilon(1e-5)


def test_batches_fetched_ahead_are_not_taken():
    state = BatchState(fetches_ahead=True)
    batches = PrivateBatchSampler(Training().engine._training.rule.sampling, 40, RandomStream(0), state)
    drawn = iter(batches)
    fetched = [next(drawn) for _ in range(6)]
    state.current.taken = 2
    batches.load_state_dict(batches.state_dict(), steps=2)
    assert [next(rest) for rest in [iter(batches)] for _ in range(4)] == fetched[2:]
    assert state.passes == 1


@pytest.mark.parametrize("mode", MODES)
def test_a_scheduler_moves_the_private_step(mode):
    training = Training(mode, lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(training.optimizer, 0.5)
    for batch in training.loader:
        before = training.theta()
        rate = scheduler.get_last_lr()[0]
        training.step(batch)
        scheduler.step()
        torch.testing.assert_close(training.theta(), before - rate * training.update())
    assert rate == 0.5**7


@pytest.mark.parametrize("mode", MODES)
def test_frozen_parameters_stay(mode):
    model = pt.network()
    model[0].weight.requires_grad_(False)
    before = [p.detach().clone() for p in model.parameters()]
    training = Training(mode, model=model, noise_multiplier=1.0).run(1)
    moved = [not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)]
    assert moved == [False, True, True, True]
    assert len(training.optimizer.error) == 3


class MixedPrecision(nn.Module):
    def __init__(self):
        super().__init__()
        self.low, self.high = nn.Linear(4, 3), nn.Linear(3, 1).double()

    def forward(self, x):
        return self.high(torch.tanh(self.low(x.float())).double()).flatten()


@pytest.mark.parametrize("settings", [DICE, {"algorithm": "dice"}, {"algorithm": "dpsgd"}], ids=str)
def test_mixed_types(settings):
    ends = []
    for mode in MODES:
        torch.manual_seed(0)
        training = Training(mode, model=MixedPrecision(), noise_multiplier=0.1, **settings).run(3)
        assert [p.dtype for p in training.model.parameters()] == [torch.float32] * 2 + [torch.float64] * 2
        ends.append(training.theta())
    torch.testing.assert_close(*ends, rtol=0, atol=1e-5)


class RoundedByBatch(nn.Module):
    """A float32 product whose rounding depends on the batch, as it does on some processors, before float64."""

    def __init__(self):
        super().__init__()
        self.low, self.high = nn.Linear(4, 3), nn.Linear(3, 1).double()

    def forward(self, x):
        hidden = self.low(x.float())
        return self.high((hidden * (1 + 1e-7 * (len(x) == 1))).double()).flatten()


@pytest.mark.parametrize("mode", MODES)
def test_the_check_of_a_model_allows_for_the_rounding_of_its_coarsest_layer(mode):
    Training(mode, model=RoundedByBatch(), algorithm="dpsgd").run(1)


def test_half_precision_keeps_its_rounding_in_the_error():
    model = nn.Sequential(nn.Linear(4, 1, dtype=torch.bfloat16), nn.Flatten(0))
    x, y = pt.records()[:]
    training = Training("ghost", TensorDataset(x.bfloat16(), y.bfloat16()), model, clip=0.1).run(2)
    assert {e.dtype for e in training.optimizer.error} == {torch.float64}
    assert training.error().abs().max() > 0


@pytest.mark.parametrize("mode", MODES)
def test_an_empty_batch_releases_the_error_alone(mode):
    training = Training(mode, clip=0.1, error_clip=0.2)
    training.step(training.loader.dataset[:])
    error, theta = training.error(), training.theta()
    assert error.norm() > 0.2
    training.step(training.loader.collate_fn([]))
    recalled = 0.2 * error / error.norm()
    torch.testing.assert_close(training.update(), recalled)
    torch.testing.assert_close(training.error(), error - recalled)
    torch.testing.assert_close(training.theta(), theta - 0.1 * recalled)


class Normalised(nn.Module):
    """Normalises its features, which is not possible for a record of zeros."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4, bias=False), nn.Linear(4, 1)

    def forward(self, x):
        return self.last(nn.functional.normalize(self.first(x), eps=0.0)).flatten()


@pytest.mark.parametrize("mode", MODES)
def test_a_placeholder_record_has_a_gradient(mode):
    training = Training(mode, model=Normalised().double(), algorithm="dpsgd")
    training.step(training.loader.collate_fn([]))
    assert not training.update().any()


class ModelWithLoss(nn.Module):
    """A model that computes its loss, like those of `transformers`."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x, y):
        return {"loss": nn.functional.binary_cross_entropy_with_logits(self.layer(x).flatten(), y)}


def test_a_placeholder_record_adds_nothing_to_a_loss():
    training = Training("hooks", model=ModelWithLoss().double(), algorithm="dpsgd")
    for batch, empty in ((training.loader.dataset[:], False), (training.loader.collate_fn([]), True)):
        training.private(*batch)["loss"].backward()
        training.optimizer.step()
        assert bool(training.update().any()) is not empty


def test_empty_batches_keep_their_form():
    records = [{"x": torch.zeros(2), "pair": (torch.ones(3), 1)}]
    empty = CollateWithEmpty(torch.utils.data.default_collate, records, lambda batch: batch)([])
    assert empty["x"].shape == (0, 2)
    assert [item.shape for item in empty["pair"]] == [(0, 3), (0,)]
    with pytest.raises(TypeError, match="batches of tensors"):
        CollateWithEmpty(lambda batch: "text", records, lambda batch: batch)([])


def test_batches_of_a_pass():
    poisson, disjoint = (Training(poisson_sampling=kind).loader for kind in (True, False))
    drawn = [len(batch[0]) for batch in poisson]
    assert len(drawn) == 8
    assert len(set(drawn)) > 1
    rows = torch.cat([batch[0] for batch in disjoint])
    assert {tuple(row) for row in rows.tolist()} == {tuple(row) for row in pt.records()[:][0].tolist()}
    again = torch.cat([batch[0] for batch in disjoint])
    assert not torch.equal(rows, again)


def test_processes_share_a_batch():
    sampling = Training().engine._training.rule.sampling

    def batches(*processes):
        return PrivateBatchSampler(sampling, 40, RandomStream(5), BatchState(), *processes)

    both = [batches(Processes(rank, 2)) for rank in range(2)]
    alone = list(batches())
    for whole, first, second in zip(alone, *both, strict=True):
        assert sorted(first + second) == whole
        assert abs(len(first) - len(second)) <= 1


def test_fresh_generators_do_not_follow_the_global_seed():
    ends = []
    for _ in range(2):
        torch.manual_seed(0)
        training = Training(noise_multiplier=1.0, noise_generator=None)
        ends.append(training.run(1).theta())
    assert not torch.equal(*ends)


def test_fresh_generators_have_all_their_bits_from_the_operating_system(monkeypatch):
    """NumPy's Mersenne Twister, filled with the same words, draws the same numbers."""
    words = np.random.default_rng(0).integers(2**32, size=624, dtype=np.uint32)
    monkeypatch.setattr("os.urandom", lambda size: words.tobytes() if size == words.nbytes else bytes(size))
    twister = np.random.MT19937()
    twister.state = {"bit_generator": "MT19937", "state": {"key": words, "pos": 624}}
    drawn = torch.randint(2**62, (1000,), generator=make_generator("cpu")).numpy()
    pairs = twister.random_raw(2000).reshape(1000, 2).astype(np.int64)
    assert (drawn == (pairs[:, 0] % 2**30 << 32) + pairs[:, 1]).all()


def test_fresh_generators_differ():
    states = {bytes(make_generator("cpu").get_state()[24:].tolist()) for _ in range(3)}
    assert len(states) == 3


def test_losses_in_parts():
    """Weighted sums of losses are the loss of weighted sums; a penalty, which would evade the clip, is refused."""
    ends = []
    for combine in (lambda loss: loss, lambda loss: (3 * loss + loss) / 4):
        training = Training("ghost", lr=1.0, clip=0.3)
        for batch in training.loader:
            loss = combine(training.loss(batch))
            loss.backward()
            training.optimizer.step()
        ends.append(training.theta())
    torch.testing.assert_close(*ends)
    for add in (lambda loss: loss + 1.0, lambda loss: loss + torch.ones(()), lambda loss: torch.ones(()) + loss):
        with pytest.raises(TypeError, match="Only losses of the private criterion can be added .*, got (float|Tensor)"):
            add(training.loss(batch))
    scores = training.private(batch[0])
    shown = nn.BCEWithLogitsLoss()(scores, batch[1])
    assert training.criterion(scores, batch[1]).item() == pytest.approx(shown.item())


@pytest.mark.parametrize("mode", MODES)
def test_a_call_without_a_backward_pass_is_forgotten(mode):
    plain, looked_at = Training(mode), Training(mode)
    looked_at.private(torch.randn(3, 4, dtype=torch.float64))
    torch.testing.assert_close(looked_at.run(1).theta(), plain.run(1).theta(), **EXACT)
    scores = looked_at.private(torch.ones(2, 4, dtype=torch.float64))
    scores = scores + looked_at.private(torch.ones(2, 4, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="called once, and only once"):
        looked_at.criterion(scores, torch.ones(2, dtype=torch.float64)).backward()


def test_losses_with_several_terms():
    """Several terms per record are reduced to their mean or sum, as the criterion says."""
    x = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for reduction in ("mean", "sum"):
        model = nn.Linear(3, 2).double()
        options = {"batch": 6, "lr": 0.1, "clip": 1e3, "poisson_sampling": False, "algorithm": "dpsgd"}
        training = Training(
            "ghost", TensorDataset(x, x[:, :2]), model, criterion=nn.MSELoss(reduction=reduction), **options
        )
        expected = nn.MSELoss(reduction=reduction)(model(x), x[:, :2])
        expected = pt.flat(torch.autograd.grad(expected, list(model.parameters())))
        training.run(1)
        torch.testing.assert_close(training.update(), expected if reduction == "mean" else expected / 6)


def test_a_mean_over_the_batch_is_not_divided_by_terms():
    """KLDivLoss sums over a record's classes and averages over records, as in hooks mode."""
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(6, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    updates = []
    for mode in MODES:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.LogSoftmax(1)).double()
        options = {"batch": 6, "clip": 1e3, "poisson_sampling": False, "criterion": nn.KLDivLoss(reduction="batchmean")}
        updates.append(Training(mode, TensorDataset(x, y.softmax(1)), model, **options).run(1).update())
    torch.testing.assert_close(*updates)


def test_flattened_tokens():
    """Tokens of all records in one row, as in Opacus, with some to ignore."""
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(5, (4, 3), generator=generator)
    targets[0, 1:] = -100
    scores = nn.Embedding(6, 5)
    updates = []
    for flattened in (False, True):
        model = nn.Embedding(6, 5).double()
        model.load_state_dict(scores.state_dict())
        ids = torch.arange(12).view(4, 3) % 6
        training = Training("ghost", TensorDataset(ids, targets), model, 4, criterion=nn.CrossEntropyLoss(), clip=0.1)
        output = training.private(ids)
        if flattened:
            loss = training.criterion(output.flatten(0, 1), targets.flatten(), shape=output.shape)
        else:
            loss = training.criterion(output.mT, targets)
        loss.backward()
        training.optimizer.step()
        updates.append(training.update())
    torch.testing.assert_close(*updates)
