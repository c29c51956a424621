"""Models that compute per-sample gradients or their norms: Opacus's, with hooks of our own.

Opacus receives backpropagated gradients by full backward hooks, which warn where a layer's input needs no gradient and
run after the layer's own backward step. A hook on the layer's output receives the same gradient, and earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.functorch import ft_compute_per_sample_gradient, prepare_layer
from opacus.grad_sample.grad_sample_module import promote_current_grad_sample
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
from opacus.layers.dp_rnn import DPRNNBase
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_map

from clipsilon.torch.clipping import clip_factors
from clipsilon.torch.exact_sums import measure
from clipsilon.torch.ghost_sums import LayerRows, Size, join_calls, joint_norms, sizes_of
from clipsilon.torch.guard import Guard
from clipsilon.torch.layer_check import LayerCheck
from clipsilon.torch.layers import SAMPLERS, is_contracted, is_measured_by_functorch, mask_padding, measured_layers
from clipsilon.torch.leftovers import Unsaved, UnsavedFunction, leave_unsaved
from clipsilon.torch.optimizer import NO_GRADIENT, ONE_ROW, GhostOptimizer
from clipsilon.torch.probe import LayerCall, is_empty, restored_attributes

_ONE_CALL = "The private model must be called once, and only once, before each backward pass."
_NOT_ITS_OWN = (
    "A layer must have the parameters that it had when the model was made private, since norms are measured over the "
    "layers that had them then, got {} in {}; tie or replace weights before make_private."
)
_UNSORTED = (
    "{} must be called with packed sequences in the order of the records, since a record must have the same place in "
    "all layers, got sequences that were sorted by length; sort the records of a batch by length first, and pack them "
    "with enforce_sorted=True."
)


class _Hooked:
    """What both kinds of models share: hooks on outputs, and batches without records."""

    NOT_COPIED: ClassVar[tuple[str, ...]] = ("guard",)  # attributes that belong to the training, and not to its model
    GRAD_SAMPLERS: ClassVar[Any] = SAMPLERS
    is_ghost: ClassVar[bool]
    guard: Guard | None = None  # None in copies, which are not trained
    layer_calls: list[LayerCall] | None = None  # where a probe wants to know them
    only_measures = False  # whether sums will not be made, so that what they are made of is not kept
    watch: Callable[[int, Tensor], None] | None = None  # takes gradients that a probe computes, by number of the call

    def add_hooks(self: Any, *, loss_reduction: str, batch_first: bool, force_functorch: bool = False) -> None:
        """Hook every layer that has parameters to train; Opacus calls this.

        Parameters
        ----------
        loss_reduction : str
            Not used here: Opacus keeps it as an attribute.
        batch_first : bool
            Whether the records are the first dimension of every layer's input.
        force_functorch : bool
            Not used: a layer is run by functorch where Opacus has no rule for it.
        """
        hooks: list[Any] = []
        self._module.autograd_grad_sample_hooks = self.autograd_grad_sample_hooks = hooks
        for module in self._module.modules():
            if isinstance(module, DPRNNBase):  # whose linear parts are layers
                hooks.append(module.register_forward_pre_hook(self.refuse_unsorted, with_kwargs=True))
        for module in self.iterate_submodules(self._module):
            module.activations = Unsaved()
            if type(module) not in self.GRAD_SAMPLERS or is_measured_by_functorch(module):
                prepare_layer(module, batch_first=batch_first)
                module.ft_compute_sample_grad = UnsavedFunction(module.ft_compute_sample_grad)
            hooks.append(module.register_forward_hook(self.capture_activations_hook))
        leave_unsaved(self._module)
        self.enable_hooks()

    def iterate_submodules(self: Any, module: nn.Module) -> list[nn.Module]:
        """Return the layers to hook, each once; Opacus calls this."""
        return measured_layers(module)

    def refuse_unsorted(self: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse packed sequences in another order than that of the records, which other layers see.

        Parameters
        ----------
        module : nn.Module
            A recurrent layer that is called.
        args, kwargs : tuple, dict
            Its arguments.
        """
        packed = [x for x in (*args, *kwargs.values()) if isinstance(x, PackedSequence)]
        orders = [x.sorted_indices.tolist() for x in packed if x.sorted_indices is not None]
        is_trained = (
            self.hooks_enabled and torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters())
        )
        if is_trained and any(order != sorted(order) for order in orders):
            raise RuntimeError(_UNSORTED.format(type(module).__name__))

    def capture_activations_hook(
        self: Any, module: nn.Module, forward_input: tuple[Tensor, ...], forward_output: Tensor | tuple[Tensor, ...]
    ) -> None:
        """Keep a layer's input until the gradient of its output arrives.

        Parameters
        ----------
        module : nn.Module
            The layer that was called.
        forward_input, forward_output : Tensor or tuple of Tensor
            Its input and its output, of which the first is followed.
        """
        before = len(getattr(module, "activations", ()))
        super().capture_activations_hook(module, [_contiguous(x) for x in forward_input], forward_output)  # type: ignore[misc]
        if len(getattr(module, "activations", ())) > before:
            output = forward_output if isinstance(forward_output, Tensor) else forward_output[0]
            activation = module.activations[-1]
            if not activation:
                raise RuntimeError(
                    f"{type(module).__name__} must be called with its input as the first positional argument, since "
                    "gradients per record need it, got none."
                )
            number = len(self.layer_calls or ())
            output.register_hook(lambda gradient: self._on_output_gradient(module, activation, gradient, number))
            if self.guard is not None:
                self.guard.see_output(output)
            if self.layer_calls is not None:
                self.layer_calls.append(LayerCall(module, activation[0]))
            self.on_layer_call(module, forward_input, output)

    def on_layer_call(self: Any, module: nn.Module, forward_input: tuple[Tensor, ...], output: Tensor) -> None:
        """Do nothing; subclasses may take note of a layer's call.

        Parameters
        ----------
        module : nn.Module
            The layer that was called.
        forward_input : tuple of Tensor
            Its inputs.
        output : Tensor
            Its output.
        """

    def _on_output_gradient(
        self: Any, module: nn.Module, activation: list[Tensor], gradient: Tensor, number: int
    ) -> None:
        if self.watch is None:
            self.on_output_gradient(module, activation, gradient)
        else:
            self.watch(number, gradient)

    def on_output_gradient(self: Any, module: nn.Module, activation: list[Tensor], gradient: Tensor) -> None:
        """Pass the gradient of a layer's output on to Opacus, with the input that it belongs to.

        Parameters
        ----------
        module : nn.Module
            The layer.
        activation : list of Tensor
            The input that was kept when the layer was called. It must be the last one that is kept: the gradient of an
            earlier call would otherwise be multiplied with the input of a later one, and its norm be wrong.
        gradient : Tensor
            The gradient of the output.
        """
        if not module.activations or module.activations[-1] is not activation:
            raise RuntimeError(_ONE_CALL)
        if self.guard is not None and self.layer_calls is None:  # not in a check
            self.guard.see_gradient()
        gradient = mask_padding(module, activation[0], gradient)
        try:
            self.capture_backprops_hook(module, None, (gradient,), self.loss_reduction, self.batch_first)
        except (AttributeError, IndexError, NotImplementedError, TypeError, ValueError) as error:
            raise RuntimeError(
                f"{type(module).__name__} has inputs or settings for which gradients per record cannot be computed "
                f"({error}); replace the layer, or freeze it."
            ) from error
        activation.clear()  # the graph of the outputs keeps this list until the next batch

    def capture_backprops_hook(
        self: Any, module: nn.Module, _: Any, forward_output: tuple[Tensor], loss_reduction: str, batch_first: bool
    ) -> None:
        """Compute the gradient of each record, as Opacus does, which copies it into a tensor of zeros.

        Parameters
        ----------
        module : nn.Module
            The layer.
        forward_output : tuple of Tensor
            The gradient of its output.
        loss_reduction : str
            "mean" or "sum".
        batch_first : bool
            Whether the records are the first dimension.
        """
        if not self.hooks_enabled:
            return
        activations, gradient = self.rearrange_grad_samples(
            module=module, backprops=forward_output[0].detach(), loss_reduction=loss_reduction, batch_first=batch_first
        )
        compute = self.GRAD_SAMPLERS.get(type(module), ft_compute_per_sample_gradient)
        for p, sample in compute(module, activations, gradient).items():
            if p.requires_grad:
                sample = sample if _is_known_rule(compute) else sample.clone()
                add_sample(p, sample, module.max_batch_len, (*activations, gradient))
        for p in module.parameters():
            if p.requires_grad:
                p._forward_counter -= 1
                if p._forward_counter == 0:
                    promote_current_grad_sample(p)
        if not module.activations:
            module.__dict__.pop("max_batch_len", None)

    def zero_grad(self: Any, set_to_none: bool = True) -> None:
        """Drop gradients as `zero_grad` of the private optimiser does, with its checks."""
        if self.guard is not None:
            self.guard.drop_gradients()
        super().zero_grad(set_to_none)  # type: ignore[misc]

    def __getstate__(self: Any) -> dict[str, Any]:
        """Return what copies keep: a model to evaluate, without the training it belongs to."""
        return {**self.__dict__, "hooks_enabled": False, **dict.fromkeys(self.NOT_COPIED)}

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Call the model; replace a batch without records by one placeholder record, and drop its output.

        (Many models cannot take an empty batch.)
        """
        self._clear_activations()
        return self._answer(args, kwargs) if self.guard is None else self.guard.call(args, kwargs, self._answer)

    def _answer(self: Any, args: Any, kwargs: Any) -> Any:
        if not is_empty((args, kwargs)):
            return self._module(*args, **kwargs)
        args, kwargs = tree_map(_placeholder, (args, kwargs))
        return tree_map(_without_placeholder, self._module(*args, **kwargs))

    def _clear_activations(self: Any) -> None:
        """Forget a call without a backward pass, or one that an error ended: Opacus would add to its sums."""
        for module in self.iterate_submodules(self._module):
            getattr(module, "activations", []).clear()
            module.__dict__.pop("max_batch_len", None)
        for p in self._module.parameters():
            p._forward_counter = 0
            p.__dict__.pop("_current_grad_sample", None)


def add_sample(p: Tensor, sample: Tensor, records: int, sources: Sequence[Tensor]) -> None:
    """Add the gradients per record of one call to those of earlier calls in the same batch.

    Parameters
    ----------
    p : Tensor
        The parameter.
    sample : Tensor
        Its gradients, of the first records only at later times of packed sequences.
    records : int
        The number of records.
    sources : sequence of Tensor
        What they were computed from. It may be changed later, so gradients in the same memory are copied.
    """
    if hasattr(p, "_current_grad_sample"):
        p._current_grad_sample[: len(sample)] += sample
    elif p._forward_counter == 1 and len(sample) == records and not any(_is_same_memory(sample, t) for t in sources):
        p._current_grad_sample = sample
    else:
        p._current_grad_sample = sample.new_zeros((records, *sample.shape[1:]))
        p._current_grad_sample[: len(sample)] = sample


def _is_known_rule(compute: Callable[..., Any]) -> bool:
    """Return whether a rule is known to return new tensors: one from elsewhere may write to the same ones again."""
    return compute.__module__.startswith(("clipsilon.", "opacus."))


def _is_same_memory(one: Tensor, other: Tensor) -> bool:
    return bool(one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr())


def _contiguous(item: Any) -> Any:
    """Copy indices that were expanded, which Opacus's embeddings cannot take."""
    return item.contiguous() if isinstance(item, Tensor) and not item.is_floating_point() else item


def _placeholder(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor) or not leaf.dim() or len(leaf):
        return leaf
    return leaf.new_ones((1, *leaf.shape[1:]))  # not zeros, at which norms and logarithms have no gradient


def _without_placeholder(leaf: Any) -> Any:
    if not isinstance(leaf, Tensor):
        return leaf
    return leaf[:0] if leaf.dim() else 0 * leaf


class HooksModel(_Hooked, GradSampleModule):
    """A model whose backward pass leaves the gradient of each record in `p.grad_sample`."""

    is_ghost = False


class GhostModel(_Hooked, GradSampleModuleFastGradientClipping):
    """A model whose backward pass leaves bounds on each record's gradient, and what the clipped sums are made of.

    For layers y = x·W + b and embeddings these are the inputs of all calls and the gradients of their outputs, and the
    bounds are in `p._norm_sample`. For other layers it is the gradient of each record, in `p.grad_sample`. In the first
    batch that has records, `LayerCheck` sees to it that all of a parameter's gradient comes from its layers.

    Parameters
    ----------
    module : nn.Module
        The model to train.
    optimizer : GhostOptimizer
        Its optimiser.
    """

    is_ghost = True
    NOT_COPIED = ("guard", "optimizer", "layer_check", "_ends", "_calls", "_sizes", "_users")

    def __init__(self, module: nn.Module, optimizer: GhostOptimizer):
        super().__init__(module, loss_reduction="sum", use_ghost_clipping=False)  # of Opacus, which measures otherwise
        self.optimizer = optimizer
        self.layer_check: LayerCheck | None = LayerCheck(module)  # None once the first batch has passed
        self._ends: list[GradientEdge] = []  # outputs of the layers beyond which no gradient is needed
        self._calls: dict[nn.Module, list[LayerRows]] = {}  # of layers whose sums are contracted
        self._sizes: list[tuple[Tensor, Size]] = []  # of the parameters of these layers
        self._users: dict[Tensor, list[nn.Module]] = {}  # of each of these parameters
        for layer in filter(is_contracted, measured_layers(module)):
            for p in layer.parameters():
                self._users.setdefault(p, []).append(layer)

    def on_layer_call(self, module: nn.Module, forward_input: tuple[Tensor, ...], output: Tensor) -> None:
        """Keep a layer's input where the check of layers needs it, and note the layers where the pass can end.

        Parameters
        ----------
        module : nn.Module
            The layer that was called.
        forward_input : tuple of Tensor
            Its inputs. There must be one, since Opacus measures the effect of the first one only.
        output : Tensor
            Its output.
        """
        if len(forward_input) != 1:
            raise ValueError(
                f"ghost mode needs layers of one input, got {type(module).__name__}; hooks mode may take it."
            )
        if not forward_input[0].requires_grad and not self.optimizer.keeps_full_gradients:
            self._ends.append(get_gradient_edge(output))  # now, before an in-place operation changes the output
        if self.layer_check is not None:
            module.__dict__.setdefault("ghost_inputs", Unsaved()).append(module.activations[-1][0])

    def _clear_activations(self) -> None:
        super()._clear_activations()
        self._ends, self._calls, self._sizes = [], {}, []
        for module in self.iterate_submodules(self._module):
            module.__dict__.pop("ghost_inputs", None)

    def check_uses(self, losses: Tensor) -> None:
        """Refuse parameters that the losses use outside of their layers; only in the first batch."""
        if self.layer_check is not None:
            self.layer_check.check_uses(losses, self.iterate_submodules(self._module))

    def first_pass(self, total: Tensor, *, retain_graph: bool = False) -> None:
        """Backpropagate for the norms; sum full gradients only where the error keeps them."""
        if self.optimizer.keeps_full_gradients:
            total.backward(retain_graph=retain_graph)
        elif self._ends:
            torch.autograd.grad(total, self._ends, retain_graph=retain_graph, allow_unused=True)
        self._ends = []

    def check_layers(self, losses: Tensor) -> None:
        """Refuse parameters to whose clipped sums more is added than their layers have; only in the first batch.

        The norms that records are clipped by here are measured in a pass of their own, which keeps nothing: with the
        graph, which the check needs, what sums are made of would take twice the memory of other batches.

        Parameters
        ----------
        losses : Tensor
            One loss per record.
        """
        if self.layer_check is None:
            return
        with self._rehearsal():
            self.first_pass(losses.sum(), retain_graph=True)
            norms = self.optimizer.finite_norms(self.norms(len(losses)))
        least = torch.stack(clip_factors(self.optimizer.clip, self.optimizer.groups, norms)).amin(0)
        with self.optimizer.batch_state.checking():
            self._backpropagate_again((least.to(losses) * losses).sum(), self.layer_check)
            if self.layer_check.check_sums(least * torch.stack(norms).norm(dim=0)):
                self.layer_check = None
        for p in self.optimizer.trained:
            p.grad = None

    @contextmanager
    def _rehearsal(self) -> Iterator[None]:
        """Leave model and parameters as they are before a backward pass, which may keep no more than it needs."""
        calls = [getattr(layer, "activations", []) for layer in self.iterate_submodules(self._module)]
        kept = [held for inputs in calls for held in (inputs, *inputs)]
        contents, counters = [list(held) for held in kept], [p._forward_counter for p in self.optimizer.trained]
        ends, self.only_measures = self._ends, True
        try:
            with restored_attributes(self._module):
                yield
        finally:
            self.only_measures = False
            self._calls, self._sizes, self._ends = {}, [], ends
            for held, content in zip(kept, contents, strict=True):
                held[:] = content
            for p, counter in zip(self.optimizer.trained, counters, strict=True):
                p._forward_counter = counter
                p.grad = p.grad_sample = p._norm_sample = None
                p.__dict__.pop("_current_grad_sample", None)  # of a pass that was interrupted

    def _backpropagate_again(self, total: Tensor, check: LayerCheck) -> None:
        comparisons = [p.register_post_accumulate_grad_hook(check.compare) for p in self.optimizer.trained]
        self.disable_hooks()
        try:
            total.backward(retain_graph=True)
        finally:
            self.enable_hooks()
            for comparison in comparisons:
                comparison.remove()

    def on_output_gradient(self, module: nn.Module, activation: list[Tensor], gradient: Tensor) -> None:
        """Take the gradient of a layer's output: for norms and sums or, in the second pass, for the check of layers.

        Parameters
        ----------
        module : nn.Module
            The layer.
        activation : list of Tensor
            The input that was kept when the layer was called.
        gradient : Tensor
            The gradient of the output.
        """
        if self.hooks_enabled:
            super().on_output_gradient(module, activation, gradient)
            return
        inputs = getattr(module, "ghost_inputs", ())
        if inputs and self.layer_check is not None:  # the gradients of several calls arrive in reverse order
            self.layer_check.add(module, inputs.pop(), gradient.detach())

    def capture_backprops_hook(
        self, module: nn.Module, _: Any, forward_output: tuple[Tensor], loss_reduction: str, batch_first: bool
    ) -> None:
        """Measure a layer from its input and the gradient of its output, or compute the gradient of each record.

        Parameters
        ----------
        module : nn.Module
            The layer.
        forward_output : tuple of Tensor
            The gradient of its output.
        loss_reduction : str
            "sum".
        batch_first : bool
            Whether the records are the first dimension.
        """
        self._refuse_changed(module)
        if not is_contracted(module):
            super().capture_backprops_hook(module, None, forward_output, loss_reduction, batch_first)
            return
        (x, *_), gradient = self.rearrange_grad_samples(
            module=module, backprops=forward_output[0], loss_reduction=loss_reduction, batch_first=batch_first
        )
        module.__dict__.pop("max_batch_len", None)
        self._add_call(LayerRows.of(module, x, gradient))

    def _refuse_changed(self, module: nn.Module) -> None:
        """Refuse a contracted parameter in other layers than before: norms would leave out what it adds there."""
        for p in module.parameters():
            users = self._users.get(p, [])
            is_known = module in users if is_contracted(module) else not users
            if p.requires_grad and not is_known:
                raise RuntimeError(_NOT_ITS_OWN.format(self._name_of(p), type(module).__name__))

    def _add_call(self, call: LayerRows) -> None:
        """Keep a call, and measure the parameters of which it is the last one."""
        self._calls.setdefault(call.layer, []).append(call)
        for p in call.trained:
            p._forward_counter -= 1
            if p._forward_counter < 0 or p.grad_sample is not None:
                raise RuntimeError(_ONE_CALL)  # the call would be a part of sums, but not of norms
        complete = [p for p in call.trained if p._forward_counter == 0]
        users = {p: [self._rows(layer) for layer in self._users[p] if layer in self._calls] for p in complete}
        for p, size in sizes_of(users).items():
            self._sizes.append((p, size))
            p._norm_sample = size.norms
        if self.only_measures:
            self._calls = {
                layer: calls
                for layer, calls in self._calls.items()
                if any(p._forward_counter for p in calls[0].trained)
            }

    def _rows(self, layer: nn.Module) -> LayerRows:
        """Return the rows of all calls of a layer, which are kept as one call from now on."""
        self._calls[layer] = [join_calls(self._calls[layer])]
        return self._calls[layer][0]

    def norms(self, records: int) -> list[Tensor]:
        """Return the lengths by which records are clipped, which bound the norms of their gradients, by groups."""
        contracted = {p for p, _ in self._sizes}
        for p in self.optimizer.trained:
            measured = p._norm_sample if p in contracted else p.grad_sample
            if measured is None or len(measured) != max(records, 1):
                raise RuntimeError(self._norm_complaint(p, measured, records))
            p._norm_sample = None  # they are the records', and may not stay with the model
        return [
            self._group_norms([self.optimizer.trained[place] for place in group]) for group in self.optimizer.groups
        ]

    def _group_norms(self, group: list[Tensor]) -> Tensor:
        samples = [p.grad_sample for p in group if p.grad_sample is not None]
        sizes = [size for p, size in self._sizes if any(p is other for other in group)]
        return joint_norms(sizes, measure(samples) if samples else None)

    def _norm_complaint(self, p: Tensor, measured: Tensor | None, records: int) -> str:
        name = self._name_of(p)
        if measured is None:
            return f"{name}: {NO_GRADIENT}"
        return f"{name} saw a batch of {len(measured)} where there are {records} records: {ONE_ROW}"

    def _name_of(self, p: Tensor) -> str:
        return next(str(name) for name, other in self._module.named_parameters() if other is p)

    def take_calls(self) -> list[LayerRows]:
        """Return what the layers' sums are made of, once per layer, and forget it."""
        found = [self._rows(layer) for layer in self._calls]
        self._calls, self._sizes = {}, []
        return found
