"""What a caller may catch.

::

    FedveilError
    ├── BadValue (also a ValueError)      a value breaks its rule; the message names the way out
    └── CannotCertify                     no safe number can be given for this question
"""


class FedveilError(Exception):
    """Anything fedveil refuses on purpose."""


class BadValue(FedveilError, ValueError):
    """A value breaks its rule: name, rule, what was given, the way out."""


class CannotCertify(FedveilError):
    """The question is well formed, but no safe answer is known."""
