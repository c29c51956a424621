"""Layers: norms that rounding cannot shorten, sums for the capped error, and GPT-2's Conv1D, unknown to Opacus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from opacus.grad_sample import register_grad_sampler, register_norm_sampler
from torch import Tensor, nn
from torch.nn import functional

from clipsilon.torch.tensors import precise

Sums = dict[Any, Tensor]


def sums(module: Any, x: Tensor, gradient: Tensor, weights: Tensor | None = None) -> Sums:
    """Σ weight_i·g_i of a layer's parameters, from its input and the gradient of its output."""
    if weights is not None:
        gradient = gradient * weights.to(gradient.device, gradient.dtype).view(-1, *[1] * (gradient.dim() - 1))
    found = _CONTRACTIONS.get(type(module), _any_layer)(module, x, gradient)
    return {p: total for p, total in found.items() if p.requires_grad}


def known(module: Any) -> bool:
    """Whether a layer's sums have a formula here; such a layer uses each of its parameters once."""
    return type(module) in _CONTRACTIONS


def without_padding(module: Any, x: Tensor, gradient: Tensor) -> Tensor:
    """The gradient of an embedding's output, zero at padding, which autograd does not train and Opacus would."""
    if not isinstance(module, nn.Embedding) or module.padding_idx is None:
        return gradient
    return gradient * (x != module.padding_idx).unsqueeze(-1)


def _any_layer(module: Any, x: Tensor, gradient: Tensor) -> Sums:
    """The layer is run again, on its own."""
    trained = [p for p in module.parameters() if p.requires_grad]
    with torch.enable_grad():
        output = module.forward(x)
    return dict(zip(trained, torch.autograd.grad(output, trained, gradient), strict=True))


def _linear(module: Any, x: Tensor, gradient: Tensor) -> Sums:
    rows = gradient.flatten(0, -2)
    weight = {module.weight: rows.T @ x.flatten(0, -2).to(rows.dtype)}
    return weight if module.bias is None else {**weight, module.bias: rows.sum(0)}


def _conv1d(module: Any, x: Tensor, gradient: Tensor) -> Sums:
    rows = gradient.flatten(0, -2)
    return {module.weight: x.flatten(0, -2).to(rows.dtype).T @ rows, module.bias: rows.sum(0)}


def _embedding(module: Any, x: Tensor, gradient: Tensor) -> Sums:
    rows = without_padding(module, x, gradient).flatten(0, -2)
    return {module.weight: torch.zeros_like(module.weight).index_add_(0, x.flatten(), rows)}


def _layer_norm(module: Any, x: Tensor, gradient: Tensor) -> Sums:
    rows = gradient.flatten(0, -1 - len(module.normalized_shape))
    normed = functional.layer_norm(x, module.normalized_shape, eps=module.eps).view_as(rows)
    weight = {module.weight: (normed * rows).sum(0)}
    return weight if module.bias is None else {**weight, module.bias: rows.sum(0)}


def _convolution(module: Any, x: Tensor, gradient: Tensor) -> Sums:
    if isinstance(module.padding, str) or module.padding_mode != "zeros":
        return _any_layer(module, x, gradient)
    sizes = None if module.bias is None else [module.out_channels]
    shape = (module.stride, module.padding, module.dilation, False, module.output_padding, module.groups)
    wanted = [False, True, module.bias is not None]
    _, weight, bias = torch.ops.aten.convolution_backward(gradient, x, module.weight, sizes, *shape, wanted)
    return {module.weight: weight} if bias is None else {module.weight: weight, module.bias: bias}


_CONTRACTIONS: dict[type, Callable[[Any, Tensor, Tensor], Sums]] = {
    nn.Linear: _linear,
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
}


def register_conv1d(module: Any) -> None:
    """Teach Opacus the Conv1D of `transformers`, y = x·W + b, if the model has it and so has imported it."""
    for layer in module.modules():
        kind = type(layer)
        if kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.") and kind not in _CONTRACTIONS:
            _CONTRACTIONS[kind] = _conv1d
            register_norm_sampler(kind)(matrix_norms)
            register_grad_sampler(kind)(_conv1d_gradients)


def matrix_norms(layer: Any, activations: list[Tensor], gradient: Tensor) -> Sums:
    """Norms of the gradients of a layer y = x·W + b, or x·Wᵀ + b, with any number of rows a record."""
    x, g = _rows(activations[0], precise(gradient.dtype)), _rows(gradient, precise(gradient.dtype))
    norms = {layer.weight: _product_norms(x, g)}
    if layer.bias is not None:
        norms[layer.bias] = g.sum(1).norm(dim=1)
    return {p: norm for p, norm in norms.items() if p.requires_grad}


def _rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """(records, rows, entries)."""
    return x.to(dtype).reshape(len(x), -1, x.shape[-1])


def _product_norms(x: Tensor, g: Tensor) -> Tensor:
    """‖x_iᵀ·g_i‖² = Σ (x_i·x_iᵀ)∘(g_i·g_iᵀ): rows against rows, without the gradient itself.

    Where rows cancel, rounding may hide all of it, and nothing would be clipped. So what rounding can hide is added: in
    sums of n terms about √n·ε of the terms' size (Higham and Mary, A new approach to probabilistic rounding error
    analysis, 2019), here four times that.
    """
    lengths = x.norm(dim=2) * g.norm(dim=2)
    if x.shape[1] == 1:
        return lengths.squeeze(1)
    squares = ((x @ x.mT) * (g @ g.mT)).sum(2).sum(1).clamp(min=0)
    terms = x.shape[2] + g.shape[2] + 2 * x.shape[1]
    return (squares + 4 * terms**0.5 * torch.finfo(x.dtype).eps * lengths.sum(1).square()).sqrt()


def _conv1d_gradients(layer: Any, activations: list[Tensor], gradient: Tensor) -> Sums:
    x, g = _rows(activations[0], gradient.dtype), _rows(gradient, gradient.dtype)
    gradients = {layer.weight: x.mT @ g, layer.bias: g.sum(1)}
    return {p: value for p, value in gradients.items() if p.requires_grad}
