"""Randomly drawn modules: the update is made of true, clipped gradients of single records, or the module is refused."""

import copy
import warnings
from collections import Counter

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from clipsilon.torch import PrivacyEngine
from private_training import flat
from random_modules import SOUND, UNSOUND, draw_module

MODES = ("hooks", "ghost")
CLIP = 1.0


def record_losses(scores, weights):
    return (scores * weights).sum(1)


def true_gradients(drawn, x, weights, seed):
    """Return each record's gradient, of the record alone, or with the same dropout among all."""
    module = copy.deepcopy(drawn.module)
    trained = [p for p in module.parameters() if p.requires_grad]
    found = []
    for row in range(len(x)):
        torch.manual_seed(seed)
        if drawn.is_random:
            loss = record_losses(module(x), weights)[row]
        else:
            loss = record_losses(module(x[row : row + 1]), weights[row : row + 1]).sum()
        gradients = torch.autograd.grad(loss, trained, allow_unused=True)
        found.append(
            flat(torch.zeros_like(p) if g is None else g.to_dense() for p, g in zip(trained, gradients, strict=True))
        )
    return torch.stack(found)


def private_update(drawn, weights, mode, seed):
    """Return the sum of one private step without noise, and the batch that it was made of; the model is trained."""
    module, data = drawn.module, TensorDataset(drawn.x, weights)
    trained = [p for p in module.parameters() if p.requires_grad]
    made = PrivacyEngine().make_private(
        module=module,
        optimizer=torch.optim.SGD(trained, lr=1.0),
        data_loader=DataLoader(data, batch_size=len(data)),
        noise_multiplier=0.0,
        clip=CLIP,
        criterion=record_losses,
        grad_sample_mode=mode,
        poisson_sampling=False,
    )
    model, optimizer, (x, y) = made[0], made[1], next(iter(made[-1]))
    torch.manual_seed(seed)
    loss = made[2](model(x), y) if mode == "ghost" else record_losses(model(x), y).mean()
    loss.backward()
    optimizer.step()
    return flat(p.grad.to_dense() for p in trained) * len(data), x, y


def outcome(seed, mode):
    """Compare one module; return its family, and the refusal if it was refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of PyTorch, about sizes and settings
        drawn = draw_module(seed)
    weights = torch.randn(len(drawn.x), drawn.module.head.out_features, generator=torch.Generator().manual_seed(seed))
    weights = weights.double() * 3
    plain, before = drawn._replace(module=copy.deepcopy(drawn.module)), flat(drawn.module.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            update, x, y = private_update(drawn, weights, mode, seed)
        except (ValueError, RuntimeError, NotImplementedError) as error:
            refusal = str(error)
        else:
            compare(update, plain, x, y, seed)
            return drawn.family, None
    writes_itself = getattr(drawn.module.part, "way", None) == "data"
    assert writes_itself or torch.equal(flat(drawn.module.parameters()), before)  # nothing was released
    assert len(refusal) > 20  # a sentence
    return drawn.family, refusal


def compare(update, plain, x, y, seed):
    gradients = true_gradients(plain, x, y, seed)
    norms = gradients.norm(dim=1, keepdim=True)
    expected = (gradients * (CLIP / norms.clamp(min=CLIP))).sum(0)
    torch.testing.assert_close(update, expected, rtol=1e-6, atol=1e-6, msg=lambda text: f"{seed} {plain}: {text}")


def survey(seeds, mode):
    """Compare modules; return how many were accepted, and how many refused, by family."""
    found = [outcome(seed, mode) for seed in seeds]
    accepted = Counter(family for family, refusal in found if refusal is None)
    return accepted, Counter(family for family, refusal in found if refusal is not None)


@pytest.mark.parametrize("mode", MODES)
def test_some_modules_are_measured_or_refused(mode):
    accepted, refused = survey(range(36), mode)
    assert accepted.total() >= 12
    assert refused.total() >= 6


@pytest.mark.verify
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("part", range(5))
def test_five_hundred_modules_are_measured_or_refused(mode, part):
    accepted, refused = survey(range(1000 + 100 * part, 1100 + 100 * part), mode)
    assert accepted.total() >= 40  # of about 75 that are sound, some of them with settings that are not
    assert refused.total() >= 20


@pytest.mark.verify
def test_each_sound_family_is_accepted_and_each_unsound_one_refused():
    """A test that passes where everything is refused, or everything accepted, would show nothing."""
    accepted, refused = survey(range(2000, 2200), "hooks")
    assert {draw.__name__ for draw in SOUND} <= set(accepted)
    assert {draw.__name__ for draw in UNSOUND} <= set(refused)
    assert not set(accepted) & {"outside", "mixing", "writing"}
