"""The errors of this package."""


class VmmError(RuntimeError):
    """Something cannot be done; the text says what, why, and what to do instead."""


class OptionError(VmmError, ValueError):
    """An option has a value that it cannot have."""
