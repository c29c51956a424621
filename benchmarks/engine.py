"""The speed of the engine compared with a NumPy loop and JAX, and the cost of its parts.

    python benchmarks/engine.py [--quick]

Logistic loss with best response, d = 10, float64. Before anything is timed, the NumPy loop and JAX run on the engine's
random draws and must end at the engine's model. JAX runs in an environment of its own, which is created if it does not
exist. Compilation is not counted on either side, and JAX runs in the fastest of four forms (`peers/jax_loop.py`).
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numba
import numpy as np

import clipsilon as cs
from clipsilon.engine.arrays import problem_arrays, visible_models
from clipsilon.engine.exact_noise import draw as draw_exact
from clipsilon.engine.grid import scaling
from clipsilon.engine.loop import advance, empty_recording, initial_state
from clipsilon.engine.streams import spawn
from clipsilon.engine.threads import step_threads
from clipsilon.rules.sampling import draw, expected_batch
from float_noise import with_float_noise
from peers.environment import Peer
from results import Row, ahead, cost, main, unless_missing
from timing import per_step, ratio, seconds, turns

RECORDS, BATCH, REPLICATES = 15_776, 250, 64
TOPIC = "Engine"
Normal = Callable[[int], np.ndarray]  # from a size to standard normal numbers
CLIP, NOISE = 1.0, 0.3
CHECKED = 300  # number of steps after which all models must agree


def problem(d: int = 10) -> cs.Problem:
    """Return a problem with random records, as many as in the credit data, and d columns."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((RECORDS, d))
    y = (rng.random(RECORDS) < 0.07).astype(float)
    loss = cs.losses.Logistic(l2=0.006, positive_weight=2.0)
    return cs.Problem(x, y, loss=loss, response=cs.responses.BestResponse(beta=0.01))


def rule(name: str = "PCSGD") -> cs.Rule:
    """Return a rule with one record per step, or DPSGD with uniform minibatches."""
    step = cs.schedules.InverseTime(50, 5000)
    if name == "PCSGD, fixed order":
        return cs.PCSGD(step, clip=CLIP, noise_std=NOISE, sampling="cyclic")
    if name == "CorrelatedSGD":
        buffers = cs.correlation.square_root(400_000, 4)
        return cs.CorrelatedSGD(step, clip=CLIP, noise_std=NOISE, sampling="cyclic", buffers=buffers)
    if name == "DiceSGD":
        return cs.DiceSGD(step, clip=CLIP, error_clip=CLIP, noise_std=NOISE)
    if name == "DPSGD":
        return cs.DPSGD(step, clip=CLIP, noise_std=NOISE, batch=BATCH, sampling="uniform")
    return cs.PCSGD(step, clip=CLIP, noise_std=NOISE)


def engine(case: cs.Problem, how: cs.Rule, steps: int) -> np.ndarray:
    """Run the compiled loop alone, in one thread, and return the last model.

    Parameters
    ----------
    case : Problem
        The problem.
    how : Rule
        The rule.
    steps : int
        Number of steps.

    Returns
    -------
    array
        θ.
    """
    state = initial_state(case, how, np.zeros(case.dimension))
    records = empty_recording(case, how, np.array([0, steps]))
    public, shared = scaling(case, how, steps), step_threads(case, how, 1)
    order = np.arange(case.records)
    models = visible_models(case, state.theta, state.deployed)
    fixed = (problem_arrays(case), how.update(), public, shared, models)
    advance(*fixed, state, order, records, steps, *spawn(0, 1)[0])
    return records.theta[-1]


def clipped(vector: np.ndarray) -> np.ndarray:
    """Return the vector clipped to `CLIP`."""
    return vector * min(1.0, CLIP / max(np.linalg.norm(vector), 1e-300))


def numpy_single(case: cs.Problem, dice: bool, steps: int, normal: Normal | None = None) -> np.ndarray:
    """Run PCSGD or DiceSGD with one record per step, written plainly in NumPy, and return the last model.

    Parameters
    ----------
    case : Problem
        The problem.
    dice : bool
        Whether to feed the clipping error back.
    steps : int
        Number of steps.
    normal : callable, optional
        Draws the noise, for checking; NumPy's generator by default.

    Returns
    -------
    array
        θ.
    """
    draws = spawn(0, 1)[0]
    normal = normal or draws.noise.standard_normal
    x_all, y_all, theta, error = case.features, case.labels, np.zeros(case.dimension), np.zeros(case.dimension)
    loss, beta = case.loss, case.response.beta
    for t in range(steps):
        i = draws.records.integers(0, case.records)
        x, y = x_all[i], y_all[i]
        if y:
            x = x - beta * theta / max(1.0, np.linalg.norm(theta))
        weight = loss.positive_weight if y else 1.0
        gradient = weight * (1 / (1 + np.exp(-x @ theta)) - y) * x + loss.l2 * theta
        update = clipped(gradient)
        if dice:
            update = update + clipped(error)
            error = error + gradient - update
        theta = theta - 50 / (5001 + t) * (update + NOISE * normal(case.dimension))
    return theta


def numpy_batch(
    case: cs.Problem, batch: int, steps: int, drawn: np.ndarray | None = None, normal: Normal | None = None
) -> np.ndarray:
    """Run DPSGD in NumPy, vectorised over the minibatch, and return the last model.

    Parameters
    ----------
    case : Problem
        The problem.
    batch : int
        Number of records per step, at least 1.
    steps : int
        Number of steps.
    drawn : array of shape (steps, batch), optional
        The records of each step, for checking; by default they are drawn here.
    normal : callable, optional
        Draws the noise, for checking; NumPy's generator by default.

    Returns
    -------
    array
        θ.
    """
    records, normal = np.random.default_rng(0), normal or spawn(0, 1)[0].noise.standard_normal
    x_all, y_all, theta = case.features, case.labels, np.zeros(case.dimension)
    loss, beta = case.loss, case.response.beta
    for t in range(steps):
        if drawn is not None:
            rows = drawn[t]
        elif batch == 1:
            rows = records.integers(0, case.records, 1)
        else:
            rows = records.choice(case.records, batch, replace=False)
        x, y = x_all[rows], y_all[rows]
        x = x - beta * y[:, None] * theta / max(1.0, np.linalg.norm(theta))
        weight = 1.0 + (loss.positive_weight - 1.0) * y
        gradients = (weight * (1 / (1 + np.exp(-x @ theta)) - y))[:, None] * x + loss.l2 * theta
        norms = np.linalg.norm(gradients, axis=1)
        scaled = gradients * np.minimum(1.0, CLIP / np.maximum(norms, 1e-300))[:, None]
        theta = theta - 50 / (5001 + t) * (scaled.sum(axis=0) / batch + NOISE * normal(theta.size))
    return theta


def replicates(case: cs.Problem, how: cs.Rule, steps: int) -> None:
    """Run `REPLICATES` replicates, with one thread per core.

    Parameters
    ----------
    case : Problem
        The problem.
    how : Rule
        The rule.
    steps : int
        Steps per replicate.
    """
    cs.run(case, how, steps, replicates=REPLICATES, seed=0, record=[steps], progress=False)


@numba.njit(nogil=True)
def draw_numbers(records, noise, m, d, steps):
    """Draw the random numbers of a run and return their sum.

    Parameters
    ----------
    records, noise : Generator
        The streams of records and noise.
    m, d : int
        Number of records and of columns.
    steps : int
        Number of steps.
    """
    total = 0.0
    for _ in range(steps):
        total += records.integers(0, m)
        for _ in range(d):
            total += noise.standard_normal()
    return total


def draws(steps: int, d: int = 10) -> None:
    """Draw as many random numbers as a run of `steps` steps."""
    streams = spawn(0, 1)[0]
    draw_numbers(streams.records, streams.noise, RECORDS, d, steps)


def engine_draws(how: cs.Rule) -> np.ndarray:
    """Return the records that the engine draws in the first `CHECKED` steps, one row per step."""
    records, order = spawn(0, 1)[0].records, np.arange(RECORDS)
    drawn = np.empty((CHECKED, expected_batch(how.sampling, RECORDS)), dtype=np.int64)
    for t in range(CHECKED):
        draw(how.sampling, t, RECORDS, order, records, drawn[t])
    return drawn


def engine_normal() -> Normal:
    """Return a function that draws the normal numbers that the engine draws, from the beginning of its stream."""
    noise = spawn(0, 1)[0].noise
    return lambda size: (draw_exact(noise, size) + 0.5) * 2.0**-32


def must_agree(name: str, found: np.ndarray, case: cs.Problem, how: cs.Rule) -> None:
    """Raise RuntimeError unless a peer's model equals the engine's: only the same algorithm may be timed.

    Parameters
    ----------
    name : str
        The peer, for the message.
    found : array
        The peer's model after `CHECKED` steps.
    case : Problem
        The problem.
    how : Rule
        The rule.
    """
    if not np.allclose(found, engine(case, how, CHECKED), rtol=0, atol=1e-7):  # sums and noise are on a grid
        raise RuntimeError(f"{name} must end at the engine's model when given the same draws, got {found}.")


def against_numpy(rows: list[Row], case: cs.Problem, quick: bool) -> None:
    """Compare with NumPy: one record per step, written in two ways, and minibatches.

    Parameters
    ----------
    rows : list of Row
        The results so far.
    case : Problem
        The problem.
    quick : bool
        Whether to use fewer steps and turns.
    """
    fewer, repeats = (10, 3) if quick else (1, 15)
    for name, batch, steps in (("PCSGD", 1, 2_000), ("DiceSGD", 1, 2_000), ("DPSGD", BATCH, 200)):
        how, loops = rule(name), numpy_loops(case, name, batch)
        for loop, _ in loops.values():
            must_agree("NumPy", loop(CHECKED, engine_draws(how), engine_normal()), case, how)
        contenders = {other: per_step(loop, steps // fewer) for other, (loop, _) in loops.items()}
        ours = per_step(lambda steps, how=how: engine(case, how, steps), (100_000 if batch == 1 else 2_000) // fewer)
        found = turns({"ours": ours, **contenders}, repeats)
        what = name if batch == 1 else f"{name}, batches of {batch}"
        for other, (_, least) in loops.items():
            rows.append(ahead(TOPIC, what, other, ratio(found, other, "ours"), _how(repeats), least))


def numpy_loops(case: cs.Problem, name: str, batch: int) -> dict[str, tuple[Callable[..., np.ndarray], float | None]]:
    """Return the NumPy loops for a rule, each with the least ratio that is wanted, or None.

    Parameters
    ----------
    case : Problem
        The problem.
    name : str
        "PCSGD", "DiceSGD" or "DPSGD".
    batch : int
        Number of records per step.

    Returns
    -------
    dict
        Loops and ratios, by their names in the table.
    """
    loops: dict[str, tuple[Callable[..., np.ndarray], float | None]] = {}
    if batch == 1:
        loops["NumPy loop, plain vectors"] = (
            lambda steps, _=None, normal=None: numpy_single(case, name == "DiceSGD", steps, normal),
            None,
        )
    if name != "DiceSGD":
        least = 100.0 if batch == 1 else None
        loops["NumPy loop, whole arrays"] = (
            lambda steps, drawn=None, normal=None: numpy_batch(case, batch, steps, drawn, normal),
            least,
        )
    return loops


def _how(repeats: int, threads: str = "1 thread") -> str:
    return f"time per step, {threads}, {repeats} turns"


def check_jax(peer: Peer, folder: Path, file: str, case: cs.Problem) -> None:
    """Raise RuntimeError unless JAX ends at the engine's models on the engine's draws.

    Parameters
    ----------
    peer : Peer
        JAX.
    folder : Path
        Where the draws are written.
    file : str
        The problem, as an .npz file.
    case : Problem
        The same problem.
    """
    for name in ("PCSGD", "DiceSGD", "DPSGD"):
        drawn = engine_draws(rule(name))
        noise = engine_normal()(CHECKED * case.dimension).reshape(CHECKED, case.dimension)
        np.savez(folder / "draws.npz", drawn=drawn if name == "DPSGD" else drawn[:, 0], noise=noise)
        found = peer.ask({"file": file, "dice": name == "DiceSGD", "check": str(folder / "draws.npz")})
        must_agree("JAX", np.array(found), case, rule(name))


def against_jax(rows: list[Row], case: cs.Problem, folder: Path, quick: bool) -> None:
    """Compare with JAX: single runs, ours in one thread, and many runs at once on all cores.

    Parameters
    ----------
    rows : list of Row
        The results so far.
    case : Problem
        The problem.
    folder : Path
        Where the problem is written for JAX.
    quick : bool
        Whether to use fewer steps and turns.
    """
    file, (fewer, repeats) = str(folder / "problem.npz"), (10, 3) if quick else (1, 9)
    about = {"l2": case.loss.l2, "positive_weight": case.loss.positive_weight, "beta": case.response.beta}
    np.savez(file, features=case.features, labels=case.labels, **about)
    with closing(Peer("jax", "jax_loop.py")) as peer:
        check_jax(peer, folder, file, case)
        for name, batch, steps in (("PCSGD", 1, 50_000), ("DiceSGD", 1, 50_000), ("DPSGD", BATCH, 2_000)):
            order = {"file": file, "dice": name == "DiceSGD", "batch": batch, "replicates": 1, "steps": steps // fewer}
            found = beside_jax(peer, order, lambda steps, name=name: engine(case, rule(name), steps), repeats)
            what = name if batch == 1 else f"{name}, batches of {batch}"
            rows.append(ahead(TOPIC, what, "JAX, compiled scan", found, _how(repeats, "ours in 1 thread")))
        for name in ("PCSGD", "DiceSGD"):
            order = {"dice": name == "DiceSGD", "batch": 1, "replicates": REPLICATES, "steps": 20_000 // fewer}
            ours = lambda steps, name=name: replicates(case, rule(name), steps)  # noqa: E731
            found = beside_jax(peer, order | {"file": file}, ours, repeats)
            what = f"{name}, {REPLICATES} runs"
            rows.append(ahead(TOPIC, what, "JAX, vmapped scan", found, _how(repeats, "all cores for both")))


def beside_jax(peer: Peer, order: dict[str, Any], ours: Callable[[int], Any], repeats: int) -> float:
    """Return JAX's time over ours for the same number of steps.

    Parameters
    ----------
    peer : Peer
        JAX.
    order : dict
        What JAX is to compile; see `peers/jax_loop.py`.
    ours : callable
        Runs the same number of steps, which it is passed, with the engine.
    repeats : int
        Number of turns.

    Returns
    -------
    float
        Above 1 if the engine is faster.
    """
    peer.ask(order)
    contenders = {"ours": lambda: seconds(lambda: ours(order["steps"])), "JAX": lambda: peer.ask("run")}
    return ratio(turns(contenders, repeats), "JAX", "ours")


def costs(rows: list[Row], case: cs.Problem, quick: bool) -> None:
    """Add rows for the engine's time over its parts', and for the growth of time and memory.

    Parameters
    ----------
    rows : list of Row
        The results so far.
    case : Problem
        The problem.
    quick : bool
        Whether to use fewer steps and turns.
    """
    n, repeats = (10, 3) if quick else (1, 15)
    wide = {d: problem(d) for d in (10, 100, 1000)}
    one = turns(
        {
            "engine": per_step(lambda steps: engine(case, rule(), steps), 100_000 // n),
            "draws": per_step(draws, 100_000 // n),
            "float": per_step(lambda steps: engine(case, with_float_noise(rule()), steps), 100_000 // n),
            "long": per_step(lambda steps: engine(case, rule(), steps), 400_000 // n),
            "ordered": per_step(lambda steps: engine(case, rule("PCSGD, fixed order"), steps), 100_000 // n),
            "correlated": per_step(lambda steps: engine(case, rule("CorrelatedSGD"), steps), 100_000 // n),
            **{str(d): per_step(lambda steps, d=d: engine(wide[d], rule(), steps), 2_000_000 // d // n) for d in wide},
        },
        repeats,
    )
    limits = [
        # Exact noise was to cost 1.05 of the kernels before it, which a step takes 0.81 of. Floating-point noise in
        # today's kernels takes less time than they did.
        ("a step of PCSGD, d = 10", "engine", "with floating-point noise", "float", 1.15),
        ("a step of PCSGD, d = 10", "engine", "drawing its random numbers", "draws", 3.5),
        ("a step of CorrelatedSGD, 4 buffers", "correlated", "PCSGD in a fixed order", "ordered", 1.6),
        ("a step in a run of 400,000", "long", "one in a run of 100,000", "engine", 1.1),
        ("a step, d = 100", "100", "d = 10", "10", 10.0),
        ("a step, d = 1,000", "1000", "d = 100", "100", 11.0),
    ]
    for ours, over, other, under, most in limits:
        rows.append(cost(TOPIC, ours, other, ratio(one, over, under), f"{repeats} turns", most=most))
    grown = memory(10**7 // n) / memory(10**5)
    rows.append(cost(TOPIC, "four runs in one thread", "in two", threads_ratio(case, quick), "long runs", least=1.7))
    rows.append(cost(TOPIC, "memory after 10⁷ steps", "after 10⁵", grown, "one process each", most=1.1))


def threads_ratio(case: cs.Problem, quick: bool) -> float:
    """Return how many times as fast four replicates are in two threads as in one.

    The runs take seconds, because the times of short runs are noisy.
    """
    steps = 400_000 if quick else 4_000_000
    cs.run(case, rule(), 10, replicates=2, seed=0)
    found = turns(
        {
            str(jobs): lambda jobs=jobs: seconds(
                lambda: cs.run(case, rule(), steps, replicates=4, seed=0, n_jobs=jobs, progress=False)
            )
            for jobs in (1, 2)
        },
        3 if quick else 7,
    )
    return ratio(found, "1", "2")


def memory(steps: int) -> float:
    """Return the resident memory of a new process after a run, in MB."""
    job = (
        f"import sys, psutil; sys.path.insert(0, {str(Path(__file__).parent)!r}); import engine, clipsilon as cs;"
        f"cs.run(engine.problem(), engine.rule(), {steps}, seed=0, progress=False);"
        "print(psutil.Process().memory_info().rss / 1e6)"
    )
    return float(subprocess.run([sys.executable, "-c", job], capture_output=True, text=True, check=True).stdout)


def measure(rows: list[Row], quick: bool) -> None:
    """Measure against NumPy and JAX, and the costs of the engine's parts."""
    case = problem()
    against_numpy(rows, case, quick)
    with tempfile.TemporaryDirectory() as folder, unless_missing(rows, TOPIC, "all runs", "JAX"):
        against_jax(rows, case, Path(folder), quick)
    costs(rows, case, quick)


if __name__ == "__main__":
    sys.exit(main("engine", measure, __doc__))
