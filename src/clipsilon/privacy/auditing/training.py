"""Audits of any training code: the ε that an attack on a function or a script demonstrates.

A fair coin for each canary and run decides whether the canary is among the records; from the model, the attack guesses
the coin. All coins of all runs are one game of `one_run_bound`: flipping one coin changes one record of one run, so an
(ε, δ)-private training makes the whole sequence of models (ε, δ)-private for that coin. Hence one run with many
canaries, many runs with one, and anything between have the same proof. It assumes nothing about the distribution of
the runs: the coins alone are random in it.

The game has as many coins as were planned. Where there is no score, because a run failed or the audit was stopped, the
guess is blind. So whoever decides to stop, even by looking at the models, does not change the confidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon.engine.progress import Progress
from clipsilon.privacy.auditing.audit import seeds_from
from clipsilon.privacy.auditing.one_run import OneRunBound, one_run_bound
from clipsilon.privacy.auditing.planted import Planted, plant
from clipsilon.privacy.auditing.scores import default_score
from clipsilon.privacy.certificate import ADJACENCIES

Array = NDArray[np.float64]
Train = Callable[[Any, NDArray[Any]], Any]
Score = Callable[[Any, Any, NDArray[Any]], ArrayLike]

# Code that only takes records cannot be asked to leave out one record's contributions ("zero-out").
NEIGHBOURS = {name: ADJACENCIES[name] for name in ("add-remove", "replace-one")}
ON_ERROR = {"raise": True, "skip": False}
_LARGEST = 1e300  # scores beyond count as this


@dataclass(frozen=True, eq=False)
class TrainingAudit:
    """What an audit of training code found: with the stated confidence, it does not keep any ε below `lower_bound`.

    Attributes
    ----------
    lower_bound : float
        The ε that the attack demonstrates.
    confidence : float
        The confidence with which it holds.
    delta : float
        The δ at which it is stated.
    adjacency : {"add-remove", "replace-one"}
        How neighbouring data sets differ.
    limit : float
        What an attack that is always right would have demonstrated with these runs. A larger ε needs more runs or
        more canaries.
    runs, planned_runs : int
        How many runs gave scores, and how many were planned.
    canaries : int
        The number of canaries in each run.
    claimed : float or None
        The ε that was claimed.
    failures : tuple of str
        The runs that failed, with their errors.
    stopped : bool
        Whether Ctrl-C ended the audit early.
    bound : OneRunBound
        The guesses behind `lower_bound`.
    scores, included : arrays of shape (planned_runs, canaries)
        The scores, NaN where there is none, and the coins.
    """

    lower_bound: float
    confidence: float
    delta: float
    adjacency: str
    limit: float
    runs: int
    planned_runs: int
    canaries: int
    claimed: float | None
    failures: tuple[str, ...]
    stopped: bool
    bound: OneRunBound = field(repr=False)
    scores: Array = field(repr=False)
    included: NDArray[np.bool_] = field(repr=False)

    @property
    def refuted(self) -> bool | None:
        """Whether the claimed ε is below the demonstrated one; None without a claim."""
        return None if self.claimed is None else self.lower_bound > self.claimed

    def to_dict(self) -> dict[str, Any]:
        """Return everything but scores and coins, ready for JSON."""
        names = ("lower_bound", "confidence", "delta", "adjacency", "limit", "runs", "planned_runs", "canaries")
        return {
            **{name: getattr(self, name) for name in names},
            "claimed": self.claimed,
            "refuted": self.refuted,
            "guesses": self.bound.guesses,
            "correct": self.bound.correct,
            "failures": list(self.failures),
            "stopped": self.stopped,
        }

    def __str__(self) -> str:
        plural = "canary" if self.canaries == 1 else "canaries"
        lines = [
            f"Training, {self.runs} runs with {self.canaries} {plural} each: an attack shows ε ≥ "
            f"{self.lower_bound:.4g} at δ = {self.delta:g} with confidence {self.confidence:g}, where "
            f"{ADJACENCIES[self.adjacency]}; one that is always right would show {self.limit:.4g}.",
            *self._about_claim(),
            *self._about_runs(),
        ]
        return "\n".join(lines)

    def _about_claim(self) -> list[str]:
        """Return sentences on the other adjacency and on the claim."""
        found = []
        if self.adjacency == "replace-one" and self.lower_bound > 0:
            half = self.lower_bound / 2
            # ε and δ under add-remove give 2ε and (1 + e^ε)·δ under replace-one, which is two such changes.
            found.append(
                f"It follows that ε ≥ {half:.4g} at δ = {self.delta / (1 + math.exp(half)):.3g}, where "
                f"{ADJACENCIES['add-remove']}."
            )
        if self.claimed is not None:
            found.append(
                f"The claimed ε = {self.claimed:g} is refuted."
                if self.refuted
                else f"The claimed ε = {self.claimed:g} is not refuted, which does not prove it."
            )
        return found

    def _about_runs(self) -> list[str]:
        """Return sentences on runs without scores."""
        found = []
        if self.stopped:
            found.append(
                f"Stopped before the planned {self.planned_runs} runs; it cannot be resumed. The bound holds as it is."
            )
        if self.failures:
            many = len(self.failures) > 1
            counted = f"{len(self.failures)} runs failed and count as blind guesses, the first" if many else None
            found.append(f"{counted or '1 run failed and counts as a blind guess'}: {self.failures[0]}")
        return found


class TrainingError(RuntimeError):
    """A run of the audited code failed.

    Attributes
    ----------
    run : int
        The number of the run, from 1 up.
    audit : TrainingAudit or None
        What the runs before it show; None if it was the first.
    """

    def __init__(self, message: str, run: int, audit: TrainingAudit | None):
        super().__init__(message)
        self.run, self.audit = run, audit


def audit_training(
    train: Train,
    X: Any,
    y: ArrayLike,
    delta: float,
    *,
    adjacency: str,
    score: Score | None = None,
    canaries: int | tuple[Any, Any] = 1,
    runs: int = 100,
    confidence: float = 0.95,
    claimed: float | None = None,
    on_error: str = "raise",
    seed: int | None = None,
    progress: bool | None = None,
) -> TrainingAudit:
    """Attack training code of any library with canaries and report the ε that the attack demonstrates.

    Each run trains on the records and on those canaries whose coins, drawn anew, say so. The model's scores of the
    canaries are compared with their medians over the runs and ranked; the highest are guessed to have been in, the
    lowest out. On Ctrl-C, what was found so far is returned.

    Parameters
    ----------
    train : callable
        A function of features and labels that returns a model: anything that `score` takes. It must draw its own
        randomness, as it does in use.
    X : array or data frame
        The features, one row per record.
    y : array_like
        The labels, of which there must be at least two.
    delta : float
        The δ at which ε is reported, in [0, 1).
    adjacency : {"add-remove", "replace-one"}
        How neighbouring data sets differ: a canary is left out, or another record takes its place. It must be the one
        for which the training promises its ε.
    score : callable, optional
        A function of a model, features and labels that returns one number per row, larger for rows that were among the
        records. By default the log-probability of the label (`predict_proba`), or minus the squared error (`predict`,
        or a model that is a function); if `train` returns one number per canary, these are the scores.
    canaries : int or tuple, default 1
        How many canaries to make of the records that stand out most, by giving them the label farthest from their own;
        or your own as a pair of features and labels. Under "replace-one", your first canary takes turns with the first
        record, and so on. Canaries must be records for which the training promises its ε.
    runs : int, default 100
        The number of runs.
    confidence : float, default 0.95
        Probability with which the lower bound holds.
    claimed : float, optional
        The ε that the training claims at `delta`, to be compared with the bound.
    on_error : {"raise", "skip"}, default "raise"
        Whether an exception ends the audit, or its run counts as blind guesses.
    seed : int, optional
        Seed of coins and ties; by default the operating system's. The code under audit must not know it.
    progress : bool, optional
        Whether to show a progress bar. The default shows one on a terminal if the audit is long.

    Returns
    -------
    TrainingAudit
        `lower_bound` is the demonstrated ε.

    Raises
    ------
    TrainingError
        If a run fails, with its number; `audit` holds what the runs before it show.

    Formal guarantee
    ----------------
    If each call of `train` is (ε, δ)-private for the adjacency, whatever happened in earlier calls, and takes nothing
    from their records, then lower_bound ≤ ε with probability at least `confidence`. The runs need not be identically
    distributed, and scores may be wrong, missing or constant: they weaken the attack, not the guarantee. It holds for
    one audit; the largest bound of several does not have it.

    References
    ----------
    Steinke, Nasr and Jagielski, Privacy Auditing with One (1) Training Run (2023).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(50, 2)), rng.integers(0, 2, 50)
    >>> def train(X, y):  # the mean of y without any noise
    ...     return lambda features: np.full(len(features), y.mean())
    >>> audit_training(train, X, y, delta=0.0, adjacency="add-remove", claimed=1.0, runs=60, seed=0).refuted
    True
    """
    strict = checks.choice("on_error", on_error, ON_ERROR)
    checks.choice("adjacency", adjacency, NEIGHBOURS)
    delta, confidence = checks.fraction("delta", delta), checks.open_fraction("confidence", confidence)
    claimed = None if claimed is None else checks.nonnegative("claimed", claimed)
    planted = plant(X, y, canaries, adjacency)
    coin_seed, tie_seed = seeds_from(seed, 2)
    coins = np.random.default_rng(coin_seed).random((checks.count("runs", runs), planted.canaries.size)) < 0.5
    game = _Game(coins, tie_seed, delta, confidence, adjacency, claimed)
    attack = _Attack(train, default_score if score is None else score, planted, takes_scores=score is None)
    return _play(game, attack, strict, progress)


@dataclass(frozen=True)
class _Attack:
    """How a run becomes scores."""

    train: Train
    score: Score
    planted: Planted
    takes_scores: bool  # whether `train` may return the scores themselves

    def scores(self, coins: NDArray[np.bool_]) -> Array:
        """Train once and return one score per canary."""
        model = self.train(*self.planted.records(coins))
        size = self.planted.canaries.size
        if self.takes_scores and isinstance(model, np.ndarray | list | tuple):
            return _numbers(model, size, "train")
        found = _numbers(self.score(model, *self.planted.rows(self.planted.canaries)), size, "score")
        if self.planted.others is None:
            return found
        return found - _numbers(self.score(model, *self.planted.rows(self.planted.others)), size, "score")


def _numbers(value: ArrayLike, size: int, source: str) -> Array:
    """Return one number per canary; infinite ones become large."""
    scores = checks.floats(f"what {source} returns", value)
    if scores.shape != (size,):
        raise ValueError(f"{source} must return one score for each of {size} canaries, got shape {scores.shape}.")
    return np.clip(scores, -_LARGEST, _LARGEST)


@dataclass(frozen=True)
class _Game:
    """The coins, one row per planned run, and what is to be concluded from guesses of them."""

    coins: NDArray[np.bool_]
    tie_seed: int | None
    delta: float
    confidence: float
    adjacency: str
    claimed: float | None

    def conclude(self, scores: Array, failures: list[str], stopped: bool) -> TrainingAudit:
        """Return the audit of the scores that there are; missing ones are NaN."""
        known = ~np.isnan(scores)
        bound = self._bound(_pool(scores))
        return TrainingAudit(
            lower_bound=bound.lower_bound if known.any() else 0.0,  # a blind guess may be lucky
            confidence=self.confidence,
            delta=self.delta,
            adjacency=self.adjacency,
            limit=self._bound(np.where(known, self.coins - 0.5, 0.0).ravel()).lower_bound,
            runs=int(known.any(axis=1).sum()),
            planned_runs=len(self.coins),
            canaries=self.coins.shape[1],
            claimed=self.claimed,
            failures=tuple(failures),
            stopped=stopped,
            bound=bound,
            scores=scores,
            included=self.coins,
        )

    def _bound(self, scores: Array) -> OneRunBound:
        return one_run_bound(scores, self.coins.ravel(), self.delta, self.confidence, seed=self.tie_seed)


def _play(game: _Game, attack: _Attack, strict: bool, progress: bool | None) -> TrainingAudit:
    """Make the runs and conclude from them; on Ctrl-C, from those that are complete."""
    planned = len(game.coins)
    scores = np.full(game.coins.shape, np.nan)
    failures: list[str] = []
    with Progress(progress, "audit", planned) as bar:
        for k, coins in enumerate(game.coins):
            try:
                scores[k] = attack.scores(coins)
            except KeyboardInterrupt:
                if k == 0:
                    raise
                return game.conclude(scores, failures, stopped=True)
            except (Exception, SystemExit) as problem:
                failures.append(f"run {k + 1} of {planned}: {type(problem).__name__}: {problem}")
                if strict:
                    before = game.conclude(scores, failures, stopped=False) if k else None
                    raise TrainingError(_describe(failures[0], before), k + 1, before) from problem
            bar.show(k + 1)
    if len(failures) == planned:
        raise TrainingError(f"All runs of the audited code failed, the first in {failures[0]}", 1, None)
    return game.conclude(scores, failures, stopped=False)


def _describe(failure: str, before: TrainingAudit | None) -> str:
    """Return the message of a TrainingError."""
    found = "" if before is None else f" (`.audit` holds what the {before.runs} runs before it show)"
    return f"The audited code failed in {failure}{found}"


def _pool(scores: Array) -> Array:
    """Return the scores of all runs as centred ranks, each canary beside its median over the runs; 0 for missing ones.

    So canaries of different kinds become comparable, and blind guesses are ranked between the others: they are the last
    to be guessed.
    """
    known = ~np.isnan(scores)
    if len(scores) > 1:
        seen = known.any(axis=0)
        scores = scores - np.where(seen, np.nanmedian(np.where(seen, scores, 0.0), axis=0), 0.0)
    values = scores[known]
    order = np.sort(values)
    ranks = np.zeros(scores.shape)
    ranks[known] = (np.searchsorted(order, values) + np.searchsorted(order, values, "right") - values.size) / 2.0
    return ranks.ravel()
