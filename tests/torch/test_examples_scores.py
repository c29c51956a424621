"""Scores of sentences: known values, and another implementation."""

import pytest

pytest.importorskip("torch")
for package in ("opacus", "sacrebleu", "rouge_score"):
    pytest.importorskip(package)

from clipsilon.torch.examples import scores  # noqa: E402


def test_bleu_of_known_sentences():
    right = "the cat sat on the mat today"
    assert scores.bleu([right], [[right]]) == pytest.approx(100.0)
    assert scores.bleu([right, right], [["no", right], [right]]) == pytest.approx(100.0)  # the best of several
    # n-grams of "the cat sat on the mat now": 6/7, 5/6, 4/5, 3/4 of them are there, and both are as long
    expected = 100 * (6 / 7 * 5 / 6 * 4 / 5 * 3 / 4) ** 0.25
    assert scores.bleu(["the cat sat on the mat now"], [[right]]) == pytest.approx(expected)


def test_rouge_l_of_known_sentences():
    # the longest common subsequence, "a c d", is 3 of 4 words and 3 of 5
    precision, recall = 3 / 4, 3 / 5
    expected = 100 * 2 * precision * recall / (precision + recall)
    assert scores.rouge_l(["a c x d"], [["a b c d e"]]) == pytest.approx(expected)
    assert scores.rouge_l(["a c x d"], [["z", "a c x d"]]) == pytest.approx(100.0)
