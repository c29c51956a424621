"""What the engine refuses, in one sentence each, before anything changes."""

from __future__ import annotations

from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer
from opacus.validators import ModuleValidator
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.utils.data import BatchSampler, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from clipsilon._core import checks


def records_and_batch(data_loader: Any) -> tuple[int, int]:
    """How many records there are, and the public, expected batch size."""
    dataset: Any = getattr(data_loader, "dataset", None)
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
        raise ValueError(
            f"data_loader must be a DataLoader of a dataset with a length, got one of {type(dataset).__name__}."
        )
    _refuse_samplers(data_loader)
    batch = data_loader.batch_size or getattr(data_loader.batch_sampler, "batch_size", None)
    return checks.count("len(data_loader.dataset)", len(dataset)), checks.count("data_loader.batch_size", batch)


def _refuse_samplers(data_loader: Any) -> None:
    """Refuse a loader that draws from some records only, or not alike: private batches are drawn from all."""
    known = (type(None), BatchSampler, SequentialSampler, RandomSampler, DistributedSampler)
    for sampler in (data_loader.batch_sampler, data_loader.sampler):
        if type(sampler) not in known:
            raise ValueError(
                f"data_loader must draw from all records alike, got {type(sampler).__name__}, which private batches "
                "cannot follow; torch.utils.data.Subset makes a dataset of some records."
            )


def check_model(module: Any, mode: str) -> None:
    """Refuse a model in which records mix, or that hides what a record does."""
    checks.instance("module", module, nn.Module)
    if hasattr(module, "autograd_grad_sample_hooks"):
        raise ValueError("module must not be private already, got one that is.")
    for name, layer in module.named_modules():
        if isinstance(layer, _NormBase) and (isinstance(layer, _BatchNorm) or layer.track_running_stats):
            raise ValueError(
                f"module must treat records one by one, got {type(layer).__name__} ({name or 'the module itself'}), "
                "which takes statistics of many records; GroupNorm does not."
            )
    problems = [*ModuleValidator.validate(module), *GradSampleModule.validate(module)]
    if problems:
        raise ValueError(f"module must be one that Opacus can follow, got: {problems[0]}")
    if mode == "ghost":
        _refuse_shared(module)
    if not any(p.requires_grad for p in module.parameters()):
        raise ValueError("module must have parameters to train, got none.")


def _refuse_shared(module: Any) -> None:
    """Refuse parameters with two names: the norm of their gradient is not made up of its layers' norms."""
    names: dict[Any, str] = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        if p.requires_grad and names.setdefault(p, name) != name:
            raise ValueError(
                f"module must not share parameters between layers in ghost mode, got {name}, which is {names[p]}; "
                "hooks mode can take it."
            )


def check_optimizer(optimizer: Any, module: Any) -> None:
    """Refuse an optimiser of other parameters, a private one, or one that a gradient is not enough for."""
    if isinstance(optimizer, DPOptimizer) or not hasattr(optimizer, "param_groups"):
        raise ValueError(f"optimizer must be a plain torch optimiser, got {type(optimizer).__name__}.")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("optimizer must make its step of one gradient, got LBFGS, which asks for several.")
    known = set(module.parameters())
    given = [p for group in optimizer.param_groups for p in group["params"]]
    if not all(p in known for p in given):
        raise ValueError("optimizer must be one of the module's parameters, got other ones.")
    if {p for p in known if p.requires_grad} - set(given):
        raise ValueError("optimizer must have all of the module's parameters that require gradients, got only some.")


def check_generator(generator: Any) -> None:
    """Refuse a seed where a generator is meant."""
    if generator is not None:
        checks.instance("noise_generator", generator, torch.Generator)


def check_criterion(criterion: Any, mode: str, loss_reduction: str) -> None:
    """Refuse ghost clipping without a criterion, a mean that mixes records, and names that mean nothing."""
    checks.choice("grad_sample_mode", mode, {"hooks": None, "ghost": None})
    checks.choice("loss_reduction", loss_reduction, {"mean": None, "sum": None})
    if mode == "ghost" and not callable(criterion):
        raise ValueError(
            f"criterion must be given for grad_sample_mode='ghost', which needs one loss a record, got {criterion!r}."
        )
    weighted = isinstance(criterion, nn.CrossEntropyLoss | nn.NLLLoss) and criterion.weight is not None
    if mode == "hooks" and weighted and criterion.reduction == "mean":
        raise ValueError(
            f"criterion must not divide by the weights of a batch's classes, which mixes records, got {criterion!r} "
            "with weight and reduction='mean'; use reduction='sum' and loss_reduction='sum'."
        )
