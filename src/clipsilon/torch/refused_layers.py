"""Layers that cannot be trained privately, and what to put in their places."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import ParametrizationList

from clipsilon.torch.layers import is_contracted, measured_layers

_UNMEASURED = "whose gradients per record are not measured"
#: Layers that must not be trained: why, and what to use. The layers of Opacus load the state_dict of PyTorch's.
_REPLACEMENTS: dict[type[nn.Module], tuple[str, str]] = {
    nn.LSTM: (_UNMEASURED, "use opacus.layers.DPLSTM"),
    nn.GRU: (_UNMEASURED, "use opacus.layers.DPGRU"),
    nn.RNN: (_UNMEASURED, "use opacus.layers.DPRNN"),
    nn.LSTMCell: (_UNMEASURED, "use opacus.layers.dp_rnn.DPLSTMCell"),
    nn.GRUCell: (_UNMEASURED, "use opacus.layers.dp_rnn.DPGRUCell"),
    nn.RNNCell: (_UNMEASURED, "use opacus.layers.dp_rnn.DPRNNCell"),
    nn.MultiheadAttention: (_UNMEASURED, "use opacus.layers.DPMultiheadAttention, with batch_first=True"),
    nn.EmbeddingBag: ("where an index that occurs twice in a record would count once", "use nn.Embedding and add up"),
    nn.Bilinear: ("which has two inputs", "use nn.Linear on the products of both"),
    ParametrizationList: (
        "which computes a weight from other parameters",
        "call torch.nn.utils.parametrize.remove_parametrizations",
    ),
}
_FIXED_BY_OPACUS = (_BatchNorm, nn.LSTM, nn.GRU, nn.MultiheadAttention)  # by ModuleValidator, if they are trained


def refuse_layers(module: nn.Module, mode: str) -> None:
    """Raise ValueError if layers mix records or are not measured; the message names all of them.

    Parameters
    ----------
    module : nn.Module
        The model.
    mode : str
        The `grad_sample_mode`, "hooks" or "ghost".
    """
    names = {layer: f"{type(layer).__name__} ({name or 'the module itself'})" for name, layer in module.named_modules()}
    found = [(layer, *complaint) for layer in names for complaint in _complaints(layer, mode)]
    found += _shared_parameters(module, names) if mode == "ghost" else []
    if not found:
        return
    fixed = [names[layer] for layer, *_ in found if isinstance(layer, _FIXED_BY_OPACUS) and _is_trained(layer)]
    instead = [f"{names[layer]}, {why}: {remedy}" for layer, why, remedy in found]
    instead += [f"ModuleValidator.fix(module) of opacus.validators replaces {' and '.join(fixed)}"] if fixed else []
    raise ValueError(f"module must treat records one by one, in layers that are measured, got {'; '.join(instead)}.")


def refuse_gradient_hooks(module: nn.Module) -> None:
    """Raise ValueError if something acts on gradients during the backward pass, such as an optimiser per layer."""
    for name, p in module.named_parameters():
        if p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            raise ValueError(
                f"module must have no hooks that take gradients before they are clipped, got one on {name}; choose an "
                "optimiser that steps after the backward pass."
            )


def _is_trained(layer: nn.Module) -> bool:
    return any(p.requires_grad for p in layer.parameters(recurse=False))


def _complaints(layer: nn.Module, mode: str) -> Iterator[tuple[str, str]]:
    """Yield why a layer is refused, and what to do about it."""
    replacement = next((found for kind, found in _REPLACEMENTS.items() if isinstance(layer, kind)), None)
    if isinstance(layer, _BatchNorm):
        yield "which takes statistics of many records", "use nn.GroupNorm"
    elif isinstance(layer, _NormBase) and layer.track_running_stats:
        yield "which takes statistics of many records", "leave track_running_stats out"
    elif isinstance(layer, LazyModuleMixin) and layer.has_uninitialized_params():
        yield "which has no parameters yet", "call the model once first"
    elif replacement is not None and _is_trained(layer):
        yield replacement
    elif _is_trained(layer) and list(layer.buffers()):
        yield "which has buffers besides its parameters", "move these to a module without parameters, or freeze it"
    if isinstance(layer, nn.Embedding | nn.EmbeddingBag):
        yield from _embedding_complaints(layer, mode)


def _embedding_complaints(layer: nn.Embedding | nn.EmbeddingBag, mode: str) -> Iterator[tuple[str, str]]:
    if layer.max_norm is not None:
        yield "which shortens the rows that records use, without noise", "leave max_norm out"
    if layer.scale_grad_by_freq:
        yield "which divides by counts over the batch", "leave scale_grad_by_freq out"
    if layer.sparse and mode == "ghost":
        yield "whose gradients are sparse, which ghost mode does not take", "leave sparse out"


def _shared_parameters(module: nn.Module, names: dict[nn.Module, str]) -> list[tuple[nn.Module, str, str]]:
    """Return complaints about parameters that ghost mode would contract in one layer and not in another."""
    layers = measured_layers(module)
    others = {p: names[layer] for layer in layers if not is_contracted(layer) for p in layer.parameters()}
    shared = {
        (layer, others[p]): None
        for layer in filter(is_contracted, layers)
        for p in layer.parameters()
        if p.requires_grad and p in others
    }
    return [(layer, f"which shares parameters with {other}", "use hooks mode") for layer, other in shared]
