"""The same update for PyTorch models, on Opacus: DP-SGD and DiceSGD, with hooks or ghost clipping.

`batch_state` describes the way of a batch from the loader to a step, `guard` what is checked on the way.
"""

from clipsilon._core.extras import needs_package

try:
    import opacus  # noqa: F401
    import torch  # noqa: F401
except ModuleNotFoundError:
    raise ImportError(needs_package("clipsilon.torch", "PyTorch and Opacus", "clipsilon[torch]")) from None

from clipsilon.torch.engine import PrivacyEngine

__all__ = ["PrivacyEngine"]
