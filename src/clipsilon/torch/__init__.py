"""The same update for PyTorch models, on Opacus: DP-SGD and DiceSGD, with hooks or ghost clipping."""

try:
    import opacus  # noqa: F401
    import torch  # noqa: F401
except ModuleNotFoundError:
    raise ImportError("clipsilon.torch needs PyTorch and Opacus: install clipsilon with its extra 'torch'.") from None

from clipsilon.torch.engine import PrivacyEngine

__all__ = ["PrivacyEngine"]
