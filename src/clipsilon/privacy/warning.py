"""The warning about something learnt from the data outside the privacy budget."""


class PrivacyWarning(UserWarning):
    """Something was learnt from the data without budget, so no statement covers it."""
