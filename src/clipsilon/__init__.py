"""Private training by clipped, noisy gradient descent, for models that may change the data they learn from."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from clipsilon._core import sources  # first: it digests the files before they are used

# isort: split
from clipsilon.version import __version__ as __version__

# A name is imported when it is used for the first time: all of them take seconds, and some need an extra. `__getattr__`
# reads these lines, which type checkers follow.
if TYPE_CHECKING:
    from clipsilon import datasets, local, tables, theory
    from clipsilon._core.parts import implements
    from clipsilon.analysis import metrics
    from clipsilon.analysis.anticipation import derivative_free, performative_gradient
    from clipsilon.analysis.bias import bias_table
    from clipsilon.analysis.dynamics import JointPoint, joint_point, joint_retraining, retraining_rate
    from clipsilon.analysis.fixed_points import (
        Point,
        clipped_point,
        clipping_bias,
        optimal_point,
        repeated_gradient,
        repeated_minimization,
        stable_point,
    )
    from clipsilon.engine import CheckpointError, DivergenceError, Interrupted, Trace, run
    from clipsilon.engine.sweep import Run, sweep
    from clipsilon.estimators.evaluation import private_scores
    from clipsilon.estimators.model_files import load_model
    from clipsilon.privacy.auditing.audit import Audit, audit
    from clipsilon.privacy.auditing.one_run import one_run_bound
    from clipsilon.privacy.auditing.one_run_audit import audit_one_run
    from clipsilon.privacy.auditing.training import TrainingAudit, TrainingError, audit_training
    from clipsilon.privacy.budget import Budget
    from clipsilon.privacy.budget_file import BudgetError
    from clipsilon.privacy.calibration import calibrate, longest_run
    from clipsilon.privacy.opacus import account_opacus
    from clipsilon.privacy.papers import claims
    from clipsilon.privacy.statement import Statement, account
    from clipsilon.privacy.users import account_users
    from clipsilon.privacy.warning import PrivacyWarning
    from clipsilon.problems import losses, regions, responses
    from clipsilon.problems.problem import Problem
    from clipsilon.report.model_page import write_report
    from clipsilon.rules import clipping, correlation, feedback, noise, outputs, preconditioning, sampling, schedules
    from clipsilon.rules.presets import (
        DPGD,
        DPSGD,
        LDPASGD,
        LDPSGD,
        PCSGD,
        SGD,
        AdamDiceSGD,
        AdaptiveDPSGD,
        AutoDiceSGD,
        ClippedDPGD,
        CorrelatedSGD,
        DiceSGD,
        GammaDPSGD,
        NoisySelection,
        TrackedSGD,
    )
    from clipsilon.rules.rule import Rule
    from clipsilon.tables.encoder import SchemaEncoder
    from clipsilon.tables.schema import Schema
    from clipsilon.theory.tuning import Proposal, tune

__all__ = [
    "DPGD",
    "DPSGD",
    "LDPASGD",
    "LDPSGD",
    "PCSGD",
    "SGD",
    "AdamDiceSGD",
    "AdaptiveDPSGD",
    "Audit",
    "AutoDiceSGD",
    "Budget",
    "BudgetError",
    "CheckpointError",
    "ClippedDPGD",
    "CorrelatedSGD",
    "DiceSGD",
    "DivergenceError",
    "GammaDPSGD",
    "Interrupted",
    "JointPoint",
    "NoisySelection",
    "Point",
    "PrivacyWarning",
    "Problem",
    "Proposal",
    "Rule",
    "Run",
    "Schema",
    "SchemaEncoder",
    "Statement",
    "Trace",
    "TrackedSGD",
    "TrainingAudit",
    "TrainingError",
    "account",
    "account_opacus",
    "account_users",
    "audit",
    "audit_one_run",
    "audit_training",
    "bias_table",
    "calibrate",
    "claims",
    "clipped_point",
    "clipping",
    "clipping_bias",
    "correlation",
    "datasets",
    "derivative_free",
    "feedback",
    "implements",
    "joint_point",
    "joint_retraining",
    "load_model",
    "local",
    "longest_run",
    "losses",
    "metrics",
    "noise",
    "one_run_bound",
    "optimal_point",
    "outputs",
    "performative_gradient",
    "preconditioning",
    "private_scores",
    "regions",
    "repeated_gradient",
    "repeated_minimization",
    "responses",
    "retraining_rate",
    "run",
    "sampling",
    "schedules",
    "stable_point",
    "sweep",
    "tables",
    "theory",
    "tune",
    "write_report",
]

_PACKAGES = ("analysis", "engine", "estimators", "live", "privacy", "problems", "report", "reproduce", "rules", "torch")
_PLACES = {**dict.fromkeys(_PACKAGES, "clipsilon"), **sources.imported_names("__init__.py")}


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'clipsilon' has no attribute {name!r}")
    module = _PLACES[name]
    if sources.is_module(f"{module}.{name}"):
        return import_module(f"{module}.{name}")
    value = globals()[name] = getattr(import_module(module), name)
    return value
