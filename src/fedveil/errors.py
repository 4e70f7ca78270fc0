"""The exceptions that a caller may catch.

::

    FedveilError
    ├── BadValue (also a ValueError)      a value breaks its rule; the message names the way out
    ├── CannotCertify                     no safe number can be given for this question
    ├── TooFewSurvivors                   a round lost more clients than the plan tolerates; its charge stays
    └── NotAvailable                      a part that this installation lacks; the message says how to get it
"""


class FedveilError(Exception):
    """Base of every error that fedveil raises on purpose."""


class BadValue(FedveilError, ValueError):
    """A value breaks its rule. The message gives its name, the rule, what was given, and what to do instead."""


class CannotCertify(FedveilError):
    """The question is well formed, but no safe answer is known."""


class TooFewSurvivors(FedveilError):
    """A round lost more clients than the plan tolerates. Its sum is not used, and what was charged stays charged."""


class NotAvailable(FedveilError):
    """This installation lacks a part; the message says how to install it."""
