"""Formulas of layers: gradient norms that rounding cannot shorten, gradient sums, and rules for GPT-2's Conv1D."""

from __future__ import annotations

from collections.abc import Callable

import torch
from opacus.grad_sample import GradSampleModule, register_grad_sampler, register_norm_sampler
from opacus.grad_sample.functorch import ft_compute_per_sample_gradient
from torch import Tensor, nn
from torch.nn import functional

from clipsilon.torch.tensors import accumulation_dtype

Sums = dict[Tensor, Tensor]  # by parameter


def gradient_sums(module: nn.Module, x: Tensor, gradient: Tensor, weights: Tensor | None = None) -> Sums:
    """Return Σ weight_i·g_i for each trained parameter of a layer.

    Parameters
    ----------
    module : nn.Module
        The layer.
    x, gradient : Tensor
        Its input, and the gradient of its output; the first dimension of both is the record.
    weights : Tensor, optional
        One weight per record; all one unless given.

    Returns
    -------
    dict
        The sum for each parameter that requires gradients.
    """
    if weights is not None:
        gradient = gradient * weights.to(gradient.device, gradient.dtype).view(-1, *[1] * (gradient.dim() - 1))
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
    nn.Embedding: _embedding,
    nn.LayerNorm: _layer_norm,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
}


def register_conv1d(module: nn.Module) -> None:
    """Register rules for the Conv1D of `transformers`, y = x·W + b, with Opacus, if the model has such layers."""
    for layer in module.modules():
        kind = type(layer)
        if kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.") and kind not in _CONTRACTIONS:
            _CONTRACTIONS[kind] = _conv1d
            register_norm_sampler(kind)(matrix_norms)
            register_grad_sampler(kind)(_conv1d_gradients)


def matrix_norms(layer: nn.Module, activations: list[Tensor], gradient: Tensor) -> Sums:
    """Return the gradient norms of a layer y = x·W + b, or x·Wᵀ + b, with any number of rows per record.

    Parameters
    ----------
    layer : nn.Module
        The layer, with a `weight` and a `bias`, which may be None.
    activations : list of Tensor
        Its input, as the only entry.
    gradient : Tensor
        The gradient of its output.

    Returns
    -------
    dict
        One norm per record for each parameter that requires gradients, enlarged by what rounding may hide.
    """
    dtype = accumulation_dtype(gradient.dtype)
    x, g = _rows(activations[0], dtype), _rows(gradient, dtype)
    norms = {layer.weight: _product_norms(x, g)}
    if layer.bias is not None:
        norms[layer.bias] = g.sum(1).norm(dim=1)
    return {p: norm for p, norm in norms.items() if p.requires_grad}


def _rows(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return x in the shape (records, rows, entries)."""
    return x.to(dtype).reshape(len(x), -1, x.shape[-1])


def _product_norms(x: Tensor, g: Tensor) -> Tensor:
    """Return ‖x_iᵀ·g_i‖ by ‖x_iᵀ·g_i‖² = Σ (x_i·x_iᵀ)∘(g_i·g_iᵀ), without the gradient itself.

    Where rows cancel, rounding may hide all of the norm, and nothing would be clipped. So what rounding can hide is
    added: in sums of n terms about √n·ε of the terms' size (Higham and Mary, A new approach to probabilistic rounding
    error analysis, 2019), here four times that.
    """
    lengths = x.norm(dim=2) * g.norm(dim=2)
    if x.shape[1] == 1:
        return lengths.squeeze(1)
    squares = ((x @ x.mT) * (g @ g.mT)).sum(2).sum(1).clamp(min=0)
    terms = x.shape[2] + g.shape[2] + 2 * x.shape[1]
    return (squares + 4 * terms**0.5 * torch.finfo(x.dtype).eps * lengths.sum(1).square()).sqrt()


def norm_allowance(layer: nn.Module, x: Tensor, gradient: Tensor) -> float:
    """Return by how much `matrix_norms` may enlarge a norm, relative to ‖x_i‖·‖g_i‖.

    Parameters
    ----------
    layer : nn.Module
        The layer; others than those y = x·W + b measure without an allowance.
    x, gradient : Tensor
        Its input, and the gradient of its output.
    """
    if type(layer) is not nn.Linear and _CONTRACTIONS.get(type(layer)) is not _conv1d:
        return 0.0
    rows = x.numel() / max(x.shape[0] * x.shape[-1], 1)
    terms = x.shape[-1] + gradient.shape[-1] + 2 * rows
    return float(2 * (2 * terms**0.5 * torch.finfo(gradient.dtype).eps) ** 0.5)


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


def _conv1d_gradients(layer: nn.Module, activations: list[Tensor], gradient: Tensor) -> Sums:
    x, g = _rows(activations[0], gradient.dtype), _rows(gradient, gradient.dtype)
    gradients = {layer.weight: x.mT @ g, layer.bias: g.sum(1)}
    return {p: value for p, value in gradients.items() if p.requires_grad}
