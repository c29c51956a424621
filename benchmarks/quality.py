"""Model quality at equal certified (ε, δ): clipsilon with its defaults, Opacus and diffprivlib tuned on a small grid.

    CLIPSILON_COD_RNA=folder python benchmarks/quality.py [--seeds 10] [--peers no] [--data breast-cancer]
    CLIPSILON_COD_RNA=folder python benchmarks/quality.py --data cod-rna-train --seeds 20  # its training file alone
    CLIPSILON_COD_RNA=folder python benchmarks/quality.py --bench  # only ε = 1, for docs/peers.md
    CLIPSILON_COD_RNA=folder python benchmarks/quality.py --tune   # selects the peers' grid points again
    CLIPSILON_COD_RNA=folder python benchmarks/quality.py --units  # only clipsilon, columns in other units
    CLIPSILON_COD_RNA=folder python benchmarks/quality.py --methods  # only clipsilon, by other methods
    CLIPSILON_COD_RNA=folder python benchmarks/quality.py --scales   # only clipsilon, private scales
    python benchmarks/quality.py --sizes                          # only clipsilon, generated records of many sizes

Prints a Markdown table: mean AUC and accuracy on test records, ± standard errors, at δ = 10⁻⁵, and by how much
clipsilon's AUC is larger than a peer's, from pairs that share a seed. Columns are standardised by the training records'
means and deviations, which are treated as public for all three. The peers run in environments of their own, which are
created if they do not exist; their scripts are in `peers/`.

Each peer's grid point is the one with the best mean AUC on a held-out fifth of the training records, over three splits
with seeds that the table does not use; this tuning is not charged to the peers' budget. Opacus's points are selected
with clipsilon's engine, which runs the same algorithm (Poisson batches, flat clipping, last iterate), and then run by
Opacus; its noise is clipsilon's, certified for the same ε. diffprivlib is ε-private, with δ = 0.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

import clipsilon as cs
from clipsilon.estimators import PrivateLogisticRegression, PrivateScaler
from peers.environment import PEERS, PeerError, environment
from results import Row, ahead, keep, unless_missing

POINTS = PEERS / "points.json"
EPSILONS = (0.1, 1.0, 3.0)
DELTA = 1e-5
TUNING_SEEDS = (100, 101, 102)
METRICS = ("auc", "accuracy")

OPACUS_GRID = {"batch": (1024, 4096), "epochs": (10, 40), "clip": (0.1, 1.0, 10.0), "rate": (0.1, 1.0, 10.0, 100.0)}
SMALL_OPACUS_GRID = {**OPACUS_GRID, "batch": (32, 128), "rate": (0.01, 0.1, 1.0, 10.0)}  # for hundreds of records
DIFFPRIVLIB_GRID = {"data_norm": (1.0, 2.0, 4.0, 8.0), "C": (0.001, 0.01, 0.1, 1.0)}


class Split(NamedTuple):
    """Standardised records for training and testing, without a column of ones.

    Parameters
    ----------
    features, labels : array
        Training records.
    test_features, test_labels : array
        Test records.
    """

    features: np.ndarray
    labels: np.ndarray
    test_features: np.ndarray
    test_labels: np.ndarray


def main() -> None:
    """Print the table that the options select, or store the peers' grid points."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--data", choices=sorted(DATA), action="append")
    parser.add_argument("--peers", choices=("yes", "no"), default="yes")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--units", action="store_true")
    parser.add_argument("--methods", action="store_true")
    parser.add_argument("--scales", action="store_true")
    parser.add_argument("--sizes", action="store_true")
    parser.add_argument("--bench", action="store_true")
    parser.add_argument("--quick", action="store_true", help="with --bench: one small data set, two seeds")
    chosen = parser.parse_args()
    names = chosen.data or list(USUAL)
    if chosen.bench:
        sys.exit(bench(names, chosen.quick))
    elif chosen.tune:
        points = json.loads(POINTS.read_text()) if POINTS.exists() else {}
        POINTS.write_text(json.dumps(points | {name: tune(name) for name in names}, indent=1) + "\n")
    elif chosen.units:
        other_units(names, range(chosen.seeds))
    elif chosen.methods:
        other_methods(names, range(chosen.seeds))
    elif chosen.scales:
        private_scales(names, range(chosen.seeds))
    elif chosen.sizes:
        other_sizes(range(chosen.seeds))
    else:
        table(names, range(chosen.seeds), chosen.peers == "yes")


def table(names: list[str], seeds: range, peers: bool) -> None:
    """Print the comparison.

    Parameters
    ----------
    names : list of str
        Data sets, keys of `DATA`.
    seeds : range
        Seeds to average over.
    peers : bool
        Whether to run the peers.
    """
    print("| data | ε | clipsilon: AUC, accuracy | Opacus: AUC, accuracy | diffprivlib: AUC, accuracy |")
    print("|---|---|---|---|---|")
    for name in names:
        compare(name, seeds, peers)


def compare(name: str, seeds: range, peers: bool) -> None:
    """Print the rows of one data set.

    Parameters
    ----------
    name : str
        A key of `DATA`.
    seeds : range
        Seeds to average over.
    peers : bool
        Whether to run the peers.
    """
    splits = {seed: split(name, seed) for seed in seeds}
    points = json.loads(POINTS.read_text())[POINTS_OF[name]] if peers else None
    for epsilon in EPSILONS:
        ours = [score(ours_at(splits[seed], epsilon, seed), splits[seed]) for seed in seeds]
        cells = [", ".join(shown([scores[metric] for scores in ours]) for metric in METRICS)]
        if points is not None:
            for peer in ("opacus", "diffprivlib"):
                scores = peer_scores(peer, splits, epsilon, points[peer][str(epsilon)])
                cells.append(", ".join(shown([one[metric] for one in scores]) for metric in METRICS))
                ahead_by = [mine["auc"] - theirs["auc"] for mine, theirs in zip(ours, scores, strict=True)]
                cells[-1] += f" (ours {shown(ahead_by, '+.5f')})"
        print(f"| {name} | {epsilon:g} | {' | '.join(cells)} |", flush=True)


def bench(names: list[str], quick: bool) -> int:
    """Measure the peers' errors over ours at ε = 1 for docs/peers.md, and return the exit status."""
    names, seeds = (["breast-cancer"], range(2)) if quick else (names, range(10))

    def measure(rows: list[Row]) -> None:
        for name in names:
            errors(rows, name, seeds)

    return keep("quality", measure, quick)


def errors(rows: list[Row], name: str, seeds: range, epsilon: float = 1.0) -> None:
    """Add rows for each peer's 1 − AUC and 1 − accuracy over clipsilon's.

    Parameters
    ----------
    rows : list of Row
        The results so far.
    name : str
        A key of `DATA`.
    seeds : range
        Seeds to average over.
    epsilon : float, default 1.0
        The certified ε.
    """
    if not REAL[name]():
        rows.append(Row("peer", "Quality", name, "both peers", None, "not run: the real records are not available"))
        return
    splits = {seed: split(name, seed) for seed in seeds}
    ours = [score(ours_at(data, epsilon, seed), data) for seed, data in splits.items()]
    points = json.loads(POINTS.read_text())[POINTS_OF[name]]
    for peer, called in {"opacus": "Opacus", "diffprivlib": "diffprivlib"}.items():
        with unless_missing(rows, "Quality", name, called):
            theirs = peer_scores(peer, splits, epsilon, points[peer][str(epsilon)])
            for metric, what in zip(METRICS, ("AUC error", "accuracy error"), strict=True):
                found, spread = error_ratio(theirs, ours, metric)
                rows.append(ahead("Quality", f"{what}, {name}", f"{called}, tuned", found, f"± {spread:.2g}"))


def error_ratio(theirs: list[dict[str, float]], ours: list[dict[str, float]], metric: str) -> tuple[float, float]:
    """Return the ratio of mean errors and its standard error, from pairs that share a seed.

    Parameters
    ----------
    theirs, ours : list of dict
        Scores of the peer and of clipsilon, one per seed, in the same order.
    metric : str
        "auc" or "accuracy".

    Returns
    -------
    float, float
        The peer's mean error over ours, and the standard error of the ratio.
    """
    over, under = (np.array([1 - scores[metric] for scores in each]) for each in (theirs, ours))
    found = over.mean() / under.mean()
    return found, np.std(over - found * under, ddof=1) / math.sqrt(len(over)) / under.mean()


def shown(values: list[float], form: str = ".4f") -> str:
    """Return mean ± standard error as text."""
    return f"{np.mean(values):{form}} ± {np.std(values, ddof=1) / math.sqrt(len(values)):{form.lstrip('+')}}"


# Other methods, other units, other sizes

COMPARED = ("dpsgd", "adaptive-dpsgd", "correlated", "tracked")


def other_methods(names: list[str], seeds: range) -> None:
    """Print scores of clipsilon's methods with their default settings."""
    print("| data | ε |" + "|".join(f" `{method}` " for method in COMPARED) + "|")
    print("|---|---|" + "---|" * len(COMPARED))
    for name in names:
        for epsilon in EPSILONS:
            cells = []
            for method in COMPARED:
                scores = [score(ours_at(split(name, seed), epsilon, seed, method), split(name, seed)) for seed in seeds]
                cells.append(", ".join(f"{mean(scores)[metric]:.4f}" for metric in METRICS))
            print(f"| {name} | {epsilon:g} | {' | '.join(cells)} |", flush=True)


LIMITS = (math.inf, 5.0, 3.0)


def private_scales(names: list[str], seeds: range) -> None:
    """Print scores of clipsilon's defaults where a tenth of the budget learns the scales of the columns."""
    print("| data | ε |" + "|".join(f" cut off at ±{limit:g} " for limit in LIMITS) + "|")
    print("|---|---|" + "---|" * len(LIMITS))
    for name in names:
        for epsilon in EPSILONS:
            cells = []
            for limit in LIMITS:
                scores = [ours_from_raw(*DATA[name](seed), epsilon, limit, seed) for seed in seeds]
                cells.append(", ".join(shown([one[metric] for one in scores]) for metric in METRICS))
            print(f"| {name} | {epsilon:g} | {' | '.join(cells)} |", flush=True)


def ours_from_raw(
    train: cs.datasets.Dataset, test: cs.datasets.Dataset, epsilon: float, limit: float, seed: int
) -> dict[str, float]:
    """Return the scores of a model whose columns were scaled within its budget, and then cut off at a limit.

    Parameters
    ----------
    train, test : Dataset
        Records in their own units.
    epsilon : float
        The ε of scales and model together, a tenth of which is for the scales, as in `clipsilon fit`.
    limit : float
        The largest size of a scaled value.
    seed : int
        Seed of the noise.

    Returns
    -------
    dict of float
        AUC and accuracy.
    """
    model = make_pipeline(
        PrivateScaler(epsilon / 10, DELTA / 10, random_state=seed),
        FunctionTransformer(np.clip, kw_args={"a_min": -limit, "a_max": limit}),
        PrivateLogisticRegression(0.9 * epsilon, 0.9 * DELTA, random_state=seed, classes=[0, 1], n_jobs=1),
    ).fit(train.features, train.labels)
    auc = roc_auc_score(test.labels, model.decision_function(test.features))
    return {"auc": float(auc), "accuracy": float(model.score(test.features, test.labels))}


UNITS = {"× 1": (1.0, 1.0), "× 0.1": (0.1, 0.1), "× 10": (10.0, 10.0), "each × 0.1 … 10": (0.1, 10.0)}


def other_units(names: list[str], seeds: range) -> None:
    """Print scores of clipsilon's defaults with columns multiplied by factors between two bounds."""
    print("| data, ε = 1 |" + "|".join(f" {unit} " for unit in UNITS) + "|")
    print("|---|" + "---|" * len(UNITS))
    for name in names:
        cells = []
        for low, high in UNITS.values():
            scores = [ours_scaled(split(name, seed), low, high, seed) for seed in seeds]
            cells.append(", ".join(f"{mean(scores)[metric]:.4f}" for metric in METRICS))
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def ours_scaled(data: Split, low: float, high: float, seed: int) -> dict[str, float]:
    """Return the scores at ε = 1 with each column multiplied by a random factor.

    Parameters
    ----------
    data : Split
        The records.
    low, high : float
        Bounds of the factors, which are uniform on a logarithmic scale.
    seed : int
        Seed of the factors and of the fit.

    Returns
    -------
    dict of float
        AUC and accuracy.
    """
    factors = np.exp(np.random.default_rng(seed).uniform(np.log(low), np.log(high), data.features.shape[1]))
    scaled = data._replace(features=data.features * factors, test_features=data.test_features * factors)
    return score(ours_at(scaled, 1.0, seed), scaled)


def other_sizes(seeds: range) -> None:
    """Print scores of clipsilon's defaults on generated records of many sizes."""
    print("| n | d | true model |" + "|".join(f" ε = {epsilon:g} " for epsilon in EPSILONS) + "|")
    print("|---|---|---|" + "---|" * len(EPSILONS))
    for records, columns in ((1_000, 3), (1_000, 30), (20_000, 3), (20_000, 100), (20_000, 500), (500_000, 10)):
        cells = [], *([] for _ in EPSILONS)
        for seed in seeds:
            data, best = generated(records, columns, seed)
            cells[0].append(score(best, data))
            for cell, epsilon in zip(cells[1:], EPSILONS, strict=True):
                cell.append(score(ours_at(data, epsilon, seed), data))
        shown_cells = [", ".join(f"{mean(scores)[metric]:.3f}" for metric in METRICS) for scores in cells]
        print(f"| {records:,} | {columns} | {' | '.join(shown_cells)} |", flush=True)


def generated(records: int, columns: int, seed: int) -> tuple[Split, np.ndarray]:
    """Return records with normal features and logistic labels, 20,000 test records, and the model of the labels.

    Parameters
    ----------
    records, columns : int
        Size of the training table.
    seed : int
        Seed of the data.

    Returns
    -------
    Split, array
        The records; weights of norm 3 and the intercept −1.
    """
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((records + 20_000, columns))
    weights = rng.standard_normal(columns)
    model = np.append(3 * weights / np.linalg.norm(weights), -1.0)
    chance = 1 / (1 + np.exp(-features @ model[:-1] - model[-1]))
    labels = (rng.random(len(features)) < chance).astype(float)
    return Split(features[:records], labels[:records], features[records:], labels[records:]), model


# Data


Pair = tuple[cs.datasets.Dataset, cs.datasets.Dataset]


def credit(seed: int) -> Pair:
    """Return all complete rows of the credit data, split 80 : 20."""
    return _credit().split(0.8, seed)


def breast_cancer(seed: int) -> Pair:
    """Return scikit-learn's breast cancer data, split 80 : 20."""
    table = load_breast_cancer()
    whole = cs.datasets.Dataset(table.data, table.target.astype(float), tuple(table.feature_names), "UCI", True)
    return whole.split(0.8, seed)


def cod_rna(seed: int) -> Pair:
    """Return the two files of Cod-RNA; the split does not depend on the seed, which determines the noise only."""
    return _cod_rna()


def cod_rna_train(seed: int) -> Pair:
    """Return the training file of Cod-RNA, split 80 : 20: the records of its test file are not like these."""
    return _cod_rna()[0].split(0.8, seed)


DATA = {"credit": credit, "cod-rna": cod_rna, "cod-rna-train": cod_rna_train, "breast-cancer": breast_cancer}
USUAL = ("credit", "cod-rna", "breast-cancer")
POINTS_OF = {name: name for name in DATA} | {"cod-rna-train": "cod-rna"}


@cache
def split(name: str, seed: int) -> Split:
    """Return the standardised records of a data set for one seed."""
    return standardised(*DATA[name](seed))


@cache
def _credit() -> cs.datasets.Dataset:
    return cs.datasets.credit()


@cache
def _cod_rna() -> Pair:
    return cs.datasets.codrna()


REAL = {
    "credit": lambda: _credit().real,
    "cod-rna": lambda: _cod_rna()[0].real,
    "cod-rna-train": lambda: _cod_rna()[0].real,
    "breast-cancer": lambda: True,
}


def standardised(train: cs.datasets.Dataset, test: cs.datasets.Dataset) -> Split:
    """Return both tables standardised by the means and deviations of the training records."""
    if not train.real:
        print(f"{train.source} data: the figures are not those of the real records.", file=sys.stderr)
    mean, spread = train.features.mean(axis=0), train.features.std(axis=0)
    spread[spread == 0] = 1.0
    return Split((train.features - mean) / spread, train.labels, (test.features - mean) / spread, test.labels)


# Models: weights, followed by the intercept


def score(model: Any, data: Split) -> dict[str, float]:
    """Return AUC and accuracy on the test records."""
    margin = data.test_features @ np.asarray(model)[:-1] + model[-1]
    right = np.mean((margin > 0) == (data.test_labels > 0))
    return {"auc": float(roc_auc_score(data.test_labels, margin)), "accuracy": float(right)}


def problem(data: Split) -> cs.Problem:
    """Return the training records with a column of ones as a problem."""
    return cs.Problem(with_ones(data.features), data.labels, loss=cs.losses.Logistic())


def with_ones(features: np.ndarray) -> np.ndarray:
    """Return the features with a last column of ones for the intercept."""
    return np.column_stack([features, np.ones(len(features))])


def ours_at(data: Split, epsilon: float, seed: int, method: str = "dpsgd") -> np.ndarray:
    """Return the model that clipsilon fits with its defaults.

    Parameters
    ----------
    data : Split
        The records.
    epsilon : float
        The certified ε.
    seed : int
        Seed of the noise.
    method : str, default "dpsgd"
        The method.

    Returns
    -------
    array
        Weights, followed by the intercept.
    """
    model = PrivateLogisticRegression(epsilon, DELTA, method, seed, classes=[0, 1], n_jobs=1)
    model.fit(data.features, data.labels)
    return np.append(model.coef_.ravel(), model.intercept_)


@cache
def calibrated(rule: cs.Rule, epsilon: float, records: int, steps: int) -> cs.Rule:
    """Return the rule with the least noise that certifies ε under zero-out.

    For Poisson batches this is the same as add-remove.

    Parameters
    ----------
    rule : Rule
        The rule, with any noise.
    epsilon : float
        The target.
    records, steps : int
        Number of records and of steps.

    Returns
    -------
    Rule
        The calibrated rule.
    """
    return cs.calibrate(rule, epsilon, DELTA, records, steps, adjacency="zero-out")


def run(case: cs.Problem, rule: cs.Rule, steps: int, seed: int) -> np.ndarray:
    """Return the model that a run releases.

    Parameters
    ----------
    case : Problem
        The problem.
    rule : Rule
        The rule.
    steps : int
        Number of steps.
    seed : int
        Seed of the run.

    Returns
    -------
    array
        θ.
    """
    return cs.run(case, rule, steps, seed=seed, record=[steps], progress=False, n_jobs=1).output[0]


# Peers


def opacus_rule(point: dict[str, Any], epsilon: float, records: int) -> tuple[cs.Rule, int]:
    """Return Opacus's algorithm as a rule with certified noise, and its number of steps.

    Opacus draws each record with probability 1/⌈n/B⌉.

    Parameters
    ----------
    point : dict
        A point of the grid: batch, epochs, clip and rate.
    epsilon : float
        The target.
    records : int
        n.

    Returns
    -------
    Rule, int
        The rule and its number of steps.
    """
    batches = math.ceil(records / point["batch"])
    batch = math.ceil(records / batches)
    unit = calibrated(
        cs.DPSGD(cs.schedules.Constant(1.0), 1.0, 1.0, batch), epsilon, records, batches * point["epochs"]
    )
    noise_std = unit.noise.std * point["clip"]
    return cs.DPSGD(cs.schedules.Constant(point["rate"]), point["clip"], noise_std, batch), batches * point["epochs"]


def opacus_job(data: Split, point: dict[str, Any], epsilon: float) -> dict[str, Any]:
    """Return the job for the script in Opacus's environment.

    Parameters
    ----------
    data : Split
        The records.
    point : dict
        A point of the grid.
    epsilon : float
        The certified ε.

    Returns
    -------
    dict
        The point and its noise multiplier.
    """
    rule, _ = opacus_rule(point, epsilon, len(data.labels))
    return {**point, "noise_multiplier": rule.noise.std * rule.sampling.batch / point["clip"]}


def peer_scores(peer: str, splits: dict[int, Split], epsilon: float, point: dict[str, Any]) -> list[dict[str, float]]:
    """Return the scores of a peer at one grid point, one per seed.

    Parameters
    ----------
    peer : {"opacus", "diffprivlib"}
        The peer.
    splits : dict of Split
        Records, by seed.
    epsilon : float
        The ε for both.
    point : dict
        A point of the peer's grid.

    Returns
    -------
    list of dict
        AUC and accuracy, in the order of `splits`.
    """
    jobs = [
        (seed, opacus_job(data, point, epsilon) if peer == "opacus" else {**point, "epsilon": epsilon})
        for seed, data in splits.items()
    ]
    models = models_of(peer, splits, jobs)
    return [score(model, data) for model, data in zip(models, splits.values(), strict=True)]


def models_of(peer: str, splits: dict[int, Split], jobs: list[tuple[int, dict[str, Any]]]) -> list[list[float]]:
    """Run jobs in a peer's environment and return their models.

    Parameters
    ----------
    peer : {"opacus", "diffprivlib"}
        The peer.
    splits : dict of Split
        Records, by seed.
    jobs : list of (int, dict)
        Seeds and settings.

    Returns
    -------
    list of list of float
        Weights, followed by the intercept, one model per job.
    """
    with tempfile.TemporaryDirectory() as folder:
        for seed, data in splits.items():
            np.savez(Path(folder) / f"{seed}.npz", features=data.features, labels=data.labels)
        orders = [{**job, "seed": seed, "split": str(Path(folder) / f"{seed}.npz")} for seed, job in jobs]
        command = [str(environment(peer)), str(PEERS / f"{peer}_logistic.py")]
        done = subprocess.run(command, input=json.dumps(orders), capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stderr, file=sys.stderr)
            raise PeerError("its script ended early")
        return json.loads(done.stdout)


# Tuning the peers


def tune(name: str) -> dict[str, Any]:
    """Return the best grid points of both peers for each ε."""
    splits = {seed: held_out(split(name, seed), seed) for seed in TUNING_SEEDS}
    tables: dict[str, Any] = {"opacus": {}, "diffprivlib": {}}
    for epsilon in EPSILONS:
        for peer, search in (("opacus", search_opacus), ("diffprivlib", search_diffprivlib)):
            point, found = max(search(splits, epsilon), key=lambda entry: entry[1]["auc"])
            print(f"{name}, ε = {epsilon:g}, {peer}: {point} {found}", flush=True)
            tables[peer][str(epsilon)] = point
    return tables


def held_out(data: Split, seed: int) -> Split:
    """Split the training records: four fifths for training, one fifth for the selection of grid points."""
    rows = np.random.default_rng(seed).permutation(len(data.labels))
    kept, other = rows[len(rows) // 5 :], rows[: len(rows) // 5]
    return Split(data.features[kept], data.labels[kept], data.features[other], data.labels[other])


def search_opacus(splits: dict[int, Split], epsilon: float) -> list[tuple[dict[str, Any], dict[str, float]]]:
    """Return Opacus's grid points and their mean scores, computed with clipsilon's engine."""
    cases = {seed: problem(data) for seed, data in splits.items()}
    records = next(iter(cases.values())).records
    found = []
    for point in grid(SMALL_OPACUS_GRID if records < 10_000 else OPACUS_GRID):
        rule, steps = opacus_rule(point, epsilon, records)
        scores = [score(run(case, rule, steps, seed), splits[seed]) for seed, case in cases.items()]
        found.append((point, mean(scores)))
    return found


def search_diffprivlib(splits: dict[int, Split], epsilon: float) -> list[tuple[dict[str, Any], dict[str, float]]]:
    """Return diffprivlib's grid points and their mean scores."""
    points = list(grid(DIFFPRIVLIB_GRID))
    jobs = [(seed, {**point, "epsilon": epsilon}) for point in points for seed in splits]
    models = models_of("diffprivlib", splits, jobs)
    scores = [score(model, splits[seed]) for model, (seed, _) in zip(models, jobs, strict=True)]
    return [(p, mean(scores[k * len(splits) : (k + 1) * len(splits)])) for k, p in enumerate(points)]


def grid(axes: dict[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Return all points of a grid."""
    return [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]


def mean(scores: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each metric."""
    return {metric: float(np.mean([one[metric] for one in scores])) for metric in METRICS}


if __name__ == "__main__":
    main()
