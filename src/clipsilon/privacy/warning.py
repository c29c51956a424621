"""The warning that something was learnt from the data outside the privacy budget."""


class PrivacyWarning(UserWarning):
    """Something was learnt from the data without budget, so that no statement covers it."""
