"""The threshold of an adaptive clip: who is counted as clipped, and how the noisy count moves it.

The count and its noise are those of `clipsilon.clipping.Adaptive`. Twice the count of a batch is a whole number, which
is exact over pieces and processes, and which a record changes by at most 1, or by 2 if it is replaced.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from clipsilon.rules.clipping import REACH, Adaptive, Norm, adapt
from clipsilon.torch.generators import RandomStream
from clipsilon.torch.processes import Processes


class Threshold:
    """The threshold in force, and the count of the current batch.

    Parameters
    ----------
    clip : Adaptive
        The rule's clip, with its batch size.

    Attributes
    ----------
    value : float
        The threshold in force: a function of public settings and of noisy counts.
    """

    def __init__(self, clip: Adaptive):
        self.clip, self.value, self._doubled = clip, float(clip.start), 0.0

    @property
    def clip_in_force(self) -> Norm:
        """The clip of the current step."""
        return Norm(self.value)

    @property
    def growth(self) -> float:
        """The threshold in units of the first one."""
        return self.value / self.clip.start

    def count(self, norms: Tensor) -> None:
        """Count the records of a piece of a batch, each by the norm that the clip divides by."""
        self._doubled += 2.0 * float((norms <= self.value).sum()) - len(norms)

    def next_value(self, stream: RandomStream, processes: Processes, device: torch.device) -> float:
        """Return the threshold of the next step, and forget the count; the first process draws its noise.

        Parameters
        ----------
        stream : RandomStream
            The stream of the noise.
        processes : Processes
            The processes that count together.
        device : device
            Where they exchange tensors.

        Returns
        -------
        float
            The same in all processes.
        """
        total, moved = torch.tensor([self._doubled], dtype=torch.float64), np.array([self.value])
        self._doubled = 0.0
        processes.all_reduce(total, device)
        if processes.is_first:
            adapt(self.clip, 1, total.numpy(), moved, stream.generator)
        return float(processes.first_of(torch.from_numpy(moved), device))

    def check(self, value: object) -> float:
        """Return a threshold from a saved state; raise ValueError if it cannot be one of this clip."""
        start = self.clip.start
        if not isinstance(value, float) or not start / REACH <= value <= start * REACH:
            raise ValueError(
                f"state_dict must hold a threshold between {start / REACH:g} and {start * REACH:g}, got {value!r}."
            )
        return value
