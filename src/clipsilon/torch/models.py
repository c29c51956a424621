"""Models whose layers tell records apart: Opacus's, with hooks of ours where Opacus's warn or cost too much.

Opacus hears of backpropagated gradients by full backward hooks, which warn where a layer's input needs no gradient and
fire after the layer's own backward step. A hook on the layer's output hears the same, and before it.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from typing import Any, ClassVar

import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.functorch import prepare_layer
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
from opacus.layers.dp_rnn import DPGRU, DPLSTM, DPRNN
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import tree_leaves, tree_map

from clipsilon.torch.layers import known, matrix_norms, sums, without_padding
from clipsilon.torch.optimizer import NO_GRADIENT, ONE_ROW
from clipsilon.torch.tensors import joint_norm


class _Hooked:
    """What both kinds of models share: hooks on outputs, and batches without records."""

    LEFT_OUT: ClassVar[tuple[str, ...]] = ()  # attributes that belong to the training, and not to its model

    def add_hooks(self: Any, *, loss_reduction: str, batch_first: bool, force_functorch: bool = False) -> None:
        """Listen to every layer that has parameters to train."""
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
            self.take_note(module, forward_input, output)

    def take_note(self: Any, module: Any, forward_input: Any, output: Tensor) -> None:
        """Take note of a layer's use, if it matters."""

    def hear(self: Any, module: Any, gradient: Tensor) -> None:
        """Take in the gradient of a layer's output."""
        if not module.activations:
            raise RuntimeError("The private model must be called once, and only once, before each backward pass.")
        gradient = without_padding(module, module.activations[-1][0], gradient)
        self.capture_backprops_hook(module, None, (gradient,), self.loss_reduction, self.batch_first)

    def __getstate__(self: Any) -> dict[str, Any]:
        """What copies take over: a model to evaluate, and nothing of the training, of which there is one."""
        return {**self.__dict__, "hooks_enabled": False, **dict.fromkeys(self.LEFT_OUT)}

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
        """Forget a call that no backward pass has followed, or that an error ended: Opacus would add to its sums."""
        for module in self.iterate_submodules(self._module):
            getattr(module, "activations", []).clear()
            module.__dict__.pop("max_batch_len", None)
        for p in self._module.parameters():
            p._forward_counter = 0
            p.__dict__.pop("_current_grad_sample", None)


def _laid_out(item: Any) -> Any:
    """Row numbers that were expanded and not copied, which Opacus's embeddings cannot take, as a copy."""
    return item.contiguous() if isinstance(item, Tensor) and not item.is_floating_point() else item


def _is_empty(inputs: Any) -> bool:
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim()]
    return bool(tensors) and len(tensors[0]) == 0


def _made_up(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or not leaf.dim() or len(leaf):
        return leaf
    return leaf.new_ones((1, *leaf.shape[1:]))  # not zeros, at which lengths and logarithms have no gradient


def _nothing(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf[:0] if leaf.dim() else 0 * leaf


class HooksModel(_Hooked, GradSampleModule):
    """A model that leaves the gradient of each record in `p.grad_sample`."""


class GhostModel(_Hooked, GradSampleModuleFastGradientClipping):
    """A model that leaves the norm of each record's gradient in `p._norm_sample`, and caps what the error keeps.

    In the first batch that has records it also sees to it that all of a parameter's gradient comes from its layer: what
    comes from elsewhere would not be measured, and so not be clipped.
    """

    LEFT_OUT = ("optimizer", "ends", "weights", "from_layers", "strays", "_numbers")
    NORM_SAMPLERS: ClassVar[Any] = ChainMap(
        {nn.Linear: matrix_norms}, GradSampleModuleFastGradientClipping.NORM_SAMPLERS
    )

    def __init__(self, module: Any, optimizer: Any):
        super().__init__(module, loss_reduction="sum")
        self.optimizer = optimizer
        self.ends: list[GradientEdge] = []  # outputs of the layers that no gradient goes beyond
        self.weights: Tensor | None = None  # what the second pass multiplies each gradient by, for the error
        self.from_layers: dict[Any, Tensor] = {}  # sums as layers make them, until autograd has made them, too
        self.strays: dict[Any, Tensor] = {}  # norms of what autograd has added besides
        self.unchecked = True  # whether it is still to be seen that gradients come from layers alone
        self._numbers = {p: number for number, p in enumerate(optimizer.trained)}

    def take_note(self, module: Any, forward_input: Any, output: Tensor) -> None:
        """Take note of a layer's input, and of a layer that no gradient goes beyond."""
        if len(forward_input) != 1:  # Opacus measures what the first input does
            raise ValueError(f"ghost mode needs layers of one input, got {type(module).__name__}; hooks mode takes it.")
        if not forward_input[0].requires_grad and not self.optimizer.keeps_whole:
            self.ends.append(get_gradient_edge(output))  # as it is before anything overwrites it
        inputs = module.__dict__.setdefault("ghost_inputs", [])
        if self.optimizer.caps and inputs:
            raise ValueError(f"residual_cap needs hooks mode where a layer is used twice, got {type(module).__name__}.")
        if self.optimizer.caps or self.unchecked:
            inputs.append(module.activations[-1][0])

    def _forget(self) -> None:
        super()._forget()
        self.ends = []
        for module in self.iterate_submodules(self._module):
            module.__dict__.pop("ghost_inputs", None)

    def check_uses(self, losses: Tensor) -> None:
        """Refuse parameters that the losses depend on otherwise than by their layer, even if nothing comes of it yet.

        What a layer that Opacus has no rule for does with its parameters is its own matter: `check_sums` sees to those.
        """
        uses = _uses(losses) if self.unchecked else Counter()
        for module in filter(known, self.iterate_submodules(self._module)):
            calls = len(getattr(module, "ghost_inputs", ()))
            for p in module.parameters(recurse=False):
                if calls and uses[p] > calls:
                    raise RuntimeError(self._used_outside(p))

    def first_pass(self, total: Tensor) -> None:
        """Backpropagate for the norms; gradients of parameters are left out where the error does not need them."""
        if self.optimizer.keeps_whole:
            total.backward(retain_graph=True)
        elif self.ends:
            torch.autograd.grad(total, self.ends, retain_graph=True, allow_unused=True)
        self.ends = []

    def second_pass(self, total: Tensor, weights: Tensor | None) -> None:
        """Backpropagate for the sums; with weights, capped gradients are kept as well."""
        self.weights = weights
        compared = self.optimizer.trained if self.unchecked else []
        comparisons = [p.register_post_accumulate_grad_hook(self._compare) for p in compared]
        self.disable_hooks()
        try:
            total.backward()
        finally:
            self.enable_hooks()
            for comparison in comparisons:
                comparison.remove()

    def hear(self, module: Any, gradient: Tensor) -> None:
        """Take in the gradient of a layer's output: norms in the first pass, sums in the second, where needed."""
        if self.hooks_enabled:
            super().hear(module, gradient)
            return
        inputs = getattr(module, "ghost_inputs", ())
        if inputs:  # calls are heard of in reverse order
            self._add_up(module, inputs.pop(), gradient.detach())

    def _add_up(self, module: Any, x: Tensor, gradient: Tensor) -> None:
        if self.unchecked:
            for p, total in sums(module, x, gradient).items():
                before = self.from_layers.get(p, p.grad)  # the sums of a resumed training begin with an error
                self.from_layers[p] = total if before is None else before + total
        if self.weights is not None:
            for p, total in sums(module, x, gradient, self.weights).items():
                self.optimizer.keep(self._numbers[p], total)

    def _compare(self, p: Tensor) -> None:
        """Called as soon as a sum is made, so that no copies of all sums are kept."""
        self.strays[p] = (p.grad - self.from_layers.pop(p)).norm()

    def norms(self, records: int) -> Tensor:
        """The norm of each record's gradient."""
        for p in self.optimizer.trained:
            if p._norm_sample is None or len(p._norm_sample) != max(records, 1):
                raise RuntimeError(self._complaint(p, records))
        return joint_norm(p._norm_sample for p in self.optimizer.trained)

    def _complaint(self, p: Tensor, records: int) -> str:
        if p._norm_sample is None:
            return f"{self._name(p)}: {NO_GRADIENT}"
        return f"{self._name(p)} saw a batch of {len(p._norm_sample)} where there are {records} records: {ONE_ROW}"

    def _name(self, p: Tensor) -> str:
        return next(str(name) for name, other in self._module.named_parameters() if other is p)

    def check_sums(self, clipped_norms: Tensor) -> None:
        """Refuse first sums to which more has been added than layers have, up to rounding."""
        scale = float(clipped_norms.sum()) if self.unchecked else 0.0
        if scale == 0:
            return
        for p, stray in self.strays.items():
            if float(stray) > scale * torch.finfo(p.dtype).eps ** 0.5:
                raise RuntimeError(self._used_outside(p))
        self.unchecked = False

    def _used_outside(self, p: Tensor) -> str:
        return (
            f"{self._name(p)} is used outside of its layer, where its gradients are not clipped; hooks mode leaves "
            "these out."
        )


def _uses(losses: Tensor) -> Counter[Tensor]:
    """How often the graph of the losses takes up each parameter."""
    found: Counter[Tensor] = Counter()
    waiting, seen = [losses.grad_fn], {losses.grad_fn}
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if hasattr(node, "variable"):
                found[node.variable] += 1
            elif node is not None and node not in seen:
                seen.add(node)
                waiting.append(node)
    return found
