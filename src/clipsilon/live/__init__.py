"""Live learning: a model that is deployed to people who react to it, and learns from what they send, privately.

`Stream` is the running model in one file; `clipsilon live` serves it over HTTP.
"""

from clipsilon._core.database import StorageError
from clipsilon.live.records import Refused
from clipsilon.live.store import Deployment
from clipsilon.live.stream import Model, Receipt, RefusalError, Stream

__all__ = ["Deployment", "Model", "Receipt", "RefusalError", "Refused", "StorageError", "Stream"]
