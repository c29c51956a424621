"""What pytest collects: everything, except the PyTorch part where PyTorch or Opacus is not installed."""

from importlib.util import find_spec

MISSING = [name for name in ("torch", "opacus") if find_spec(name) is None]
NEEDING = ["tests/torch", "tests/helpers/private_training.py", "tests/helpers/random_modules.py", "src/clipsilon/torch"]
collect_ignore = NEEDING if MISSING else []


def pytest_report_header() -> str | None:
    """Say at the top of the report what is left out."""
    return f"not installed: {', '.join(MISSING)}; left out: {', '.join(collect_ignore)}" if MISSING else None
