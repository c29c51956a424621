"""What paper 3's experiments with GPT-2 share: their scale, and stored trainings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from clipsilon.reproduce.base import Lab
from clipsilon.reproduce.paper3.networks import Scale, best_step

if TYPE_CHECKING:
    from clipsilon.reproduce.paper3.networks import TrainingConfig

TITLES = {"SGD": "sgd", "DPSGD-GC": "dpsgd", "DiceSGD": "dice"}
STEPS = (5e-2, 2e-2, 1e-2, 5e-3)
POINTS = 10  # points per curve


class Written(NamedTuple):
    """The outcome of a training of GPT-2.

    Parameters
    ----------
    iterations : list of int
        Steps at which the test loss was measured.
    losses : list of float
        Test loss per token, in nats.
    scores : dict of str to float
        Scores of generated descriptions, by name.
    """

    iterations: list[int]
    losses: list[float]
    scores: dict[str, float]


def text_scale(lab: Lab, steps: int, seeds: int = 3) -> Scale:
    """Return the scale for made-up restaurants and a small GPT-2, or for the E2E challenge at the size of the paper.

    The environment variable `CLIPSILON_E2E` names a folder with trainset.csv and testset_w_refs.csv,
    `CLIPSILON_GPT2` the folder of a pretrained model.

    Parameters
    ----------
    lab : Lab
        Decides whether the scale is quick.
    steps : int
        Number of steps on made-up restaurants.
    seeds : int, default 3
        Number of reported runs.

    Returns
    -------
    Scale
        Data, size and privacy.
    """
    folder = os.environ.get("CLIPSILON_E2E")
    seeds = 1 if lab.quick else seeds
    if folder:
        records = len(_texts(folder, os.environ.get("CLIPSILON_GPT2"), 0)[0])
        return Scale(folder, records, 1000, 420, 8.0, 8e-6, seeds, "AdamW", 42, tuning=1)
    steps = steps // 4 if lab.quick else steps
    return Scale("restaurants", 5000, 100, steps, 8.0, 8e-6, seeds, "AdamW", steps // 10, tuning=1)


def write(source: str, folder: str | None, records: int, plan: TrainingConfig, described: int) -> Written:
    """Train a GPT-2, measure its test loss during training, and generate descriptions of restaurants.

    Parameters
    ----------
    source : str
        "restaurants" or a folder with the files of the E2E challenge.
    folder : str or None
        Folder of a pretrained GPT-2; None for a small model with random parameters.
    records : int
        Number of made-up records.
    plan : TrainingConfig
        The training.
    described : int
        Number of restaurants of the test set to describe.

    Returns
    -------
    Written
        Test losses and scores.
    """
    from clipsilon.torch.examples import gpt2, language
    from clipsilon.torch.examples.scores import SCORES

    train, test, tokens, length = _texts(source, folder, records if source == "restaurants" else 0)
    model = gpt2.load_gpt2(folder) if folder else gpt2.new_gpt2(tokens.size, length, plan.seed)
    rows = [gpt2.encode_records(part, tokens, length) for part in (train, test)]
    model, curve = gpt2.train_gpt2(plan, model, rows[0], rows[1], max(1, plan.steps // POINTS))
    known = language.group_by_meaning(test)
    meanings = list(known)[:described]
    expected = [known[each] if source != "restaurants" else language.references(each) for each in meanings]
    written = gpt2.describe(model, tokens, meanings, length)
    iterations, losses = (list(each) for each in zip(*curve, strict=True))
    return Written(iterations, losses, {name: score(written, expected) for name, score in SCORES.items()})


@cache
def _texts(source: str, folder: str | None, records: int) -> tuple[Any, Any, Any, int]:
    """Return training records (`records` made-up ones), test records, the tokens, and the maximal row length."""
    from clipsilon.torch.examples import gpt2, language

    if source == "restaurants":
        train, test = language.restaurants(records, seed=0), language.restaurants(300, seed=1)
        public = language.restaurants(5000, seed=2)  # tokens and length must not come from private records
    else:
        train, test = (language.read_e2e(Path(source) / name) for name in ("trainset.csv", "testset_w_refs.csv"))
        public = test
    tokens: Any = gpt2.Pieces(folder) if folder else gpt2.Words([text for record in public for text in record])
    return train, test, tokens, max(len(tokens.encode(f"{each.meaning} {each.sentence}")) for each in public) + 2


class Writer(NamedTuple):
    """A GPT-2 whose trainings are stored; `described` is the number of generated descriptions."""

    scale: Scale
    described: int = 100

    def written(self, lab: Lab, plan: TrainingConfig) -> Written:
        """Return the outcome of a plan."""
        folder = os.environ.get("CLIPSILON_GPT2")
        found: Written = lab.keep(write, self.scale.source, folder, self.scale.records, plan, self.described)
        return found

    def __call__(self, lab: Lab, plan: TrainingConfig) -> float:
        """Return the last test loss of a plan."""
        return self.written(lab, plan).losses[-1]

    def tuned(self, lab: Lab, algorithm: str, **update: Any) -> tuple[TrainingConfig, list[Written]]:
        """Return the plan with the best step, and the outcomes of all seeds.

        Parameters
        ----------
        lab : Lab
            Where trainings are stored.
        algorithm : {"sgd", "dpsgd", "dice"}
            The update rule.
        **update
            Further fields of the plan, such as the clip and the noise.

        Returns
        -------
        TrainingConfig, list of Written
            The plan with seed 0, and one outcome per seed.
        """

        def plans(step: float, seed: int) -> TrainingConfig:
            return self.scale.plan(algorithm, step, seed, **update)

        steps = STEPS[2:3] if lab.quick else STEPS
        step = best_step(lambda step, seed: -self(lab, plans(step, seed)), steps, self.scale.tuning)
        return plans(step, 0), [self.written(lab, plans(step, seed)) for seed in range(self.scale.seeds)]


def mean(values: Sequence[float]) -> float:
    """Return the mean."""
    return float(np.mean(values))
