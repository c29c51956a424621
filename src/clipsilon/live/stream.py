"""The stream: it deploys θ, takes what people send under it, and updates it by private steps.

Privacy rests on three rules. The noise follows from public numbers, before the first record. A record's place in the
stream depends on who sends when, never on what others' records hold. What a step releases is written to disk before
anyone sees it, so that after a crash the same noise goes to the same records, or the step was never seen. The proof is
in docs/proofs.md, "Streams".
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from threading import RLock
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from clipsilon._core import checks
from clipsilon._core.database import StorageError
from clipsilon._core.parts import fingerprint
from clipsilon.engine.streams import spawn
from clipsilon.live.expectation import MOST_RECORDS as MOST_SEEN
from clipsilon.live.expectation import expected_gap
from clipsilon.live.learner import (
    Learner,
    Noise,
    Progress,
    Public,
    calibrate_noise,
    default_batch,
    default_clip,
    default_step,
    steps_of,
)
from clipsilon.live.records import RecordError, Refused, person_of, read_record
from clipsilon.live.store import Answer, Deployment, Entry, Saved, Store
from clipsilon.privacy.certificate import require_public_size
from clipsilon.privacy.statement import Statement, about_seed, account
from clipsilon.problems.losses.base import Loss
from clipsilon.problems.regions import Everywhere, Region
from clipsilon.rules.correlation import average_response, output_norm
from clipsilon.rules.noise import Correlated
from clipsilon.rules.rule import Rule
from clipsilon.rules.schedules import Schedule
from clipsilon.theory.forecast import Forecast

Array = NDArray[np.float64]
Record = Mapping[str, Any]

MOST_RECORDS = 1000
"""The largest number of records per request."""
TERMS = (
    "A record is what one person sends, once. The guarantee is for its features and label; who sends, when, in which "
    "request and under which version are public, and so is which records are well formed. They must not depend on what "
    "others' records hold but through released models.",
    "All deployed models are covered, and the average. Records, requests, counts of refusals and means of features are "
    "not: they are for those who hold the token.",
    "The whole horizon is charged from the start: stopping early gives nothing back.",
)


class RefusalError(ValueError):
    """A request that is refused as a whole; nothing changes.

    Parameters
    ----------
    code : str
        "stale": the version is too old. "future": there is no such version yet. "reused": the key belongs to another
        request. "finished": the horizon is reached. "limit": an extension would pass the limit.
    message : str
        The reason, in one sentence.
    """

    def __init__(self, code: str, message: str):
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, eq=False)
class Model:
    """What is public of a stream at one time.

    Parameters
    ----------
    theta : array
        The deployed model, which people react to; with an intercept, it is the last entry.
    average : array
        The mean of the last half of the iterates so far; the last iterate before the second half of the horizon.
    version : int
        Number of the deployment, from 0.
    steps : int
        Number of steps done.
    """

    theta: Array
    average: Array
    version: int
    steps: int


class Receipt(NamedTuple):
    """The answer to a request.

    Parameters
    ----------
    accepted : int
        Number of accepted records.
    refused : list of Refused
        The others, with the reason.
    version : int
        The version that is deployed afterwards.
    """

    accepted: int
    refused: list[Refused]
    version: int


class Stream:
    """Deploy a model, take what people send under it, and update it with certified privacy.

    θ_{t+1} = project(θ_t − γ_{t+1}·((1/B) Σ clip(∇ℓ(θ_t; z_i)) + (C⁻¹w)_{t+1})) over the next B records in the order in
    which they came: `CorrelatedSGD` with `sampling="in-order"`. Everything is in one file; opening it again continues
    to the bit.

    Parameters
    ----------
    path : str or path-like
        A SQLite file, which is created; or `postgresql://…`, an empty database. That of another stream is refused.
    dimension : int
        Number of features of a record.
    loss : Loss
        The loss of one record, a part of `clipsilon.losses`.
    epsilon, delta : float
        The budget for `horizon` records, each of another person.
    horizon : int
        Number of records after which the stream refuses more.
    limit : float, optional
        The ε up to which `extend` may go, at least `epsilon`, and which is then charged from the start; by default
        `epsilon`, so that there is no extension.
    batch : int, optional
        B, the number of records per step; by default such that there are about 400 steps.
    clip : float, optional
        The norm to which each gradient is clipped; by default √d for classes and √d/2 for numbers, which suits columns
        of unit order.
    step : Schedule, optional
        The step sizes, a part of `clipsilon.schedules`; by default constant, 30/T for classes and a
        quarter of it for numbers, for a horizon of T steps.
    deploy_every : int, default 1
        Number of steps between deployments.
    max_lag : int, default 10
        How many versions behind the deployed one a record may have been sent under.
    adjacency : {"zero-out", "replace-one"}, default "zero-out"
        How neighbouring streams differ: one record contributes nothing, or is replaced by another well-formed one. It
        keeps its place in both.
    intercept : bool, default False
        Add a column of ones, which is last.
    start : float or array, default 0.0
        The model that is deployed first.
    region : Region, optional
        Where θ is projected to, a part of `clipsilon.regions`.
    seed : int, optional
        For tests: with a seed nothing is certified.

    Formal guarantee
    ----------------
    All deployed models and averages together are (ε, δ)-differentially private, with ε as `statement` certifies it,
    also if people react to the models, and if the models decide about extensions; on the terms of the statement's
    reasons.

    Examples
    --------
    >>> import clipsilon as cs, tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> about = {"dimension": 2, "loss": cs.losses.Logistic(), "epsilon": 1.0, "delta": 1e-5, "horizon": 1000}
    >>> with cs.live.Stream(f"{folder.name}/run.db", **about) as stream:
    ...     sent = [{"person": "ann", "features": [0.5, -1.0], "label": 1}]
    ...     receipt = stream.submit(sent, version=stream.model.version)
    ...     round(stream.statement().certified, 1)
    1.0
    >>> receipt.accepted, receipt.refused
    (1, [])
    >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        dimension: int,
        loss: Loss,
        epsilon: float,
        delta: float,
        horizon: int,
        limit: float | None = None,
        batch: int | None = None,
        clip: float | None = None,
        step: Schedule | None = None,
        deploy_every: int = 1,
        max_lag: int = 10,
        adjacency: str = "zero-out",
        intercept: bool = False,
        start: ArrayLike = 0.0,
        region: Region | None = None,
        seed: int | None = None,
    ):
        require_public_size(adjacency)
        self._ones = int(checks.flag("intercept", intercept))
        columns, epsilon = checks.count("dimension", dimension) + self._ones, checks.positive("epsilon", epsilon)
        budget = (epsilon, checks.open_fraction("delta", delta))
        most = epsilon if limit is None else checks.at_least("limit", limit, epsilon)
        every = checks.count("deploy_every", deploy_every)
        size = default_clip(loss, columns) if clip is None else checks.positive("clip", clip)
        given = None if batch is None else checks.count("batch", batch)

        def public(records: int) -> Public:
            taken = min(default_batch(records) if given is None else given, records)
            gamma = default_step(loss, -(-records // taken)) if step is None else step
            return Public(columns, loss, region, *budget, most, adjacency, records, taken, size, gamma, every)

        self._public, self._describe = public(checks.count("horizon", horizon)), public
        self.max_lag = checks.integer("max_lag", max_lag, least=0)
        self._seed = None if seed is None else checks.integer("seed", seed, least=0)
        self._lock, self._process = RLock(), os.getpid()
        self._start = start
        # What is wrong with the arguments shows before a file is made.
        self._learner = Learner(self._public, calibrate_noise(self._public), self._public.horizon)
        self._progress = self._learner.begin(start, spawn(self._seed, 1)[0])
        self._store = Store(path)
        try:
            self._open()
        except BaseException:
            self._store.close()
            raise
        self._failure: StorageError | None = None
        self._stated: Statement | None = None
        self._expected: tuple[int, int, Forecast | None] = (0, 0, None)  # for how many records and which horizon

    def _open(self) -> None:
        if self._store.is_new:
            self._horizon, self._refused = self._public.horizon, dict[str, int]()
            settings = {**self._settings(self._progress), **self._learner.noise.settings()}
            first = Deployment(0, 0, self._learner.deployed(self._progress))
            self._store.create(settings, self._saved(self._progress, self._refused), first)
        else:
            self._continue()
        self._pending = list(self._store.entries(self._progress.steps * self._public.batch))
        self._count = self._store.count()
        self._model = self._published()

    def _continue(self) -> None:
        """Load the state of an existing stream; raise StorageError if it is another one."""
        saved, stored = self._store.load(), self._store.settings
        try:
            first, noise = int(stored["horizon"]), Noise.from_settings(stored)
        except (KeyError, TypeError, ValueError):
            raise StorageError(f"{self._store.name} is damaged: its settings cannot be read.") from None
        if self._public.horizon == saved.horizon != first:  # named after an extension
            self._public = self._describe(first)
        self._learner = Learner(self._public, noise, saved.horizon)
        progress = self._learner.begin(self._start, spawn(self._seed, 1)[0])
        for name, value in self._settings(progress).items():
            if stored.get(name) != value:
                raise StorageError(
                    f"{self._store.name} is the file of another stream: its {name} is {stored.get(name)}, got {value}."
                )
        try:
            progress.restore(saved.content, saved.streams)
        except (KeyError, TypeError, ValueError):
            raise StorageError(f"{self._store.name} is damaged: its state cannot be read.") from None
        if not progress.is_finite:
            raise self._ended(progress)
        self._progress, self._horizon, self._refused = progress, saved.horizon, saved.refused

    def _settings(self, first: Progress) -> dict[str, str]:
        """Return what tells this stream from others."""
        about = {"dimension": self.dimension, **self._public._asdict()}
        about["region"] = Everywhere() if self._public.region is None else self._public.region
        del about["columns"]
        parts = {
            name: f"{part} [{fingerprint(part)[:16]}]"
            for name in ("loss", "region", "step")
            for part in [about.pop(name)]
        }
        return {
            **{name: str(value) for name, value in about.items()},
            **parts,
            "intercept": str(bool(self._ones)),
            "start": checks.short_repr(first.state.theta.tolist()),
            "start's digest": hashlib.sha256(first.state.theta.tobytes()).hexdigest()[:16],
            "seeded": str(self._seed is not None),
        }

    def _saved(self, progress: Progress, refused: dict[str, int]) -> Saved:
        return Saved(self._horizon, progress.to_bytes(), progress.streams.state(), refused)

    def _published(self) -> Model:
        learner, progress = self._learner, self._progress
        version = progress.steps // self._public.deploy_every
        return Model(learner.deployed(progress), learner.average(progress), version, progress.steps)

    @property
    def model(self) -> Model:
        """The deployed model, the average and their version, read together."""
        self._check_open()
        return self._model

    @property
    def rule(self) -> Rule:
        """The rule, for `clipsilon.account` and `clipsilon.run`."""
        return self._learner.account_rule()

    @property
    def horizon(self) -> int:
        """The number of records at the end."""
        return self._horizon

    @property
    def limit(self) -> float:
        """The ε that no extension passes."""
        return self._public.limit

    @property
    def batch(self) -> int:
        """B, the number of records per step."""
        return self._public.batch

    @property
    def dimension(self) -> int:
        """The number of features of a record, without an intercept."""
        return self._public.columns - self._ones

    @property
    def accepted(self) -> int:
        """The number of accepted records. Not for outsiders."""
        return self._count

    @property
    def refused(self) -> dict[str, int]:
        """How many records were refused, by reason. Not for outsiders."""
        return dict(self._refused)

    @property
    def is_finished(self) -> bool:
        """Whether the horizon is reached."""
        return self._count >= self._horizon

    def submit(self, records: Sequence[Record], *, version: int, key: str | None = None) -> Receipt:
        """Take the records of one request, in their order, and make all steps that are due.

        Parameters
        ----------
        records : sequence of mappings
            Each with "person", "features" and "label" (left out for losses without labels); at most 1000.
        version : int
            The version of the model under which they were sent.
        key : str, optional
            A name for the request, up to 200 characters. The same key with the same records gets the same answer, and
            nothing is taken twice.

        Returns
        -------
        Receipt
            How many records were accepted, which were refused and why, and the version that is deployed now.

        Raises
        ------
        RefusalError
            If the request is refused as a whole.
        ValueError
            If an argument is not as described.
        StorageError
            If the file could not be written: the stream is then closed, open it again. Or if θ is no longer finite:
            the stream has then ended, because the noise of that step must not meet other records.
        """
        version = checks.integer("version", version, least=0)
        name = secrets.token_hex(16) if key is None else checks.text("key", key)
        if not isinstance(records, Sequence) or isinstance(records, str | bytes) or len(records) > MOST_RECORDS:
            raise ValueError(f"records must be a list of at most {MOST_RECORDS} records, got {_size(records)}.")
        digest = _digest(version, records)
        with self._lock:
            self._check_open()
            try:
                known = self._store.answer(name)
                if known is not None:
                    return _repeated(known, digest, name)
                self._check_version(version)
                if self.is_finished:
                    raise RefusalError("finished", f"the stream has taken all {self._horizon} records of its horizon.")
                return self._take(records, version, name, digest)
            except StorageError as problem:
                self._failure = problem
                raise

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Close the stream if the block, which writes and then keeps what was written, does not come to its end."""
        try:
            yield
        except BaseException as problem:
            self._failure = problem if isinstance(problem, StorageError) else self._interrupted()
            raise

    def _interrupted(self) -> StorageError:
        return StorageError(f"{self._store.name} was interrupted while it was written; open it again.")

    def _check_open(self) -> None:
        if os.getpid() != self._process:  # whose noise would be that of the parent
            raise StorageError(f"{self._store.name} was opened before this process was forked; close it before.")
        if self._failure is not None:
            raise self._failure

    def _check_version(self, version: int) -> None:
        now = self._model.version
        if version > now:
            raise RefusalError("future", f"version must be at most the deployed one, {now}, got {version}.")
        if version < now - self.max_lag:
            raise RefusalError(
                "stale", f"version must be at most {self.max_lag} behind the deployed one, {now}, got {version}."
            )

    def _take(self, records: Sequence[Record], version: int, key: str, digest: str) -> Receipt:
        taken, refused = self._sort_out(records)
        waiting, progress, models = [*self._pending, *taken], self._progress, list[Deployment]()
        while waiting and len(waiting) >= self._due(progress.steps):
            batch, waiting = waiting[: self._public.batch], waiting[self._public.batch :]
            table = np.array([entry.features for entry in batch])
            progress = self._learner.step(progress, table, np.array([entry.label for entry in batch]))
            if not progress.is_finite:
                self._store.save(self._saved(progress, self._refused))  # no other records may meet this noise
                raise self._ended(progress)
            if progress.steps % self._public.deploy_every == 0:
                number = progress.steps // self._public.deploy_every
                models.append(Deployment(number, progress.steps, self._learner.deployed(progress)))
        receipt = Receipt(len(taken), refused, progress.steps // self._public.deploy_every)
        counts = dict(self._refused)
        for one in refused:
            counts[one.code] = counts.get(one.code, 0) + 1
        answer = Answer(digest, json.dumps(receipt))
        with self._writing():
            self._store.write(self._count, version, taken, models, self._saved(progress, counts), (key, answer))
            # Durable, so it may be seen.
            self._progress, self._pending, self._refused = progress, waiting, counts
            self._count += len(taken)
            self._model = self._published()
        return receipt

    def _ended(self, progress: Progress) -> StorageError:
        after = f"θ is not finite after step {progress.steps}; the step size is too large."
        return StorageError(f"{self._store.name} has ended: {after}")

    def _due(self, steps: int) -> int:
        """Return the size of the next batch; the last one may be smaller."""
        return min(self._public.batch, self._horizon - steps * self._public.batch)

    def _sort_out(self, records: Sequence[Record]) -> tuple[list[Entry], list[Refused]]:
        """Return the records that can be taken, and the others with the reason.

        What a record holds decides about itself alone, and whether it is well formed is public.
        """
        taken, refused = list[Entry](), list[Refused]()
        names = [person_of(one) for one in records]
        seen = self._store.known([name for name in names if name is not None])
        for place, (one, person) in enumerate(zip(records, names, strict=True)):
            try:
                entry = read_record(one, self._public.loss, self.dimension, self._ones)
                if entry.person in seen:
                    raise RecordError("repeated", f"person {person!r} has already sent a record; each may send one.")
                if self._count + len(taken) >= self._horizon:
                    raise RecordError("finished", f"the horizon of {self._horizon} records is reached.")
            except RecordError as problem:
                refused.append(Refused(place, person, problem.code, str(problem)))
                continue
            seen.add(entry.person)
            taken.append(entry)
        return taken, refused

    def statement(self) -> Statement:
        """Return what is certified, and on which terms: for the longest horizon that the limit allows.

        What was released may decide about an extension. Then no smaller number is proven, even if there is none.
        """
        if self._stated is None:
            longest, steps = self._learner.longest, self._learner.noise.longest
            found = account(self.rule, longest, steps, self._public.delta, self._public.adjacency)
            found = about_seed(found, self._seed is not None)
            reasons = (*found.reasons, *TERMS, *self._about_limit())
            self._stated = replace(found, reasons=reasons, notes=(*found.notes, *TERMS))
        return self._stated

    def _about_limit(self) -> tuple[str, ...]:
        if self._public.limit == self._public.epsilon:
            return ()
        reason = (
            f"The horizon may be extended to {self._learner.longest} records, and what was released may decide about "
            "that: so all of them are charged from the start."
        )
        return (reason,)

    def noise_of_average(self) -> float:
        """Return the standard deviation of the noise in each entry of the average at the end, were the loss flat.

        It follows from public numbers. What people hold and how they react comes on top, and is not known beforehand.
        """
        steps = steps_of(self._public, self._horizon)
        noise = self.rule.noise
        assert isinstance(noise, Correlated)
        response = average_response(self._public.step, 0.0, steps, steps // 2)
        return noise.std * output_norm(noise.buffers, response)

    def expected_gap(self) -> Forecast | None:
        """Return how far theory expects the average to end from the model that fits what people send.

        Not for outsiders. The distance is squared, and forecast from the last 2,000 records as if people went on
        sending the like. It is computed again when there are 5 % more records.

        Returns
        -------
        Forecast or None
            `gap`, and its parts `bias` (clipping, and what is left of the start), `scatter` (the order of the people)
            and `noise`. None as long as there are too few records, or if there is no forecast.
        """
        with self._lock:
            self._check_open()
            count, horizon, found = self._expected
            if count and self._count < 1.05 * count and horizon == self._horizon:
                return found
            count, horizon = self._count, self._horizon
            sent = list(self._store.entries(max(0, count - MOST_SEEN)))
            start = self._learner.first_model(self._start)
        noise = self.rule.noise
        assert isinstance(noise, Correlated)
        self._expected = (count, horizon, expected_gap(self._public, noise, horizon, start, sent))
        return self._expected[2]

    def price(self, horizon: int) -> float:
        """Return the ε of a horizon, at least the present one, that is fixed without looking at what was released."""
        horizon = checks.integer("horizon", horizon, least=self._horizon)
        steps = steps_of(self._public, horizon)
        return account(self.rule, horizon, steps, self._public.delta, self._public.adjacency).certified

    def extend(self, horizon: int) -> Statement:
        """Extend the horizon within the limit; the statement has charged for it from the start.

        The noise stays as it is. Its matrix serves longer runs, in which what one record moves lasts longer.

        Parameters
        ----------
        horizon : int
            The new number of records at the end.

        Raises
        ------
        RefusalError
            If ε would pass the limit, or if the last batch was cut short by the end of the horizon.
        """
        with self._lock:
            self._check_open()
            price, longest = self.price(horizon), self._learner.longest
            if price > self._public.limit or horizon > longest:
                raise RefusalError(
                    "limit",
                    f"horizon must be at most {longest} for the limit of ε = {self._public.limit:g}, got {horizon}, "
                    f"which would cost ε = {price:.4g}.",
                )
            if self.is_finished and self._horizon % self._public.batch and horizon > self._horizon:
                raise RefusalError("finished", "the last batch was cut short, so the stream cannot be extended.")
            saved = self._saved(self._progress, self._refused)._replace(horizon=horizon)
            with self._writing():
                self._store.save(saved)
                self._horizon, self._learner = horizon, self._learner.extend(horizon)
        return self.statement()

    def deployments(self, most: int = 200) -> list[Deployment]:
        """Return about `most` of the deployed models, evenly spaced, with what was sent under each.

        The models are covered by the statement. What was sent under them is not for outsiders.
        """
        with self._lock:
            self._check_open()
            return self._store.models(max(1, -(-self._model.version // checks.count("most", most))))

    def close(self) -> None:
        """Close the file; the stream takes no more records."""
        if os.getpid() != self._process:
            return
        with self._lock:
            with suppress(StorageError):
                self._store.close()
            if self._failure is None:
                self._failure = StorageError(f"{self._store.name} is closed; open it again.")

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Stream({self._store.name!r}, {self._count} of {self._horizon} records)"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a Stream cannot be pickled or copied: it holds the key of its noise.")


def _digest(version: int, records: Sequence[Record]) -> str:
    """Return a digest of a request, the same for lists and arrays."""
    try:
        return hashlib.sha256(json.dumps([version, list(records)], default=_plain).encode()).hexdigest()
    except (TypeError, ValueError, RecursionError):
        raise ValueError("records must hold text and numbers only.") from None


def _plain(value: object) -> object:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(type(value).__name__)


def _repeated(known: Answer, digest: str, key: str) -> Receipt:
    if known.digest != digest:
        raise RefusalError("reused", f"key {checks.short_repr(key)} belongs to another request; use a new one.")
    accepted, refused, version = json.loads(known.content)
    return Receipt(accepted, [Refused(*one) for one in refused], version)


def _size(records: object) -> str:
    return f"{len(records)} of them" if isinstance(records, Sequence) else type(records).__name__
