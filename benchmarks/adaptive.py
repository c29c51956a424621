"""Adaptive clipping of PyTorch models beside Opacus's: time per step, peak tensor memory, and what both certify.

    python benchmarks/adaptive.py [--quick]

Opacus's `AdaClipDPOptimizer` needs a gradient for every record (hooks); its ghost clipping has an engine of its own for
adaptive clips (`PrivacyEngineAdaptiveClipping`). Models, batches and memory are those of `ghost.py`; clips start at 1
and follow the median at a rate of 0.2, with the noise on the count that is the default (ours, and Opacus's with ghost
clipping) or B/20 (with hooks, where Opacus has no default).

Opacus counts records that are not clipped as 1 and others as 0, but prices the count as if it were ±½, which halves
what the count reveals; and it divides the noisy count by the number of records that were drawn, which is not public.
Two rows state the ε of both libraries for equal noise: σ = 1 for sum and count together, of which B/20 on the count.
Two others state what is certified for the same noise and counts of 0 and 1, if they are divided by the public batch
size. The last row attacks Opacus's optimiser itself: one step on all of 63 long records, with or without one more that
is just not clipped. Its bound assumes nothing about the scores; δ is one at which few runs suffice.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from opacus import GradSampleModule
from opacus import PrivacyEngine as Opacus
from opacus.accountants import create_accountant
from opacus.optimizers import AdaClipDPOptimizer
from opacus.utils.adaptive_clipping import PrivacyEngineAdaptiveClipping
from torch import Tensor, nn

import clipsilon as cs
from clipsilon.privacy.auditing.inference import rank_bound
from clipsilon.torch import PrivacyEngine
from ghost import MODELS, make_step, peak_memory
from results import Row, ahead, main
from timing import ratio, seconds, turns

TOPIC = "Adaptive clip"
QUANTILE, RATE, NOISE = 0.5, 0.2, 1.0
CLIPS = {"target_unclipped_quantile": QUANTILE, "clipbound_learning_rate": RATE}
CLIPS |= {"min_clipbound": 2.0**-30, "max_clipbound": 2.0**30}
PEERS = {"hooks": "Opacus's AdaClipDPOptimizer", "ghost": "Opacus's adaptive ghost clipping"}
SAMPLING, STEPS, DELTA = 0.01, 1_000, 1e-5
COUNT_NOISE = 0.8  # of the attacked step; Opacus requires more than NOISE/2
LOOSE_DELTA, CONFIDENCE = 0.1, 0.999


def make_ours(mode: str, parts: dict[str, Any]) -> tuple[nn.Module, Any, Callable[..., Tensor]]:
    """Make a model private by our adaptive clip.

    Parameters
    ----------
    mode : str
        "ghost" or "hooks".
    parts : dict
        Model, optimiser and loader.

    Returns
    -------
    tuple
        The private model, optimiser and criterion.
    """
    settings = {"noise_multiplier": NOISE, "clipping": "adaptive", "quantile": QUANTILE, "grad_sample_mode": mode}
    return _criterion_of(mode, PrivacyEngine().make_private, parts | settings)


def make_theirs(mode: str, parts: dict[str, Any]) -> tuple[nn.Module, Any, Callable[..., Tensor]]:
    """Make a model private by an adaptive clip of Opacus; arguments as in `make_ours`."""
    settings = {"noise_multiplier": NOISE, "max_grad_norm": 1.0, "poisson_sampling": False, "grad_sample_mode": mode}
    if mode == "hooks":
        noise = parts["data_loader"].batch_size / 20
        settings |= {"clipping": "adaptive", "unclipped_num_std": noise}
        return _criterion_of(mode, Opacus().make_private, parts | settings | CLIPS)
    return _criterion_of(mode, PrivacyEngineAdaptiveClipping().make_private, parts | settings | CLIPS)


def _criterion_of(
    mode: str, make_private: Callable[..., tuple[Any, ...]], given: dict[str, Any]
) -> tuple[nn.Module, Any, Callable[..., Tensor]]:
    """Call `make_private`, and return the criterion without an argument for sentences, which Opacus would refuse."""
    criterion: Any = nn.CrossEntropyLoss()
    made = make_private(**given, **({"criterion": criterion} if mode == "ghost" else {}))
    criterion = made[2] if mode == "ghost" else criterion
    return made[0], made[1], lambda scores, targets, shape: criterion(scores, targets)


def compare_steps(rows: list[Row], model: str, mode: str, repeats: int) -> None:
    """Append the ratios of time and peak memory.

    Parameters
    ----------
    rows : list of Row
        The results so far.
    model : str
        A key of `MODELS`.
    mode : str
        "hooks" or "ghost".
    repeats : int
        Steps per contender.
    """
    make, data = MODELS[model]
    batch = data()
    made = {"ours": partial(make_ours, mode), "peer": partial(make_theirs, mode)}
    steps = {name: make_step(how, make, batch) for name, how in made.items()}
    found = turns({name: lambda step=step: seconds(step) for name, step in steps.items()}, repeats)
    about = f"a step, {model}, {mode}"
    how = f"time per step, 1 thread, {repeats} turns"
    rows.append(ahead(TOPIC, about, PEERS[mode], ratio(found, "peer", "ours"), how))
    peaks = {name: peak_memory(partial(make_step, how, make, batch)) for name, how in made.items()}
    rows.append(ahead(TOPIC, about, PEERS[mode], peaks["peer"] / peaks["ours"], "peak memory"))


def noise_on_sum(count_noise: float) -> float:
    """Return the noise on the sum, in clips, that leaves `NOISE` for both if counts are ±½."""
    return (NOISE**-2 - (2 * count_noise) ** -2) ** -0.5


def stated_by_opacus(rate: float, steps: int, delta: float) -> float:
    """Return the ε that Opacus's default accountant states of a training with an adaptive clip.

    Parameters
    ----------
    rate : float
        The probability with which a record is drawn.
    steps : int
        Number of steps.
    delta : float
        The δ.
    """
    accountant = create_accountant("prv")
    accountant.history = [(NOISE, rate, steps)]
    return float(accountant.get_epsilon(delta=delta))


def compare_certificates(rows: list[Row], batch: int) -> None:
    """Append ratios of ε for equal noise: with our counts of ±½, and with Opacus's of 0 and 1.

    Parameters
    ----------
    rows : list of Row
        The results so far.
    batch : int
        The batch size.
    """
    count_noise, records = batch / 20, round(batch / SAMPLING)
    step, theirs = cs.schedules.Constant(1.0), stated_by_opacus(SAMPLING, STEPS, DELTA)
    adaptive = cs.AdaptiveDPSGD(step, 1.0, NOISE, batch, QUANTILE, RATE, count_noise)
    whole = (noise_on_sum(count_noise) ** -2 + count_noise**-2) ** -0.5  # a record moves sum and count by 1 each
    rules = {"counts of ±½": adaptive, "counts of 0 and 1": cs.DPSGD(step, 1.0, whole / batch, batch)}
    for counts, rule in rules.items():
        ours = cs.account(rule, records, STEPS, DELTA, "zero-out").certified
        how = f"equal noise, q = {SAMPLING:g}, {STEPS:,} steps: ε = {ours:#.4g}, its {theirs:#.4g}"
        rows.append(ahead(TOPIC, f"certified ε, B = {batch}, {counts}", "Opacus, PRV: its ε", theirs / ours, how))


def attacked(has_canary: bool, runs: int) -> np.ndarray:
    """Return scores of runs of one step of Opacus's optimiser, larger if a record that is not clipped took part.

    Parameters
    ----------
    has_canary : bool
        Whether it took part.
    runs : int
        Number of runs.

    Returns
    -------
    array
        One score per run.
    """
    others = 63
    records = torch.tensor([[10.0, 0.0]] * others + [[0.0, 0.999]] * has_canary)
    model = GradSampleModule(nn.Linear(2, 1, bias=False), loss_reduction="sum")
    parameter = next(model.parameters())
    noise = {"noise_multiplier": NOISE, "unclipped_num_std": COUNT_NOISE}
    start = {"max_grad_norm": 1.0, "expected_batch_size": others + 1, "loss_reduction": "sum"}
    optimizer = AdaClipDPOptimizer(torch.optim.SGD(model.parameters(), lr=0.0), **CLIPS, **noise, **start)
    scores = np.empty(runs)
    for run in range(runs):
        optimizer.max_grad_norm = 1.0
        model(records).sum().backward()
        optimizer.step()
        unclipped = (others + 1) * (QUANTILE - math.log(float(optimizer.max_grad_norm)) / RATE)
        scores[run] = float(parameter.grad[0, 1]) / noise_on_sum(COUNT_NOISE) ** 2 + unclipped / COUNT_NOISE**2
        optimizer.zero_grad()
    return scores


def attack(rows: list[Row], runs: int) -> None:
    """Append the ratio of the ε that Opacus states of one step to the ε that an attack demonstrates.

    Parameters
    ----------
    rows : list of Row
        The results so far.
    runs : int
        Runs with, and without, the record.
    """
    absent, present = attacked(False, runs), attacked(True, runs)
    shown = rank_bound(absent, present, delta=LOOSE_DELTA, confidence=CONFIDENCE).lower_bound
    stated = stated_by_opacus(1.0, 1, LOOSE_DELTA)
    verdict = "; NOT a bound" if shown > stated else ""
    how = f"one step, δ = {LOOSE_DELTA:g}, 2 × {runs:,} runs: ε ≥ {shown:#.3g}, its {stated:#.3g}{verdict}"
    rows.append(ahead(TOPIC, "ε demonstrated of its optimiser", "Opacus, PRV: its ε", stated / shown, how))


def measure(rows: list[Row], quick: bool) -> None:
    """Measure steps, certificates and the attack."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for model in ("CNN", "ViT"):
        for mode in PEERS:
            compare_steps(rows, model, mode, 3 if quick else 30)
    for batch in (256, 32):
        compare_certificates(rows, batch)
    attack(rows, 1_000 if quick else 5_000)


if __name__ == "__main__":
    sys.exit(main("adaptive", measure, __doc__))
