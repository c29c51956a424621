"""Fine-tuning of a part of a model: measured gradients are true, and frozen parts cost nothing."""

import itertools
import math

import pytest

torch = pytest.importorskip("torch")
for package in ("opacus", "peft", "transformers"):
    pytest.importorskip(package)

from peft import LoraConfig, get_peft_model  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402
from transformers import GPT2Config, GPT2LMHeadModel  # noqa: E402

from clipsilon.torch import PrivacyEngine  # noqa: E402
from clipsilon.torch.examples.adapters import PRIVATE, PUBLIC, add_lora, compare_parts, train_last_layer  # noqa: E402
from clipsilon.torch.examples.models import Shape, image_model  # noqa: E402
from clipsilon.torch.probe import Inputs  # noqa: E402
from clipsilon.torch.state_check import CheckError, unchanged  # noqa: E402

torch.set_num_threads(1)
LENGTH = 6


def gpt2(**settings):
    """A small GPT-2 with adapters whose second factor is not zero, so that both have gradients."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "n_positions": LENGTH, "n_embd": 8, "n_layer": 2, "n_head": 2}
    off = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    chosen = {"r": 2, "lora_alpha": 4, "target_modules": ["c_attn", "c_fc"], "fan_in_fan_out": True, **settings}
    model = get_peft_model(GPT2LMHeadModel(GPT2Config(**sizes, **off)), LoraConfig(**chosen)).double().train()
    for name, p in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(p, std=0.5)
    return model


def tokens(count=8):
    return torch.randint(20, (count, LENGTH), generator=torch.Generator().manual_seed(1))


def losses(model, rows):
    scores = model(input_ids=rows).logits[:, :-1]
    return nn.functional.cross_entropy(scores.mT, rows[:, 1:], reduction="none").mean(1)


def token_losses(scores, targets):
    return nn.functional.cross_entropy(scores.mT, targets, reduction="none").mean(1)


def trained(model):
    return [p for p in model.parameters() if p.requires_grad]


def made_private(model, rows, mode, **settings):
    engine = PrivacyEngine()
    parts = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(trained(model), lr=1.0),
        data_loader=DataLoader(TensorDataset(rows), batch_size=len(rows)),
        grad_sample_mode=mode,
        **{"criterion": token_losses, "noise_multiplier": 0.0, **settings},
    )
    return engine, *parts


def step(parts, rows, mode):
    private, optimizer = parts[1], parts[2]
    if mode == "ghost":
        parts[3](private(input_ids=rows).logits[:, :-1], rows[:, 1:]).backward()
    else:
        losses(private, rows).mean().backward()
    optimizer.step()


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("settings", [{}, {"use_rslora": True}, {"bias": "lora_only"}], ids=str)
def test_the_update_of_adapters_is_that_of_true_gradients(mode, settings):
    """The clip is shorter than each gradient, so that the update would be another with other lengths."""
    model, rows = gpt2(**settings), tokens()
    expected, clip = 0, 0.02
    for row in rows:
        found = torch.autograd.grad(losses(model, row[None]).sum(), trained(model))
        gradient = torch.cat([g.flatten() for g in found])
        assert gradient.norm() > clip
        expected = expected - gradient * clip / gradient.norm() / len(rows)
    before = torch.cat([p.detach().flatten() for p in trained(model)])
    step(made_private(model, rows, mode, clip=clip), rows, mode)
    after = torch.cat([p.detach().flatten() for p in trained(model)])
    assert torch.allclose(after - before, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_adapters_that_are_not_measured_are_refused(mode):
    """Magnitudes of DoRA, and adapters of embeddings, are parameters that no layer's call shows."""
    for settings in ({"use_dora": True}, {"target_modules": ["wte"], "fan_in_fan_out": False}):
        model, rows = gpt2(**settings), tokens()
        with pytest.raises((RuntimeError, CheckError, ValueError)):
            step(made_private(model, rows, mode), rows, mode)


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_frozen_layers_keep_nothing(mode):
    model, rows = gpt2(), tokens()
    engine, private, *_ = made_private(model, rows, mode)
    frozen = [layer for layer in model.modules() if not any(p.requires_grad for p in layer.parameters(recurse=False))]
    assert not [layer for layer in frozen if hasattr(layer, "activations") or layer._forward_hooks]
    step((engine, private, *_), rows, mode)
    held = [p for p in model.parameters() if not p.requires_grad]
    assert not [p for p in held if p.grad is not None or getattr(p, "grad_sample", None) is not None]


def test_a_check_copies_no_frozen_parameter(monkeypatch):
    model = nn.Sequential(nn.Linear(30, 30), nn.Linear(30, 2))
    model[0].requires_grad_(False)
    copied = []
    plain = torch.Tensor.clone
    monkeypatch.setattr(torch.Tensor, "clone", lambda t, **others: copied.append(t.shape) or plain(t, **others))
    with unchanged(model, by_content=True):
        pass
    assert sorted(copied) == [(2,), (2, 30)]


def peak_of(call):
    """Return the most bytes that tensors which a call makes take at a time."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        call()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(itertools.accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


def test_a_check_takes_little_memory_for_what_is_frozen():
    model = nn.Linear(2000, 1000).requires_grad_(False)

    def compare():
        with unchanged(model, by_content=True):
            pass

    assert peak_of(compare) < 2**21


def test_a_check_keeps_the_rows_of_one_record_at_a_time():
    """The gradients of one record's answer, with respect to all rows of a layer's output, take a megabyte."""
    model, x = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)), torch.randn(8, 8192, 2)
    private = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters()),
        data_loader=DataLoader(TensorDataset(x), batch_size=8),
        noise_multiplier=1.0,
    )[0]
    assert peak_of(lambda: private.guard._probe.check(Inputs.of((x,), {}), 8)) < 10 * 2**20


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
def test_a_check_keeps_the_rows_of_one_layer_at_a_time(mode):
    """The gradient of a record's answer with respect to one layer's output takes half a megabyte, and so do outputs."""
    layers = itertools.chain.from_iterable((nn.Linear(2, 2), nn.Tanh()) for _ in range(24))
    model, x = nn.Sequential(*layers), torch.randn(8, 8192, 2)
    private = made_private(model, x, mode)[1]
    check = peak_of(lambda: private.guard._probe.check(Inputs.of((x,), {}), 8))
    assert check < 1.5 * 24 * 2**19


@pytest.mark.parametrize("algorithm", ["dpsgd", "dice"])
def test_the_first_batch_takes_little_more_memory_than_others(algorithm):
    """Its sums are checked, for which the graph is needed; what they are made of is kept afterwards."""
    layers = itertools.chain.from_iterable((nn.Linear(16, 16), nn.GELU()) for _ in range(12))
    model, rows = nn.Sequential(*layers), torch.randn(32, 256, 16)
    _, private, optimizer, criterion, _ = made_private(
        model,
        rows,
        "ghost",
        criterion=nn.MSELoss(),
        algorithm=algorithm,
        residual_cap=2.0 if algorithm == "dice" else None,
    )
    peaks = []
    for _ in range(2):
        peaks.append(peak_of(lambda: criterion(private(rows), rows).backward()))
        optimizer.step()
    assert peaks[0] < 1.3 * peaks[1]


def test_a_check_of_norms_keeps_no_gradients():
    """The gradients of eight records' answers, with respect to a parameter, take 32 megabytes."""
    model, x = nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 2)), torch.randn(8, 1000)
    private = made_private(model, x, "ghost")[1]
    with_norms = peak_of(lambda: private.guard._probe.check(Inputs.of((x,), {}), 8))
    assert with_norms < 20 * 2**20


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.bool])
def test_a_change_of_frozen_content_is_found(dtype):
    """Also where PyTorch counts no change, and where two entries change places."""
    module = nn.Module()
    module.register_buffer("table", torch.arange(7).to(dtype))
    with pytest.raises(CheckError, match="table is changed"), unchanged(module, by_content=True):
        module.table.data[:2] = module.table.data[:2].flip(0)
    with unchanged(module, by_content=True):
        module.table.data[3] = module.table.data[3]


def test_the_last_layer_and_adapters_are_trained_alone():
    shape = Shape(1, 8, 10)
    head = train_last_layer(image_model("ViT", shape, seed=0))
    assert [name for name, p in head.named_parameters() if p.requires_grad] == ["head.weight", "head.bias"]
    adapted = add_lora(image_model("ViT", shape, seed=0), ["query_key_value", "out"])
    names = [name for name, p in adapted.named_parameters() if p.requires_grad]
    assert all("lora" in name or "head" in name for name in names)
    assert any("lora" in name for name in names)
    with pytest.raises(ValueError, match="rank must be a whole number of at least 1, got 0"):
        add_lora(image_model("ViT", shape, seed=0), ["out"], rank=0)


def test_fine_tuning_improves_on_the_public_model():
    """With seeds, so that it always has the same result."""
    found = compare_parts(PUBLIC._replace(steps=150), PRIVATE._replace(steps=25))
    nothing, *parts = found
    assert [part.name for part in found] == ["nothing", "all parameters", "adapters", "the last layer"]
    assert [part.trained for part in parts] == sorted((part.trained for part in parts), reverse=True)
    assert all(part.accuracy > nothing.accuracy for part in parts)
    assert math.isfinite(nothing.accuracy)
