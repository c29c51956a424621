"""Which layers of a model are measured, and formulas: gradients per record, sums, and rules for GPT-2's Conv1D."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule, register_grad_sampler
from opacus.grad_sample.functorch import ft_compute_per_sample_gradient
from opacus.layers.dp_rnn import DPRNNBase, RNNLinear
from torch import Tensor, nn
from torch.nn import functional

Sums = dict[Tensor, Tensor]  # by parameter


def gradient_sums(module: nn.Module, x: Tensor, gradient: Tensor) -> Sums:
    """Return Σ g_i for each trained parameter of a layer, in the precision of PyTorch.

    Parameters
    ----------
    module : nn.Module
        The layer.
    x, gradient : Tensor
        Its input, and the gradient of its output; the first dimension of both is the record.

    Returns
    -------
    dict
        The sum for each parameter that requires gradients.
    """
    found = _CONTRACTIONS.get(type(module), _any_layer)(module, x, gradient)
    return {p: total for p, total in found.items() if p.requires_grad}


def has_formula(module: nn.Module) -> bool:
    """Return whether a layer's sums have a formula here; such a layer uses each of its parameters once per call."""
    return type(module) in _CONTRACTIONS


def mask_padding(module: nn.Module, x: Tensor, gradient: Tensor) -> Tensor:
    """Set the gradient of an embedding's output to zero at padding, which autograd does not train but Opacus would.

    Parameters
    ----------
    module : nn.Module
        The layer; only an embedding with a `padding_idx` changes anything.
    x, gradient : Tensor
        Its input, and the gradient of its output.

    Returns
    -------
    Tensor
        The gradient, of the same shape.
    """
    if not isinstance(module, nn.Embedding) or module.padding_idx is None:
        return gradient
    return gradient * (x != module.padding_idx).unsqueeze(-1)


def _any_layer(module: nn.Module, x: Tensor, gradient: Tensor) -> Sums:
    """Run the layer again, on its own."""
    trained = [p for p in module.parameters() if p.requires_grad]
    with torch.enable_grad():
        output = module.forward(x)
    return dict(zip(trained, torch.autograd.grad(output, trained, gradient), strict=True))


def _linear(module: nn.Module, x: Tensor, gradient: Tensor) -> Sums:
    rows = gradient.flatten(0, -2)
    weight = {module.weight: rows.T @ x.flatten(0, -2).to(rows.dtype)}
    return weight if module.bias is None else {**weight, module.bias: rows.sum(0)}


def _conv1d(module: nn.Module, x: Tensor, gradient: Tensor) -> Sums:
    rows = gradient.flatten(0, -2)
    return {module.weight: x.flatten(0, -2).to(rows.dtype).T @ rows, module.bias: rows.sum(0)}


def _embedding(module: nn.Module, x: Tensor, gradient: Tensor) -> Sums:
    rows = mask_padding(module, x, gradient).flatten(0, -2)
    return {module.weight: torch.zeros_like(module.weight).index_add_(0, x.flatten(), rows)}


def _layer_norm(module: nn.Module, x: Tensor, gradient: Tensor) -> Sums:
    rows = gradient.flatten(0, -1 - len(module.normalized_shape))
    normed = functional.layer_norm(x, module.normalized_shape, eps=module.eps).view_as(rows)
    weight = {module.weight: (normed * rows).sum(0)}
    return weight if module.bias is None else {**weight, module.bias: rows.sum(0)}


def _convolution(module: nn.Module, x: Tensor, gradient: Tensor) -> Sums:
    if isinstance(module.padding, str) or module.padding_mode != "zeros":
        return _any_layer(module, x, gradient)
    sizes = None if module.bias is None else [module.out_channels]
    shape = (module.stride, module.padding, module.dilation, False, module.output_padding, module.groups)
    wanted = [False, True, module.bias is not None]
    _, weight, bias = torch.ops.aten.convolution_backward(gradient, x, module.weight, sizes, *shape, wanted)
    return {module.weight: weight} if bias is None else {module.weight: weight, module.bias: bias}


_CONTRACTIONS: dict[type, Callable[[nn.Module, Tensor, Tensor], Sums]] = {
    nn.Linear: _linear,
    RNNLinear: _linear,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
}


def register_conv1d(module: nn.Module) -> None:
    """Register rules for the Conv1D of `transformers`, y = x·W + b, with Opacus, if the model has such layers."""
    for kind in {type(layer) for layer in module.modules() if _is_conv1d(layer)} - _CONTRACTIONS.keys():
        _CONTRACTIONS[kind] = _conv1d
        register_grad_sampler(kind)(_conv1d_gradients)


def _is_conv1d(layer: nn.Module) -> bool:
    return type(layer).__name__ == "Conv1D" and type(layer).__module__.startswith("transformers.")


def is_contracted(layer: nn.Module) -> bool:
    """Return whether ghost mode contracts a layer's sums, y = x·W + b or an embedding, without gradients per record."""
    return type(layer) in (nn.Linear, RNNLinear, nn.Embedding) or _is_conv1d(layer)


def _rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x in the shape (records, rows, entries)."""
    return x.to(dtype).reshape(len(x), -1, x.shape[-1])


def norm_allowance(layer: nn.Module, x: Tensor, gradient: Tensor) -> float:
    """Return by how much `LayerRows.sizes` may enlarge a norm, relative to ‖x_i‖·‖g_i‖.

    Parameters
    ----------
    layer : nn.Module
        The layer; those that are not contracted are measured without an allowance.
    x, gradient : Tensor
        Its input, and the gradient of its output.
    """
    if not is_contracted(layer):
        return 0.0
    rows = gradient.numel() / max(gradient.shape[0] * gradient.shape[-1], 1)
    terms = x.shape[-1] + gradient.shape[-1] + 2 * rows + 8
    return float(2 * (2.0**-52 * terms) ** 0.5)


def is_measured_by_functorch(layer: nn.Module) -> bool:
    """Return whether the rule of Opacus for a layer does not know the layer's settings, so that functorch is used."""
    return isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) and layer.padding_mode != "zeros"


def _convolution_gradients(layer: nn.Module, activations: list[Tensor], gradient: Tensor) -> Sums:
    if is_measured_by_functorch(layer):
        found: Sums = ft_compute_per_sample_gradient(layer, activations, gradient)
    else:
        found = GradSampleModule.GRAD_SAMPLERS[type(layer)](layer, activations, gradient)
    return found


def _layer_norm_gradients(layer: nn.Module, activations: list[Tensor], gradient: Tensor) -> Sums:
    """Return the gradients of each record; the layer may have no bias, which the rule of Opacus does not expect."""
    x, dims = activations[0], len(layer.normalized_shape)
    normed = functional.layer_norm(x, layer.normalized_shape, eps=layer.eps)
    between = tuple(range(1, x.dim() - dims))
    found = {layer.weight: (normed * gradient).sum(between) if between else normed * gradient}
    if layer.bias is not None:
        found[layer.bias] = gradient.sum(between) if between else gradient
    return {p: value for p, value in found.items() if p.requires_grad}


# Rules of our own for per-sample gradients, in place of those of Opacus.
GRADIENT_RULES: dict[type, Callable[[nn.Module, list[Tensor], Tensor], Sums]] = {
    nn.Conv1d: _convolution_gradients,
    nn.Conv2d: _convolution_gradients,
    nn.Conv3d: _convolution_gradients,
    nn.LayerNorm: _layer_norm_gradients,
}


# The rules of all layers that have one; other layers are run again for each record, by functorch.
SAMPLERS: ChainMap[type, Any] = ChainMap(GRADIENT_RULES, GradSampleModule.GRAD_SAMPLERS)


def measured_layers(module: nn.Module) -> list[nn.Module]:
    """Return the layers whose gradients are measured: those with a rule, and others with parameters, as a whole."""
    return list(dict.fromkeys(_measured_layers(module)))  # a layer may be in several places


def _measured_layers(module: nn.Module) -> Iterator[nn.Module]:
    is_recurrent = isinstance(module, DPRNNBase)  # which has the parameters of its cells under other names
    is_layer = not is_recurrent and any(p.requires_grad for p in module.parameters(recurse=False))
    if is_layer:
        yield module
    if not is_layer or type(module) in SAMPLERS:
        for child in module.children():
            yield from _measured_layers(child)


def _conv1d_gradients(layer: nn.Module, activations: list[Tensor], gradient: Tensor) -> Sums:
    x, g = _rows(activations[0], gradient.dtype), _rows(gradient, gradient.dtype)
    gradients = {layer.weight: x.mT @ g, layer.bias: g.sum(1)}
    return {p: value for p, value in gradients.items() if p.requires_grad}
