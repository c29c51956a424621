"""Paper 5, Theorems 5.3 and D.5: clipped softmax gradients are not the gradients of any function."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from clipsilon.report.charts import Chart, Series, Table
from clipsilon.reproduce.base import Finding, Lab, Result, experiment
from clipsilon.rules.clipping import Norm, PerClass
from clipsilon.theory.curl import circulation, curl, softmax_field, witness

_FEATURES = (1.0, -0.5, 2.0)
_CLIPS = (0.1, 0.2, 0.5, 1.0, 1.5)
_KINDS = {"all classes together": "Theorem 5.3", "each class separately": "Theorem D.5"}
_SIGNIFICANT = 1e3  # from this multiple of its numerical error on, a curl counts as nonzero


class Curl(NamedTuple):
    """The curl at one model, the work around a small loop there, and their numerical errors.

    Parameters
    ----------
    curl, curl_error : float
        ‖J − Jᵀ‖ of the Jacobian J, and its numerical error.
    work, work_error : float
        The integral of the field around the loop, and its numerical error.
    """

    curl: float
    curl_error: float
    work: float
    work_error: float


@experiment(
    "paper5-curl",
    paper=5,
    where="Theorem 5.3, Theorem D.5",
    title="Clipped softmax gradients are the gradient of no function",
    parameters={
        "record": f"x = {_FEATURES}, label 1",
        "classes": "2, 3, 5, 10 (quick: 2, 3, 5)",
        "B": ", ".join(f"{clip:g}" for clip in _CLIPS),
        "models": "of 100 random models, the one with the most significant curl (quick: 50)",
    },
)
def field(lab: Lab) -> Result:
    """A gradient field has a symmetric Jacobian and does no work around a closed loop. With two classes this remains
    true after clipping. With three or more it does not: clipped descent on softmax follows a field that is not the
    gradient of any function.
    """
    classes = (2, 3, 5) if lab.quick else (2, 3, 5, 10)
    tries = 50 if lab.quick else 100
    found = {
        (kind, count, clip): lab.keep(_measure, kind, count, clip, tries)
        for kind in _KINDS
        for count in classes
        for clip in _CLIPS
    }
    findings = [_many(kind, theorem, found) for kind, theorem in _KINDS.items()] + [_two(found)]
    charts = [
        Chart(
            f"Clipped {kind}",
            "clip B",
            "curl ‖J − Jᵀ‖",
            [Series(f"{k} classes", _CLIPS, [found[kind, k, clip].curl for clip in _CLIPS]) for k in classes],
            x_log=True,
            y_log=True,
        )
        for kind in _KINDS
    ]
    rows = [(f"{kind}, {k} classes, B = {clip:g}", *values) for (kind, k, clip), values in found.items()]
    return Result(findings, charts, [Table("Curl and circulation", ["case", *Curl._fields], rows)])


def _measure(kind: str, classes: int, clip: float, tries: int) -> Curl:
    part = Norm(clip) if kind == "all classes together" else PerClass(clip, classes)
    clipped = softmax_field(_FEATURES, 0, classes, part)
    size = classes * len(_FEATURES)
    theta = witness(clipped, size, tries)
    found = curl(clipped, theta)
    work = circulation(clipped, theta, 1e-3, *np.random.default_rng(7).standard_normal((2, size)))
    return Curl(*found, *work)


def _many(kind: str, theorem: str, found: dict[tuple[str, int, float], Curl]) -> Finding:
    mine = [value for (at, classes, _), value in found.items() if at == kind and classes > 2]
    curls, works = [v.curl / v.curl_error for v in mine], [abs(v.work) / v.work_error for v in mine]
    return Finding(
        f"{theorem}: with three classes or more, clipped gradients ({kind}) are not the gradients of any function.",
        f"In {len(mine)} cases, the curl is at least {min(curls):.1g} times its numerical error, and the work around a "
        f"small loop at least {min(works):.1g} times its own.",
        min(curls) > _SIGNIFICANT and min(works) > _SIGNIFICANT,
    )


def _two(found: dict[tuple[str, int, float], Curl]) -> Finding:
    mine = [value for (_, classes, _), value in found.items() if classes == 2]
    clear = max(max(value.curl / value.curl_error, abs(value.work) / value.work_error) for value in mine)
    return Finding(
        "With two classes, that is in logistic regression, clipped gradients are gradients (Lemma 5.1).",
        f"Neither curl nor work exceeds {clear:.1g} times its numerical error.",
        clear < 10,
    )
