"""Private estimators for scikit-learn."""

from clipwise.privacy.warning import PrivacyWarning

__all__ = ["PrivacyWarning"]
