"""Checks of the engine's arguments, which refuse them before anything changes."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from opacus.optimizers import DPOptimizer
from opacus.validators import ModuleValidator
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    default_collate,
)

from clipsilon._core import checks
from clipsilon._core.grouping import Grouping, group_rows
from clipsilon.rules.noise import Correlated
from clipsilon.rules.rule import Rule
from clipsilon.torch.layers import register_conv1d
from clipsilon.torch.loss_check import leaves_of
from clipsilon.torch.probe import kept_generators
from clipsilon.torch.processes import Processes
from clipsilon.torch.refused_layers import refuse_gradient_hooks, refuse_layers


def records_and_batch(data_loader: DataLoader[Any]) -> tuple[int, int]:
    """Return the number of records and the public, expected batch size of a loader."""
    dataset: Any = getattr(data_loader, "dataset", None)
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise ValueError(
            f"data_loader must be a DataLoader of a dataset with a length, got one of {type(dataset).__name__}."
        )
    _refuse_samplers(data_loader)
    batch = data_loader.batch_size or getattr(data_loader.batch_sampler, "batch_size", None)
    return checks.count("len(data_loader.dataset)", len(dataset)), checks.count("data_loader.batch_size", batch)


def group_items(data_loader: DataLoader[Any], groups: ArrayLike | None, max_rows: int | None) -> Grouping | None:
    """Return which items of the dataset are whose; None if records are items.

    Parameters
    ----------
    data_loader : DataLoader
        The user's loader.
    groups : array-like or None
        The id of each item's person.
    max_rows : int or None
        The largest number of items per person.
    """
    if groups is None:
        if max_rows is not None:
            raise ValueError(f"max_rows must be left out without groups, got {max_rows!r}.")
        _refuse_repetition(getattr(data_loader, "dataset", None))
        return None
    items, _ = records_and_batch(data_loader)
    return group_rows(checks.people("groups", groups, items), max_rows)


def _refuse_repetition(dataset: Any) -> None:
    """Refuse a subset that has an item several times, each of which would be taken for a record of its own."""
    if not isinstance(dataset, Subset):
        return
    items = {int(index) % len(dataset.dataset) for index in dataset.indices}  # type: ignore[arg-type]
    if len(items) < len(dataset.indices):
        raise ValueError(
            "data_loader.dataset must have each record once, since a statement is about one of its items, got a Subset "
            "with repeated indices; give groups, the id of the record that each item is of."
        )
    _refuse_repetition(dataset.dataset)


def check_people(mode: str, processes: Processes, data_loader: DataLoader[Any]) -> None:
    """Refuse groups where the rows of a person are not known by their places in a batch.

    Parameters
    ----------
    mode : str
        The `grad_sample_mode`.
    processes : Processes
        The processes that train together.
    data_loader : DataLoader
        The user's loader.
    """
    if mode == "ghost":
        raise ValueError(
            "grad_sample_mode must be 'hooks' with groups: ghost mode has no gradients to average, got 'ghost'."
        )
    if processes.world > 1:
        raise ValueError(f"groups must be None with several processes, which split batches, got {processes.world}.")
    if data_loader.num_workers:
        raise ValueError(
            f"data_loader must have no workers with groups: they draw batches ahead, got {data_loader.num_workers}."
        )


def check_order(rule: Rule, data_loader: DataLoader[Any]) -> None:
    """Refuse workers where a step must be made of every batch: they draw ahead, so that none could be missed."""
    if isinstance(rule.noise, Correlated) and data_loader.num_workers:
        raise ValueError(
            "data_loader must have no workers with algorithm='correlated', for which a step must be made of every "
            f"batch, got {data_loader.num_workers}."
        )


def _refuse_samplers(data_loader: DataLoader[Any]) -> None:
    """Refuse a loader that draws some records only, or with different probabilities."""
    known = (type(None), BatchSampler, SequentialSampler, RandomSampler, DistributedSampler)
    batches = data_loader.batch_sampler
    for sampler in (batches, data_loader.sampler, getattr(batches, "sampler", None)):
        if type(sampler) not in known:
            raise ValueError(
                "data_loader must draw all records with equal probability, as private batches do, got "
                f"{type(sampler).__name__}; to train on some of the records, use torch.utils.data.Subset."
            )


def check_collate(data_loader: DataLoader[Any]) -> None:
    """Refuse a collate function with which one record changes the rows of others, as far as eight records show it.

    The last record is replaced, which leaves the random numbers that others get as they are.
    """
    dataset, collate = data_loader.dataset, data_loader.collate_fn
    if collate is default_collate or len(dataset) < 2:  # type: ignore[arg-type]
        return
    try:
        records = [dataset[number] for number in range(min(len(dataset), 8))]  # type: ignore[arg-type]
        mixes = any(_mixes_records(collate, records, seed) for seed in range(4))
    except Exception:  # left to the first batch
        return
    if mixes:
        raise ValueError(
            "data_loader must have a collate_fn that makes each row of one record, got "
            f"{getattr(collate, '__qualname__', type(collate).__name__)}, with which one record changes the rows of "
            "others; leave out what mixes records, such as mixup, cutmix or statistics of the batch."
        )


def _mixes_records(collate: Callable[[list[Any]], Any], records: list[Any], seed: int) -> bool:
    """Whether another last record changes other rows; False if the same records and seed do not give the same batch."""
    last = len(records) - 1
    with kept_generators():
        whole, again, changed = (
            _seeded(collate, batch, seed) for batch in (records, records, [*records[:last], records[0]])
        )
    if any(not _equal(one, other) for one, other in zip(whole, again, strict=True)):
        return False
    pairs = [pair for pair in zip(whole, changed, strict=True) if pair[0].shape == pair[1].shape]
    return any(not _equal(one[:last], other[:last]) for one, other in pairs if len(one) == len(records))


def _seeded(collate: Callable[[list[Any]], Any], records: list[Any], seed: int) -> list[Tensor]:
    """Return the tensors of a batch that was made of copies of the records, with seeded generators."""
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    return [t for t in leaves_of(collate(copy.deepcopy(records))) if isinstance(t, Tensor) and t.dim()]


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and bool(((one == other) | ((one != one) & (other != other))).all())


def check_model(module: nn.Module, mode: str) -> None:
    """Refuse a model in which records mix, or one whose per-sample gradients cannot be computed."""
    checks.instance("module", module, nn.Module)
    if hasattr(module, "autograd_grad_sample_hooks"):
        raise ValueError("module must not be private already, got one that is.")
    if not module.training:
        raise ValueError("module must be in training mode, got one in evaluation mode; call module.train() first.")
    register_conv1d(module)
    refuse_layers(module, mode)
    refuse_gradient_hooks(module)
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError("module must have parameters to train, got none.")


def replace_layers(module: nn.Module) -> nn.Module:
    """Return a copy of a model in which Opacus has replaced layers, in the precision of the model."""
    checks.instance("module", module, nn.Module)
    types = {p.dtype for p in module.parameters()}
    fixed: nn.Module = ModuleValidator.fix(module)
    fixed = fixed.to(types.pop()) if len(types) == 1 else fixed  # the layers of Opacus are made in float32
    check_model(fixed, "hooks")
    return fixed


def check_optimizer(optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
    """Refuse an optimiser of other parameters, a private one, or one that needs more than a gradient per step."""
    if isinstance(optimizer, DPOptimizer) or not hasattr(optimizer, "param_groups"):
        raise ValueError(f"optimizer must be a plain torch optimiser, got {type(optimizer).__name__}.")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("optimizer must need one gradient per step, got LBFGS, which needs several.")
    known = set(module.parameters())
    held = [p for group in optimizer.param_groups for p in group["params"]]
    if not all(p in known for p in held):
        raise ValueError("optimizer must hold parameters of the module only, got others.")
    if {p for p in known if p.requires_grad} - set(held):
        raise ValueError("optimizer must have all of the module's parameters that require gradients, got only some.")


def check_generator(generator: torch.Generator | None) -> None:
    """Raise TypeError if the noise generator is given and is not a generator, such as a seed."""
    if generator is not None:
        checks.instance("noise_generator", generator, torch.Generator)


def check_criterion(criterion: Callable[..., Any] | None, mode: str, loss_reduction: str) -> None:
    """Refuse ghost clipping without a criterion, another reduction, a mean that mixes records, and unknown names.

    Parameters
    ----------
    criterion : callable or None
        The user's criterion. Hooks mode does not need it.
    mode : str
        The `grad_sample_mode`, "hooks" or "ghost".
    loss_reduction : str
        "mean" or "sum".
    """
    checks.choice("grad_sample_mode", mode, {"hooks": None, "ghost": None})
    checks.choice("loss_reduction", loss_reduction, {"mean": None, "sum": None})
    if mode == "ghost" and not callable(criterion):
        raise ValueError(
            f"criterion must be given for grad_sample_mode='ghost', which needs one loss per record, got {criterion!r}."
        )
    reduction = {"batchmean": "mean"}.get(getattr(criterion, "reduction", ""), getattr(criterion, "reduction", ""))
    if mode == "hooks" and reduction in ("mean", "sum") and reduction != loss_reduction:
        raise ValueError(
            f"loss_reduction must be {reduction!r}, as the criterion's reduction is, got {loss_reduction!r}."
        )
    weighted = isinstance(criterion, nn.CrossEntropyLoss | nn.NLLLoss) and criterion.weight is not None
    if mode == "hooks" and weighted and getattr(criterion, "reduction", None) == "mean":
        raise ValueError(
            f"criterion must not divide by the weights of a batch's classes, which mixes records, got {criterion!r} "
            "with weight and reduction='mean'; use reduction='sum' and loss_reduction='sum'."
        )
