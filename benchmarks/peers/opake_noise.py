"""Correlated noise by Opake in its own environment: one command per line in, an answer per line out, as JSON.

    python opake_noise.py

`{"plan": …, "steps": …, "participations": …, "separation": …}` chooses a matrix, "blt", "banded" or "root", and answers
with its coefficients, its sensitivity, the vectors that its noise remembers and the seconds.
`{"plan": …, "steps": …, "participations": …, "separation": …, "size": …}` prepares its noise for a gradient; `"step"`
answers with the seconds of one step. float32, one thread.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from opake.dpftrl.noise import band_mf_strategy, blt_strategy, bsr_strategy, mf_gaussian_noise
from opake.random import key
from opake.types import clipped


def strategy_of(plan: str, separation: int) -> Any:
    """Return the strategy, which chooses its matrix when it is first asked for something."""
    if plan == "blt":
        return blt_strategy()
    if plan == "root":
        return bsr_strategy(bandwidth=separation, alpha=1.0, beta=0.0)
    return band_mf_strategy(bands=separation)


def plan_matrix(plan: str, steps: int, participations: int, separation: int) -> dict[str, Any]:
    """Choose a matrix, and return it with its sensitivity and what it takes."""
    strategy = strategy_of(plan, separation)
    about = {"n_steps": steps, "min_sep": separation, "max_participations": participations}
    began = time.perf_counter()
    sensitivity = strategy.sensitivity(**about)
    seconds = time.perf_counter() - began
    found = strategy.coefficients(**about)
    padded = torch.zeros(steps, dtype=torch.float64)
    padded[: len(found)] = found
    state = strategy.streaming_matrix(**about).init_multiply(torch.zeros(1))
    return {
        "coefficients": padded.tolist(),
        "sensitivity": sensitivity,
        "memory": sum(part.numel() for part in torch.utils._pytree.tree_leaves(state) if torch.is_tensor(part)),
        "seconds": seconds,
    }


def noise_step(plan: str, steps: int, participations: int, separation: int, size: int) -> Callable[[], float]:
    """Return a function that makes one gradient noisy and returns the seconds."""
    gradient = torch.zeros(size)
    about = {"n_steps": steps, "min_sep": separation, "max_participations": participations}
    strategy = strategy_of(plan, separation)
    add_noise, state = mf_gaussian_noise(gradient, strategy, **about, noise_multiplier=1.0, key=key(0))

    def step() -> float:
        nonlocal state
        began = time.perf_counter()
        _, state = add_noise(clipped(gradient, max_norm=1.0), state)
        return time.perf_counter() - began

    return step


def main() -> None:
    """Execute commands, one per line."""
    torch.set_num_threads(1)
    step: Any = None
    for line in sys.stdin:
        command = json.loads(line)
        if command == "step":
            answer: Any = step()
        elif "size" in command:
            step, answer = noise_step(**command), None
        else:
            answer = plan_matrix(**command)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
