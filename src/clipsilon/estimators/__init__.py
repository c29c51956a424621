"""scikit-learn estimators that train privately, and what prepares data for them."""

from clipsilon.estimators.classification import PrivateLogisticRegression
from clipsilon.estimators.glm import PrivateGLM
from clipsilon.estimators.log_link import PrivateGammaRegressor, PrivatePoissonRegressor
from clipsilon.estimators.methods import METHODS
from clipsilon.estimators.quantile import PrivateQuantileRegressor
from clipsilon.estimators.regression import PrivateLinearRegression
from clipsilon.estimators.scaler import PrivateScaler
from clipsilon.estimators.search import PrivateSearchCV
from clipsilon.estimators.total import TotalPrivacy, total_privacy
from clipsilon.privacy.warning import PrivacyWarning

__all__ = [
    "METHODS",
    "PrivacyWarning",
    "PrivateGLM",
    "PrivateGammaRegressor",
    "PrivateLinearRegression",
    "PrivateLogisticRegression",
    "PrivatePoissonRegressor",
    "PrivateQuantileRegressor",
    "PrivateScaler",
    "PrivateSearchCV",
    "TotalPrivacy",
    "total_privacy",
]
