"""Correlated noise beside JAX Privacy and Opake: how little of it certified privacy needs, and what a step costs.

    python benchmarks/correlated.py [--quick]

Each library chooses a matrix C for the sums of up to T updates, in which a record takes part once, or ten times at
equal distances. The error is the standard deviation of the noise in the last sum, which is the largest, times the
sensitivity: the noise at equal privacy. It is computed here, by one formula, from the coefficients of C, and the
sensitivity that a library states must agree. Libraries run with their defaults, but all are asked for the least noise
in the last sum where they have a choice (Opake fits its bands to the mean over all sums).

The memory of the noise is the number of vectors, of the size of the model, that a library keeps from step to step; ours
has two besides its buffers. A step adds noise to a sum of a million entries, on one core for all and with the same
number of buffers. Ours is exact and drawn by a cryptographic generator; that of the peers is neither.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.signal import lfilter

from clipsilon.rules import correlation
from clipsilon.rules.noise import Correlated
from clipsilon.torch.correlated_noise import CorrelatedNoise, plan_correlated
from clipsilon.torch.generators import RandomStream
from clipsilon.torch.rules import Passes, UpdateSettings, build_rule, correlated_noise_of
from peers.environment import Peer
from results import Row, ahead, main, unless_missing
from timing import ratio, seconds, turns

TOPIC = "Correlated noise"
STEPS, SIZE, BATCH = 1_000, 1_000_000, 250
HOW = f"at equal privacy, T = {STEPS:,}"
PEERS = {"JAX Privacy": ("jax-privacy", "jax_privacy_noise.py"), "Opake": ("opake", "opake_noise.py")}


class Participation(NamedTuple):
    """In how many steps a record takes part at most, and how far apart; the fields are those of the peers' commands.

    Parameters
    ----------
    steps : int
        T, the length of the run.
    participations : int
        The largest number of steps with the record.
    separation : int
        The smallest number of steps from one of them to the next.
    """

    steps: int
    participations: int
    separation: int

    @property
    def name(self) -> str:
        """Return the setting in words."""
        return "one pass" if self.participations == 1 else f"{self.participations} passes"


ONE_PASS, TEN_PASSES = Participation(STEPS, 1, STEPS), Participation(STEPS, 10, STEPS // 10)
PLANS = {
    ONE_PASS: {"JAX Privacy": ("blt", "root"), "Opake": ("blt", "root")},
    TEN_PASSES: {"JAX Privacy": ("blt", "banded"), "Opake": ("blt", "banded", "root")},
}
NAMES = {"blt": "buffers", "banded": "fitted bands", "root": "square root"}


def sensitivity(coefficients: np.ndarray, case: Participation) -> float:
    """Return the largest norm of C·u for one record, whose parts have norm 1 at most.

    Parameters
    ----------
    coefficients : array of shape (T,)
        The first column of C, which must not be negative nor increase: the earliest steps are then worst.
    case : Participation
        The steps in which a record takes part.

    Raises
    ------
    ValueError
        If there is a negative coefficient, or one that is larger than the one before.
    """
    if (coefficients < 0).any() or (np.diff(coefficients) > 0).any():
        raise ValueError("coefficients must not be negative nor increase.")
    begins = np.zeros(case.steps)
    begins[:: case.separation][: case.participations] = 1.0
    return float(np.linalg.norm(np.convolve(coefficients, begins)[: case.steps]))


def error(coefficients: np.ndarray, case: Participation) -> float:
    """Return the deviation of the noise in the sum of all updates, times the sensitivity.

    Parameters
    ----------
    coefficients : array of shape (T,)
        The first column of C.
    case : Participation
        The steps in which a record takes part.
    """
    sums = lfilter([1.0], coefficients, np.ones(case.steps))  # of the first column of C⁻¹
    return float(np.linalg.norm(sums)) * sensitivity(coefficients, case)


def our_buffers(case: Participation) -> np.ndarray:
    """Return the default number of buffers, fitted to the last sum."""
    return correlation.fit(np.ones(case.steps), case.participations, case.separation)


def compare_matrices(rows: list[Row], library: str, peer: Peer, quick: bool) -> None:
    """Add rows for the errors of a peer's matrices over ours, and for the time in which matrices are chosen.

    Parameters
    ----------
    rows : list of Row
        The results so far.
    library : str
        A key of `PEERS`.
    peer : Peer
        The library.
    quick : bool
        Whether to leave out the single pass.
    """
    times = []
    for case in [TEN_PASSES] if quick else PLANS:
        taken, buffers = seconds(lambda case=case: our_buffers(case)), our_buffers(case)
        mine = error(correlation.coefficients(buffers, case.steps), case)
        for plan in PLANS[case][library]:
            found, other = peer.ask({"plan": plan, **case._asdict()}), f"{library}, {NAMES[plan]}"
            memory = f"memory: {Correlated(1.0, buffers).memory} vectors, its {found['memory']:,}"
            theirs = error(checked(library, found, case), case)
            rows.append(ahead(TOPIC, f"noise in sums, {case.name}", other, theirs / mine, f"{HOW}; {memory}"))
            if plan != "root":  # which is a formula
                times.append((f"choosing a matrix, {case.name}", other, found["seconds"] / taken))
    rows += [ahead(TOPIC, *time, "time of one call, with compilation") for time in times]


def checked(library: str, found: dict[str, Any], case: Participation) -> np.ndarray:
    """Return the coefficients of a peer's matrix; raise RuntimeError unless it states their sensitivity.

    Parameters
    ----------
    library : str
        A key of `PEERS`.
    found : dict
        The answer of the library.
    case : Participation
        The steps in which a record takes part.
    """
    coefficients = np.array(found["coefficients"])
    if not np.isclose(found["sensitivity"], sensitivity(coefficients, case), rtol=1e-6):
        raise RuntimeError(f"{library} must state the sensitivity of its matrix, got {found['sensitivity']}.")
    return coefficients


def our_step(buffers: np.ndarray, size: int) -> Callable[[], Any]:
    """Return a function that makes a sum of so many entries noisy, as a training with PyTorch does.

    Parameters
    ----------
    buffers : array of shape (k, 2)
        The matrix.
    size : int
        Number of entries.
    """
    settings = UpdateSettings(1.0, "correlated", poisson_sampling=False)
    rule = build_rule(settings, "SGD", BATCH, Passes(1, STEPS))
    noise = correlated_noise_of(rule)._replace(buffers=buffers)
    grid = plan_correlated(rule, False, size, STEPS * BATCH, STEPS)
    exact = CorrelatedNoise(grid, RandomStream(), noise)
    whole, like = torch.zeros(size, dtype=torch.float64), torch.zeros(size)
    return lambda: exact.release(whole, BATCH, like)


def compare_steps(rows: list[Row], quick: bool) -> None:
    """Add rows for the time of a step with as many buffers as the peer chooses.

    Parameters
    ----------
    rows : list of Row
        The results so far.
    quick : bool
        Whether to use a small vector and few turns.
    """
    size, repeats = (10_000, 3) if quick else (SIZE, 30)
    buffers = correlation.fit(np.ones(STEPS), count=3)
    ours = our_step(buffers, size)
    orders = {
        "JAX Privacy": {"parts": dict(zip(("decays", "weights"), buffers.T.tolist(), strict=True)), "size": size},
        "Opake": {"plan": "blt", **ONE_PASS._asdict(), "size": size},
    }
    for library, (name, script) in PEERS.items():
        with unless_missing(rows, TOPIC, "a step", library), one_core(), closing(Peer(name, script)) as peer:
            peer.ask(orders[library])
            contenders = {"ours": lambda: seconds(ours), "peer": lambda peer=peer: peer.ask("step")}
            found = ratio(turns(contenders, repeats), "peer", "ours")
            how = f"time per step, {size:,} entries, one core, {repeats} turns"
            rows.append(ahead(TOPIC, f"exact noise, {len(buffers)} buffers", f"{library}, floating point", found, how))


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this process, and those that it starts, on one core, where the system can."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_setaffinity") else set()
    if usable:
        os.sched_setaffinity(0, {max(usable)})
    try:
        yield
    finally:
        if usable:
            os.sched_setaffinity(0, usable)


def measure(rows: list[Row], quick: bool) -> None:
    """Measure errors and times."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    our_buffers(ONE_PASS)  # imports
    for library, (name, script) in PEERS.items():
        with unless_missing(rows, TOPIC, "all matrices", library), closing(Peer(name, script)) as peer:
            compare_matrices(rows, library, peer, quick)
    compare_steps(rows, quick)


if __name__ == "__main__":
    sys.exit(main("correlated", measure, __doc__))
