"""Private estimators for scikit-learn."""

from clipwise.estimators.classification import PrivateLogisticRegression
from clipwise.estimators.glm import PrivateGLM
from clipwise.estimators.methods import METHODS
from clipwise.estimators.regression import PrivateLinearRegression
from clipwise.privacy.warning import PrivacyWarning

__all__ = ["METHODS", "PrivacyWarning", "PrivateGLM", "PrivateLinearRegression", "PrivateLogisticRegression"]
