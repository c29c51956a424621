"""Layers that cannot be trained privately are named all at once, with what to use, and what is named works."""

import re
from importlib import import_module

import pytest
import torch
from opacus.validators import ModuleValidator
from torch import nn
from torch.nn.utils import parametrizations

from clipsilon.torch.refused_layers import refuse_layers

CASES = {
    "BatchNorm2d": (lambda: nn.BatchNorm2d(2), "use nn.GroupNorm"),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(2, track_running_stats=True), "leave track_running_stats out"),
    "LSTM": (lambda: nn.LSTM(2, 2), "use opacus.layers.DPLSTM"),
    "GRU": (lambda: nn.GRU(2, 2), "use opacus.layers.DPGRU"),
    "RNN": (lambda: nn.RNN(2, 2), "use opacus.layers.DPRNN"),
    "LSTMCell": (lambda: nn.LSTMCell(2, 2), "use opacus.layers.dp_rnn.DPLSTMCell"),
    "GRUCell": (lambda: nn.GRUCell(2, 2), "use opacus.layers.dp_rnn.DPGRUCell"),
    "RNNCell": (lambda: nn.RNNCell(2, 2), "use opacus.layers.dp_rnn.DPRNNCell"),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(2, 1), "use opacus.layers.DPMultiheadAttention"),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(2, 2), "use nn.Embedding and add up"),
    "Bilinear": (lambda: nn.Bilinear(2, 2, 2), "use nn.Linear on the products of both"),
    "LazyLinear": (lambda: nn.LazyLinear(2), "call the model once first"),
    "Embedding": (lambda: nn.Embedding(2, 2, max_norm=1.0), "leave max_norm out"),
}


def refusal(module, mode="hooks"):
    with pytest.raises(
        ValueError, match="^module must treat records one by one, in layers that are measured, got"
    ) as at:
        refuse_layers(module, mode)
    return str(at.value)


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("kind", CASES)
def test_a_layer_is_named_with_what_to_use(kind):
    make, instead = CASES[kind]
    model = nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"inner": make()}))
    assert f"got {kind} (1.inner), " in refusal(model)
    assert f": {instead}" in refusal(model)


def test_all_layers_are_named_at_once():
    parts = [nn.BatchNorm1d(2), nn.Linear(2, 2), nn.LSTM(2, 2), nn.EmbeddingBag(3, 2, max_norm=1.0)]
    found = refusal(nn.Sequential(*parts))
    assert re.findall(r"(\w+ \(\d\)), w", found) == [
        "BatchNorm1d (0)",
        "LSTM (2)",
        "EmbeddingBag (3)",
        "EmbeddingBag (3)",
    ]
    assert found.endswith("; ModuleValidator.fix(module) of opacus.validators replaces BatchNorm1d (0) and LSTM (2).")
    assert "\n" not in found


def test_what_is_frozen_is_not_measured():
    for kind in ("LSTM", "MultiheadAttention", "EmbeddingBag", "Bilinear"):
        refuse_layers(CASES[kind][0]().requires_grad_(False), "hooks")
    assert "BatchNorm2d" in refusal(nn.BatchNorm2d(2).requires_grad_(False))  # it still takes statistics
    assert "ModuleValidator" not in refusal(nn.BatchNorm2d(2).requires_grad_(False))  # which replaces trained ones only


def test_sparse_gradients_are_refused_in_ghost_mode():
    model = nn.Embedding(2, 2, sparse=True)
    refuse_layers(model, "hooks")
    assert "Embedding (the module itself), whose gradients are sparse" in refusal(model, "ghost")


def test_weights_that_are_computed_from_others():
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(2, 2)))
    assert "ParametrizationList (0.parametrizations.weight), which computes a weight" in refusal(model)
    nn.utils.parametrize.remove_parametrizations(model[0], "weight")
    refuse_layers(model, "hooks")


def test_buffers_of_a_layer_with_parameters():
    layer = nn.Linear(2, 2)
    layer.register_buffer("seen", torch.zeros(2))
    assert "Linear (0), which has buffers besides its parameters" in refusal(nn.Sequential(layer))


def test_opacus_replaces_what_the_message_says():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.LSTM(2, 2), nn.GRU(2, 2), nn.MultiheadAttention(2, 1))
    listed = "BatchNorm1d (0) and LSTM (1) and GRU (2) and MultiheadAttention (3)"
    assert refusal(model).endswith(f"replaces {listed}.")
    refuse_layers(ModuleValidator.fix(model), "hooks")


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
def test_the_layers_that_are_named_compute_the_same(kind):
    torch.manual_seed(0)
    plain = CASES[kind][0]()
    module, _, name = re.search(r"use ([\w.]+\w)", refusal(plain)).group(1).rpartition(".")
    other = getattr(import_module(module), name)(2, 2)
    other.load_state_dict(plain.state_dict())
    x = torch.randn(3, 4, 2)
    torch.testing.assert_close(other(x)[0], plain(x)[0])
    refuse_layers(other, "hooks")
