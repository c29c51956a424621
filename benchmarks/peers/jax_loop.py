"""Time PCSGD, DPSGD and DiceSGD, written in JAX, in its own environment: one command per line in, one answer out.

    python jax_loop.py

`{"file": …, "batch": …, "dice": …, "replicates": …, "steps": …}` loads a problem (an .npz file), compiles the loop in
several forms and keeps the fastest; `"run"` times one call, compiled before. `{"file": …, "dice": …, "check": …}` runs
the loop on the draws of an .npz file (`drawn`, `noise`) and answers with the model.

All draws of a run are made at once, before the loop: drawing in the loop takes several times as long. float64.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

FORMS = [(generator, unroll) for generator in ("threefry2x32", "rbg") for unroll in (1, 16)]


def clipped(gradients: Any, size: float) -> Any:
    """Return the rows, clipped to norm `size`."""
    norms = jnp.linalg.norm(gradients, axis=-1, keepdims=True)
    return gradients * jnp.minimum(1.0, size / jnp.maximum(norms, 1e-300))


def mean(gradients: Any) -> Any:
    """Return the mean over the records of a batch; a single gradient is returned as it is."""
    return gradients if gradients.ndim == 1 else gradients.mean(axis=0)


def step(problem: dict[str, Any], dice: bool, state: Any, draws: Any) -> Any:
    """Take one step on the drawn records; with `dice`, the clipping error is fed back."""
    theta, error = state
    t, drawn, noise = draws
    x, y = problem["features"][drawn], problem["labels"][drawn]
    x = x - problem["beta"] * y[..., None] * theta / jnp.maximum(1.0, jnp.linalg.norm(theta))
    weight = 1.0 + (problem["positive_weight"] - 1.0) * y
    slopes = weight * (jax.nn.sigmoid(x @ theta) - y)
    gradients = slopes[..., None] * x + problem["l2"] * theta
    update = mean(clipped(gradients, 1.0))
    if dice:
        update = update + clipped(error, 1.0)
        error = error + mean(gradients) - update
    theta = theta - 50 / (5001 + t) * (update + 0.3 * noise)
    return (theta, error), None


def loop(problem: dict[str, Any], dice: bool, drawn: Any, noise: Any, unroll: int) -> Any:
    """Run the loop and return the last model."""
    start = jnp.zeros(noise.shape[1]), jnp.zeros(noise.shape[1])
    draws = jnp.arange(len(noise)), drawn, noise
    return lax.scan(partial(step, problem, dice), start, draws, unroll=unroll)[0][0]


def whole(problem: dict[str, Any], key: Any, dice: bool, batch: int, steps: int, unroll: int) -> Any:
    """Draw the random numbers of a run, and run it. Records are drawn with replacement, which is cheaper here."""
    m, d = problem["features"].shape
    first, second = jax.random.split(key)
    drawn = jax.random.randint(first, (steps,) if batch == 1 else (steps, batch), 0, m)
    return loop(problem, dice, drawn, jax.random.normal(second, (steps, d)), unroll)


def compiled(problem: dict[str, Any], dice: bool, batch: int, replicates: int, steps: int, form: Any) -> Any:
    """Return a compiled function that runs one replicate, or several at once."""
    generator, unroll = form
    single = partial(whole, dice=dice, batch=batch, steps=steps, unroll=unroll)
    key = jax.random.key(0, impl=generator)
    if replicates == 1:
        call, keys = jax.jit(single), key
    else:
        call, keys = jax.jit(jax.vmap(single, in_axes=(None, 0))), jax.random.split(key, replicates)
    call(problem, keys).block_until_ready()
    return lambda: call(problem, keys).block_until_ready()


def seconds(job: Any) -> float:
    """Return the seconds that a job takes."""
    began = time.perf_counter()
    job()
    return time.perf_counter() - began


def fastest(problem: dict[str, Any], dice: bool, batch: int, replicates: int, steps: int) -> Any:
    """Return the compiled form that takes the least time."""
    jobs = [compiled(problem, dice, batch, replicates, steps, form) for form in FORMS]
    return min(jobs, key=lambda job: min(seconds(job) for _ in range(3)))


def loaded(file: str) -> dict[str, Any]:
    """Return the arrays of a file on the device."""
    return {name: jnp.asarray(value) for name, value in np.load(file).items()}


def main() -> None:
    """Execute commands, one per line."""
    jax.config.update("jax_enable_x64", True)
    job: Any = None
    for line in sys.stdin:
        command = json.loads(line)
        if command == "run":
            answer: Any = seconds(job)
        elif "check" in command:
            draws = loaded(command["check"])
            answer = loop(loaded(command["file"]), command["dice"], draws["drawn"], draws["noise"], 1).tolist()
        else:
            job, answer = fastest(loaded(command.pop("file")), **command), None
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
