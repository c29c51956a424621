"""Samplers draw as documented. Each statistical test raises a false alarm with probability below 10⁻⁶."""

from itertools import pairwise

import numpy as np
import pytest
from numba import njit
from scipy import stats

import clipsilon as cs
from clipsilon.rules.sampling import (
    Epochs,
    Full,
    InOrder,
    Poisson,
    SinglePass,
    Uniform,
    draw,
    draw_span,
    expected_batch,
    pass_span,
    permutes,
    public_rate,
    sampling_rate,
)

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


@pytest.mark.parametrize("sampling", [Uniform(1), Uniform(5), Poisson(1), Poisson(5), Poisson(5, 0.2)], ids=str)
def test_each_record_is_included_at_the_stated_rate(sampling):
    q = sampling_rate(sampling, M)
    assert q == (expected_batch(sampling, M) / M if sampling != (5, 0.2) else 0.2)
    for included in batches(sampling).sum(axis=0):
        assert stats.binomtest(int(included), ROUNDS, q).pvalue > ALARM / M


@pytest.mark.parametrize("sampling", [Uniform(1), Uniform(5), Poisson(5), Poisson(1, 0.6)], ids=str)
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


def test_records_in_order_are_taken_as_they_come():
    table = batches(InOrder(5), rounds=3)
    np.testing.assert_array_equal([np.flatnonzero(row).tolist() for row in table[:2]], [range(5), range(5, 10)])
    np.testing.assert_array_equal(np.flatnonzero(table[2]), range(10, M))


def test_shuffles_are_uniform_over_first_places():
    table = batches(Epochs(1), m=4, rounds=4 * 10_000)
    assert stats.chisquare(table[::4].sum(axis=0)).pvalue > ALARM
    assert stats.chisquare(table[3::4].sum(axis=0)).pvalue > ALARM


def test_full_takes_everyone():
    assert batches(Full(), rounds=3).all()


def test_poisson_with_everyone_expected_takes_everyone():
    with np.errstate(divide="ignore"):
        assert batches(Poisson(M), rounds=3).all()


# A public rate.


def test_with_a_public_rate_nothing_depends_on_the_number_of_records():
    """The first records are drawn by the same coins, whether there are others or not; sums are divided by the same B."""
    for seed in range(200):
        drawn = [batches(Poisson(3, 0.3), m=m, rounds=1, seed=seed)[0, :10] for m in (10, 11, 40)]
        np.testing.assert_array_equal(drawn[1], drawn[0])
        np.testing.assert_array_equal(drawn[2], drawn[0])
    before = [batches(Poisson(3), m=m, rounds=1, seed=seed)[0, :10] for m in (10, 40) for seed in range(200)]
    assert not np.array_equal(before[:200], before[200:])  # what a batch size alone does
    assert {expected_batch(Poisson(3, 0.3), m) for m in (10, 11, 40)} == {3}
    assert {sampling_rate(Poisson(3, 0.3), m) for m in (10, 11, 40)} == {0.3}


@pytest.mark.parametrize("rate", [0.3, 1.0])
def test_a_run_with_one_more_record_that_adds_nothing_begins_with_the_same_step(rate):
    """The whole engine: no batch size, check or constant is derived from the number of records."""
    x = np.random.default_rng(0).standard_normal((9, 2))
    rule = cs.DPSGD(cs.schedules.Constant(1.0), clip=1.0, noise_std=0.1, batch=20, rate=rate)
    with np.errstate(divide="ignore"):
        for seed in range(20):
            first, second = (
                cs.run(cs.Problem(rows, loss=cs.losses.Quadratic()), rule, 1, seed=seed).theta
                for rows in (x, np.vstack([x, np.zeros(2)]))
            )
            np.testing.assert_array_equal(first, second)


def test_rates_are_checked():
    for rate in (0.0, -0.1, 1.5, np.nan, "0.1", True):
        with pytest.raises(ValueError, match="rate must be a"):
            Poisson(10, rate)
    assert public_rate(Poisson(10, 1)) == 1.0
    assert public_rate(Poisson(10)) is public_rate(Uniform(10)) is None
    step = cs.schedules.Constant(1.0)
    assert cs.DiceSGD(step, 1.0, 1.0, 1.0, sampling="poisson", rate=0.2).sampling == Poisson(1, 0.2)
    for preset in (cs.SGD, cs.AutoDiceSGD):
        with pytest.raises(ValueError, match="sampling must be 'poisson' with a rate, got 'uniform' and rate=0.2"):
            preset(step, 1.0, rate=0.2)
    with pytest.raises(ValueError, match="batch must be at most the number of records"):
        cs.DPSGD(step, 1.0, 1.0, batch=20).check_sampling(9, 1)
    cs.DPSGD(step, 1.0, 1.0, batch=20, rate=0.5).check_sampling(9, 1)  # an error here would tell how many there are


# Exact coins.


@njit
def inclusions(sampling, m, rounds, rng):
    """Return how often each record, and each pair of records, is drawn."""
    order, drawn = np.empty(0, np.int64), np.empty(m, np.int64)
    both = np.zeros((m, m), np.int64)
    for t in range(rounds):
        count = draw(sampling, t, m, order, rng, drawn)
        for i in range(count):
            for j in range(i + 1):
                both[drawn[i], drawn[j]] += 1
    return both


@pytest.mark.parametrize("sampling", [Poisson(1), Poisson(29), Poisson(30), Poisson(15), Poisson(2, 0.07)], ids=str)
def test_records_and_pairs_are_drawn_as_often_as_by_independent_coins(sampling):
    """Binomial tests of 30 records and 435 pairs per case; false alarm of all together below 10⁻⁶."""
    m, rounds = 30, 300_000
    both = inclusions(sampling, m, rounds, np.random.Generator(np.random.SFC64(23)))
    assert not np.triu(both, 1).any()  # in increasing order
    q = sampling_rate(sampling, m)
    for i in range(m):
        for j in range(i + 1):
            assert stats.binomtest(int(both[i, j]), rounds, q if i == j else q * q).pvalue > ALARM / m**2


@pytest.mark.parametrize("m", [1, 2, 3, 40])
def test_everyone_is_drawn_without_randomness_and_few_records_suffice(m):
    rng = np.random.Generator(np.random.SFC64(0))
    order, drawn = np.empty(0, np.int64), np.empty(m, np.int64)
    for sampling in (Poisson(m), Poisson(1, 1.0)):
        assert draw(sampling, 0, m, order, rng, drawn) == m
        np.testing.assert_array_equal(drawn, np.arange(m))
    assert rng.bit_generator.random_raw() == np.random.SFC64(0).random_raw()
    for rate in (1e-300, 1e-30, 1e-9):
        assert draw(Poisson(1, rate), 0, m, order, rng, drawn) == 0


@pytest.mark.parametrize("sampling", [Poisson(30), Poisson(199), Poisson(200), Poisson(1), Poisson(3, 0.02)], ids=str)
def test_spans_draw_what_one_draw_does(sampling):
    m, drawn = 200, np.empty(200, np.int64)
    cuts = np.random.default_rng(4)
    for seed in range(50):
        whole, rng, again = (np.random.Generator(np.random.SFC64(seed)) for _ in range(3))
        expected = drawn[: draw(sampling, 0, m, np.empty(0, np.int64), whole, drawn)].tolist()
        ends = [0, *sorted(cuts.integers(0, m + 1, 5).tolist()), m]
        found, position, part = [], -1, np.empty(m, np.int64)
        for first, last in pairwise(ends):
            position = pass_span(sampling, m, position, first, rng)
            again.bit_generator.state = rng.bit_generator.state
            found += [first + k for k in part[: draw_span(sampling, m, position, first, last, again, part)].tolist()]
        pass_span(sampling, m, position, m, rng)
        assert found == expected
        assert rng.bit_generator.random_raw() == whole.bit_generator.random_raw()
