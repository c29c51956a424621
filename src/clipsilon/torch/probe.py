"""The check of a model on a few records of a batch, before the model is called for the batch.

Privacy rests on three facts about the model, which are tested here on a few records:

- What the model answers for a record does not depend on the others: alone, the record gets the same answer. (Without
  dropout; a model that is random in other ways is not compared.)
- The gradient of a record's answer with respect to the other records' rows is zero, in the inputs and in the output of
  every layer.
- The gradient that the training would clip (hooks), or the norm by which it would clip (ghost clipping), is that of
  autograd for the record, parameter by parameter. The loss is replaced by a random weighting of the answers.

The check draws from the operating system's generator and leaves all others, the model and its gradients as they were.
With k records it costs 3k forward and (k + 1)k backward passes of one record, and a copy of the trained
parameters while it lasts.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from opacus.layers.dp_rnn import RNNLinear
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from clipsilon.torch.generators import make_generator
from clipsilon.torch.layers import is_contracted, measured_layers, norm_allowance
from clipsilon.torch.loss_check import leaves_of, reduction_of
from clipsilon.torch.optimizer import ONE_ROW
from clipsilon.torch.state_check import CheckError, unchanged

_SYSTEM = random.SystemRandom()
_DROPOUTS = {
    name + in_place
    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_dropout")
    for in_place in ("", "_")
} | {"feature_alpha_dropout", "feature_alpha_dropout_"}


class LayerCall(NamedTuple):
    """A call of a layer.

    Attributes
    ----------
    module : nn.Module
        The layer.
    x : Tensor
        Its first input.
    """

    module: nn.Module
    x: Tensor


def is_empty(inputs: Any) -> bool:
    """Return whether the model is called with a batch of no records, for which a placeholder stands in."""
    tensors = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, Tensor) and leaf.dim()]
    return bool(tensors) and len(tensors[0]) == 0


class Inputs(NamedTuple):
    """The arguments of a call of the model.

    Attributes
    ----------
    args, kwargs : tuple, dict
        The arguments.
    records : int
        The number of records in them.
    """

    args: Any
    kwargs: Any
    records: int

    @classmethod
    def of(cls, args: Any, kwargs: Any) -> Inputs:
        """Count the records by the first tensor, as the model's own call does."""
        for leaf in tree_leaves((args, kwargs)):
            if isinstance(leaf, PackedSequence):
                return cls(args, kwargs, int(leaf.batch_sizes[0]))
            if isinstance(leaf, Tensor) and leaf.dim():
                return cls(args, kwargs, len(leaf))
        return cls(args, kwargs, 0)

    def take(self, rows: Sequence[int]) -> Inputs:
        """Return the arguments for some of the records; raise TypeError if they cannot be split."""
        index = torch.tensor(rows)

        def part(leaf: Any) -> Any:
            if isinstance(leaf, PackedSequence):
                raise TypeError("packed sequences are not split")
            is_split = isinstance(leaf, Tensor) and leaf.dim() > 0 and len(leaf) == self.records
            return leaf[index.to(leaf.device)] if is_split else leaf

        args, kwargs = tree_map(part, (self.args, self.kwargs), is_leaf=lambda x: isinstance(x, PackedSequence))
        return Inputs(args, kwargs, len(rows))

    def with_gradients(self) -> tuple[Inputs, list[Tensor]]:
        """Return the same arguments with gradients, and the tensors that receive these."""
        found: list[Tensor] = []

        def follow(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or leaf.dim() == 0:
                return leaf
            found.append(leaf.detach().requires_grad_())
            return found[-1].clone()  # which the model may overwrite

        args, kwargs = tree_map(follow, (self.args, self.kwargs))
        return Inputs(args, kwargs, self.records), [t for t in found if len(t) == self.records]


class WithoutDropout(TorchFunctionMode):
    """Replaces every dropout by the identity."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _DROPOUTS:
            return args[0] if args else kwargs["input"]
        if getattr(func, "__name__", "") == "scaled_dot_product_attention":
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
            kwargs = kwargs if len(args) > 4 else {**kwargs, "dropout_p": 0.0}
        return func(*args, **kwargs)


class Probe:
    """Checks one model.

    Parameters
    ----------
    model : HooksModel or GhostModel
        The private model, whose layers report their calls in `layer_calls`.
    trained : list of Tensor
        The parameters that the training moves.
    """

    def __init__(self, model: Any, trained: list[Tensor]):
        self._model, self._trained = model, trained
        self._module: nn.Module = model._module
        self._parameter_names = {p: name for name, p in self._module.named_parameters()}
        self._layer_names = {layer: name for name, layer in self._module.named_modules()}
        contracted = filter(is_contracted, measured_layers(self._module)) if model.is_ghost else ()
        self._has_norms = {p for layer in contracted for p in layer.parameters()}
        self.reductions: dict[int, str] = {}  # of outputs that are numbers: how they follow from single records

    def check(self, inputs: Inputs, most: int) -> int:
        """Check the model on at most so many of these records; return their number, 0 if it could not be checked.

        An error of the model itself is left to the model's own call.
        """
        with isolated(self._model, self._trained):
            chosen = self._choose(inputs, most)
            if chosen is None:
                return 0
            part, rows, together = chosen
            alone = [] if part is inputs else self._answers_alone(part)
            has_gradients = self._check_gradients(part, _record_leaves(part.records, together, alone), rows)
            self._compare_answers(part, together, alone)
            self._compare_numbers(part, together, alone)
        return part.records if has_gradients else 0

    def _choose(self, inputs: Inputs, most: int) -> tuple[Inputs, list[int], _Answer] | None:
        """Return a part of the records that the model can take, the rows of it to check, and the model's answer.

        Where arguments cannot be split, the part is all records. None if the model cannot take these either.
        """
        rows = sorted(_SYSTEM.sample(range(inputs.records), min(inputs.records, most)))
        for split in (True, False):
            try:
                part = inputs.take(rows) if split else inputs
                return part, list(range(len(rows))) if split else rows, self._answer(part, by_content=True)
            except CheckError:
                raise
            except Exception:  # of the model, or of arguments that belong together
                continue
        return None

    # Answers

    def _answer(self, inputs: Inputs, *, by_content: bool = False) -> _Answer:
        """Return the model's outputs without dropout, and what the call wrote to attributes of its modules."""
        drawn = _generator_states(self._trained)
        with restored_attributes(self._module) as before, unchanged(self._module, by_content=by_content):
            with torch.no_grad(), WithoutDropout(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                outputs = _floats(self._module(*inputs.args, **inputs.kwargs))
            after = _attributes(self._module)
            written = {key: value for key, value in after.items() if before.get(key) is not value}
        return _Answer(outputs, written, is_random=drawn != _generator_states(self._trained))

    def _answers_alone(self, part: Inputs) -> list[_Answer]:
        """Return the model's answer for each record alone; nothing where the model cannot take a single record."""
        try:
            return [self._answer(part.take([row])) for row in range(part.records)]
        except CheckError:
            raise
        except Exception:
            return []

    def _compare_answers(self, part: Inputs, together: _Answer, alone: list[_Answer]) -> None:
        if part.records < 2 or not alone or any(answer.is_random for answer in (together, *alone)):
            return
        for number in _record_leaves(part.records, together, alone):
            for row, single in enumerate(alone):
                if not self._close(together.outputs[number][row], single.outputs[number], together.outputs[number]):
                    raise CheckError(
                        "The records of a batch must not mix, and the model's answer for a record changes with the "
                        "other records; attention needs batch_first=True, and GroupNorm does what batch norm cannot."
                    )
        for (layer, name), value in together.written.items():
            if any(not self._same(value, single.written.get((layer, name))) for single in alone[:1]):
                where = f"{self._layer_names[layer]}.{name}".lstrip(".")
                raise CheckError(
                    f"The model's forward pass leaves {where}, computed from records, on the model, where it would be "
                    "saved and could reach later batches without noise; return it instead."
                )

    def _same(self, one: Any, other: Any) -> bool:
        if isinstance(one, Tensor) and isinstance(other, Tensor):
            one, other = one.detach(), other.detach()
            return one.shape == other.shape and (one.numel() == 0 or self._close(one, other, one))
        return bool(type(one) is type(other) and one == other)

    def _close(self, one: Tensor, other: Tensor, scale: Tensor) -> bool:
        """Whether two answers are equal up to rounding, or not finite, which the step refuses.

        A float64 answer may have passed through layers of float32, so the coarsest type of the model counts.
        """
        if one.numel() != other.numel():
            return False
        distance = float((one.reshape(-1) - other.reshape(-1)).abs().max()) if one.numel() else 0.0
        rounding = max(_tolerance(t) for t in (scale, *_floats(list(self._module.parameters()))))
        return not distance > rounding * float(scale.abs().max())

    def _compare_numbers(self, part: Inputs, together: _Answer, alone: list[_Answer]) -> None:
        """Note how outputs that are numbers, such as a loss, follow from those for single records."""
        is_comparable = part.records > 1 and alone and not any(answer.is_random for answer in (together, *alone))
        for number, output in enumerate(together.outputs if is_comparable else []):
            if output.numel() == 1 and all(len(single.outputs) > number for single in alone):
                singles = [float(single.outputs[number].sum()) for single in alone]
                self.reductions[number] = reduction_of(float(output), float(output), *singles, sizes=[1] * len(singles))

    # Gradients

    def _check_gradients(self, part: Inputs, leaves: list[int], rows: list[int]) -> bool:
        """Check gradients of the outputs that have one row per record; return whether there are any.

        Parameters
        ----------
        part : Inputs
            The records.
        leaves : list of int
            Numbers of the outputs.
        rows : list of int
            The records to check.
        """
        inputs, sources = part.with_gradients()
        calls: list[LayerCall] = []
        self._model.layer_calls = calls
        outputs = _floats(self._module(*inputs.args, **inputs.kwargs))
        leaves = [number for number in leaves if number < len(outputs) and len(outputs[number]) == part.records]
        totals = _weighted([outputs[number] for number in leaves], part.records)
        if totals is None:
            return False
        truths: dict[int, _Truth] = {}
        for row in rows:
            truths[row] = self._truth(totals[row], row, calls, sources, part.records)
        scale = part.records if self._model.loss_reduction == "mean" else 1
        torch.autograd.grad(totals.sum() / scale, self._trained, allow_unused=True)  # the layers' hooks measure
        for number, p in enumerate(self._trained):
            sizes = self._term_sizes(p, calls, truths)
            for row, truth in truths.items():
                self._compare_gradient(p, row, truth.parameters[number], sizes[row])
        return True

    def _truth(self, total: Tensor, row: int, calls: list[LayerCall], sources: list[Tensor], records: int) -> _Truth:
        """Return what is true of one record, which must not mix with others; forget its gradients in their rows.

        Parameters
        ----------
        total : Tensor
            The weighted answers for the record.
        row : int
            The record.
        calls : list of LayerCall
            The calls of layers.
        sources : list of Tensor
            The inputs of the model.
        records : int
            The number of records.
        """
        seen: dict[int, _Rows] = {}  # by the number of the call
        gradients = self._true_gradients(total, sources, lambda n, g: seen.__setitem__(n, _Rows.of(calls[n], g, row)))
        self._refuse_mixed_rows(row, gradients[len(self._trained) :], calls, seen, records)
        found = [
            None if g is None else _TrueGradient(float(g.norm()), None if p in self._has_norms else g)
            for p, g in zip(self._trained, gradients, strict=False)
        ]
        return _Truth(found, {number: rows.sizes for number, rows in seen.items()})

    def _true_gradients(
        self, total: Tensor, sources: list[Tensor], watch: Callable[[int, Tensor], None]
    ) -> Sequence[Tensor | None]:
        """Return the gradients of one record's answers with respect to all parameters and inputs.

        Parameters
        ----------
        total : Tensor
            The weighted answers.
        sources : list of Tensor
            The inputs.
        watch : callable
            Takes the number of each call of a layer, and the gradient of its output, which is not kept.
        """
        self._model.watch = watch
        try:
            found = torch.autograd.grad(total, [*self._trained, *sources], retain_graph=True, allow_unused=True)
        finally:
            self._model.watch = None
        return tuple(found)

    def _refuse_mixed_rows(
        self, row: int, sources: Sequence[Tensor | None], calls: list[LayerCall], seen: dict[int, _Rows], records: int
    ) -> None:
        """Raise CheckError if other rows than that of the record have a gradient, or a layer has other rows.

        Parameters
        ----------
        row : int
            The record.
        sources : sequence of Tensor or None
            Gradients of the model's inputs.
        calls : list of LayerCall
            The calls of layers.
        seen : dict
            What gradients of their outputs were, by the number of the call.
        records : int
            The number of records.
        """
        mixed = "the model's input" if any(_mixes(g, row) for g in sources) else None
        for number, rows in sorted(seen.items()):
            call = calls[number]
            if type(call.module) is RNNLinear and rows.records < records:
                continue  # packed sequences have fewer rows at later times
            if rows.records != records:
                name = next(self._parameter_names[p] for p in call.module.parameters() if p.requires_grad)
                raise CheckError(
                    f"Layers saw batches of different sizes: {name} saw a batch of {rows.records} where there are "
                    f"{records} records: {ONE_ROW}"
                )
            if rows.is_mixed:
                mixed = f"{self._layer_names[call.module] or 'the model'} ({type(call.module).__name__})"
        if mixed:
            raise CheckError(
                f"The records of a batch must not mix, and behind {mixed} the answer for a record depends on others; "
                "attention needs batch_first=True, and GroupNorm does what batch norm cannot."
            )

    def _term_sizes(self, p: Tensor, calls: list[LayerCall], truths: dict[int, _Truth]) -> dict[int, _Sizes]:
        """Return for each row how large the terms are that a gradient is the sum of, and what ghost norms may add."""
        sizes = dict.fromkeys(truths, _Sizes(0.0, 0.0))
        used = [number for number, call in enumerate(calls) if any(p is q for q in call.module.parameters())]
        for number in used:
            for row, truth in truths.items():
                sizes[row] = sizes[row].plus(truth.sizes.get(number, _Sizes(0.0, 0.0)))
        more = len(used) ** 0.5  # rows of all calls are added up
        return {row: _Sizes(size.terms, more * size.allowance) for row, size in sizes.items()}

    def _compare_gradient(self, p: Tensor, row: int, truth: _TrueGradient | None, size: _Sizes) -> None:
        """Compare a measured gradient or norm with the true one, up to rounding; what is not finite is left to `step`.

        Parameters
        ----------
        p : Tensor
            The parameter.
        row : int
            The record.
        truth : _TrueGradient or None
            Its gradient, None if the answers do not depend on the parameter.
        size : _Sizes
            What rounding is relative to.
        """
        measured = p._norm_sample if p in self._has_norms else p.grad_sample
        if measured is None or len(measured) <= row or isinstance(measured, list):
            return  # refused by the step, in sentences of its own
        truth = _TrueGradient(0.0, torch.zeros_like(p)) if truth is None else truth
        allowed = _tolerance(p) * truth.norm + 1e3 * torch.finfo(p.dtype).eps * size.terms
        if p in self._has_norms:
            off = float(measured[row]) - truth.norm
            allowed += size.allowance + _LEAST_NORM if off > 0 else 0.0
        else:
            off = float((measured[row] - truth.value).norm())
        if abs(off) > allowed and np.isfinite(truth.norm):
            raise CheckError(self._complaint(p))

    def _complaint(self, p: Tensor) -> str:
        owner = next(layer for layer in self._layer_names if any(p is q for q in layer.parameters(recurse=False)))
        return (
            f"{self._parameter_names[p]} is used outside of its layer, or {type(owner).__name__} has settings that are "
            "not supported: the gradients that are measured are not those of the records, and no clip would bound "
            "them; use it in its layer only, replace the layer, or freeze it."
        )


_LEAST_NORM = 2.0**-400  # ghost norms of zero are a little larger, for products that underflow


class _Answer(NamedTuple):
    outputs: list[Tensor]
    written: dict[tuple[nn.Module, str], Any]
    is_random: bool  # whether a generator was used


class _TrueGradient(NamedTuple):
    """The gradient of one record's answers with respect to a parameter, which is left out where norms are measured."""

    norm: float
    value: Tensor | None


class _Truth(NamedTuple):
    """True gradients of one record's answers by parameter, and the sizes of what calls add, by their number."""

    parameters: Sequence[_TrueGradient | None]
    sizes: dict[int, _Sizes]


class _Sizes(NamedTuple):
    terms: float
    allowance: float

    def plus(self, other: _Sizes) -> _Sizes:
        """Return the sum of both."""
        return _Sizes(self.terms + other.terms, self.allowance + other.allowance)

    @classmethod
    def of(cls, call: LayerCall, gradient: Tensor, row: int) -> _Sizes:
        """Return the sizes of one call.

        Parameters
        ----------
        call : LayerCall
            The call.
        gradient : Tensor
            The gradient of its output.
        row : int
            The record.
        """
        x = call.x[row] if len(call.x) == len(gradient) and row < len(call.x) else call.x
        length = float(gradient.norm()) * (float(x.double().norm()) + x.numel() ** 0.5)
        return cls(length, norm_allowance(call.module, call.x, gradient) * length)


class _Rows(NamedTuple):
    """What is kept of the gradient of one record's answers with respect to the output of a layer's call."""

    records: int
    is_mixed: bool  # whether it reaches other rows than that of the record
    sizes: _Sizes

    @classmethod
    def of(cls, call: LayerCall, gradient: Tensor, row: int) -> _Rows:
        """Return what is kept of a gradient.

        Parameters
        ----------
        call : LayerCall
            The call.
        gradient : Tensor
            The gradient of its output.
        row : int
            The record.
        """
        return cls(len(gradient), row < len(gradient) and _mixes(gradient, row), _Sizes.of(call, gradient, row))


def _generator_states(parameters: list[Tensor]) -> list[Any]:
    """Return the states of all generators that a model may use, so that they can be compared."""
    devices = {p.device for p in parameters if p.device.type == "cuda"}
    torch_states = [torch.get_rng_state(), *(torch.cuda.get_rng_state(device) for device in devices)]
    name, keys, *more = np.random.get_state()  # noqa: NPY002
    return [
        *(state.numpy().tobytes() for state in torch_states),
        random.getstate(),
        name,
        np.asarray(keys).tobytes(),
        more,
    ]


def _floats(outputs: Any) -> list[Tensor]:
    return [t for t in leaves_of(outputs) if isinstance(t, Tensor) and t.is_floating_point()]


def _record_leaves(records: int, together: _Answer, alone: list[_Answer]) -> list[int]:
    """Return the numbers of the outputs that have one row per record."""
    found = []
    for number, output in enumerate(together.outputs):
        if output.dim() and len(output) == records:
            singles = [answer.outputs[number] for answer in alone[:1] if len(answer.outputs) > number]
            if all(_is_row(single, output) for single in singles):
                found.append(number)
    return found


def _is_row(single: Tensor, output: Tensor) -> bool:
    """Whether the output for one record has the shape of a row; models may squeeze it."""
    if single.dim() == output.dim():
        return bool(single.shape[1:] == output.shape[1:]) and len(single) == 1
    return bool(single.numel() * len(output) == output.numel())


def _tolerance(t: Tensor) -> float:
    """Return the relative error that rounding may cause, also where a GPU shortens factors."""
    return float(torch.finfo(t.dtype).eps ** 0.5) if t.device.type == "cpu" else 1e-2


def _weighted(outputs: list[Tensor], records: int) -> Tensor | None:
    """Return a random weighting of each record's answers, None if no answer depends on parameters."""
    outputs = [output for output in outputs if output.requires_grad]
    if not outputs:
        return None
    generator = make_generator("cpu")
    totals = [
        (output * torch.randn(output.shape, generator=generator, dtype=output.dtype).to(output.device))
        .reshape(records, -1)
        .sum(1)
        for output in outputs
    ]
    return torch.stack([total.to(totals[0]) for total in totals]).sum(0)


def _mixes(gradient: Tensor | None, row: int) -> bool:
    """Whether the gradient of one record's answer reaches rows of other records."""
    if gradient is None or len(gradient) < 2 or not gradient.numel():
        return False
    sizes = gradient.detach().reshape(len(gradient), -1).abs().amax(1)
    others = torch.cat([sizes[:row], sizes[row + 1 :]]).max()
    return bool(others > 8 * torch.finfo(gradient.dtype).eps * sizes[row])


# Isolation


@contextmanager
def isolated(model: Any, trained: list[Tensor]) -> Iterator[None]:
    """Leave the generators and what hangs on the model and its parameters as they were.

    Parameters
    ----------
    model : HooksModel or GhostModel
        The private model.
    trained : list of Tensor
        The parameters that the training moves.
    """
    left = [(p, p.grad_sample, getattr(p, "_norm_sample", None)) for p in trained]
    for p in trained:
        p.grad_sample = p._norm_sample = None
    model.only_measures = True
    try:
        with kept_generators([p.device for p in trained]), restored_attributes(model._module):
            yield
    finally:
        model.layer_calls, model.only_measures = None, False
        model._clear_activations()
        for p, grad_sample, norm_sample in left:
            p.grad_sample, p._norm_sample = grad_sample, norm_sample


@contextmanager
def kept_generators(devices: Sequence[torch.device] = ()) -> Iterator[None]:
    """Restore the generators of Python, NumPy and PyTorch, on the CPU and on these devices, after the block."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng({device for device in devices if device.type == "cuda"}):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


@contextmanager
def restored_attributes(module: nn.Module) -> Iterator[dict[tuple[nn.Module, str], Any]]:
    """Restore the attributes of all modules after the block; the context is the numbers among them before it."""
    before = [(layer, dict(layer.__dict__)) for layer in module.modules()]
    try:
        yield _attributes(module)
    finally:
        for layer, attributes in before:
            layer.__dict__.clear()
            layer.__dict__.update(attributes)


def _attributes(module: nn.Module) -> dict[tuple[nn.Module, str], Any]:
    """Return the floating-point tensors and numbers among the plain attributes of all modules."""
    return {
        (layer, name): value
        for layer in module.modules()
        for name, value in layer.__dict__.items()
        if isinstance(value, float) or (isinstance(value, Tensor) and value.is_floating_point())
    }
