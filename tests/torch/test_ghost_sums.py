"""Norms and sums of ghost clipping are bounded: by exact fractions, and by what a record can change."""

import math
import weakref
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from torch import nn
from torch.utils.data import TensorDataset

from clipsilon.privacy.auditing import bits
from clipsilon.rules.clipping import Norm, Normalise
from clipsilon.torch import ghost_sums
from clipsilon.torch.clipping import clip_factor, lower
from clipsilon.torch.exact_sums import GHOST_NOISE, REACH, SUM_TERMS, charge, charged_rule, plan_grid
from clipsilon.torch.ghost_sums import LayerRows, join_calls, joint_norms, sizes_of, sums_of
from clipsilon.torch.rules import UpdateSettings, build_rule
from private_training import Training, flat, records

UNSEEDED = {"noise_generator": None, "generator": None}
FRACTION = np.vectorize(Fraction, otypes=[object])


class Transposed(nn.Module):
    """A layer y = x·W + b, as GPT-2 has."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(inputs, outputs)), nn.Parameter(torch.zeros(outputs))


def exact_gradients(call):
    """Return each record's gradient of weight and bias, and the sums of absolute values, as matrices of fractions."""
    x, g = call.x.numpy(), FRACTION(call.g.double().numpy())
    if isinstance(call.layer, nn.Embedding):
        x = np.eye(call.layer.num_embeddings, dtype=int)[x]
    x = FRACTION(x)
    found = []
    for a, b in ((x, g), (abs(x), abs(g))):
        weight = np.stack([row.T @ other for row, other in zip(a, b, strict=True)])
        found.append((weight if not isinstance(call.layer, nn.Linear) else weight.swapaxes(1, 2), b.sum(1)))
    return found


def square(entries):
    return sum((entry * entry for entry in entries.ravel()), Fraction(0))


LAYERS = {
    "long rows": (nn.Linear(2, 2), 9),
    "short rows": (nn.Linear(7, 6), 3),
    "one row": (nn.Linear(4, 3), 1),
    "transposed": (Transposed(3, 2), 4),
    "embedding": (nn.Embedding(3, 2), 6),
}


def adversarial_rows(data, shape, dtype):
    """Entries that are huge, tiny, denormal or zero; some rows are the negatives of others, nearly."""
    most = 60 if dtype is np.float32 else 200
    entry = st.tuples(st.sampled_from([-1.0, 0.0, 1.0]), st.floats(1, 2), st.sampled_from([0, 0, 1, -most, most, -140]))
    count = math.prod(shape)
    found = [s * math.ldexp(m, e) for s, m, e in data.draw(st.lists(entry, min_size=count, max_size=count))]
    values = np.array(found).reshape(shape)
    if data.draw(st.booleans()) and shape[1] > 1:
        values[:, 1] = -values[:, 0] * (1 + data.draw(st.sampled_from([0.0, 2.0**-20, 2.0**-50])))
    return torch.from_numpy(values.astype(dtype))


def rows_of(data, name, dtype, count=3):
    layer, rows = LAYERS[name]
    g = adversarial_rows(data, (count, rows, 6 if name == "short rows" else 3 if name == "one row" else 2), dtype)
    if name == "embedding":
        indices = data.draw(st.lists(st.integers(0, 2), min_size=count * rows, max_size=count * rows))
        return LayerRows.of(layer, torch.tensor(indices).view(count, rows), g)
    inputs = layer.weight.shape[0 if name == "transposed" else 1]
    x = adversarial_rows(data, (count, rows, inputs), dtype)
    if rows > 1 and data.draw(st.booleans()):
        x[:, 1] = x[:, 0]
    return LayerRows.of(layer, x, g)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from(sorted(LAYERS)), st.sampled_from([np.float32, np.float64]))
def test_no_norm_is_too_small(data, name, dtype):
    """In exact arithmetic, for rows that cancel."""
    call = rows_of(data, name, dtype)
    exact, absolute = exact_gradients(call)
    sizes = call.sizes()
    for number, p in enumerate(call.trained):
        for i, (size, reach) in enumerate(zip(sizes[p].norms.tolist(), sizes[p].reach.tolist(), strict=True)):
            assert square(exact[number][i]) <= Fraction(size) ** 2
            assert square(absolute[number][i]) <= Fraction(reach) ** 2 * (1 + Fraction(2) ** -40)


@settings(max_examples=40, deadline=None)
@given(
    st.data(),
    st.sampled_from(sorted(LAYERS)),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from([Norm(0.7), Norm(1e-9), Normalise(1.0)]),
)
def test_clipped_sums_are_those_of_clipped_records_up_to_the_charge(data, name, dtype, clip):
    """Each record's exact share is at most the clip, and the computed sum differs from the exact one by the charge."""
    call = rows_of(data, name, dtype)
    factors = clip_factor(lower(clip), joint_norms(list(call.sizes().values()), None))
    sums, (exact, _) = call.sums(factors), exact_gradients(call)
    bound = Fraction(clip[0])
    weights = [Fraction(f) for f in factors.tolist()]
    off, shares = Fraction(0), [Fraction(0)] * len(weights)
    for p, gradients in zip(call.trained, exact, strict=False):
        shares = [s + f * f * square(x) for s, f, x in zip(shares, weights, gradients, strict=True)]
        total = sum(f * x for f, x in zip(weights, gradients, strict=True))
        off += square(FRACTION(sums[p].numpy()) - total)
    assert all(share <= bound**2 for share in shares)
    assert off <= (SUM_TERMS * Fraction(2) ** -52 * len(weights) * int(REACH) * bound) ** 2 + Fraction(2) ** -900


def shared_rows(data, kinds, dtype):
    """Return calls of layers that share a weight, and a bias if they have one."""
    layers = {"linear": nn.Linear(2, 3), "embedding": nn.Embedding(3, 2), "transposed": Transposed(3, 2)}
    calls = []
    for name in kinds:
        layer, rows = layers[name], data.draw(st.sampled_from([1, 2, 4]))
        g = adversarial_rows(data, (3, rows, 3 if name == "linear" else 2), dtype)
        indices = data.draw(st.lists(st.integers(0, 2), min_size=3 * rows, max_size=3 * rows))
        x = torch.tensor(indices).view(3, rows)
        x = x if name == "embedding" else adversarial_rows(data, (3, rows, 5 - g.shape[2]), dtype)
        calls.append(LayerRows.of(layer, x, g))
    weight = calls[0].layer.weight
    for call in calls:
        call.layer.weight = weight
    if calls[0].x.is_floating_point() and data.draw(st.booleans()):  # parts that cancel, nearly
        calls[1:2] = [calls[0]._replace(g=-calls[0].g * (1 + 2.0**-20))] if kinds[0] == kinds[1] else calls[1:2]
    return weight, calls


@settings(max_examples=60, deadline=None)
@given(
    st.data(),
    st.sampled_from(
        [
            ("linear", "embedding"),
            ("embedding", "transposed"),
            ("linear", "transposed"),
            ("linear", "linear"),
            ("embedding", "embedding"),
            ("embedding", "linear", "embedding"),
        ]
    ),
    st.sampled_from([np.float32, np.float64]),
)
def test_norms_of_shared_weights_are_bounds_and_their_sums_exact(data, kinds, dtype):
    """In exact arithmetic: the gradient of a weight is the sum of those of all layers that use it."""
    weight, calls = shared_rows(data, kinds, dtype)
    by_layer = [join_calls([c for c in calls if c.layer is layer]) for layer in dict.fromkeys(c.layer for c in calls)]
    size = sizes_of({weight: by_layer})[weight]
    parts = [exact_gradients(call) for call in calls]
    exact, absolute = (sum(part[number][0] for part in parts) for number in (0, 1))
    factors = clip_factor(lower(Norm(0.7)), joint_norms([size], None))
    for i, (norm_, reach) in enumerate(zip(size.norms.tolist(), size.reach.tolist(), strict=True)):
        assert square(exact[i]) <= Fraction(norm_) ** 2
        assert square(absolute[i]) <= Fraction(reach) ** 2 * (1 + Fraction(2) ** -40)
    weights = [Fraction(f) for f in factors.tolist()]
    by_parameter = {p: factors for call in calls for p in call.trained}
    (total,) = [found for p, found in sums_of(by_layer, by_parameter) if p is weight]
    off = square(FRACTION(total.numpy()) - sum(f * x for f, x in zip(weights, exact, strict=True)))
    assert off <= (SUM_TERMS * Fraction(2) ** -52 * 3 * int(REACH) * Fraction(0.7)) ** 2 + Fraction(2) ** -900


def test_norms_of_tied_weights_are_not_much_too_large():
    """Not only bounds: the inner product is a part of them, so that ‖a‖ + ‖b‖ would be larger."""
    torch.manual_seed(0)
    words, scores = nn.Embedding(6, 3), nn.Linear(3, 6, bias=False)
    scores.weight = words.weight
    x, g = torch.randint(6, (4, 5)), torch.randn(4, 5, 3, dtype=torch.float64)
    one = LayerRows.of(words, x, g)
    other = LayerRows.of(scores, torch.randn(4, 5, 3, dtype=torch.float64), torch.randn(4, 5, 6, dtype=torch.float64))
    exact = exact_gradients(one)[0][0] + exact_gradients(other)[0][0]
    expected = torch.tensor([math.sqrt(square(found)) for found in exact], dtype=torch.float64)
    size = sizes_of({words.weight: [one, other]})[words.weight]
    torch.testing.assert_close(size.norms, expected, rtol=1e-12, atol=0)
    alone = [call.sizes()[words.weight].norms for call in (one, other)]
    assert not torch.allclose(sum(alone), expected, rtol=1e-2)


def test_calls_of_different_batches_are_not_joined():
    layer = nn.Linear(2, 1)
    calls = [LayerRows.of(layer, torch.ones(n, 2), torch.ones(n, 1)) for n in (3, 1)]
    with pytest.raises(ValueError, match="a parameter was used with batches of 1 and 3 rows"):
        join_calls(calls)


def test_sums_of_many_rows_are_made_in_chunks():
    """Of 70,000 rows, 1,024 at a time; a sum of as many equal terms shows the rounding of each addition."""
    call = LayerRows.of(nn.Linear(1, 1), torch.full((70, 1000, 1), 0.1), torch.full((70, 1000, 1), 0.3))
    assert call.terms == 1024 + 69 + 4
    for found in call.sums(torch.ones(70, dtype=torch.float64)).values():
        one = Fraction(np.float32(0.3).item()) * (Fraction(np.float32(0.1).item()) if found.dim() == 2 else 1)
        assert abs(Fraction(found.item()) - 70_000 * one) <= call.terms * Fraction(2) ** -53 * 70_000 * one
    embedding = LayerRows.of(nn.Embedding(2, 1), torch.arange(70_000).view(70, 1000) % 2, call.g)
    for found in embedding.sums(torch.ones(70, dtype=torch.float64))[embedding.layer.weight].flatten():
        exact = 35_000 * Fraction(np.float32(0.3).item())
        assert abs(Fraction(found.item()) - exact) <= call.terms * Fraction(2) ** -53 * exact


@pytest.mark.parametrize("name", sorted(LAYERS))
@pytest.mark.parametrize("records", [1, 5])
def test_norms_of_a_record_are_the_same_in_blocks_of_any_size(name, records, monkeypatch):
    """Of one record at a time, of two, and of all."""
    layer, rows = LAYERS[name]
    outputs = layer.weight.shape[0 if isinstance(layer, nn.Linear) else 1]
    inputs = layer.weight.shape[0 if name == "transposed" else 1]
    x = torch.randint(3, (records, rows)) if name == "embedding" else torch.randn(records, rows, inputs)
    call, found = LayerRows.of(layer, x, torch.randn(records, rows, outputs)), []
    entries = rows * (outputs + 2 * rows + (0 if name == "embedding" else inputs))
    for block in (1, 2 * entries, 10**6):
        monkeypatch.setattr(ghost_sums, "_BLOCK", block)
        assert len(list(call._blocks())) == -(-records // max(1, min(block // entries, records)))
        found.append(call.sizes())
    for p in call.trained:
        for sizes in found:
            assert sizes[p].norms.shape == sizes[p].reach.shape == (records,)
            torch.testing.assert_close(sizes[p], found[-1][p], rtol=1e-12, atol=0)


def test_layers_are_forgotten_one_by_one():
    layers = [nn.Linear(2, 1) for _ in range(3)]
    calls = [LayerRows.of(layer, torch.ones(3, 2), torch.ones(3, 1)) for layer in layers]
    kept, one = [weakref.ref(call.x) for call in calls], torch.ones(3, dtype=torch.float64)
    left = []
    for p, _ in sums_of(calls, {p: one for layer in layers for p in layer.parameters()}):
        if p.dim() == 2:
            left.append(sum(x() is not None for x in kept))
    assert left == [3, 2, 1]


def test_a_record_whose_terms_cancel_is_shortened():
    """Rounding is relative to the terms: a record may not have terms that are much longer than the clip."""
    x, g = torch.ones(1, 2, 4, dtype=torch.float64), torch.tensor([[[1e6], [-1e6]]], dtype=torch.float64)
    call = LayerRows.of(nn.Linear(4, 1, bias=False), x, g)
    (size,) = call.sizes().values()
    assert size.norms.item() < 1.0
    assert joint_norms([size], None).item() == pytest.approx(4e6 / REACH)


# Trainings


def whole_sum(training, batch):
    """Return the whole numbers that a step adds up for a batch, before noise."""
    found, release = [], training.optimizer.noise.release

    def seen(whole, divisor, like, number=0):
        found.append(whole.clone())
        return release(whole, divisor, like, number)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.optimizer.noise, "release", seen)
        training.engine._training.state.draw(len(batch[0]))
        training.step(batch)
    return flat(found)


class Mixed(nn.Module):
    """Layers of all kinds: contracted, and with gradients per record."""

    def __init__(self):
        super().__init__()
        self.words, self.norm, self.conv = nn.Embedding(5, 4), nn.LayerNorm(4), nn.Conv1d(4, 3, 2)
        self.rows, self.head = nn.Linear(3, 3), nn.Linear(9, 1)

    def forward(self, x):
        found = self.conv(self.norm(self.words(x)).mT).mT
        return self.head(self.rows(found).flatten(1)).flatten()


def mixed_training(mode, data, dtype=torch.float64, **settings):
    torch.manual_seed(0)
    return Training(mode, data, Mixed().to(dtype), lr=0.0, **{"algorithm": "dpsgd", "clip": 0.3, **settings})


def mixed_records(seed=0, count=12, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(5, (count, 4), generator=generator)
    return TensorDataset(x, (x.sum(1) > 8).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ghost_sums_are_those_of_hooks(dtype):
    data = mixed_records(dtype=dtype)
    ghost, hooks = (
        whole_sum(mixed_training(mode, data, dtype), data[:5]) * mixed_training(mode, data).optimizer.noise.grid.unit
        for mode in ("ghost", "hooks")
    )
    torch.testing.assert_close(ghost, hooks, rtol=0, atol=1e-12 if dtype is torch.float64 else 1e-7)


@pytest.mark.parametrize("settings", [{}, {"clipping": "automatic"}], ids=["flat", "automatic"])
def test_a_record_changes_whole_sums_by_the_clip_and_the_charge_at_most(settings):
    """Zeroing one record out, with the gradients of the others as they were."""
    data = mixed_records()
    training = mixed_training("ghost", data, noise_multiplier=1.0, **settings)
    rule, grid = training.engine._training.rule, training.optimizer.noise.grid
    most = Fraction(0.3) + Fraction(charge(rule, training.optimizer.parameters, 1, is_ghost=True))
    sums = [whole_sum(training, data[:count]) for count in (5, 6)]
    distance = sum(int(q) ** 2 for q in (sums[1] - sums[0]).tolist())
    assert bool((sums[0] == sums[0].round()).all())
    assert 0 < distance * Fraction(grid.unit) ** 2 <= most**2


def test_pieces_add_up_exactly():
    """Only the piece that a record is in may round otherwise: whole numbers are added beyond it."""
    data = mixed_records()
    training = mixed_training("ghost", data)
    pieces = [whole_sum(training, [t[part] for t in data[:]]) for part in (slice(0, 3), slice(3, 8))]
    training.engine._training.state.draw(8)
    for part, more in ((slice(0, 3), True), (slice(3, 8), False)):
        training.optimizer.signal_skip_step(more)
        training.loss([t[part] for t in data[:]]).backward()
        if more:
            training.optimizer.step()
    assert torch.equal(flat(p.summed_grad for p in training.optimizer.trained), pieces[0] + pieces[1])


@pytest.mark.parametrize("algorithm", [{}, {"algorithm": "dice"}, {"algorithm": "dice", "residual_cap": 1.5}])
def test_ghost_mode_certifies_what_hooks_mode_does(algorithm):
    settings = {"algorithm": "dpsgd", "noise_multiplier": 1.0, **UNSEEDED, **algorithm}
    hooks, ghost = (Training(mode, **settings).run(1).engine.statement() for mode in ("hooks", "ghost"))
    assert ghost.certified == hooks.certified < math.inf
    assert ghost.faults == ()


def test_the_charge_of_ghost_mode_is_covered_by_noise_or_stated():
    rule = build_rule(UpdateSettings(1.0), "SGD", 250)
    assert plan_grid(rule, is_ghost=True).std == pytest.approx(1 + GHOST_NOISE)
    assert 0 < charge(rule, 10**6, 1, is_ghost=True) < GHOST_NOISE / 4
    assert charged_rule(rule, 10**6, 10**6, is_ghost=True) is rule
    large = build_rule(UpdateSettings(1.0), "SGD", 10**6)
    found = charge(large, 10**6, 1, is_ghost=True)
    assert found > GHOST_NOISE
    charged = charged_rule(large, 10**6, 1, is_ghost=True)
    assert charged.noise.std == pytest.approx(large.noise.std * (1 + GHOST_NOISE) / (1 + found))
    capped = build_rule(UpdateSettings(1.0, "dice", residual_cap=2.0), "SGD", 250)
    assert charge(capped, 10**4, 2000, is_ghost=True) > charge(capped, 10**4, 2000) + 2000 * charge(
        rule, 10**4, 1, True
    )


def test_too_many_rows_certify_nothing(monkeypatch):
    training = Training("ghost", algorithm="dpsgd", noise_multiplier=1.0, **UNSEEDED)
    monkeypatch.setattr(ghost_sums, "SUM_TERMS", 1000)
    assert training.run(1).engine.statement().certified == math.inf
    assert "more than four million rows" in training.engine.statement().faults[0]


@pytest.mark.parametrize("changed", ["x", "g"])
def test_changes_in_place_are_refused(changed):
    call = LayerRows.of(nn.Linear(2, 1), torch.ones(3, 2), torch.ones(3, 1))
    getattr(call, changed).mul_(2.0)
    with pytest.raises(RuntimeError, match="The input of Linear, or the gradient of its output, was changed in place"):
        call.sums(torch.ones(3, dtype=torch.float64))


def test_low_bits_of_a_release_do_not_identify_the_data():
    """Neighbours 0.1 deviations apart can be told apart with probability Φ(0.05) at most: 400 guesses exceed this by
    5.5 deviations with a probability of 2e-8."""
    size, draws = 2000, 400
    generator = torch.Generator().manual_seed(4)
    data = TensorDataset(torch.randn(2, size, generator=generator), torch.ones(2))
    model = nn.Sequential(nn.Linear(size, 1, bias=False), nn.Flatten(0))
    training = Training(
        "ghost", data, model, 1, lr=0.0, algorithm="dpsgd", noise_multiplier=10.0, criterion=nn.MSELoss(), **UNSEEDED
    )
    unit, std = training.optimizer.noise.grid.unit, training.optimizer.noise.grid.std
    batches = [[t[:1] for t in data[:]], [t[:0] for t in data[:]]]  # with the record, and without
    candidates = [(whole_sum(training, batch) * unit).float().numpy() for batch in batches]
    truth = np.random.default_rng(0).integers(2, size=draws)
    releases = np.stack([(whole_sum(training, batches[t]), training.update().numpy())[1] for t in truth])
    wrong = [np.count_nonzero(~bits.is_possible(releases, np.tile(c, (draws, 1)), std), axis=-1) for c in candidates]
    success = float(np.mean(0.5 + 0.5 * np.sign(wrong[0] - wrong[1]) * (2 * truth - 1)))
    assert abs(success - 0.5) < norm.cdf(0.05) - 0.5 + 5.5 * 0.5 / math.sqrt(draws)


def test_a_whole_training_is_that_of_hooks_mode():
    ends = [Training(mode, data=records(), algorithm="dice", residual_cap=1.2).run(2) for mode in ("hooks", "ghost")]
    torch.testing.assert_close(ends[0].theta(), ends[1].theta(), rtol=0, atol=1e-9)
    torch.testing.assert_close(ends[0].error(), ends[1].error(), rtol=0, atol=1e-9)


def step_in_pieces(training, pieces):
    """Make a step of a batch that comes in pieces."""
    training.engine._training.state.draw(sum(len(piece[0]) for piece in pieces))
    for number, piece in enumerate(pieces):
        training.optimizer.signal_skip_step(number < len(pieces) - 1)
        training.loss(piece).backward()
        training.optimizer.step()


def test_an_error_that_overflows_is_fed_back_within_its_clip():
    """Sums of full gradients may be infinite in float32, and their difference undefined, where no gradient is."""
    x, y = torch.full((2, 1), 2e19), torch.full((2,), 7e18)
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Flatten(0))
    nn.init.zeros_(model[0].weight)
    training = Training(
        "ghost", TensorDataset(x, y), model, 2, lr=0.0, noise_multiplier=1.0, criterion=nn.MSELoss(reduction="sum")
    )
    step_in_pieces(training, [(x, y), (x, -y)])
    assert not training.optimizer.residual[0].isnan().any()
    whole = whole_sum(training, (x, y))
    assert float(whole.abs().max()) * training.optimizer.noise.grid.unit <= 4.0 * (1 + 2.0**-20)
