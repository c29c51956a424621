"""Clipping per layer: each layer has its own share of the clip, and the certificate is that of the whole."""

import math

import pytest
import torch
from torch import nn

from clipsilon.torch import PrivacyEngine
from clipsilon.torch.clipping import clip_groups
from private_training import Training, flat, network, records

CLIP = 0.6
PER_LAYER = {"algorithm": "dpsgd", "clip": CLIP, "clipping": "per-layer", "lr": 0.0}
MODES = ["hooks", "ghost"]


def gradients(batch):
    """Return the true gradient of each record, as one list of tensors per record."""
    model, found = network(), []
    for x, y in zip(*batch, strict=True):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x.unsqueeze(0)), y.unsqueeze(0))
        found.append(torch.autograd.grad(loss, list(model.parameters())))
    return found


@pytest.mark.parametrize("mode", MODES)
def test_each_layer_is_clipped_by_its_own_norm(mode):
    training = Training(mode, batch=5, **PER_LAYER)
    batch = training.loader.dataset[:6]
    training.step(batch)
    expected, share, clipped = torch.zeros(training.theta().numel(), dtype=torch.float64), CLIP / math.sqrt(2), set()
    for weight, bias, *last in gradients(batch):
        layers = [flat([weight, bias]), flat(last)]
        factors = [min(1.0, share / float(layer.norm())) for layer in layers]
        clipped.add(tuple(factor < 1 for factor in factors))
        expected += torch.cat([factor * layer for factor, layer in zip(factors, layers, strict=True)])
    assert len(clipped) > 1  # one of the layers is clipped and the other is not, in some records
    torch.testing.assert_close(training.update(), expected / 5, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_a_record_adds_at_most_the_clip(mode):
    """All layers of one record at their thresholds attain the clip of the whole, and no more."""
    training = Training(mode, batch=1, **{**PER_LAYER, "clip": 1e-3})
    norms = []
    for place in range(4):
        training.step(training.loader.dataset[place : place + 1])
        norms.append(float(training.update().norm()))
    assert max(norms) <= 1e-3
    assert max(norms) == pytest.approx(1e-3, rel=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_the_certificate_is_that_of_a_flat_clip(mode):
    stated = [
        Training(mode, noise_multiplier=1.0, algorithm="dpsgd", clipping=clipping).engine.statement(1e-5, steps=30)
        for clipping in ("flat", "per-layer")
    ]
    assert stated[0].nominal == stated[1].nominal < math.inf
    assert "clipped per layer" in str(stated[1])


def test_layers_that_share_parameters_are_one_group():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 3, bias=False), nn.LayerNorm(3))
    model[2].weight = model[0].weight
    model[1].bias.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    names = {p: name for name, p in model.named_parameters()}
    groups = {frozenset(names[trained[place]] for place in group) for group in clip_groups("per-layer", model, trained)}
    assert groups == {frozenset({"0.weight", "0.bias"}), frozenset({"1.weight"}), frozenset({"3.weight", "3.bias"})}
    assert clip_groups("flat", model, trained) == [(0, 1, 2, 3, 4)]


def test_error_feedback_is_not_clipped_per_layer():
    model = network()
    with pytest.raises(
        ValueError, match="clipping must be 'flat' or 'automatic' for algorithm='dice', got 'per-layer'"
    ):
        PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            data_loader=torch.utils.data.DataLoader(records(), batch_size=5),
            noise_multiplier=1.0,
            algorithm="dice",
            clipping="per-layer",
        )


def test_a_checkpoint_of_another_clip_is_refused(tmp_path):
    one, other = (Training(clipping=clipping, algorithm="dpsgd") for clipping in ("per-layer", "flat"))
    one.run(1)
    one.engine.save_checkpoint(path=tmp_path / "c.pt", module=one.private, optimizer=one.optimizer)
    with pytest.raises(ValueError, match="algorithm"):
        other.engine.load_checkpoint(path=tmp_path / "c.pt", module=other.private, optimizer=other.optimizer)
