"""Hooks, ghost clipping and the compiled engine make the same update, batch by batch."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import clipsilon as cs
import reference
from clipsilon.engine.streams import spawn
from clipsilon.torch.rules import error_feedback_of, sampling_of
from private_training import Training

STEPS, BATCH, CLIP, START = 200, 4, 0.4, 0.3
STEP = {"step": cs.schedules.Constant(0.2), "noise_std": 0.0, "batch": BATCH, "sampling": "poisson"}
ADAM = partial(torch.optim.Adam, eps=1e-15)  # paper 3 has ε₁ under the root: both are negligible here

RULES = {
    "dpsgd": (cs.DPSGD(clip=CLIP, **STEP), {"algorithm": "dpsgd", "clip": CLIP}),
    "dice": (cs.DiceSGD(clip=CLIP, error_clip=0.5, **STEP), {"clip": CLIP, "error_clip": 0.5}),
    "adam": (
        cs.AdamDiceSGD(clip=CLIP, error_clip=0.5, stability=1e-30, **{**STEP, "step": cs.schedules.Constant(0.02)}),
        {"clip": CLIP, "error_clip": 0.5, "optimizer": ADAM, "lr": 0.02},
    ),
    # Small steps: normalising magnifies differences near zero.
    "automatic": (
        cs.AutoDiceSGD(**{**STEP, "step": cs.schedules.Constant(0.01)}),
        {"clipping": "automatic", "lr": 0.01},
    ),
}
LOSSES = {
    "linear": (cs.losses.SquaredError(0.0), nn.MSELoss(), 0.5),  # ½(⟨x, θ⟩ − y)²
    "logistic": (cs.losses.Logistic(0.0), nn.BCEWithLogitsLoss(), 1.0),
}
# This run magnifies the grid's 1e-13 to 1.1e-6 in 200 steps. Grids 16 and 256 times as coarse give 1.2e-5 and 1.6e-4, and
# one 256 times as fine, without the lowered clip, gives 4e-9: the grid is all of the difference.
MAGNIFIED = 5e-6
CAPPED = (
    cs.DiceSGD(clip=CLIP, error_clip=0.5, residual_cap=0.9, **STEP),
    {"clip": CLIP, "error_clip": 0.5, "residual_cap": 0.9},
)


def path(mode, problem, batches, criterion, factor, settings):
    """Return θ_t and e_t of a torch training on given batches."""
    features, labels = torch.tensor(problem.features), torch.tensor(problem.labels)
    model = nn.Sequential(nn.Linear(features.shape[1], 1, bias=False), nn.Flatten(0)).double()
    nn.init.constant_(model[0].weight, START)
    data = torch.utils.data.TensorDataset(features, labels)
    training = Training(mode, data, model, BATCH, criterion=criterion, **{"lr": 0.2, **settings})
    training.engine._training.batches._draw = lambda: iter(batches)
    thetas, errors = [training.theta()], [torch.zeros(features.shape[1], dtype=torch.float64)]
    for batch in training.loader:
        training.optimizer.zero_grad()
        (factor * training.loss(batch)).backward()
        training.optimizer.step()
        thetas.append(training.theta())
        errors.append(training.error() if training.optimizer.error else errors[0])
    return torch.stack(thetas).numpy(), torch.stack(errors).numpy()


def compiled(problem, rule):
    trace = cs.run(problem, rule, STEPS, START, seed=4, record=range(STEPS + 1))
    return trace.theta[0], np.zeros_like(trace.theta[0]) if trace.error is None else trace.error[0]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", RULES)
def test_both_modes_are_the_engine(name, loss):
    """The compiled one for one loss, and for the other its reference, since each kernel takes seconds to compile."""
    (rule, settings), (part, criterion, factor) = RULES[name], LOSSES[loss]
    problem = reference.problem(part)
    thetas, errors = (
        compiled(problem, rule) if loss == "logistic" else reference.run(problem, rule, STEPS, START, 4)[:2]
    )
    most = MAGNIFIED if (name, loss) == ("dice", "linear") else 1e-8
    assert_same(problem, rule, criterion, factor, settings, thetas, errors, most)


@pytest.mark.parametrize("loss", LOSSES)
def test_both_modes_are_the_reference_with_a_cap(loss):
    (rule, settings), (part, criterion, factor) = CAPPED, LOSSES[loss]
    problem = reference.problem(part)
    thetas, errors, _ = reference.run(problem, rule, STEPS, START, seed=4)
    assert_same(problem, rule, criterion, factor, settings, thetas, errors)


def assert_same(problem, rule, criterion, factor, settings, thetas, errors, most=1e-8):
    sampler = reference.Sampler(rule.sampling, problem.records, spawn(4, 1)[0].records)
    batches = [torch.as_tensor(list(sampler.batch(t)), dtype=torch.int64) for t in range(STEPS)]
    sizes = {len(batch) for batch in batches}
    assert 0 in sizes
    assert max(sizes) > BATCH
    assert settings.get("algorithm") == "dpsgd" or np.abs(errors).max() > 0.1
    for mode in ("hooks", "ghost"):
        found, kept = path(mode, problem, batches, criterion, factor, settings)
        assert found.shape == thetas.shape == (STEPS + 1, 4)
        np.testing.assert_allclose(found, thetas, rtol=0, atol=most)
        np.testing.assert_allclose(kept, errors, rtol=0, atol=most)


def test_a_rule_that_pytorch_cannot_run_is_refused():
    once = cs.DPSGD(clip=CLIP, **{**STEP, "sampling": "uniform"})
    with pytest.raises(TypeError, match="sampling must be Poisson, Epochs or Cyclic"):
        sampling_of(once)
    with pytest.raises(TypeError, match="feedback must be ErrorFeedback"):
        error_feedback_of(once)
    assert sampling_of(CAPPED[0]) == cs.sampling.Poisson(BATCH)
    assert error_feedback_of(CAPPED[0]).cap == cs.clipping.Norm(0.9)
