"""Private training by clipped, noisy gradient descent, for models that may change the data they learn from."""

from importlib import import_module
from types import ModuleType

from clipwise import sources  # noqa: F401  (first: it digests the files before they are used)

# isort: split
from clipwise import (
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
from clipwise.bias import bias_table
from clipwise.engine import CheckpointError, DivergenceError, Interrupted, Trace, run
from clipwise.models import load_model
from clipwise.parts import implements
from clipwise.points import (
    Point,
    clipped_point,
    clipping_bias,
    optimal_point,
    repeated_gradient,
    repeated_minimization,
    stable_point,
)
from clipwise.presets import (
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
from clipwise.privacy.audit import Audit, audit
from clipwise.privacy.calibration import calibrate, longest_run
from clipwise.privacy.one_run import one_run_bound
from clipwise.privacy.one_run_audit import audit_one_run
from clipwise.privacy.settings import claims
from clipwise.privacy.statement import Statement, account
from clipwise.privacy.users import account_users
from clipwise.privacy.warning import PrivacyWarning
from clipwise.problem import Problem
from clipwise.rule import Rule
from clipwise.sweep import Run, sweep
from clipwise.tuning import Proposal, tune
from clipwise.version import __version__ as __version__

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
        raise AttributeError(f"module 'clipwise' has no attribute {name!r}")
    return import_module(f"clipwise.{name}")
