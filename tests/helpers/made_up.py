"""Two experiments that take no time and have everything that can go wrong on a page."""

import numpy as np

from clipsilon.report.charts import Chart, Series, Table, band
from clipsilon.reproduce.base import Experiment, Finding, Result

EVIL = "</script><script>throw 1</script><b>&\"'"
T = np.unique(np.geomspace(1, 1e5, 60).round())


class Bench:
    """A laboratory that keeps nothing."""

    def __init__(self, quick=False):
        self.quick, self.calls = quick, []

    def sweep(self, runs):
        raise NotImplementedError

    def keep(self, function, *arguments, **keywords):
        self.calls.append((function, arguments))
        return function(*arguments, **keywords)


def gaps(replicates):
    noise = np.random.default_rng(0).lognormal(0, 0.5, (replicates, T.size))
    return 3.3 + 40 / T * noise, 50 / (T + 1) * noise


def curves(lab):
    """Look at θ_PS, and at `residual_cap`; 1 < 2 & so on."""
    clipped, fed_back = lab.keep(gaps, 4 if lab.quick else 20)
    chart = Chart(
        "The gap along a run",
        "iteration t",
        "‖θ_t − θ_PS‖²",
        [
            band("PCSGD", T, clipped),
            band("DiceSGD", T, fed_back),
            Series("exact bias", T[[0, -1]], [3.3, 3.3], kind="dashed"),
            Series(EVIL, [10, 100, 1000, 1e4], [1.0, 0.0, np.nan, np.inf], kind="points", colour="#123456"),
        ],
        x_log=True,
        y_log=True,
    )
    negative = Chart(
        "Both signs, and gaps", "a, b", "y", [Series("β = 0.1", [-1, 0, 1, 2, 3], [2.0, -1.0, np.nan, 4.0, 5.0])]
    )
    table = Table(
        "Numbers, and words", ["rule", "ε", "why"], [["PCSGD", 1241.25, EVIL], ["SGD", np.inf, "no noise, so nothing"]]
    )
    findings = [
        Finding("PCSGD ends at the bias.", f"It ends at {clipped[:, -1].mean():.4g}.", bool(clipped[:, -1].mean() > 3)),
        Finding("DiceSGD does not.", "0.0005", True, "Only in a made-up world."),
    ]
    return Result(findings, [chart, negative], [table])


def nothing(lab):
    """Charts with hardly a point."""
    zeros = Chart("Zeros", "x", "y", [Series("zeros", [0.0, 0.0], [0.0, np.nan])], x_log=True, y_log=True)
    empty = Chart("Empty", "x", "y", [Series("none", [1.0, -1.0], [np.nan, 3.0])], x_log=True, y_log=True)
    single = Chart("One point", "x", "y", [Series("one", [5.0], [7.0])], y_log=True)
    return Result(
        [Finding(f"Nothing {EVIL}", "0 of 1", False)], [zeros, empty, single, Chart("No series", "x", "y", [])]
    )


EXPERIMENTS = [
    Experiment("made-up-curves", 1, "Fig. 9", "Curves of nothing", {"β": "0.1, 0.2", "T": "10⁵"}, curves),
    Experiment("made-up-nothing", None, "ours", f"Nothing at all {EVIL}", {}, nothing),
]
