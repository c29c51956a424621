"""Randomly drawn PyTorch modules with inputs, for comparing what a private training measures with true gradients."""

import random
from typing import NamedTuple

import torch
from opacus.layers import DPGRU, DPLSTM, DPRNN, DPMultiheadAttention
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations


class Drawn(NamedTuple):
    """A module that maps a batch to scores of shape (records, scores), and inputs for it."""

    family: str
    module: nn.Module
    x: torch.Tensor
    is_random: bool = False  # whether two calls differ


class Body(nn.Module):
    """A part, something in between, and a linear head on all that comes out."""

    def __init__(self, part, example, between=(), scores=2, call=None):
        super().__init__()
        self.part, self.between, self.call = part, nn.Sequential(*between), call
        with torch.no_grad():
            width = self.features(example).shape[1]
        self.head = nn.Linear(width, scores)

    def features(self, x):
        y = self.part(x) if self.call is None else self.call(self.part, x)
        return self.between(y[0] if isinstance(y, tuple) else y).flatten(1)

    def forward(self, x):
        return self.head(self.features(x))


BETWEEN = [(), (nn.Tanh(),), (nn.ReLU(inplace=True),), (nn.GELU(), nn.Identity()), (nn.SiLU(),)]


def linear(rng, n):
    shape = [rng.randint(1, 4) for _ in range(rng.randint(0, 3))]
    d = rng.randint(1, 5)
    x = torch.randn(n, *shape, d)
    parts = [nn.Linear(d, rng.randint(1, 4), bias=rng.random() < 0.7)]
    if rng.random() < 0.5:
        parts += [nn.Tanh(), nn.Linear(parts[0].out_features, 2, bias=rng.random() < 0.7)]
    return nn.Sequential(*parts), x


def convolution(rng, n):
    dims = rng.randint(1, 3)
    groups = rng.choice([1, 1, 2])
    padding_mode = rng.choice(["zeros", "zeros", "reflect", "replicate", "circular"])
    padding = rng.choice([0, 1, 2, "same", "valid"])
    kernel = [rng.randint(1, 3) for _ in range(dims)] if rng.random() < 0.5 else rng.randint(1, 3)
    stride = 1 if padding == "same" else rng.randint(1, 2)
    part = [nn.Conv1d, nn.Conv2d, nn.Conv3d][dims - 1](
        2 * groups,
        groups * rng.randint(1, 2),
        kernel,
        stride=stride,
        padding=padding,
        dilation=rng.choice([1, 1, 2]),
        groups=groups,
        bias=rng.random() < 0.7,
        padding_mode=padding_mode,
    )
    return part, torch.randn(n, 2 * groups, *[rng.randint(5, 7) for _ in range(dims)])


def transposed(rng, n):
    dims = rng.randint(1, 2)
    part = [nn.ConvTranspose1d, nn.ConvTranspose2d][dims - 1](
        2, 3, 2, stride=rng.randint(1, 2), bias=rng.random() < 0.5
    )
    return part, torch.randn(n, 2, *[4] * dims)


def normalisation(rng, n):
    size = rng.randint(2, 5)
    x = torch.randn(n, 4, *[size] * rng.randint(1, 2))
    kind = rng.choice(["layer", "layer", "group", "instance", "rms", "batch"])
    if kind == "layer":
        shape = list(x.shape[rng.randint(1, x.dim() - 1) :])
        return nn.LayerNorm(shape, elementwise_affine=rng.random() < 0.8, bias=rng.random() < 0.6), x
    if kind == "group":
        return nn.GroupNorm(rng.choice([1, 2, 4]), 4, affine=rng.random() < 0.8), x
    if kind == "instance":
        instance = nn.InstanceNorm1d if x.dim() == 3 else nn.InstanceNorm2d
        return instance(4, affine=rng.random() < 0.8, track_running_stats=rng.random() < 0.2), x
    if kind == "rms":
        return nn.RMSNorm(x.shape[-1], elementwise_affine=rng.random() < 0.8), x
    return (nn.BatchNorm1d if x.dim() == 3 else nn.BatchNorm2d)(4), x


def embedding(rng, n):
    shape = [rng.randint(1, 4) for _ in range(rng.randint(1, 2))]
    options = {"padding_idx": rng.choice([None, None, 0, 2])}
    if rng.random() < 0.15:
        options["max_norm"] = 0.5
    if rng.random() < 0.15:
        options["scale_grad_by_freq"] = True
    if rng.random() < 0.15:
        options["sparse"] = True
    return nn.Embedding(4, 3, **options), torch.randint(0, 4, (n, *shape))


def bag(rng, n):
    x = torch.randint(0, 5, (n, rng.randint(1, 4)))
    part = nn.EmbeddingBag(5, 3, mode=rng.choice(["sum", "mean", "max"]), padding_idx=rng.choice([None, 1]))
    if rng.random() < 0.5:
        return part, x, None
    return part, x, lambda part, x: part(x.flatten(), torch.arange(0, x.numel(), x.shape[1]))


def attention(rng, n):
    part = DPMultiheadAttention(
        4,
        rng.choice([1, 2]),
        bias=rng.random() < 0.7,
        add_bias_kv=rng.random() < 0.3,
        add_zero_attn=rng.random() < 0.3,
        batch_first=rng.random() < 0.7,
    )
    return part, torch.randn(n, rng.choice([3, n]), 4), lambda part, x: part(x, x, x)


class GroupedAttention(nn.Module):
    """Grouped-query attention as in Llama: heads share keys and values, behind an RMS norm; linear layers only."""

    def __init__(self, groups, shared, bias):
        super().__init__()
        self.groups, self.shared = groups, shared
        self.norm = nn.RMSNorm(4)
        self.queries = nn.Linear(4, 2 * groups * shared, bias=bias)
        self.keys, self.values = nn.Linear(4, 2 * groups, bias=bias), nn.Linear(4, 2 * groups, bias=bias)
        self.out = nn.Linear(2 * groups * shared, 4, bias=bias)

    def forward(self, x):
        normed = self.norm(x)
        q, k, v = (
            layer(normed).unflatten(2, (-1, 2)).transpose(1, 2) for layer in (self.queries, self.keys, self.values)
        )
        k, v = (t.repeat_interleave(self.shared, 1) for t in (k, v))
        found = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(found.transpose(1, 2).flatten(2))


def grouped(rng, n):
    return GroupedAttention(rng.randint(1, 2), rng.randint(1, 2), rng.random() < 0.3), torch.randn(n, 3, 4)


def recurrent(rng, n):
    part = rng.choice([DPRNN, DPLSTM, DPGRU])(
        3,
        rng.randint(1, 3),
        num_layers=rng.randint(1, 2),
        bias=rng.random() < 0.7,
        batch_first=rng.random() < 0.7,
        bidirectional=rng.random() < 0.4,
    )
    return part, torch.randn(n, rng.choice([3, n]), 3)


class Shift(nn.Module):
    """A layer that Opacus has no rule for."""

    def __init__(self, d):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(d)), nn.Parameter(torch.randn(d))

    def forward(self, x):
        return torch.sin(x * self.scale**2 + self.shift)


class Pair(nn.Module):
    """A layer with two outputs, both of which are used."""

    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(d, d))

    def forward(self, x):
        return x @ self.weight, torch.tanh(x @ self.weight.T)


def own(rng, n):
    d = rng.randint(2, 4)
    part = rng.choice([Shift, Pair])(d)
    call = (lambda part, x: sum(part(x))) if isinstance(part, Pair) and rng.random() < 0.7 else None
    return part, torch.randn(n, *[3] * rng.randint(0, 1), d), call


def bilinear(rng, n):
    return nn.Bilinear(3, 2, 2), torch.randn(n, 5), lambda part, x: part(x[:, :3], x[:, 3:])


def prelu(rng, n):
    return nn.PReLU(rng.choice([1, 3])), torch.randn(n, 3, *[2] * rng.randint(0, 1))


def repeated(rng, n):
    part = rng.choice(
        [nn.Linear(3, 3), nn.Linear(3, 3), nn.LayerNorm(3), Shift(3), nn.Conv1d(3, 3, 1), nn.Embedding(4, 3)]
    )
    if isinstance(part, nn.Embedding):
        return part, torch.randint(0, 4, (n, 3)), lambda part, x: part(x) + torch.tanh(part(x.flip(1)))
    shape = (3, 2) if isinstance(part, nn.Conv1d) else (3,)
    return part, torch.randn(n, *shape), lambda part, x: part(torch.tanh(part(x)))


class TiedWords(nn.Module):
    """Embeddings whose table is the weight of the output layer as well, as in language models, and of a second table."""

    def __init__(self, words, bias, padding, twice):
        super().__init__()
        self.words, self.scores = nn.Embedding(words, 3, padding_idx=padding), nn.Linear(3, words, bias=bias)
        self.scores.weight = self.words.weight
        self.more = nn.Embedding(words, 3) if twice else None
        if twice:
            self.more.weight = self.words.weight

    def forward(self, x):
        found = self.words(x) if self.more is None else self.words(x) + self.more(x.flip(1))
        return self.scores(torch.tanh(found))


def tied_words(rng, n):
    words, padding = rng.choice([2, 5, 40]), rng.choice([None, None, 1])
    part = TiedWords(words, rng.random() < 0.5, padding, rng.random() < 0.3)
    return part, torch.randint(0, words, (n, rng.randint(1, 5)))


def tied(rng, n):
    part = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3, bias=rng.random() < 0.5))
    part[2].weight = part[0].weight
    return part, torch.randn(n, 3)


def outside(rng, n):
    """A weight that is used outside of its layer as well."""
    gate = rng.choice([1.0, 0.5])
    return nn.Linear(3, 3), torch.randn(n, 3), lambda part, x: torch.tanh(part(x)) + gate * x @ part.weight


def mixing(rng, n):
    """Functional operations that look at all records."""
    ways = [
        lambda part, x: part(functional.batch_norm(x, None, None, training=True)),
        lambda part, x: functional.batch_norm(part(x), None, None, training=True),
        lambda part, x: part(x - x.mean(0).detach()),
        lambda part, x: part(x) - part(x).mean(0, keepdim=True),
        lambda part, x: torch.softmax(part(x), 0),
        lambda part, x: part(x).cumsum(0),
        lambda part, x: part(x) * (x.sum(1, keepdim=True) == x.sum(1).max()),
        lambda part, x: part(x.roll(1, 0)),
        lambda part, x: part(x).flip(0),
    ]
    return nn.Linear(3, 3), torch.randn(n, 3), rng.choice(ways)


class Writing(nn.Module):
    """A module that keeps something of the records."""

    def __init__(self, way):
        super().__init__()
        self.layer, self.way, self.seen = nn.Linear(3, 3), way, torch.zeros(3)
        self.kept = nn.Identity()
        self.kept.register_buffer("mean", torch.zeros(3))

    def forward(self, x):
        with torch.no_grad():
            if self.way == "buffer":
                self.kept.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            elif self.way == "rebound":
                self.kept.mean = 0.9 * self.kept.mean + 0.1 * x.mean(0)
            elif self.way == "data":
                self.layer.bias.data.add_(x.mean(0))
            else:
                self.seen = x.mean(0)
        return self.layer(x)


def writing(rng, n):
    return Writing(rng.choice(["buffer", "rebound", "data", "attribute"])), torch.randn(n, 3)


def reparametrised(rng, n):
    make = rng.choice([parametrizations.weight_norm, parametrizations.spectral_norm, parametrizations.orthogonal])
    return make(nn.Linear(3, 3, bias=rng.random() < 0.7)), torch.randn(n, 3)


def rows(rng, n):
    """A module that makes several rows of a record, or one row for all."""
    ways = [
        (nn.Linear(2, 3), lambda part, x: part(x.reshape(-1, 2)).reshape(len(x), -1)),
        (nn.Linear(4, 3), lambda part, x: part(x.mean(0, keepdim=True)) + x.sum(1, keepdim=True)),
        (nn.Embedding(4, 3), lambda part, x: part(torch.arange(4)).sum(0) * x.sum(1, keepdim=True)),
        (nn.Linear(4, 3), lambda part, x: part(x.unsqueeze(0))[0]),
    ]
    part, call = rng.choice(ways)
    return part, torch.randn(n, 4), call


def dropped(rng, n):
    part, x = rng.choice([linear, convolution, normalisation])(rng, n)
    return nn.Sequential(part, nn.Dropout(0.5)), x


# The families whose modules a private training accepts, at least some, and those that it must always refuse.
SOUND = (
    *(linear, convolution, transposed, normalisation, embedding, attention, grouped, recurrent),
    *(own, prelu, repeated, tied, tied_words, dropped),
)
UNSOUND = (bag, bilinear, outside, mixing, writing, reparametrised, rows)


def draw_module(seed, family=None, dtype=torch.float64):
    """Return a module with its inputs, of any family unless given, the same for the same seed."""
    rng = random.Random(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        draw = family or rng.choice(SOUND if rng.random() < 0.75 else UNSOUND)
        part, x, *call = draw(rng, rng.randint(2, 5))
        part = part.to(dtype)
        x = x.to(dtype) if x.is_floating_point() else x
        between = () if draw is dropped else rng.choice(BETWEEN)
        module = Body(part, x, between, rng.randint(1, 3), *call).to(dtype)
        for p in module.parameters():
            if draw in SOUND and rng.random() < 0.1 and p is not module.head.weight:
                p.requires_grad_(False)
    return Drawn(draw.__name__, module, x, is_random=draw is dropped)
