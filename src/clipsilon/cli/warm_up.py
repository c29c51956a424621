"""`clipsilon warm-up`: compile, before anyone waits for it, what fits use."""

from __future__ import annotations

from typing import Any

import click

from clipsilon.cli.errors import plain_errors, stoppable
from clipsilon.cli.model_kinds import MODELS, predicts_classes

_RECORDS, _COLUMNS = 10_000, 3


@click.command("warm-up")
def command() -> None:
    """Compile the kernels that fits of tables use, and keep them in the cache folder.

    Otherwise the first fit of each kind of model waits some seconds for its own. Call this once after an installation
    or an update, for instance when a container is built; kernels that are there already are not compiled again.
    """
    from clipsilon._core.kernel_cache import kernel_folder

    with plain_errors(), stoppable("Stopped; what was compiled is kept."):
        for kind in MODELS:
            _fit(kind)
            click.echo(f"{kind}: ready")
        click.echo(f"Kernels are in {kernel_folder()}")


def _fit(kind: str) -> None:
    """Scale made-up records and fit a model of a kind to them."""
    import warnings

    import numpy as np

    from clipsilon.estimators import PrivateScaler
    from clipsilon.estimators.model_files import new_estimator

    rng = np.random.default_rng(0)
    features = rng.normal(size=(_RECORDS, _COLUMNS))
    labels = rng.integers(0, 2, _RECORDS) if predicts_classes(kind) else rng.uniform(1.0, 2.0, _RECORDS)
    about: dict[str, Any] = {"classes": [0, 1]} if predicts_classes(kind) else {"target_range": (1.0, 2.0)}
    with warnings.catch_warnings(action="ignore"):  # about a model that nobody will use
        features = PrivateScaler(1.0, 1e-6).fit_transform(features)
        new_estimator(kind, epsilon=1.0, delta=1e-6, **about).set_params(progress=False).fit(features, labels)
