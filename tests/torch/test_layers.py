"""Ghost clipping and hooks agree on layers of every kind, including the capped error."""

import copy
import weakref

import pytest
import torch
from opacus.layers import DPGRU, DPLSTM, DPRNN
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.data import TensorDataset

from clipsilon.torch.models import HooksModel, add_sample
from clipsilon.torch.probe import Inputs
from private_training import Training

MODES = ("hooks", "ghost")


class Conv1D(nn.Module):
    """As in `transformers`: y = x·W + b."""

    __module__ = "transformers.pytorch_utils"

    def __init__(self, outputs, inputs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs)), nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


class Tokens(nn.Module):
    """Embeddings, positions that are expanded, Conv1D, layer norm; reshapes that empty batches would break."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(7, 4, padding_idx=0), nn.Embedding(5, 4)
        self.norm, self.mix, self.head = nn.LayerNorm(4), Conv1D(6, 4), nn.Linear(6, 3, bias=False)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]).expand(len(ids), -1))
        return self.head(torch.tanh(self.mix(self.norm(x)))).view(len(ids), -1, 3).mean(1)


def convolutions():
    first = [nn.Conv2d(1, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(inplace=True)]
    second = [nn.Conv2d(4, 4, 3, padding="same", bias=False), nn.ReLU(), nn.Conv2d(4, 2, 2, stride=2, groups=2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(8, 3))


class Scaled(nn.Module):
    """A layer that Opacus has no rule for."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))

    def forward(self, x):
        return x * self.scale**2


def with_custom_layer():
    return nn.Sequential(nn.Flatten(), Scaled(), nn.Linear(16, 3))


class Whole(nn.Module):
    """A parameter on the model itself, which makes the model one layer for Opacus."""

    def __init__(self):
        super().__init__()
        self.shift, self.head = nn.Parameter(torch.zeros(16)), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(torch.sin(x.flatten(1) + self.shift))


PICTURES, WORDS = torch.randn(20, 1, 4, 4, dtype=torch.float64), torch.randint(0, 7, (20, 5))
KINDS = {
    "convolutions": (convolutions, PICTURES),
    "tokens": (Tokens, WORDS),
    "own": (with_custom_layer, PICTURES),
    "whole": (Whole, PICTURES),
}


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("settings", [{"algorithm": "dpsgd"}, {}, {"residual_cap": 0.2}], ids=str)
def test_modes_agree(name, settings):
    make, inputs = KINDS[name]
    ends = []
    for mode in MODES:
        torch.manual_seed(3)
        data = TensorDataset(inputs, torch.arange(20) % 3)
        drawn = {"batch": 2, "generator": torch.Generator().manual_seed(7)}  # with empty batches
        training = Training(
            mode, data, make().double(), criterion=nn.CrossEntropyLoss(), clip=0.1, lr=0.5, **drawn, **settings
        )
        sizes = []
        for batch in training.loader:
            sizes.append(len(batch[0]))
            training.step(batch)
        ends.append(torch.cat([training.theta(), *[e.flatten() for e in training.optimizer.error]]))
    assert 0 in sizes
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)


class Twice(nn.Module):
    """A layer that is called twice."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.head = layer, nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.layer(x + torch.tanh(self.layer(x)))).flatten()


@pytest.mark.parametrize("cap", [None, 2.0])
@pytest.mark.parametrize("layer", [nn.LayerNorm, nn.Linear])
def test_a_layer_may_be_used_twice(layer, cap):
    torch.manual_seed(0)
    model = Twice(nn.LayerNorm(4) if layer is nn.LayerNorm else nn.Linear(4, 4)).double()
    trainings = [Training(mode, model=copy.deepcopy(model), residual_cap=cap).run(1) for mode in MODES]
    torch.testing.assert_close(*[training.theta() for training in trainings])
    torch.testing.assert_close(*[training.error() for training in trainings])


@pytest.mark.parametrize("mode", MODES)
def test_a_layer_in_two_places_is_hooked_once(mode):
    """Its gradients would otherwise count twice."""
    torch.manual_seed(0)
    shared = nn.Linear(4, 4)
    places = nn.Sequential(
        nn.Sequential(shared, nn.Tanh()), nn.Sequential(shared, nn.Tanh()), nn.Linear(4, 1), nn.Flatten(0)
    )
    apart = nn.Sequential(shared, nn.Tanh(), shared, nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0))
    apart[4].load_state_dict(places[2].state_dict())
    models = [copy.deepcopy(model).double() for model in (places, apart)]
    ends = [Training(mode, model=model, algorithm="dpsgd").run(1).theta() for model in models]
    torch.testing.assert_close(*ends, rtol=0, atol=1e-12)


class Language(nn.Module):
    """A small GPT-2, whose output layer has the weight of its embedding; scores of the last word."""

    def __init__(self):
        super().__init__()
        transformers = pytest.importorskip("transformers")
        sizes = {"vocab_size": 11, "n_positions": 6, "n_embd": 8, "n_layer": 1, "n_head": 2, "use_cache": False}
        config = transformers.GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        self.inner = transformers.GPT2LMHeadModel(config)

    def forward(self, ids):
        places = torch.arange(ids.shape[1]).expand(len(ids), -1)
        return self.inner(input_ids=ids, position_ids=places).logits[:, -1]


def test_a_language_model_with_tied_weights():
    torch.manual_seed(0)
    model = Language().double()
    assert model.inner.lm_head.weight is model.inner.transformer.wte.weight
    data = TensorDataset(torch.randint(11, (20, 5)), torch.randint(11, (20,)))
    options = {"algorithm": "dpsgd", "clip": 0.3, "criterion": nn.CrossEntropyLoss()}
    ends = [Training(mode, data, copy.deepcopy(model), **options).run(1).theta() for mode in MODES]
    torch.testing.assert_close(*ends, rtol=0, atol=1e-9)


class Sequences(nn.Module):
    """A recurrent layer on sequences of several lengths, which stand at the end of the input."""

    def __init__(self, kind, is_sorted, **settings):
        super().__init__()
        self.cells, self.head = kind(2, 3, batch_first=True, **settings), nn.LazyLinear(1)
        self.is_sorted = is_sorted

    def forward(self, x):
        packed = pack_padded_sequence(x[..., :2], x[:, 0, 2].long(), batch_first=True, enforce_sorted=self.is_sorted)
        found, _ = pad_packed_sequence(self.cells(packed)[0], batch_first=True, total_length=x.shape[1])
        return self.head(found.flatten(1)).flatten()


def sequences(kind, is_sorted=True, **settings):
    torch.manual_seed(0)
    model = Sequences(kind, is_sorted, **settings).double()
    x = torch.randn(5, 4, 3, dtype=torch.float64)
    x[:, 0, 2] = torch.tensor([4.0, 3, 3, 2, 1])
    model(x)
    return model, TensorDataset(x, torch.arange(5).double() % 2)


def true_norms(model, batch):
    """Return the norm of each record's gradient, computed by autograd for the record alone."""
    found = []
    for x, y in zip(*batch, strict=True):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x[None]), y[None])
        found.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]).norm())
    return torch.stack(found)


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("settings", [{}, {"bidirectional": True, "num_layers": 2}], ids=str)
@pytest.mark.parametrize("kind", [DPRNN, DPLSTM, DPGRU])
def test_packed_sequences(kind, settings, mode, monkeypatch):
    """At later times, recurrent layers see the longer sequences only."""
    model, data = sequences(kind, **settings)
    expected = true_norms(copy.deepcopy(model), data[:])
    training, norms = Training(mode, data, model, algorithm="dpsgd"), []
    checked = training.optimizer.finite_norms
    monkeypatch.setattr(training.optimizer, "finite_norms", lambda found: norms.extend(found) or checked(found))
    training.step(data[:])
    torch.testing.assert_close(norms[0], expected, rtol=1e-6, atol=0)


@pytest.mark.filterwarnings("ignore:Lazy modules")
@pytest.mark.parametrize("mode", MODES)
def test_packed_sequences_in_another_order_are_refused(mode):
    """The rows of a record would be those of another one in the layers behind."""
    model, data = sequences(DPLSTM, is_sorted=False)
    training = Training(mode, data, model, algorithm="dpsgd")
    with pytest.raises(RuntimeError, match="DPLSTM must be called with packed sequences in the order of the records"):
        training.step([part.flip(0) for part in data[:]])
    training.private.eval()
    with torch.no_grad():
        training.private(data[:][0].flip(0))
    sorted_training = Training(mode, data, sequences(DPLSTM, is_sorted=False)[0], algorithm="dpsgd")
    sorted_training.step(data[:])


@pytest.mark.parametrize("mode", MODES)
def test_inputs_of_layers_are_not_kept_by_the_outputs(mode):
    """A training loop may hold the outputs until its next batch, and with them the graph and its hooks."""
    training, kept = Training(mode), []
    for _ in range(2):  # the first batch is checked
        training.optimizer.zero_grad()
        x, y = next(iter(training.loader))
        scores = training.private(x)
        kept = [weakref.ref(layer.activations[0][0]) for layer in training.model if hasattr(layer, "activations")]
        training.criterion(scores, y).backward()
        assert len(kept) == 2
        assert [one() for one in kept] == [None, None]
        training.optimizer.step()


@pytest.mark.parametrize("calls", [1, 2])
def test_gradients_per_record_do_not_change_with_what_they_were_computed_from(calls):
    """The gradient of a bias may be that of the layer's output, which others may overwrite."""
    p, gradient = nn.Parameter(torch.zeros(3)), torch.ones(2, 3)
    p._forward_counter = calls
    for _ in range(calls):
        add_sample(p, gradient[:], 2, (gradient,))
    gradient.zero_()
    assert torch.equal(p._current_grad_sample, torch.full((2, 3), float(calls)))


def test_gradients_per_record_do_not_change_where_a_rule_writes_to_the_same_memory_again(monkeypatch):
    """A check of the model on records that are not drawn would otherwise bring these into the step."""
    workspace = torch.zeros(40, 16, dtype=torch.float64)

    def own_rule(layer, activations, gradient):
        found = workspace[: len(gradient)]
        return {layer.scale: torch.mul(2 * layer.scale.detach() * activations[0], gradient, out=found)}

    monkeypatch.setitem(HooksModel.GRAD_SAMPLERS.maps[1], Scaled, own_rule)
    x, y = PICTURES, torch.randn(len(PICTURES), 3, dtype=torch.float64)
    training = Training(data=TensorDataset(x, y), model=with_custom_layer().double(), criterion=nn.MSELoss())
    training.loss((x[:5], y[:5])).backward()
    scale = training.model[1].scale
    before = scale.grad_sample.clone()
    assert before.any()
    assert training.private.guard._probe.check(Inputs.of((x[5:],), {}), 3) == 3
    assert torch.equal(scale.grad_sample, before)


class Outside(nn.Module):
    """Uses a layer's weight once more; with a gate of zero, that adds nothing to the first gradients."""

    def __init__(self, layer, gate, calls=1):
        super().__init__()
        self.layer, self.head, self.gate, self.calls = layer, nn.Linear(4, 1), gate, calls

    def forward(self, x):
        h = x
        for _ in range(self.calls):
            h = torch.tanh(self.layer(h))
        return self.head(h if self.gate is None else h + self.gate * x * self.layer.weight.mean()).flatten()


class OwnLinear(nn.Module):
    """A layer that Opacus has no rule for."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x):
        return x @ self.weight


@pytest.mark.parametrize("settings", [{"algorithm": "dpsgd"}, {}, {"residual_cap": 2.0}], ids=str)
@pytest.mark.parametrize(("layer", "gate"), [(nn.Linear, 1.0), (nn.Linear, 0.0), (OwnLinear, 1.0)])
def test_a_weight_used_outside_of_its_layer_is_refused(layer, gate, settings):
    torch.manual_seed(0)
    model = Outside(nn.Linear(4, 4) if layer is nn.Linear else layer(), gate).double()
    with pytest.raises(RuntimeError, match="layer.weight is used outside of its layer"):
        Training("ghost", model=copy.deepcopy(model), **settings).run(1)
    resumed = Training("ghost", model=copy.deepcopy(model), **settings)
    state = resumed.optimizer.state_dict()
    state["error"] = [torch.randn_like(e) for e in state["error"]]  # the sums begin with it
    resumed.optimizer.load_state_dict(state)
    with pytest.raises(RuntimeError, match="layer.weight is used outside of its layer"):
        resumed.run(1)
    if gate:
        with pytest.raises(RuntimeError, match="layer.weight is used outside of its layer"):
            Training("hooks", model=model, **settings).run(1)
    else:
        Training("hooks", model=model, **settings).run(1)  # where it adds nothing, nothing is missing


@pytest.mark.parametrize("settings", [{"algorithm": "dpsgd"}, {}], ids=str)
@pytest.mark.parametrize(("layer", "gate"), [("norm", 1.0), ("norm", 0.0), ("own", 1.0)])
def test_a_weight_of_a_layer_used_twice_and_outside_is_refused(layer, gate, settings):
    torch.manual_seed(0)
    model = Outside(nn.LayerNorm(4) if layer == "norm" else OwnLinear(), gate, calls=2).double()
    with pytest.raises(RuntimeError, match="layer.weight is used outside of its layer"):
        Training("ghost", model=copy.deepcopy(model), **settings).run(1)
    model.gate = None
    ends = [Training(mode, model=copy.deepcopy(model), **settings).run(1).theta() for mode in MODES]
    torch.testing.assert_close(*ends)


class OwnAffine(OwnLinear):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.full((4,), 10.0))

    def forward(self, x):
        return super().forward(x) + self.bias


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("make", [OwnAffine, lambda: nn.Linear(4, 4)], ids=["own", "linear"])
def test_a_weight_that_is_tied_after_make_private_is_refused(make, is_first):
    """Sums would have what both layers add, and norms what one of them does; the model is checked in few batches."""
    model = nn.Sequential(make(), nn.Tanh(), nn.Linear(4, 4, bias=False), nn.Linear(4, 1), nn.Flatten(0)).double()
    model[0].weight.requires_grad_(False)
    training = Training("ghost", model=model, algorithm="dpsgd")
    if not is_first:
        training.run(1)
    model[0].weight = model[2].weight
    with pytest.raises(
        RuntimeError, match="A layer must have the parameters .* got 0.weight in (OwnAffine|Linear); tie"
    ):
        training.run(1)
    assert training.optimizer.trained[1] is model[0].weight
    assert training.optimizer.trained[1].summed_grad is None


def test_a_weight_that_is_replaced_after_make_private_is_refused():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 1), nn.Flatten(0)).double()
    training = Training("ghost", model=model, algorithm="dpsgd")
    model[0].weight = nn.Parameter(torch.ones(4, 4, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="A layer must have the parameters .* got 0.weight in Linear; tie or"):
        training.run(1)


def test_an_input_without_one_row_per_record_is_refused():
    class Places(nn.Module):
        def __init__(self):
            super().__init__()
            self.places, self.head = nn.Embedding(4, 4), nn.Linear(4, 1)

        def forward(self, x):
            return self.head(x + self.places(torch.arange(1))).flatten()

    training = Training("ghost", model=Places().double())
    with pytest.raises(RuntimeError, match="places.weight saw a batch of 1 where there are .*give position ids"):
        training.run(1)
    with pytest.raises(RuntimeError, match="batches of different sizes: .*give position ids"):
        Training("hooks", model=Places().double()).run(1)


def test_a_parameter_without_per_sample_gradients_is_refused():
    class Idle(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.idle = nn.Linear(4, 1), nn.Linear(4, 1)

        def forward(self, x):
            return self.used(x).flatten()

    with pytest.raises(RuntimeError, match="idle.weight: no gradient per record was found; freeze"):
        Training("ghost", model=Idle().double()).run(1)
    with pytest.raises(RuntimeError, match="no gradient per record was found; freeze"):
        Training("hooks", model=Idle().double()).run(1)
