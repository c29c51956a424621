"""Audits break what is broken, never exceed what is certified, and have power where the truth is known.

Seeds are fixed. Where a bound could exceed the truth by chance, the confidence is 1 − 10⁻⁷ or the comment says how
unlikely a false alarm is.
"""

import math

import numpy as np
import pytest
from scipy import stats

import clipsilon as cs
import registry
from clipsilon.privacy.auditing.attacks import attacks
from clipsilon.privacy.auditing.canaries import Linear, canary_pair
from clipsilon.privacy.auditing.inference import clopper_pearson_bound
from clipsilon.privacy.release import release
from clipsilon.report.plots import tradeoff_figure

STEP = cs.schedules.Constant(1.0)
SURE = 1 - 1e-7
PAPER_DICE = cs.DiceSGD(STEP, 1.0, 1.0, math.sqrt(96 * 10**4 * math.log(10**4)) / (10**4 * 0.03))


def test_the_published_guarantee_of_dice_is_broken():
    """0.03 is claimed; about half of the runs with the canary score above every run without it."""
    audit = cs.audit(PAPER_DICE, 10**4, 10**4, 1e-4, runs=1500, confidence=0.95, seed=0)
    assert audit.statement.claimed == pytest.approx(0.03)
    assert audit.statement.claim_holds is False
    assert audit.lower_bound > 3.5
    assert audit.attack.startswith("bleeding residual")


@pytest.mark.verify
def test_the_published_guarantee_of_dice_is_broken_by_a_wide_margin():
    audit = cs.audit(PAPER_DICE, 10**4, 10**4, 1e-4, runs=12_000, confidence=0.95, seed=0)
    assert audit.lower_bound > 6


def test_the_same_attack_on_a_certified_rule_stays_below():
    rule = cs.DiceSGD(STEP, 1.0, 1.0, 1.0, residual_cap=2.0, sampling="single-pass")
    with pytest.warns(cs.PrivacyWarning, match="at least 1 in 10000 records"):
        rule = cs.calibrate(rule, 1.0, 1e-4, 10**4, 10**4)
    audit = cs.audit(rule, 10**4, 10**4, 1e-4, runs=1000, confidence=SURE, seed=0)
    assert audit.statement.certified <= 1.0
    assert audit.lower_bound < 1.0


@pytest.mark.parametrize(
    ("epsilon", "runs", "share"),
    [
        (1.0, 6_000, 0.7),
        pytest.param(1.0, 20_000, 0.75, marks=pytest.mark.verify),
        pytest.param(4.0, 20_000, 0.75, marks=pytest.mark.verify),
    ],
)
def test_power_where_the_truth_is_known(epsilon, runs, share):
    """Full batches are exactly Gaussian: the runs show most of the certified ε (20,000 nine tenths on average)."""
    rule = cs.calibrate(cs.DPSGD(STEP, 1.0, 1.0, batch=1, sampling="full"), epsilon, 1e-5, 20, 5)
    audit = cs.audit(rule, 20, 5, 1e-5, runs=runs, confidence=0.95, seed=1)
    assert audit.method == "Gaussian trade-off"
    assert share * epsilon <= audit.lower_bound
    # At most five audits in a hundred may exceed the certificate; these seeds do not.
    assert audit.lower_bound <= audit.statement.certified


def configurations(number, seed):
    """Certified rules of every preset and sampling, with targets from 0.5 to 8."""
    rng = np.random.default_rng(seed)
    for k in range(number):
        sampling = ["uniform", "poisson", "epochs", "single-pass", "full"][k % 5]
        records, batch = int(rng.integers(5, 40)), int(rng.integers(1, 4))
        steps = int(rng.integers(1, -(-records // batch) + 1))
        presets = registry.rules(sampling=sampling, batch=batch)
        preset = [name for name in presets if name != "SGD"][(k + k // 5) % 5]  # a different preset for each sampling
        adjacency = ["replace-one", "zero-out"][int(rng.integers(2))]
        target = float(np.exp(rng.uniform(np.log(0.5), np.log(8))))
        rule = cs.calibrate(presets[preset], target, 1e-5, records, steps, adjacency=adjacency)
        yield rule, records, steps, adjacency, k


def check_no_false_alarm(number, runs, seed):
    exceeded = []
    for rule, records, steps, adjacency, k in configurations(number, seed):
        audit = cs.audit(rule, records, steps, 1e-5, runs=runs, confidence=SURE, seed=k, adjacency=adjacency)
        if audit.lower_bound > audit.statement.certified:
            exceeded.append((rule, audit))
    assert exceeded == []  # false alarm: at most number × 10⁻⁷


def test_no_audit_exceeds_a_certificate():
    check_no_false_alarm(5, 300, seed=1)


@pytest.mark.verify
def test_no_audit_exceeds_a_certificate_in_two_hundred_configurations():
    check_no_false_alarm(200, 2000, seed=0)


def test_a_mechanism_that_ignores_the_canary_shows_nothing():
    """At least 95 % of audits must give 0; with 60 audits, seven or more above 0 have a probability below 10⁻⁶ at 0.5 %."""
    pair = canary_pair(20, 0.0, "zero-out")  # a canary of size zero
    rule = cs.DPSGD(STEP, 1.0, 0.2, batch=2, rate=0.1)
    positive = 0
    for seed in range(60):
        audit = cs.audit(rule, 20, 5, 1e-5, runs=100, seed=seed, adjacency="add-remove", pair=pair,
                         statistic=lambda trace: -trace.theta[:, -1, 0])  # fmt: skip
        positive += audit.lower_bound > 0
        assert audit.attack == "your own"
    assert positive <= 3  # 5 % of 60


@pytest.mark.verify
def test_likelihood_ratios_are_likelihood_ratios():
    """E[e^score] over runs without the canary is 1, as for any likelihood ratio; six standard deviations, seeded."""
    for rule in (
        cs.PCSGD(STEP, 1.0, 1.5),
        cs.DPSGD(STEP, 1.0, 0.8, batch=3),
        cs.DPSGD(STEP, 1.0, 0.8, batch=3, sampling="epochs"),
    ):
        attack = attacks(rule, release(rule, 9, 6), "zero-out")[-1]
        assert attack.name == "likelihood of every step"
        scores = attack.scores(attack.pair.absent, 6, 20_000, 3)
        ratio = np.exp(scores)
        assert abs(ratio.mean() - 1) < 6 * ratio.std() / math.sqrt(20_000)


def test_scores_do_not_depend_on_how_the_runs_are_cut(monkeypatch):
    from clipsilon.privacy.auditing import attacks as module

    rule = cs.PCSGD(STEP, 1.0, 1.0)
    attack = attacks(rule, release(rule, 9, 6), "zero-out")[0]
    monkeypatch.setattr(module, "_NUMBERS", 30)
    scores = attack.scores(attack.pair.present, 6, 25, 3)
    assert scores.shape == (25,)
    assert np.unique(scores).size == 25  # no chunk repeats the seed of another


def test_one_run_audits():
    loose = cs.calibrate(cs.DPSGD(STEP, 1.0, 1.0, batch=1, sampling="full"), 8.0, 1e-5, 1200, 5, adjacency="zero-out")
    bound = cs.audit_one_run(loose, 1200, 5, 1e-5, canaries=1000, confidence=0.95, seed=0)
    assert 1.0 < bound.lower_bound < 8.0
    blind = cs.calibrate(loose, 0.01, 1e-5, 1200, 5, adjacency="zero-out")
    assert cs.audit_one_run(blind, 1200, 5, 1e-5, canaries=1000, confidence=SURE, seed=0).lower_bound == 0.0


def test_bounds_are_monotone_in_confidence():
    rule = cs.DPSGD(STEP, 1.0, 0.3, batch=1, sampling="full")
    bounds = [cs.audit(rule, 20, 5, 1e-5, runs=1000, confidence=c, seed=0).lower_bound for c in (0.9, 0.99, SURE)]
    assert bounds == sorted(bounds, reverse=True)


def test_plot_and_words(tmp_path):
    audit = cs.audit(cs.DPSGD(STEP, 1.0, 0.3, batch=1, sampling="full"), 20, 5, 1e-5, runs=500, seed=0)
    tradeoff_figure(audit).savefig(tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 5000
    assert "an attack (whole run) on its noisy updates shows ε ≥" in str(audit)
    assert "one record is replaced by another" in str(audit)
    rates, misses = audit.curve
    assert stats.spearmanr(rates, misses).statistic < -0.9


def test_the_attack_chosen_by_the_pilot_is_judged_on_other_runs(monkeypatch):
    """The final scores come from seeds that no pilot run has used."""
    from clipsilon.privacy.auditing import audit as module

    used = []
    real = module.Attack.scores

    def spy(self, problem, steps, runs, seed, effort):
        used.append(seed)
        return real(self, problem, steps, runs, seed, effort)

    monkeypatch.setattr(module.Attack, "scores", spy)
    cs.audit(cs.PCSGD(STEP, 1.0, 1.0), 9, 6, 1e-5, runs=50, seed=0)
    assert len(used) == len(set(used)) == 6


BAD = {
    "runs": (lambda: cs.audit(cs.PCSGD(STEP, 1, 1), 9, 6, 1e-5, runs=5), "runs must be a whole number of at least 20"),
    "confidence": (
        lambda: cs.audit(cs.PCSGD(STEP, 1, 1), 9, 6, 1e-5, confidence=1.0),
        "confidence must be a number above 0",
    ),
    "no noise": (lambda: cs.audit(cs.PCSGD(STEP, 1, 0), 9, 6, 1e-5), "rule must clip and add Gaussian noise"),
    "statistic alone": (
        lambda: cs.audit(cs.PCSGD(STEP, 1, 1), 9, 6, 1e-5, statistic=len),
        "pair and statistic must be given",
    ),
    "pair": (
        lambda: cs.audit(cs.PCSGD(STEP, 1, 1), 9, 6, 1e-5, pair=canary_pair(8, 1.0, "zero-out"), statistic=len),
        "pair must be two problems of 9 records",
    ),
    "scores": (
        lambda: cs.audit(
            cs.PCSGD(STEP, 1, 1),
            9,
            6,
            1e-5,
            runs=30,
            pair=canary_pair(9, 1.0, "zero-out"),
            statistic=lambda trace: np.zeros(3),
        ),
        "statistic must return one score per run",
    ),
    "pair of numbers": (
        lambda: cs.audit(cs.PCSGD(STEP, 1, 1), 9, 6, 1e-5, pair=5, statistic=len),
        "pair must be two problems",
    ),
    "canaries": (lambda: cs.audit_one_run(cs.PCSGD(STEP, 1, 1), 9, 6, 1e-5, canaries=10), "canaries must be at most"),
    "one run without clipping": (lambda: cs.audit_one_run(cs.SGD(STEP), 9, 6, 1e-5, canaries=5), "rule must clip"),
    "claims": (lambda: cs.claims(audit_runs=2), "audit_runs must be a whole number of at least 20"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case):
    attempt, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        attempt()


def test_an_attack_does_not_see_the_hidden_error():
    rule = cs.DiceSGD(STEP, 1.0, 1.0, 1.0, residual_cap=2.0)
    seen = []

    def statistic(trace):
        seen.append(trace.error)
        return trace.theta[:, -1, 0]

    cs.audit(rule, 9, 6, 1e-5, runs=20, pair=canary_pair(9, 5.0, "replace-one"), statistic=statistic, seed=0)
    assert seen == [None, None]


def test_canaries_are_neighbours():
    pair = canary_pair(5, 2.0, "replace-one")
    changed = (pair.absent.features != pair.present.features).any(axis=1)
    assert changed.sum() == 1
    assert isinstance(pair.present.loss, Linear)


def test_claims():
    rows = {row.experiment: row for row in cs.claims()}
    assert rows["PCSGD, quadratic, ε = 0.1"].certified == pytest.approx(1242, rel=0.002)
    assert rows["DP-GD, Theorem 2.6 at ε = 1"].certified == pytest.approx(1.628, abs=1e-3)
    assert rows["DP-SGD with Gamma noise, Cod-RNA"].certified == pytest.approx(1.62, abs=0.01)
    assert rows["DP-SGD with Gaussian noise, Cod-RNA"].certified == pytest.approx(4.14, abs=0.01)
    assert rows["local reports, μ = 1"].certified == pytest.approx(4.377, abs=1e-3)
    assert rows["DiceSGD, quadratic, ε = 0.1"].certified > 1000
    assert "fails" in rows["PCSGD, quadratic, ε = 0.1"].condition
    assert all(row.audited is None for row in rows.values())


@pytest.mark.verify
def test_audited_claims_stay_below_their_certificates_and_break_what_is_false():
    rows = cs.claims(audit_runs=200, confidence=0.95, seed=0)
    broken = {row.experiment for row in rows if row.audited is not None and row.audited > row.claimed}
    assert {"PCSGD, quadratic, ε = 0.1", "DiceSGD, quadratic, ε = 0.1"} <= broken
    assert all(row.audited <= row.certified for row in rows if row.audited is not None)


def test_the_held_out_half_judges():
    """Scores without any difference: the split keeps the best of 400 thresholds from looking like a finding."""
    rng = np.random.default_rng(0)
    bounds = [clopper_pearson_bound(*rng.standard_normal((2, 400)), 1e-5, 0.95).lower_bound for _ in range(200)]
    assert np.mean(np.array(bounds) > 0) < 0.05
