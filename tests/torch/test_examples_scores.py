"""Scores of sentences: known values, and another implementation."""

import math

import numpy as np
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


def test_nist_of_known_sentences():
    # log₂(3/1) for each of two words, nothing for the pair, which always follows; half of it for two words of three
    assert scores.nist(["A b."], [["a b c"]]) == pytest.approx(0.5 * math.log2(3))
    # "the" twice, as in the first reference: 3 of 5 words; "the cat" after one "the" of three; longer than on average
    expected = (2 * math.log2(5 / 3) + math.log2(5)) / 3 + math.log2(3) / 2
    assert scores.nist(["the the cat"], [["the cat the", "the dog"]]) == pytest.approx(expected)
    assert scores.nist([""], [["a b c"]]) == 0.0
    assert scores.nist(["x y"], [["a b c"]]) == 0.0


def test_nist_agrees_with_nltk():
    """With one reference per text, where nltk's choice of the best reference for each n does not matter."""
    other = pytest.importorskip("nltk.translate.nist_score").corpus_nist
    rng = np.random.default_rng(0)
    for length in (6, 9, 14):
        written = [rng.choice(list("abcde"), size=length).tolist() for _ in range(20)]
        right = [rng.choice(list("abcde"), size=rng.integers(6, 15)).tolist() for _ in range(20)]
        ours = scores.nist([" ".join(each) for each in written], [[" ".join(each)] for each in right])
        assert ours == pytest.approx(other([[each] for each in right], written), rel=1e-12)


def test_cider_of_known_sentences():
    # every n-gram is in the references of one text of two, so all have the same weight
    near = math.exp(-1 / 72) / math.sqrt(2) / 4  # "e" beside "e f": a cosine for n = 1 alone, and a word too few
    found = scores.cider(["a b c d", "e"], [["a b c d"], ["e f"]])
    assert found == pytest.approx(10 * (1 + near) / 2)
    # "a" counts once, as in the reference, though the text has it twice
    assert scores.cider(["a a", "x"], [["a b"], ["c"]]) == pytest.approx(10 * (1 / (2 * math.sqrt(2)) / 4) / 2)
    # the mean over references, of which one is right
    assert scores.cider(["a b c d", "x"], [["a b c d", "e f g h"], ["y"]]) == pytest.approx(10 * (1 + 0) / 2 / 2)


def test_cider_ignores_what_all_references_have():
    assert scores.cider(["the", "the"], [["the one"], ["the two"]]) == 0.0
    assert scores.cider(["the cat"], [["the cat"]]) == 0.0  # one text alone: no n-gram distinguishes it
