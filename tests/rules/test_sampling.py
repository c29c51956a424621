"""Samplers draw as documented. Each statistical test raises a false alarm with probability below 10⁻⁶."""

import numpy as np
import pytest
from scipy import stats

from clipsilon.rules.sampling import Epochs, Full, Poisson, SinglePass, Uniform, draw, expected_batch, permutes

M, ROUNDS = 12, 20_000
ALARM = 1e-7


def batches(sampling, m=M, rounds=ROUNDS, seed=5):
    """Return a 0/1 table of the records that take part in each round."""
    rng = np.random.Generator(np.random.SFC64(seed))
    order = np.arange(m if permutes(sampling) else 0)
    drawn = np.empty(m, dtype=np.int64)
    table = np.zeros((rounds, m), dtype=int)
    for t in range(rounds):
        count = draw(sampling, t, m, order, rng, drawn)
        chosen = drawn[:count]
        assert np.unique(chosen).size == count, "a record took part twice in one step"
        table[t, chosen] = 1
    return table


@pytest.mark.parametrize("sampling", [Uniform(1), Uniform(5), Poisson(1), Poisson(5)], ids=str)
def test_each_record_is_included_at_the_stated_rate(sampling):
    q = expected_batch(sampling, M) / M
    for included in batches(sampling).sum(axis=0):
        assert stats.binomtest(int(included), ROUNDS, q).pvalue > ALARM / M


@pytest.mark.parametrize("sampling", [Uniform(1), Uniform(5), Poisson(5)], ids=str)
def test_steps_are_independent(sampling):
    table = batches(sampling)
    q = table.mean()
    for record in range(M):
        # Products of adjacent steps are 1-dependent, so they are split into two independent halves.
        halves = [
            (table[k + 1 :: 2, record][: ROUNDS // 2 - 1] & table[k::2, record][: ROUNDS // 2 - 1]) for k in (0, 1)
        ]
        for half in halves:
            assert stats.binomtest(int(half.sum()), half.size, q * q).pvalue > ALARM / (2 * M)


def test_poisson_records_are_independent_and_batch_sizes_binomial():
    table = batches(Poisson(5))
    q = 5 / M
    for i in range(M):
        for j in range(i):
            both = int((table[:, i] & table[:, j]).sum())
            assert stats.binomtest(both, ROUNDS, q * q).pvalue > ALARM / M**2
    sizes = np.bincount(table.sum(axis=1), minlength=M + 1)
    expected = ROUNDS * stats.binom.pmf(np.arange(M + 1), M, q)
    pooled = [np.concatenate(([v[:2].sum()], v[2:10], [v[10:].sum()])) for v in (sizes, expected)]
    assert stats.chisquare(*pooled).pvalue > ALARM


def test_subsets_are_uniform():
    table = batches(Uniform(2), m=5)
    codes = table @ (1 << np.arange(5))
    seen, counts = np.unique(codes, return_counts=True)
    assert seen.size == 10
    assert stats.chisquare(counts).pvalue > ALARM


def test_uniform_leaves_no_memory_behind():
    rng = np.random.Generator(np.random.SFC64(0))
    order = np.arange(M)
    draw(Uniform(7), 0, M, order, rng, np.empty(M, dtype=np.int64))
    np.testing.assert_array_equal(order, np.arange(M))


@pytest.mark.parametrize("kind", [SinglePass, Epochs])
@pytest.mark.parametrize("batch", [1, 5, 12])
def test_a_pass_takes_everyone_once(kind, batch):
    per_pass = -(-M // batch)
    table = batches(kind(batch), rounds=3 * per_pass)
    for epoch in np.split(table, 3):
        np.testing.assert_array_equal(epoch.sum(axis=0), 1)
    assert table[per_pass - 1].sum() == M - (per_pass - 1) * batch  # a short last batch stays short


def test_shuffles_are_uniform_over_first_places():
    table = batches(Epochs(1), m=4, rounds=4 * 10_000)
    assert stats.chisquare(table[::4].sum(axis=0)).pvalue > ALARM
    assert stats.chisquare(table[3::4].sum(axis=0)).pvalue > ALARM


def test_full_takes_everyone():
    assert batches(Full(), rounds=3).all()


def test_poisson_with_everyone_expected_takes_everyone():
    with np.errstate(divide="ignore"):
        assert batches(Poisson(M), rounds=3).all()
