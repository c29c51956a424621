"""Private estimators for scikit-learn."""

from clipwise.estimators.scaler import PrivateScaler
from clipwise.estimators.total import TotalPrivacy, total_privacy
from clipwise.privacy.warning import PrivacyWarning

__all__ = ["PrivacyWarning", "PrivateScaler", "TotalPrivacy", "total_privacy"]
