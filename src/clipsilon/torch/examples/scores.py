"""Scores of generated sentences, each compared with one or more references: BLEU, NIST, ROUGE-L and CIDEr-D.

BLEU and ROUGE-L are those of sacrebleu and rouge-score. NIST and CIDEr-D follow their definitions, with texts split
into words in lower case, without punctuation.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

_NIST_LONGEST, _CIDER_LONGEST = 5, 4  # words per n-gram
_CIDER_SPREAD = 6.0  # in words: the width of the penalty for a difference in length

NGrams = Counter[tuple[str, ...]]


def bleu(written: Sequence[str], expected: Sequence[Sequence[str]]) -> float:
    """Return sacrebleu's corpus BLEU in per cent; each text may have several references."""
    from sacrebleu.metrics import BLEU

    most = max(map(len, expected))
    columns = [[each[k] if k < len(each) else None for each in expected] for k in range(most)]
    return float(BLEU().corpus_score(list(written), columns).score)


def nist(written: Sequence[str], expected: Sequence[Sequence[str]]) -> float:
    """Return the NIST score of a corpus, with n-grams of up to five words (Doddington, 2002, eq. 3).

    Each n-gram that also occurs in a reference of its text counts with its information: log2 of how many times as often
    the references of all texts contain it without its last word. As in the program of NIST, it counts as often as the
    reference with most of them has it. Brevity is penalised, by one half at two thirds of the references' mean length.
    """
    texts, references = _split(written, expected)
    known: NGrams = Counter()
    for words in (words for several in references for words in several):
        known[()] += len(words)
        for n in range(1, _NIST_LONGEST + 1):
            known.update(_ngrams(words, n))
    score = 0.0
    for n in range(1, _NIST_LONGEST + 1):
        shared = (_ngrams(text, n) & _most(several, n) for text, several in zip(texts, references, strict=True))
        found = sum(
            times * math.log2(known[each[:-1]] / known[each]) for both in shared for each, times in both.items()
        )
        score += found / max(1, sum(_ngrams(text, n).total() for text in texts))
    return score * _brevity(sum(map(len, texts)), sum(float(np.mean([*map(len, several)])) for several in references))


def _most(several: Sequence[list[str]], n: int) -> NGrams:
    """Return each n-gram with its number in the reference that has most of it."""
    most: NGrams = Counter()
    for words in several:
        most |= _ngrams(words, n)
    return most


def _brevity(length: float, usual: float) -> float:
    """Return NIST's penalty factor for texts of a total length whose references usually have another."""
    if length >= usual:
        return 1.0
    return math.exp(math.log(0.5) * (math.log(length / usual) / math.log(1.5)) ** 2) if length else 0.0


def rouge_l(written: Sequence[str], expected: Sequence[Sequence[str]]) -> float:
    """Return rouge-score's mean ROUGE-L F1 in per cent, each text compared with its best reference."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"])
    best = [
        max(scorer.score(right, text)["rougeL"].fmeasure for right in several)
        for text, several in zip(written, expected, strict=True)
    ]
    return 100.0 * float(np.mean(best))


def cider(written: Sequence[str], expected: Sequence[Sequence[str]]) -> float:
    """Return the mean CIDEr-D of texts, from 0 to 10 (Vedantam, Zitnick and Parikh, 2015, section 8).

    A sentence is a vector of counts of n-grams for each n up to four. Counts have the weight log(texts/texts with the
    n-gram in a reference); as in the authors' program, an n-gram that is in no reference counts as if in one text.
    CIDEr-D, which that program computes, differs from CIDEr in three ways: counts are limited to the reference's,
    differences in length are penalised, and words are not stemmed.
    """
    texts, references = _split(written, expected)
    spread: NGrams = Counter()
    for several in references:
        spread.update({ngram for words in several for n in range(1, _CIDER_LONGEST + 1) for ngram in _ngrams(words, n)})

    def vector(words: list[str], n: int) -> dict[tuple[str, ...], float]:
        return {each: times * math.log(len(texts) / max(1, spread[each])) for each, times in _ngrams(words, n).items()}

    def similarity(text: list[str], right: list[str]) -> float:
        vectors = [(vector(text, n), vector(right, n)) for n in range(1, _CIDER_LONGEST + 1)]
        length = math.exp(-((len(text) - len(right)) ** 2) / (2 * _CIDER_SPREAD**2))
        return length * float(np.mean([_clipped_cosine(*pair) for pair in vectors]))

    pairs = zip(texts, references, strict=True)
    return 10.0 * float(np.mean([np.mean([similarity(text, right) for right in several]) for text, several in pairs]))


def _clipped_cosine(one: dict[tuple[str, ...], float], right: dict[tuple[str, ...], float]) -> float:
    """Return the cosine between two vectors, the first limited to the entries of the second; 0 if one is zero."""
    lengths = math.hypot(*one.values()) * math.hypot(*right.values())
    return sum(min(value, right[each]) * right[each] for each, value in one.items() if each in right) / (lengths or 1.0)


def _split(written: Sequence[str], expected: Sequence[Sequence[str]]) -> tuple[list[list[str]], list[list[list[str]]]]:
    return [_words(text) for text in written], [[_words(right) for right in several] for several in expected]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _ngrams(words: list[str], n: int) -> NGrams:
    return Counter(zip(*(words[k:] for k in range(n)), strict=False))


SCORES: dict[str, Callable[[Sequence[str], Sequence[Sequence[str]]], float]] = {
    "BLEU": bleu,
    "NIST": nist,
    "ROUGE-L": rouge_l,
    "CIDEr": cider,
}
