"""Private training by clipped, noisy gradient descent, for models that may change the data they learn from."""

from importlib import import_module
from types import ModuleType

from clipsilon import sources  # noqa: F401  (first: it digests the files before they are used)

# isort: split
from clipsilon import (
    clipping,
    datasets,
    feedback,
    local,
    losses,
    metrics,
    noise,
    outputs,
    preconditioning,
    regions,
    responses,
    sampling,
    steps,
    theory,
)
from clipsilon.bias import bias_table
from clipsilon.engine import CheckpointError, DivergenceError, Interrupted, Trace, run
from clipsilon.models import load_model
from clipsilon.parts import implements
from clipsilon.points import (
    Point,
    clipped_point,
    clipping_bias,
    optimal_point,
    repeated_gradient,
    repeated_minimization,
    stable_point,
)
from clipsilon.presets import (
    DPGD,
    DPSGD,
    LDPASGD,
    LDPSGD,
    PCSGD,
    SGD,
    AdamDiceSGD,
    AutoDiceSGD,
    ClippedDPGD,
    DiceSGD,
    GammaDPSGD,
    NoisySelection,
)
from clipsilon.privacy.audit import Audit, audit
from clipsilon.privacy.calibration import calibrate, longest_run
from clipsilon.privacy.one_run import one_run_bound
from clipsilon.privacy.one_run_audit import audit_one_run
from clipsilon.privacy.settings import claims
from clipsilon.privacy.statement import Statement, account
from clipsilon.privacy.users import account_users
from clipsilon.privacy.warning import PrivacyWarning
from clipsilon.problem import Problem
from clipsilon.rule import Rule
from clipsilon.sweep import Run, sweep
from clipsilon.tuning import Proposal, tune
from clipsilon.version import __version__ as __version__

__all__ = [
    "DPGD",
    "DPSGD",
    "LDPASGD",
    "LDPSGD",
    "PCSGD",
    "SGD",
    "AdamDiceSGD",
    "Audit",
    "AutoDiceSGD",
    "CheckpointError",
    "ClippedDPGD",
    "DiceSGD",
    "DivergenceError",
    "GammaDPSGD",
    "Interrupted",
    "NoisySelection",
    "Point",
    "PrivacyWarning",
    "Problem",
    "Proposal",
    "Rule",
    "Run",
    "Statement",
    "Trace",
    "account",
    "account_users",
    "audit",
    "audit_one_run",
    "bias_table",
    "calibrate",
    "claims",
    "clipped_point",
    "clipping",
    "clipping_bias",
    "datasets",
    "feedback",
    "implements",
    "load_model",
    "local",
    "longest_run",
    "losses",
    "metrics",
    "noise",
    "one_run_bound",
    "optimal_point",
    "outputs",
    "preconditioning",
    "regions",
    "repeated_gradient",
    "repeated_minimization",
    "responses",
    "run",
    "sampling",
    "stable_point",
    "steps",
    "sweep",
    "theory",
    "tune",
]

_LATER = ("estimators", "reproduce", "torch")  # what takes long to import, or needs an extra, comes with its first use


def __getattr__(name: str) -> ModuleType:
    if name not in _LATER:
        raise AttributeError(f"module 'clipsilon' has no attribute {name!r}")
    return import_module(f"clipsilon.{name}")
