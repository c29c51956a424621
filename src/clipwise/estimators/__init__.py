"""scikit-learn estimators that train privately, and what prepares data for them."""

from clipwise.estimators.classification import PrivateLogisticRegression
from clipwise.estimators.glm import PrivateGLM
from clipwise.estimators.methods import METHODS
from clipwise.estimators.regression import PrivateLinearRegression
from clipwise.estimators.scaler import PrivateScaler
from clipwise.estimators.total import TotalPrivacy, total_privacy
from clipwise.privacy.warning import PrivacyWarning

__all__ = [
    "METHODS",
    "PrivacyWarning",
    "PrivateGLM",
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PrivateScaler",
    "TotalPrivacy",
    "total_privacy",
]
