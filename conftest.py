"""What pytest collects: everything, except what needs PyTorch, Opacus or a trainer that is not installed."""

import gc
import signal
from importlib.util import find_spec

NEEDING = {
    "tests/torch": ("torch", "opacus"),
    "tests/helpers/private_training.py": ("torch", "opacus"),
    "tests/helpers/random_modules.py": ("torch", "opacus"),
    "src/clipsilon/torch": ("torch", "opacus"),
    "src/clipsilon/torch/trainers/huggingface.py": ("transformers", "accelerate"),
    "src/clipsilon/torch/trainers/lightning.py": ("lightning",),
}
MISSING = sorted({name for names in NEEDING.values() for name in names if find_spec(name) is None})
collect_ignore = [path for path, names in NEEDING.items() if set(names) & set(MISSING)]


def pytest_configure() -> None:
    """Let tests send Ctrl-C: a run in the background of a script inherits that SIGINT is ignored, and passes it on."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Take what imports and collecting have made, which stays, out of the garbage collections that trainers force."""
    gc.collect()
    gc.freeze()


def pytest_report_header() -> str | None:
    """Say at the top of the report what is left out."""
    return f"not installed: {', '.join(MISSING)}; left out: {', '.join(collect_ignore)}" if MISSING else None
