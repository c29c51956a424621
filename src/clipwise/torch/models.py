"""Models whose layers tell records apart: Opacus's, with hooks of ours where Opacus's warn or cost too much.

Opacus hears of backpropagated gradients by full backward hooks, which warn where a layer's input needs no gradient and
fire after the layer's own backward step. A hook on the layer's output hears the same, and before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.functorch import prepare_layer
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
from opacus.layers.dp_rnn import DPGRU, DPLSTM, DPRNN
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from clipwise.torch.layers import add_capped, without_padding
from clipwise.torch.tensors import joint_norm


class _Hooked:
    """What both kinds of models share: hooks on outputs, and batches without records."""

    def add_hooks(self: Any, *, loss_reduction: str, batch_first: bool, force_functorch: bool = False) -> None:
        """Listen to every layer that has parameters to train."""
        if hasattr(self._module, "autograd_grad_sample_hooks"):
            raise ValueError("module must not be private already, got one with hooks.")
        self._module.autograd_grad_sample_hooks = self.autograd_grad_sample_hooks = []
        for module in self.iterate_submodules(self._module):
            if type(module) in (DPRNN, DPLSTM, DPGRU):
                continue  # their linear parts have hooks
            if type(module) not in self.GRAD_SAMPLERS:
                prepare_layer(module, batch_first=batch_first)
            self.autograd_grad_sample_hooks.append(module.register_forward_hook(self.capture_activations_hook))
        self.enable_hooks()

    def capture_activations_hook(self: Any, module: Any, forward_input: Any, forward_output: Any) -> None:
        """Keep a layer's input, and wait for the gradient of its output."""
        before = len(getattr(module, "activations", ()))
        laid_out = [_laid_out(item) for item in forward_input]
        super().capture_activations_hook(module, laid_out, forward_output)  # type: ignore[misc]
        if len(getattr(module, "activations", ())) > before:
            output = forward_output if isinstance(forward_output, Tensor) else forward_output[0]
            output.register_hook(lambda gradient: self.hear(module, gradient))
            self.begin(forward_input, output)

    def begin(self: Any, forward_input: Any, output: Tensor) -> None:
        """Take note of where gradients end, if it matters."""

    def hear(self: Any, module: Any, gradient: Tensor) -> None:
        """Take in the gradient of a layer's output."""
        if not module.activations:
            raise RuntimeError("The private model must be called once, and only once, before each backward pass.")
        gradient = without_padding(module, module.activations[-1][0], gradient)
        self.capture_backprops_hook(module, None, (gradient,), self.loss_reduction, self.batch_first)

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        """The model; a batch without records goes through it as one made-up record, of which nothing comes out.

        (Many models cannot take an empty batch.)
        """
        self._forget()
        if not _is_empty((args, kwargs)):
            return self._module(*args, **kwargs)
        args, kwargs = tree_map(_made_up, (args, kwargs))
        return tree_map(_nothing, self._module(*args, **kwargs))

    def _forget(self: Any) -> None:
        """Forget a call that no backward pass has followed."""
        for module in self.iterate_submodules(self._module):
            if getattr(module, "activations", None):
                module.activations.clear()
                for p in module.parameters():
                    p._forward_counter = 0


def _laid_out(item: Any) -> Any:
    """Row numbers that were expanded and not copied, which Opacus's embeddings cannot take, as a copy."""
    return item.contiguous() if isinstance(item, Tensor) and not item.is_floating_point() else item


def _is_empty(inputs: Any) -> bool:
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim()]
    return bool(tensors) and len(tensors[0]) == 0


def _made_up(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or not leaf.dim() or len(leaf):
        return leaf
    shape = (1, *leaf.shape[1:])
    return leaf.new_zeros(shape) if leaf.is_floating_point() else leaf.new_ones(shape)


def _nothing(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf[:0] if leaf.dim() else 0 * leaf


class HooksModel(_Hooked, GradSampleModule):
    """A model that leaves the gradient of each record in `p.grad_sample`."""


class GhostModel(_Hooked, GradSampleModuleFastGradientClipping):
    """A model that leaves the norm of each record's gradient in `p._norm_sample`, and caps what the error keeps."""

    weights: Tensor | None = None  # what the second pass multiplies each record's gradient by, for the error

    def __init__(self, module: Any, optimizer: Any):
        super().__init__(module, loss_reduction="sum")
        self.optimizer = optimizer
        self.ends: list[Tensor] = []  # outputs of the layers that no gradient goes beyond

    def first_pass(self, total: Tensor) -> None:
        """Backpropagate for the norms; gradients of parameters are left out where the error does not need them."""
        if self.optimizer.keeps_whole:
            total.backward(retain_graph=True)
        else:
            torch.autograd.grad(total, self.ends, retain_graph=True, allow_unused=True)
        self.ends = []

    def begin(self, forward_input: Any, output: Tensor) -> None:
        """Take note of a layer that no gradient goes beyond."""
        ends = not any(isinstance(item, Tensor) and item.requires_grad for item in forward_input)
        if ends and not self.optimizer.keeps_whole:
            self.ends.append(output)

    def _forget(self) -> None:
        super()._forget()
        self.ends = []

    def hear(self, module: Any, gradient: Tensor) -> None:
        """Take in the gradient of a layer's output: norms in the first pass, capped gradients in the second."""
        if self.weights is not None:
            add_capped(self.optimizer, module, gradient.detach(), self.weights)
        elif self.hooks_enabled:
            if self.optimizer.caps:
                self._remember_input(module)
            super().hear(module, gradient)

    def _remember_input(self, module: Any) -> None:
        if len(module.activations) > 1:
            raise NotImplementedError(
                f"residual_cap needs hooks mode where a layer is used twice, got {type(module).__name__}."
            )
        module.capped_input = module.activations[-1][0]

    def norms(self, records: int) -> Tensor:
        """The norm of each record's gradient."""
        names = {p: name for name, p in self._module.named_parameters()}
        for p in self.optimizer.trained:
            if p._norm_sample is None:
                raise RuntimeError(
                    f"{names[p]} got no gradient of each record: freeze what the loss does not depend on."
                )
            if len(p._norm_sample) != max(records, 1):
                raise RuntimeError(
                    f"{names[p]} saw a batch of {len(p._norm_sample)} where there are {records} records: "
                    "every layer's input must have one row a record (give position ids, for instance)."
                )
        return joint_norm(p._norm_sample for p in self.optimizer.trained)

    @contextmanager
    def second_pass(self, weights: Tensor | None) -> Iterator[None]:
        """In here nothing is measured; with weights, capped gradients are kept."""
        self.weights = weights
        self.disable_hooks()
        try:
            yield
        finally:
            self.enable_hooks()
            self.weights = None
