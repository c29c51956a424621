"""Misuse that would silently break the guarantee is refused with an error."""

import copy
import math
import pickle
import re
from contextlib import suppress

import pytest
import torch
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SubsetRandomSampler, TensorDataset

from clipsilon import PrivacyWarning
from clipsilon.torch import PrivacyEngine
from clipsilon.torch.processes import Processes
from private_training import Training, flat, network, records

MODES = ("hooks", "ghost")
KINDS = [{"algorithm": "dpsgd"}, {"algorithm": "dice"}, {"algorithm": "dice", "residual_cap": 1.5}]


def private(model, mode, **settings):
    parts = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(records(), batch_size=5),
        noise_multiplier=0.0,
        criterion=nn.BCEWithLogitsLoss(),
        grad_sample_mode=mode,
        **settings,
    )
    return parts[0], parts[1], (parts[2] if mode == "ghost" else nn.BCEWithLogitsLoss())


@pytest.mark.parametrize("mode", MODES)
def test_a_parameter_unfrozen_later_gets_no_raw_gradient(mode):
    model = network()
    model[0].requires_grad_(False)
    wrapped, optimizer, criterion = private(model, mode)
    x, y = records()[:]
    before = flat(model[0].parameters())
    model[0].requires_grad_(True)
    with pytest.raises(RuntimeError, match="parameters to train must stay"):
        criterion(wrapped(x), y).backward() or optimizer.step()
    assert torch.equal(flat(model[0].parameters()), before)


@pytest.mark.parametrize("mode", MODES)
def test_a_parameter_unfrozen_for_a_while_gets_no_raw_gradient(mode):
    model = network()
    model[0].requires_grad_(False)
    before = flat(model[0].parameters())
    wrapped, optimizer, criterion = private(model, mode)
    x, y = records()[:]
    model[0].requires_grad_(True)
    nn.functional.mse_loss(model(x), y).backward()
    assert model[0].weight.grad.any()
    model[0].requires_grad_(False)
    optimizer.zero_grad()
    criterion(wrapped(x), y).backward()
    optimizer.step()
    assert torch.equal(flat(model[0].parameters()), before)


@pytest.mark.parametrize("batches", [0, 1])
def test_a_layer_unfrozen_later_that_is_not_trained_is_refused(batches):
    """Ghost mode ends its pass at the first layers that it measures, whichever batch it is."""
    model = network()
    model[0].requires_grad_(False)
    training = Training("ghost", model=model, algorithm="dpsgd")
    for _ in range(batches):
        training.step(records()[:])
    model[0].requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"2.weight: no gradient per record was found"):
        training.step(records()[:])


@pytest.mark.parametrize("mode", MODES)
def test_a_parameter_added_later_gets_no_raw_gradient(mode):
    training = Training(mode)
    added = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    training.optimizer.add_param_group({"params": [added]})
    x, y = records()[:]
    with pytest.raises(RuntimeError, match="parameters to train must stay"):
        training.criterion(training.private(x) + added, y).backward() or training.optimizer.step()
    assert added == 0


def test_a_gradient_left_from_before_moves_nothing():
    model = network()
    nn.BCEWithLogitsLoss()(model(records()[:][0]), records()[:][1]).backward()
    model[0].requires_grad_(False)
    before = flat(model[0].parameters())
    wrapped, optimizer, criterion = private(model, "hooks")
    criterion(wrapped(records()[:][0]), records()[:][1]).backward()
    optimizer.step()
    assert torch.equal(flat(model[0].parameters()), before)


def test_steps_are_counted_whatever_hook_is_attached():
    training, seen = Training(noise_multiplier=1.0), []
    training.optimizer.attach_step_hook(seen.append)
    assert training.run(1).engine.steps == len(seen) == 8


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_record_without_a_finite_gradient_is_not_released(mode, value):
    training = Training(mode, noise_multiplier=1.0)
    x, y = (column.clone() for column in records()[:])
    x[3] = value
    with pytest.raises(RuntimeError, match="gradient is not finite"):
        training.step((x, y))
    assert training.engine.steps == 0
    assert training.theta().isfinite().all()
    assert training.error().isfinite().all()


def test_leaving_out_a_record_without_a_finite_gradient_certifies_nothing():
    """That no step was made of its batch reveals the record, as a step that stopped would."""
    training = Training(noise_multiplier=1.0, algorithm="dpsgd", noise_generator=None, generator=None).run(1)
    assert training.engine.statement().certified < math.inf
    x, y = (column.clone() for column in records()[:5])
    x[3] = torch.inf
    training.loss((x, y)).backward()
    training.optimizer.zero_grad()
    assert training.engine.statement().certified == math.inf


def test_scaled_gradients_are_refused():
    """A scaler leaves out batches in which a scaled gradient overflows."""
    training = Training(noise_multiplier=1.0, algorithm="dpsgd")
    scaler = torch.amp.GradScaler("cpu")

    def step():
        scaler.scale(training.loss(next(iter(training.loader)))).backward()
        scaler.step(training.optimizer)

    with pytest.raises(RuntimeError, match="GradScaler must not be used"):
        step()
    training.optimizer.zero_grad()
    scaler = torch.amp.GradScaler(enabled=False)
    step()
    assert training.engine.steps == 1


class Difference(nn.Module):
    """Scores the difference of a record's two rows: a sum in which large terms cancel."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1, bias=False)
        nn.init.zeros_(self.layer.weight)

    def forward(self, x):
        score = self.layer(x)
        return (score[..., 0, :] - score[..., 1, :]).flatten()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_hides_no_gradient_from_ghost_clipping(dtype):
    """Computed from products of rows, the squared norm is off by ε·(Σ‖x_t‖‖g_t‖)², which may be all of it."""
    generator = torch.Generator().manual_seed(0)
    far = torch.finfo(dtype).eps ** -0.5
    rows = 1000 * far * torch.randn(50, 1, 3, generator=generator, dtype=dtype)
    gaps = torch.logspace(0, 4, 50, dtype=dtype)[:, None, None] * torch.randn(
        50, 1, 3, generator=generator, dtype=dtype
    )
    data = TensorDataset(torch.cat([rows, rows + gaps], 1), torch.zeros(50, dtype=dtype))
    training = Training("ghost", data, Difference().to(dtype), batch=1, algorithm="dpsgd", lr=0.0)
    lengths = []
    for record in range(50):
        training.step([column[record : record + 1] for column in data[:]])
        lengths.append(float(training.update().norm()))
    assert 0 < max(lengths) <= 1 + 1e-5


@pytest.mark.parametrize("mode", MODES)
def test_automatic_clipping_of_gradients_too_short_to_measure(mode):
    """Squares of such numbers are lost to rounding, and thus the norm to divide by."""
    x, y = torch.full((40, 4), 1.0), torch.zeros(40)
    model = nn.Sequential(nn.Linear(4, 1, bias=False), nn.Flatten(0))
    nn.init.zeros_(model[0].weight)
    options = {"batch": 1, "algorithm": "dpsgd", "clipping": "automatic", "lr": 0.0}
    training = Training(mode, TensorDataset(x, y), model, **options)
    for length in torch.logspace(-40, -10, 61):
        training.step((x[:1] * length, y[:1]))
        assert float(training.update().norm()) <= 1 + 1e-5
    assert float(training.update().norm()) > 0.99


class Gate(nn.Module):
    """A layer that Opacus has no rule for, with a second input that Opacus ignores."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((4,), 0.001, dtype=torch.float64))

    def forward(self, x, scale=None):
        return x * self.weight if scale is None else x * self.weight * scale


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = Gate()

    def forward(self, x):
        return self.gate(x, torch.full_like(x, 1000.0)).sum(1)


def test_a_second_input_hides_no_gradient_from_ghost_clipping():
    x, y = records()[:]
    training = Training("ghost", model=Gated(), algorithm="dpsgd")
    with pytest.raises(ValueError, match="ghost mode needs layers of one input, got Gate"):
        training.step((x, y))


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_a_layer_whose_output_is_overwritten_is_measured(settings):
    ends = []
    for mode in MODES:
        layers = [nn.Linear(4, 3), nn.ReLU(inplace=True), nn.Linear(3, 1), nn.Flatten(0)]
        model = nn.Sequential(*layers).double()
        model.load_state_dict(network().state_dict())
        ends.append(Training(mode, model=model, clip=0.5, **settings).run(2).theta())
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)


def test_inputs_with_several_rows_per_record():
    """A layer's input may have several rows per record, in any number of dimensions."""
    x = torch.randn(12, 2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    data = (
        TensorDataset(x.flatten(1, 2), torch.arange(12).double() % 2),
        TensorDataset(x, torch.arange(12).double() % 2),
    )
    options = {"batch": 4, "clip": 0.1, "poisson_sampling": False}

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 1)
            for p in self.layer.parameters():
                nn.init.constant_(p, 0.5)

        def forward(self, x):
            return torch.tanh(self.layer(x)).flatten(1).sum(1)

    ends = [Training(mode, part, Sum().double(), **options).run(2).theta() for mode in MODES for part in data]
    for end in ends[1:]:
        torch.testing.assert_close(end - ends[0], torch.zeros_like(end), rtol=0, atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_a_model_in_evaluation_mode_is_refused(mode):
    training = Training(mode)
    training.private.eval()
    with pytest.raises(RuntimeError, match="training mode"):
        training.step(records()[:])


def interrupted(*args, **others):
    raise MemoryError


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("where", ["adding", "_add_noise"])
def test_an_interrupted_step_cannot_be_continued(mode, where, monkeypatch, tmp_path):
    """The sums or the error would otherwise hold a batch twice or in part."""
    training = Training(mode, residual_cap=1.5, noise_multiplier=1.0).run(1)
    adding = "add_to_error" if mode == "hooks" else "_add_clipped"
    with monkeypatch.context() as patch:
        patch.setattr(training.optimizer, adding if where == "adding" else where, interrupted)
        with pytest.raises(MemoryError):
            training.step(records()[:])
    with pytest.raises(RuntimeError, match="was interrupted"):
        training.step(records()[:])
    with pytest.raises(RuntimeError, match="was interrupted"):
        training.engine.save_checkpoint(path=tmp_path / "c", module=training.private, optimizer=training.optimizer)


def test_a_backward_pass_that_failed_before_any_sum_can_be_repeated(monkeypatch):
    plain, disturbed = Training("ghost"), Training("ghost")
    plain.step(records()[:])
    with monkeypatch.context() as patch:
        patch.setattr(disturbed.private, "first_pass", interrupted)
        with pytest.raises(MemoryError):
            disturbed.step(records()[:])
    disturbed.step(records()[:])
    assert torch.equal(disturbed.theta(), plain.theta())


class Twice(nn.Module):
    """A layer that is used twice, whose gradients Opacus sums during the backward pass."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = nn.Conv1d(4, 4, 1), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.layer(torch.tanh(self.layer(x.unsqueeze(2)))).flatten(1)).flatten()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", [0, 1, 2])
@pytest.mark.parametrize("late", [False, True])
def test_an_interrupted_backward_pass_leaves_nothing(mode, call, late, monkeypatch):
    """The next batch would otherwise be added to half of this one, and its norms would be too short."""
    plain, disturbed = (Training(mode, model=Twice().double(), algorithm="dpsgd") for _ in range(2))
    capture, captured = disturbed.private.capture_backprops_hook, []

    def interrupt(*args):
        captured.append(args)
        if late or len(captured) <= call:
            capture(*args)
        if len(captured) > call:
            raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(disturbed.private, "capture_backprops_hook", interrupt)
        with pytest.raises(MemoryError):
            disturbed.step(records()[:])
    for training in (plain, disturbed):
        training.step(records()[:5])
    assert torch.equal(disturbed.theta(), plain.theta())


def test_an_interrupted_pass_before_the_first_sums_leaves_nothing(monkeypatch):
    """The pass that is made for the check of layers would otherwise measure some gradients twice."""
    training, norms = Training("ghost", model=Twice().double(), algorithm="dpsgd"), []
    capture, checked, captured = training.private.capture_backprops_hook, training.optimizer.finite_norms, []

    def interrupt(*args):
        captured.append(args)
        if len(captured) == 3:  # between the two calls of a layer
            raise MemoryError
        capture(*args)

    loss = training.loss(records()[:])
    with monkeypatch.context() as patch:
        patch.setattr(training.private, "capture_backprops_hook", interrupt)
        with pytest.raises(MemoryError):
            loss.backward()
    monkeypatch.setattr(training.optimizer, "finite_norms", lambda found: norms.append(found[0]) or checked(found))
    loss.backward()
    assert len(norms) == 2
    assert torch.equal(*norms)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("settings", KINDS, ids=str)
@pytest.mark.parametrize("again", ["private", "model"])
def test_a_backward_pass_of_an_earlier_call_is_refused(mode, settings, again):
    """Its gradients would be multiplied by the inputs of the later call, and their norms be wrong."""
    model = nn.Sequential(nn.Linear(4, 1, bias=False), nn.Flatten(0)).double()
    nn.init.zeros_(model[0].weight)
    training = Training(mode, model=model, batch=1, lr=0.0, **settings)
    x, y = records()[:]
    training.step((1e-3 * x[:5], y[:5]))  # the first batch is checked more closely than later ones
    before = training.error() if training.optimizer.error else None
    scores = training.private(1e4 * x[:1])
    training.optimizer.zero_grad()

    def continue_with_another_call():
        getattr(training, again)(1e-3 * x[1:2])
        training.criterion(scores, 1 - y[:1]).backward()

    with pytest.raises(RuntimeError, match="called once, and only once|no gradient per record|Parameter tying"):
        continue_with_another_call()
    assert training.engine.steps == 1
    assert before is None or torch.equal(training.error(), before)


class Rows(nn.Module):
    """A model that makes two rows of each record."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, x):
        return self.layer(x.reshape(-1, 2)).flatten()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("pieces", [None, 3])
def test_a_record_of_several_rows_is_refused(mode, workers, pieces):
    """Each row would be clipped alone, so that one record could move the sum by several clips."""
    x, y = records()[:]
    data = TensorDataset(x, y[:, None].expand(-1, 2))
    training = Training(mode, data, Rows().double(), workers=workers, poisson_sampling=False, noise_multiplier=1.0)
    options = {"max_physical_batch_size": pieces, "optimizer": training.optimizer}
    loader = BatchMemoryManager(data_loader=training.loader, **options).__enter__() if pieces else training.loader
    before = training.theta()
    with pytest.raises(
        RuntimeError, match="one row per record of one batch, .* got 10 rows where 5 records were drawn"
    ):
        training.run(1, ((x, y.flatten()) for x, y in loader))
    assert training.engine.steps == 0
    assert torch.equal(training.theta(), before)


@pytest.mark.parametrize("workers", [0, 1])
def test_two_batches_in_one_step_are_refused(workers):
    training = Training(workers=workers, poisson_sampling=False)
    batches = iter(training.loader)
    with pytest.raises(RuntimeError, match="got 10 rows where 5 records were drawn"):
        training.step([torch.cat(both) for both in zip(next(batches), next(batches), strict=True)])


@pytest.mark.parametrize("mode", MODES)
def test_workers_deliver_batches_of_all_sizes(mode):
    """Batches that were fetched ahead, including empty ones, are compared with the steps in order."""
    training = Training(mode, batch=1, workers=1, noise_multiplier=1.0)
    sizes = [len(batch[0]) for batch in Training(mode, batch=1).loader]
    assert min(sizes) == 0
    assert training.run(1).engine.steps == len(sizes) == 40
    assert training.engine.statement().notes == ()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("left_out", [{0}, {1}, {0, 1}])
def test_leaving_out_pieces_does_not_mix_batches(mode, left_out):
    training = Training(mode, batch=8, poisson_sampling=False)
    options = {"data_loader": training.loader, "max_physical_batch_size": 4, "optimizer": training.optimizer}
    with BatchMemoryManager(**options) as loader:
        kept = (batch for number, batch in enumerate(loader) if number not in left_out)
        with pytest.raises(RuntimeError, match="every piece of a batch"):
            training.run(1, kept)
    assert training.engine.steps == 0


@pytest.mark.parametrize("poisson", [True, False])
def test_leaving_out_a_batch_repeats_no_other(poisson, tmp_path):
    training = Training(poisson_sampling=poisson)
    whole = [batch[0] for batch in Training(poisson_sampling=poisson).loader]
    for number, batch in enumerate(training.loader):
        if number == 3:
            break
        if number != 1:
            training.step(batch)
    parts = {"path": tmp_path / "c", "module": training.private, "optimizer": training.optimizer}
    training.engine.save_checkpoint(**parts)
    resumed = Training(poisson_sampling=poisson)
    parts |= {"module": resumed.private, "optimizer": resumed.optimizer}
    for _ in range(2):  # twice: a position that was just loaded can be saved
        resumed.engine.load_checkpoint(**parts)
        resumed.engine.save_checkpoint(**parts)
    assert torch.equal(torch.cat([batch[0] for batch in resumed.loader]), torch.cat(whole[3:]))
    assert resumed.engine._training.state.passes == 1


@pytest.mark.parametrize("poisson", [True, False])
def test_a_pass_does_not_go_on_after_a_checkpoint_was_loaded(poisson, tmp_path):
    """Its batches would be drawn again, and be certified as independent ones."""
    training, whole = Training(poisson_sampling=poisson), Training(poisson_sampling=poisson)
    parts = {"path": tmp_path / "c", "module": training.private, "optimizer": training.optimizer}
    batches = iter(training.loader)
    for number in range(5):
        training.step(next(batches))
        if number == 1:
            training.engine.save_checkpoint(**parts)
    training.engine.load_checkpoint(**parts)
    with pytest.raises(RuntimeError, match="a checkpoint was loaded: iterate the loader anew"):
        next(batches)
    assert torch.equal(training.run(1).theta(), whole.run(1).theta())
    assert training.engine.steps == 8


def test_a_pass_does_not_go_on_after_another_was_begun():
    """A checkpoint holds one position only: it would resume with batches that were taken."""
    training = Training()
    first, second = iter(training.loader), iter(training.loader)
    next(first), next(second)
    with pytest.raises(RuntimeError, match="after another one was begun"):
        next(first)
    assert len(list(second)) == 7


def test_batches_that_workers_fetched_before_a_checkpoint_was_loaded_certify_nothing(tmp_path):
    """Where all of a pass was fetched ahead, the sampler can no longer refuse it."""
    training = Training(noise_multiplier=1.0, workers=1)
    parts = {"path": tmp_path / "c", "module": training.private, "optimizer": training.optimizer}
    batches = iter(training.loader)
    training.step(next(batches))
    training.engine.save_checkpoint(**parts)
    for _ in range(6):
        training.step(next(batches))
    assert training.engine._training.state.current.drawn == 8
    assert not training.engine._training.state.is_foreign
    training.engine.load_checkpoint(**parts)
    training.step(next(batches))
    with pytest.warns(PrivacyWarning, match="did not draw"):
        assert training.engine.statement().certified == float("inf")


def test_workers_fetch_ahead_of_steps(tmp_path):
    """The number of batches fetched is then not the number used, so the steps are counted."""
    model, loader = network(), DataLoader(records(), batch_size=5, num_workers=1, prefetch_factor=3)
    engine, sgd = PrivacyEngine(), torch.optim.SGD(model.parameters(), lr=0.1)
    _, _, ahead = engine.make_private(module=model, optimizer=sgd, data_loader=loader, noise_multiplier=1.0)
    batches = iter(ahead)
    next(batches)
    state = engine._training.state
    assert state.current.drawn > 1
    with state.adding(0):
        pass
    state.end_piece()
    state.count_step()
    assert state.current.taken == 1
    batches._shutdown_workers()


def test_the_first_process_writes_the_checkpoint(tmp_path):
    """The others never draw noise: resumed from their file, the first one would repeat its noise."""
    training = Training(noise_multiplier=1.0).run(1)
    parts = {"module": training.private, "optimizer": training.optimizer}
    training.optimizer.processes = Processes(1, 2)
    training.engine.save_checkpoint(path=tmp_path / "c", **parts)
    assert not (tmp_path / "c").exists()


def pickled(thing):
    return pickle.loads(pickle.dumps(thing))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_a_copied_model_is_a_plain_one_and_does_not_disturb_the_training(mode, copied):
    plain, training = Training(mode, residual_cap=1.5).run(1), Training(mode, residual_cap=1.5).run(1)
    x, y = records()[:]
    for model in (training.model, training.private):
        twin = copied(model)
        nn.functional.mse_loss(twin(x), y).backward()
        assert torch.equal(twin(x), model(x))
        assert all(p.grad.any() and getattr(p, "grad_sample", None) is None for p in twin.parameters())
    assert torch.equal(training.run(1).theta(), plain.run(1).theta())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_a_training_is_not_copied(mode, copied):
    """Two trainings would share their noise, and torch's optimiser class would be left broken."""
    training = Training(mode)
    named = {"Optimizer": training.optimizer, "A private training": training.engine}
    for name, thing in named.items():
        with pytest.raises(TypeError, match=rf"{name} cannot be copied or pickled: use optimizer.state_dict\(\)"):
            copied(thing)
    assert training.run(1).engine.steps == 8


def test_a_custom_sampler_is_not_silently_replaced():
    model = network()
    options = {"module": model, "optimizer": torch.optim.SGD(model.parameters()), "noise_multiplier": 1.0}
    sampler = SubsetRandomSampler(range(20))
    for how in ({"batch_size": 5, "sampler": sampler}, {"batch_sampler": BatchSampler(sampler, 5, drop_last=False)}):
        some = DataLoader(records(), **how)
        with pytest.raises(ValueError, match="must draw all records with equal probability, .* SubsetRandomSampler"):
            PrivacyEngine().make_private(data_loader=some, **options)


class OneOfTwo(Processes):
    """The first of two processes, of which the other one has as many faults."""

    faults = 0

    def all_reduce(self, total, device):
        if not total.dim():
            total += self.faults


@pytest.mark.parametrize("faults", [0, 1])
def test_a_fault_of_one_process_is_one_of_all(faults, monkeypatch):
    training = Training(algorithm="dpsgd", noise_multiplier=1.0, noise_generator=None, generator=None)
    monkeypatch.setattr(OneOfTwo, "faults", faults)
    monkeypatch.setattr(OneOfTwo, "first_of", lambda self, result, device: result)
    training.optimizer.processes = OneOfTwo(0, 2)
    stated = training.run(1).engine.statement()
    assert (stated.certified == math.inf) is bool(faults)
    assert any("one of the processes has a fault" in fault for fault in stated.faults) is bool(faults)


def test_a_criterion_of_one_number_is_refused():
    training = Training("ghost", criterion=nn.functional.binary_cross_entropy_with_logits)
    with pytest.raises(ValueError, match="criterion must give one loss per record"):
        training.run(1)


def test_statements_mention_coarse_parameters():
    x, y = records()[:]
    model = nn.Sequential(nn.Linear(4, 1, dtype=torch.bfloat16), nn.Flatten(0))
    coarse = Training("ghost", TensorDataset(x.bfloat16(), y.bfloat16()), model, noise_multiplier=1.0)
    for training, mentioned in ((coarse, True), (Training(noise_multiplier=1.0), False)):
        reasons = training.engine.statement(steps=1).reasons
        assert any("fewer than 32 bits" in reason for reason in reasons) is mentioned


@pytest.mark.parametrize("mode", MODES)
def test_accumulated_gradients_are_refused_with_code_that_runs(mode):
    """Several Poisson batches are no Poisson batch: a record may be in more than one of them."""
    training = Training(mode, noise_multiplier=1.0)

    def accumulate():
        for number, batch in enumerate(training.loader):
            training.loss(batch).backward()
            if number % 2:
                training.optimizer.step()
                training.optimizer.zero_grad()

    with pytest.raises(RuntimeError, match=r"optimizer.step\(\) must follow every backward pass") as refusal:
        accumulate()
    assert training.engine.steps == 0
    instead, k, b = Training(mode, batch=2 * 5, noise_multiplier=1.0), 2, 5
    assert instead.loader.batch_sampler.sampling.batch == k * b
    first, second = re.findall("`(.*?)`", str(refusal.value))
    names = {"loader": instead.loader, "optimizer": instead.optimizer, "b": b, "step": instead.step}
    exec(f"{first}\n{second}\n    for batch in loader:\n        step(batch)", names)
    whole = Training(mode, batch=2 * 5, noise_multiplier=1.0).run(1)
    assert instead.engine.steps == whole.engine.steps == 4
    torch.testing.assert_close(instead.theta(), whole.theta(), rtol=0, atol=1e-9)


def test_a_closure_cannot_step_with_plain_gradients():
    training = Training(algorithm="dpsgd", noise_multiplier=1.0)
    before = training.theta()

    def closure():
        training.loss(batch).backward()
        training.optimizer.original_optimizer.step()

    batch = next(iter(training.loader))
    with pytest.raises(RuntimeError, match="must not step by itself"):
        training.optimizer.step(closure)
    assert torch.equal(training.theta(), before)


class Halves(nn.Module):
    """A model of two layers, of which each call uses one."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(4, 1, bias=False).double(), nn.Linear(4, 1, bias=False).double()

    def forward(self, x, name):
        return getattr(self, name)(x).flatten()


@pytest.mark.parametrize("mode", MODES)
def test_gradients_of_two_calls_in_one_step_are_refused(mode):
    """Row i of both calls may be of two records: clipped by their joint norm, one would change what the other adds."""
    training = Training(mode, model=Halves(), algorithm="dpsgd")
    x, y = next(iter(training.loader))

    def accumulate():
        training.criterion(training.private(x, "one"), y).backward()
        training.criterion(training.private(x.flip(0), "other"), y.flip(0)).backward()
        training.optimizer.step()

    with pytest.raises(RuntimeError, match="must follow every backward pass|no gradient per record"):
        accumulate()
    assert training.engine.steps == 0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("register", [torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook])
def test_hooks_that_take_gradients_are_refused(mode, register):
    """Some optimisers step during the backward pass, with gradients that have neither clip nor noise."""
    model = network()
    register(model[0].weight, lambda _: None)
    with pytest.raises(ValueError, match="must have no hooks .* got one on 0.weight"):
        Training(mode, model=model)
    training = Training(mode)
    training.run(1)
    register(training.model[2].bias, lambda _: None).remove()
    training.run(1)
    register(training.model[2].bias, lambda _: None)
    with pytest.raises(ValueError, match="must have no hooks .* got one on 2.bias"):
        training.run(1)


@pytest.mark.parametrize("mode", MODES)
def test_a_call_past_the_model_in_the_same_step_certifies_nothing(mode):
    """Its rows may be those of other records: one record then has a part in two rows, each of which is clipped."""
    training = Training(mode, algorithm="dpsgd", noise_multiplier=1.0, noise_generator=None, generator=None)
    for x, y in training.loader:
        training.optimizer.zero_grad()
        loss = training.criterion(training.private(x), y)
        if len(x) > 1:
            loss = loss + training.criterion(training.model(x.roll(1, 0)), y.roll(1, 0))
        loss.backward()
        training.optimizer.step()
    stated = training.engine.statement(1e-3)
    assert stated.certified == math.inf > stated.nominal
    assert "call the model that make_private returned" in stated.reasons[0]


def test_gradients_dropped_by_the_model_are_dropped():
    """`zero_grad` of the model, as of the optimiser, lets another batch follow."""
    training, other = (Training(algorithm="dpsgd") for _ in range(2))
    first, second = (records()[k : k + 5] for k in (0, 5))
    training.loss(first).backward()
    training.private.zero_grad()
    training.loss(second).backward()
    training.optimizer.step()
    other.step(second)
    assert torch.equal(training.update(), other.update())


@pytest.mark.parametrize("part", ["optimizer", "private"])
def test_what_ghost_clipping_has_added_to_the_sums_cannot_be_dropped(part):
    training = Training("ghost", algorithm="dpsgd")
    training.loss(records()[:5]).backward()
    with pytest.raises(RuntimeError, match=r"optimizer.step\(\) must come before optimizer.zero_grad\(\)"):
        getattr(training, part).zero_grad()


@pytest.mark.parametrize("part", ["optimizer", "private"])
@pytest.mark.parametrize("mode", MODES)
def test_dropping_a_gradient_that_is_not_finite_certifies_nothing(mode, part):
    """That the batch is left out reveals the record."""
    training = Training(mode, algorithm="dpsgd", noise_multiplier=1.0, noise_generator=None, generator=None)
    training.step(next(iter(training.loader)))
    assert training.engine.statement().certified < math.inf
    x, y = (column.clone() for column in records()[:5])
    x[3] = math.inf
    with suppress(RuntimeError):
        training.loss((x, y)).backward()
    getattr(training, part).zero_grad()
    assert training.engine.statement().certified == math.inf
