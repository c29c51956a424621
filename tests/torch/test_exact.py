"""Sums and noise of a PyTorch training are exact: to the bit, whatever the order, and by integers in plain Python."""

import math
import os
import re
from fractions import Fraction

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from torch import nn
from torch.utils.data import TensorDataset

import clipsilon as cs
from clipsilon._core.exact_normal import integer_normal
from clipsilon.privacy.auditing import bits
from clipsilon.rules.clipping import Norm, Normalise
from clipsilon.torch import exact_sums, kernels
from clipsilon.torch.clipping import clip_factor, lower
from clipsilon.torch.exact_sums import ExactNoise, add_whole, charge, charged_rule, measure, plan_grid
from clipsilon.torch.generators import RandomStream
from clipsilon.torch.rules import UpdateSettings, build_rule
from private_training import Training

DPSGD = UpdateSettings(1.3, clip=0.7)
CAPPED = UpdateSettings(30.0, "dice", 0.7, residual_cap=1.1)
UNCAPPED = UpdateSettings(30.0, "dice", 0.7)


def whole_numbers(parts, clip, unit):
    """Return the whole numbers of each record, which is spread over several tensors."""
    factors = clip_factor(lower(clip), measure(parts)) / unit
    found = []
    for i in range(len(parts[0])):
        totals = [torch.zeros(part[0].shape, dtype=torch.float64) for part in parts]
        for part, total in zip(parts, totals, strict=True):
            add_whole(part[i : i + 1], factors[i : i + 1], total)
        found.append(torch.cat([total.flatten() for total in totals]))
    return torch.stack(found)


def exact_square(whole, unit):
    return sum(int(q) ** 2 for q in whole.tolist() if q) * Fraction(unit) ** 2


# Sums and norms


@settings(max_examples=150, deadline=None)
@given(
    st.data(),
    st.sampled_from([np.float32, np.float64]),
    st.sampled_from([1e-30, 0.1, 1.0, 3.7, 1e6]),
    st.sampled_from([Norm, Normalise]),
    st.floats(1e-3, 1e3),
)
def test_no_record_exceeds_the_clip(data, dtype, clip, kind, noise):
    """In exact arithmetic, for gradients that are huge, tiny, denormal, or just at the clip."""
    limits = (-150, 126) if dtype is np.float32 else (-1080, 500)  # just below 2^128 a float32 would be infinite
    entry = st.tuples(st.sampled_from([-1, 1]), st.floats(1, 2, exclude_max=True), st.integers(*limits))
    rows = data.draw(st.lists(st.lists(entry, min_size=5, max_size=5), min_size=1, max_size=3))
    near = clip / math.sqrt(5) * (1 + np.arange(-3, 4) * 2.0**-50)
    values = np.array([[s * math.ldexp(m, e) for s, m, e in row] for row in rows] + [[x] * 5 for x in near])
    parts = [torch.from_numpy(values[:, :2].astype(dtype)), torch.from_numpy(values[:, 2:].astype(dtype))]
    grid = plan_grid(build_rule(UpdateSettings(noise, clip=clip), "SGD", 4))
    for whole in whole_numbers(parts, kind(clip), grid.unit):
        assert bool((whole == whole.trunc()).all())
        assert exact_square(whole, grid.unit) <= Fraction(clip) ** 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1, 63, 64, 65, 2047, 2049, 300_001])
def test_long_records_do_not_exceed_the_clip_and_lose_little(dtype, size):
    rng = torch.Generator().manual_seed(size)
    sample = torch.randn(3, size, generator=rng, dtype=dtype)
    sample[1] *= torch.logspace(-20, 3, size, dtype=torch.float64).to(dtype)
    norms = measure([sample])
    for row, found, whole in zip(sample, norms, whole_numbers([sample], Norm(0.5), 2.0**-42), strict=True):
        square = math.fsum(x * x for x in row.double().tolist())
        assert found.item() == pytest.approx(math.sqrt(square), rel=2.0**-46, abs=0)
        assert exact_square(whole, 2.0**-42) <= Fraction(1, 4)
        if found > 0.51:
            assert float(exact_square(whole, 2.0**-42)) >= 0.25 * (1 - 2.0**-41 * math.sqrt(size) * 4)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 23), st.integers(1, 5000), st.integers(0, 2**32 - 1))
def test_sums_do_not_depend_on_order_pieces_or_company(records, size, seed):
    """Equal to the sum of integers in plain Python, and each record's integers are those it has alone."""
    rng = np.random.default_rng(seed)
    sample = torch.from_numpy(rng.standard_normal((records, size)).astype(np.float32) * np.float32(3))
    factors = clip_factor(lower(Norm(2.0)), measure([sample])) * 2.0**33
    total, pieces = torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
    add_whole(sample, factors, total)
    order = torch.from_numpy(rng.permutation(records))
    assert torch.equal(measure([sample[order]]), measure([sample])[order])
    for piece in order.split(int(rng.integers(1, records + 1))):
        add_whole(sample[piece], factors[piece], pieces)
    assert torch.equal(total, pieces)
    columns = rng.integers(size, size=5)
    alone = [clip_factor(lower(Norm(2.0)), measure([row.unsqueeze(0)])).item() * 2.0**33 for row in sample]
    for j in columns:
        assert total[j].item() == sum(int(f * x) for f, x in zip(alone, sample[:, j].tolist(), strict=True))


def test_sums_of_other_layouts_and_types():
    sample = torch.randn(6, 4, 5, generator=torch.Generator().manual_seed(0))
    for other in (sample.mT.contiguous().mT, sample.bfloat16(), sample[:, 0, 0], sample[:0]):
        total = torch.zeros(other.shape[1:], dtype=torch.float64)
        add_whole(other, torch.full((len(other),), 1024.0, dtype=torch.float64), total)
        assert torch.equal(total, (other.double() * 1024).trunc().sum(0))


@pytest.mark.parametrize("function", [kernels.add_squares, kernels.add_whole])
def test_compiled_sums_are_not_reordered(function):
    """Not even if the kernel that calls them may be."""
    options = {"error_model": "numpy", "fastmath": {"reassoc", "contract"}}
    compiled = numba.njit(**options)(function.py_func)
    rows, factors = np.ones((5, 7), dtype=np.float32), np.ones(5)
    compiled(*((rows, np.zeros((5, 2))) if function is kernels.add_squares else (rows, factors, np.zeros(7))))
    (code,) = compiled.inspect_llvm().values()
    assert re.search(r"= fmul \S+ double|= fmul double|= fmul <", code)
    assert not re.search(r"= f(add|sub|mul) [^\n]*\b(reassoc|contract|fast)\b|fmuladd|@llvm\.fma", code)


# Grids


@pytest.mark.parametrize("noise", [1e-6, 0.01, 1.0, 50.0, 1e5])
@pytest.mark.parametrize("batch", [1, 256, 10**6])
@pytest.mark.parametrize("algorithm", [DPSGD, CAPPED, UNCAPPED], ids=["dpsgd", "capped", "uncapped"])
def test_sums_of_a_step_stay_whole(noise, batch, algorithm):
    rule = build_rule(algorithm._replace(noise_multiplier=noise), "SGD", batch)
    grid = plan_grid(rule)
    largest = grid.rows * (1.1 if algorithm is CAPPED else 0.7)
    assert largest / grid.unit <= 2**50
    assert grid.std >= noise * 0.7  # on the sum, not less than the rule says
    assert grid.std <= noise * 0.7 * (1 + (algorithm is CAPPED) * 2.0**-10) * (1 + 2.0**-48)
    assert math.ldexp(grid.unit, grid.extra) == math.ldexp(grid.std, grid.shift - 32)
    assert grid.shift == 0 or grid.extra == 0
    assert grid.extra == 0 or algorithm is CAPPED


def test_extreme_settings_are_refused():
    for extreme in ({"clip": 1e-200}, {"clip": 1e200}, {"noise_multiplier": 1e-30}, {"noise_multiplier": 1e30}):
        with pytest.raises(ValueError, match="ordinary size"):
            plan_grid(build_rule(DPSGD._replace(**extreme), "SGD", 4))


def test_the_charge_is_covered_by_noise_or_stated():
    """Long runs of large models cost a little more; the noise covers the others."""
    rule = build_rule(CAPPED, "SGD", 250)
    assert charged_rule(rule, 10**4, 10**4) is rule
    assert charge(rule, 10**4, 10**4) < 0.7 * 2.0**-10 < charge(rule, 10**9, 10**6)
    charged = charged_rule(rule, 10**9, 10**6)
    assert charged.noise.std == pytest.approx(rule.noise.std * (1 + 2.0**-10) / (1 + charge(rule, 10**9, 10**6) / 0.7))
    plain = build_rule(DPSGD, "SGD", 250)
    assert charged_rule(plain, 10**9, 10**9) is plain


def test_a_statement_counts_the_charge(monkeypatch):
    training = Training(algorithm="dice", residual_cap=1.2, noise_multiplier=2.0, noise_generator=None, generator=None)
    before = training.engine.statement(steps=8).certified
    assert before == cs.account(training.engine._training.rule, 40, 8, 1e-5).certified
    monkeypatch.setattr(exact_sums, "charge", lambda *_: 0.5)
    assert training.engine.statement(steps=8).certified > before * 1.2


# Noise


def python_release(whole, grid, divisor, seed):
    """The release, draw by draw, in Python's integers of any size."""
    stream = RandomStream(seed).generator.bit_generator
    spacing = math.ldexp(grid.unit, grid.extra) / divisor
    found = []
    for q in whole.tolist():
        coarse = (int(q) + (1 << grid.extra) // 2) // (1 << grid.extra)
        found.append(spacing * (coarse + integer_normal(stream) // (1 << grid.shift) + 0.5))
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "plan", [DPSGD, CAPPED, DPSGD._replace(noise_multiplier=1e-5)], ids=["plain", "fine", "coarse"]
)
def test_a_release_is_whole_noise_on_whole_sums(plan, dtype):
    grid = plan_grid(build_rule(plan, "SGD", 4))
    assert (grid.extra > 0, grid.shift > 0) == (plan is CAPPED, plan.noise_multiplier < 1e-3)
    whole = torch.randint(-(2**45), 2**45, (500,), generator=torch.Generator().manual_seed(1)).double()
    found = ExactNoise(grid, RandomStream(3)).release(whole, 4, torch.empty(500, dtype=dtype))
    assert torch.equal(found, torch.tensor(python_release(whole, grid, 4, 3), dtype=torch.float64).to(dtype))


def float32_noise(total, std, seed):
    """What was used before: do not."""
    return total + torch.empty_like(total).normal_(std=std, generator=torch.Generator().manual_seed(seed))


def success(releases, sums, truth, std):
    """Return how often the low bits speak for the true sum; a tie counts one half."""
    wrong = [
        np.count_nonzero(~bits.is_possible(releases, s, std), axis=-1)
        for s in (np.tile(c, (len(releases), 1)) for c in sums)
    ]
    return float(np.mean(0.5 + 0.5 * np.sign(wrong[0] - wrong[1]) * (2 * truth - 1)))


def test_low_bits_identify_the_data_behind_float_noise_only():
    """Neighbours 0.1 deviations apart can be told apart with probability Φ(0.05) at most: 600 guesses exceed this by
    5.5 deviations with a probability of 2e-8. Behind the noise that was used before, all of 60 are right."""
    draws, size, std = 600, 4000, 1.3 * 0.7
    grid = plan_grid(build_rule(DPSGD, "SGD", 1))
    rng = np.random.default_rng(0)
    first = std * rng.standard_normal(size) / 20
    record = rng.standard_normal(size)
    second = first + 0.1 * std * record / np.linalg.norm(record)
    whole = [torch.from_numpy(np.trunc(total / grid.unit)) for total in (first, second)]
    sums = [(w * grid.unit).float() for w in whole]
    candidates = [s.numpy() for s in sums]
    truth = rng.integers(2, size=draws)
    old = np.stack([float32_noise(sums[t], std, seed).numpy() for seed, t in enumerate(truth[:60])])
    assert success(old, candidates, truth[:60], std) == 1.0
    noise, like = ExactNoise(grid, RandomStream(5)), torch.empty(size)
    new = np.stack([noise.release(whole[t], 1, like).numpy() for t in truth])
    assert abs(success(new, candidates, truth, std) - 0.5) < norm.cdf(0.05) - 0.5 + 5.5 * 0.5 / math.sqrt(draws)


def test_no_generator_of_pytorch_is_used_for_noise_or_batches(monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("PyTorch's generator was used.")

    training = Training(noise_multiplier=1.0, noise_generator=None, generator=None)
    for name in ("rand", "randn", "randperm", "randint", "normal"):
        monkeypatch.setattr(torch, name, refuse)
    monkeypatch.setattr(torch.Tensor, "normal_", refuse)
    batches = training.engine._training.batches
    assert len(list(batches._draw())) == 8
    assert training.optimizer.noise.release(torch.zeros(5, dtype=torch.float64), 1, torch.zeros(5)).any()
    streams = (training.optimizer.noise.stream, batches.stream)
    assert {type(stream.generator.bit_generator).__name__ for stream in streams} == {"AESCounter"}


def drawn_in_fork(stream):
    """Return what a forked process draws from a stream."""
    source, sink = os.pipe()
    child = os.fork()
    if not child:
        os.write(sink, stream.generator.bytes(16))
        os._exit(0)
    os.waitpid(child, 0)
    found = os.read(source, 16)
    os.close(source)
    os.close(sink)
    return found


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_never_repeats_noise():
    stream, seeded = RandomStream(), RandomStream(1)
    stream.generator.bytes(16)
    children = [drawn_in_fork(stream) for _ in range(2)]
    assert len({*children, stream.generator.bytes(16)}) == 3
    assert drawn_in_fork(seeded) == seeded.generator.bytes(16)  # and nothing is certified of a seed


def test_streams_continue_from_their_state():
    for stream, other in (
        (RandomStream(), RandomStream()),
        (RandomStream(1), RandomStream()),
        (RandomStream(), RandomStream(2)),
    ):
        stream.generator.bytes(5)
        other.set_state(stream.get_state())
        assert stream.generator.bytes(40) == other.generator.bytes(40)


def test_poisson_batches_have_their_rate():
    """320,000 coins of probability 1/8: their number is 5.5 deviations off with a probability of 4e-8."""
    batches = Training(generator=torch.Generator().manual_seed(4)).engine._training.batches
    sizes = [len(drawn) for _ in range(1000) for drawn in batches._draw()]
    assert abs(sum(sizes) - 40_000) < 5.5 * math.sqrt(320_000 * 7 / 64)


# Trainings


def samples_of(training, batch):
    """Make a step; return the gradients per record that it was made of."""
    samples, add = [], training.optimizer.clip_and_accumulate

    def seen():
        samples.extend(p.grad_sample.clone() for p in training.optimizer.trained)
        add()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training.optimizer, "clip_and_accumulate", seen)
        training.step(batch)
    return samples


def test_an_update_is_the_release_of_whole_sums():
    """Draw by draw: clip, truncate, add up and add noise, in Python's integers."""
    training = Training(algorithm="dpsgd", clip=0.3, noise_multiplier=1.0, batch=4)
    seed = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(3)))
    samples, grid = samples_of(training, training.loader.dataset[:]), training.optimizer.noise.grid
    whole = whole_numbers(samples, Norm(0.3), grid.unit)
    total = torch.tensor([float(sum(int(q) for q in column)) for column in whole.T.tolist()], dtype=torch.float64)
    assert training.update().tolist() == python_release(total, grid, 4, seed)


def test_the_error_is_whole_and_exact():
    """B·e and what is fed back are whole; both change by whole numbers alone, so that nothing is lost."""
    training = Training(algorithm="dice", clip=0.2, error_clip=0.25, residual_cap=0.9, noise_multiplier=3.0)
    grid, most, has_clipped = training.optimizer.noise.grid, Fraction(5 * 0.25) ** 2, False
    assert grid.extra > 0
    for batch in training.loader:
        before = torch.cat([e.flatten() for e in training.optimizer.residual])
        samples = samples_of(training, batch)
        after = torch.cat([e.flatten() for e in training.optimizer.residual])
        kept, used = (whole_numbers(samples, Norm(c), grid.unit).sum(0) for c in (0.9, 0.2))
        fed_back = before + kept - used - after
        assert bool((after == after.trunc()).all())
        assert exact_square(fed_back, grid.unit) <= most
        if exact_square(before, grid.unit) <= most * Fraction(0.999):
            assert torch.equal(fed_back, before)
        else:
            exact, has_clipped = before * float(1.25 / grid.unit / before.norm()), True
            assert float((fed_back - exact).abs().max()) <= 1 + 2.0**-40 * float(exact.abs().max())
    assert has_clipped


def test_batches_that_are_too_large_for_exact_sums_certify_nothing():
    training = Training(algorithm="dpsgd", noise_multiplier=1.0, batch=1, noise_generator=None, generator=None)
    x, y = training.loader.dataset[:]
    training.engine._training.state.draw(200)
    training.step((x.repeat(5, 1), y.repeat(5)))
    assert any("more than 128 + 8·batch_size rows" in fault for fault in training.engine.statement().faults)


def test_a_float32_model_is_released_in_float32():
    data = TensorDataset(torch.randn(40, 4), torch.ones(40))
    training = Training(data=data, model=nn.Sequential(nn.Linear(4, 1), nn.Flatten(0)), noise_multiplier=1.0).run(1)
    assert {p.grad.dtype for p in training.optimizer.trained} == {torch.float32}
    assert {e.dtype for e in training.optimizer.residual} == {torch.float64}


def scaled_step(training, batch, scale):
    """Make a step of a loss that is multiplied by a number."""
    training.optimizer.zero_grad()
    (training.loss(batch) * scale).backward()
    training.optimizer.step()


@pytest.mark.parametrize("mode", ["hooks", "ghost"])
@pytest.mark.parametrize("scale", [math.nan, math.inf, 1e200])
def test_going_on_after_a_gradient_that_is_not_finite_certifies_nothing(mode, scale):
    """Leaving out every batch of one record shows whether it is there."""
    training = Training(mode, algorithm="dpsgd", noise_multiplier=1.0, noise_generator=None, generator=None).run(1)
    batch = training.loader.dataset[:4]
    training.engine._training.state.draw(4)
    with pytest.raises(RuntimeError, match="not finite"):
        scaled_step(training, batch, scale)
    training.optimizer.zero_grad()
    training.step(batch)
    stated = training.engine.statement()
    assert stated.certified == math.inf
    assert "that its batch was left out reveals the record" in stated.faults[0]


def test_no_record_exceeds_the_clip_where_tiny_squares_are_lost():
    """With torch.set_flush_denormal, squares below 2^-1022 are zero, and their sum was missing from short norms."""
    sample = torch.full((1, 100_000), 1.49e-154, dtype=torch.float64)
    sample[0, 0] = 1.1e-146
    assert torch.set_flush_denormal(True)
    try:
        (whole,) = whole_numbers([sample], Normalise(1.0), 2.0**-50)
    finally:
        torch.set_flush_denormal(False)
    assert exact_square(whole, 2.0**-50) <= 1
