"""Verdicts follow from numbers: no statement holds without evidence, and words match the numbers."""

from pathlib import Path

import numpy as np
import pytest

import clipsilon
from clipsilon.privacy.papers import ClaimRow
from clipsilon.reproduce.numbers import join, slope
from clipsilon.reproduce.ours import claims as ours_claims
from clipsilon.reproduce.paper4 import dimensions as paper4_dimensions

PACKAGE = Path(clipsilon.__file__).parent


def row(experiment, paper, claimed, certified, audited):
    return ClaimRow(paper, experiment, 1e-5, "replace-one", claimed, "met", certified, audited)


def test_a_claim_of_nobody_does_not_hold():
    with pytest.raises(LookupError, match="a statement about no claim would hold"):
        ours_claims._finding([row("PCSGD", 1, 1.0, 1.0, None)], 5, "DP-SGD", "All are private.", "")


def test_an_attack_that_succeeds_is_told():
    withstood = ours_claims._sound([row("PCSGD", 1, 1.0, 2.0, 1.0), row("DiceSGD", 1, 1.0, 2.0, None)])
    assert withstood.holds
    assert "Of 1 audits, 0 exceed" in withstood.measured
    assert "50%" in withstood.measured
    broken = ours_claims._sound([row("PCSGD", 1, 1.0, 2.0, 1.0), row("DiceSGD", 1, 1.0, 2.0, 3.0)])
    assert not broken.holds
    assert "Of 2 audits, 1 exceed" in broken.measured


def test_growth_is_called_fast_where_it_is():
    key = ("linear", 0.5, 2.0, "theta")
    slow, fast = (paper4_dimensions._growth({key: ends}) for ends in ([1.0, 3.0], [1.0, 9.0]))
    assert (slow.verdict, fast.verdict) == ("holds", "holds with a remark")


def test_numbers():
    x = np.array([1.0, 10.0, 100.0, 1000.0])
    assert slope(x, 2 * x**-0.7) == pytest.approx(-0.7)
    assert slope(x, np.where(x < 10, 99.0, x**2), first=10) == pytest.approx(2.0)
    assert join([0.12345, 2.0], 2) == "0.12, 2"
