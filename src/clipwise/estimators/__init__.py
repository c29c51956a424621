"""Private estimators for scikit-learn."""

from clipwise.estimators.classification import PrivateLogisticRegression
from clipwise.estimators.methods import METHODS
from clipwise.privacy.warning import PrivacyWarning

__all__ = ["METHODS", "PrivacyWarning", "PrivateLogisticRegression"]
