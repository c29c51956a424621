"""The check that all of a parameter's gradient comes from its layer.

Ghost clipping measures gradients layer by layer. What a parameter contributes elsewhere, as in
`functional.linear(x, embedding.weight)`, would not be measured, and thus not be clipped. Two things are compared in the
first batch that has records: how often the graph of the losses uses a parameter with how often its layer was called,
and the sums that autograd makes with the sums that the layers make.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from clipsilon.torch.layers import gradient_sums, has_formula


class LayerCheck:
    """Compares gradients of the losses with the layers' own; an instance serves until the first batch passes.

    Parameters
    ----------
    module : nn.Module
        The model, whose names for its parameters the messages use.
    """

    def __init__(self, module: nn.Module):
        self._names = {p: name for name, p in module.named_parameters()}
        self._from_layers: dict[Tensor, Tensor] = {}  # sums as layers make them, until autograd has made them as well
        self._excess: dict[Tensor, Tensor] = {}  # norms of what autograd has added besides

    def check_uses(self, losses: Tensor, layers: Iterable[nn.Module]) -> None:
        """Refuse parameters that the losses use more often than their layers were called.

        This finds uses whose gradient happens to be zero. Layers without a formula of ours may use their parameters as
        often as they like; `check_sums` covers those.
        """
        uses, calls, others = _count_uses(losses), Counter[Tensor](), set[Tensor]()
        for layer in layers:
            if has_formula(layer):
                calls.update(dict.fromkeys(layer.parameters(), len(getattr(layer, "ghost_inputs", ()))))
            else:
                others.update(layer.parameters())
        for p, most in calls.items():
            if most and p not in others and uses[p] > most:
                raise RuntimeError(self._used_outside(p))

    def add(self, layer: nn.Module, x: Tensor, gradient: Tensor) -> None:
        """Add a call of a layer to the layers' sums.

        Parameters
        ----------
        layer : nn.Module
            The layer.
        x, gradient : Tensor
            Its input, and the gradient of its output.
        """
        for p, total in gradient_sums(layer, x, gradient).items():
            before = self._from_layers.get(p, p.grad)  # the sums of a resumed training begin with an error
            self._from_layers[p] = total if before is None else before + total

    def compare(self, p: Tensor) -> None:
        """Compare the sum of one parameter as soon as autograd has made it, so that no copies of all sums are kept."""
        self._excess[p] = (p.grad - self._from_layers.pop(p)).norm()

    def check_sums(self, clipped_norms: Tensor) -> bool:
        """Refuse sums to which more was added than the layers have, up to rounding.

        Returns whether the batch had gradients to compare.
        """
        scale = float(clipped_norms.sum())
        if scale == 0:
            return False
        for p, excess in self._excess.items():
            if float(excess) > scale * torch.finfo(p.dtype).eps ** 0.5:
                raise RuntimeError(self._used_outside(p))
        return True

    def _used_outside(self, p: Tensor) -> str:
        return (
            f"{self._names[p]} is used outside of its layer, where its gradients are not clipped; use it in its layer "
            "only, or freeze it."
        )


def _count_uses(losses: Tensor) -> Counter[Tensor]:
    """Return how often the graph of the losses uses each parameter."""
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
