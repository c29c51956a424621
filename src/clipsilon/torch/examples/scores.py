"""Scores of generated sentences, each compared with one or more references."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def bleu(written: Sequence[str], expected: Sequence[Sequence[str]]) -> float:
    """Return sacrebleu's corpus BLEU in per cent; each text may have several references."""
    from sacrebleu.metrics import BLEU

    most = max(map(len, expected))
    columns = [[each[k] if k < len(each) else None for each in expected] for k in range(most)]
    return float(BLEU().corpus_score(list(written), columns).score)


def rouge_l(written: Sequence[str], expected: Sequence[Sequence[str]]) -> float:
    """Return rouge-score's mean ROUGE-L F1 in per cent, each text compared with its best reference."""
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rougeL"])
    best = [
        max(scorer.score(right, text)["rougeL"].fmeasure for right in several)
        for text, several in zip(written, expected, strict=True)
    ]
    return 100.0 * float(np.mean(best))
