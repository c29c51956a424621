"""Correlated noise by JAX Privacy in its own environment: one command per line in, an answer per line out, as JSON.

    python jax_privacy_noise.py

`{"plan": …, "steps": …, "participations": …, "separation": …}` chooses a matrix, "blt", "banded" or "root", and answers
with its coefficients, its sensitivity, the vectors that its noise remembers, its parts and the seconds, compilation
included. `{"parts": …, "size": …}` prepares the noise of a gradient with the matrix of these parts; `"step"` answers
with the seconds of one step. float32 gradients; the matrix is float64, as JAX Privacy's own functions return it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
from jax import numpy as jnp
from jax_privacy.matrix_factorization import buffered_toeplitz, toeplitz
from jax_privacy.noise_addition import matrix_factorization_privatizer


def parts_of(plan: str, steps: int, participations: int, separation: int) -> dict[str, list[float]]:
    """Choose a matrix for the least squared error of the last sum, and return what it is made of."""
    if plan == "blt":
        found = buffered_toeplitz.optimize(n=steps, min_sep=separation, max_participations=participations)
        return {"decays": found.buf_decay.tolist(), "weights": found.output_scale.tolist()}
    if plan == "root":
        return {"bands": toeplitz.optimal_max_error_strategy_coefs(steps).tolist()}
    return {"bands": toeplitz.optimize_banded_toeplitz(steps, separation, reduction_fn=jnp.max).tolist()}


def buffered(parts: dict[str, list[float]]) -> Any:
    """Return a matrix with buffers."""
    return buffered_toeplitz.BufferedToeplitz.build(parts["decays"], parts["weights"])


def plan_matrix(plan: str, steps: int, participations: int, separation: int) -> dict[str, Any]:
    """Choose a matrix, and return it with its sensitivity and what it takes."""
    began = time.perf_counter()
    parts = parts_of(plan, steps, participations, separation)
    seconds = time.perf_counter() - began
    bands = buffered(parts).toeplitz_coefs(steps) if "decays" in parts else jnp.array(parts["bands"])
    squared = toeplitz.minsep_sensitivity_squared(bands, separation, participations, steps)
    return {
        "coefficients": toeplitz.pad_coefs_to_n(bands, steps).tolist(),
        "sensitivity": float(jnp.sqrt(squared)),
        "memory": sum(part.size for part in jax.tree.leaves(inverse_of(parts).init_multiply(jnp.zeros(1)))),
        "parts": parts,
        "seconds": seconds,
    }


def inverse_of(parts: dict[str, list[float]]) -> Any:
    """Return the inverse of a matrix, which turns independent noise into correlated noise step by step."""
    if "decays" in parts:
        return buffered(parts).inverse_as_streaming_matrix()
    return toeplitz.inverse_as_streaming_matrix(jnp.array(parts["bands"]))


def noise_step(parts: dict[str, list[float]], size: int) -> Callable[[], float]:
    """Return a function that makes one gradient noisy and returns the seconds; its state is updated in place."""
    privatizer = matrix_factorization_privatizer(inverse_of(parts), stddev=1.0, prng_key=0)
    gradient = jnp.zeros(size, dtype=jnp.float32)
    update = jax.jit(lambda gradient, state: privatizer.update(gradient, state), donate_argnums=1)
    state = jax.tree.map(jnp.copy, privatizer.init(gradient))

    def step() -> float:
        nonlocal state
        began = time.perf_counter()
        noisy, state = update(gradient, state)
        jax.block_until_ready((noisy, state))
        return time.perf_counter() - began

    return step


def main() -> None:
    """Execute commands, one per line."""
    jax.config.update("jax_enable_x64", True)
    step: Any = None
    for line in sys.stdin:
        command = json.loads(line)
        if command == "step":
            answer: Any = step()
        elif "plan" in command:
            answer = plan_matrix(**command)
        else:
            step, answer = noise_step(**command), None
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
