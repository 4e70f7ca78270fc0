"""The exceptions that a caller may catch, and the one way to refuse a bad value.

::

    FedveilError
    ├── BadValue (also a ValueError)      a value breaks its rule; the message names the way out
    ├── CannotCertify                     no safe number can be given for this question
    ├── TooFewSurvivors                   a round lost more clients than the plan tolerates; its charge stays
    ├── Interrupted                       the run was stopped and can be resumed
    ├── AlreadyFinished                   a finished job was to be resumed: nothing is wrong, and nothing is left to do
    └── NotAvailable                      a part that this installation lacks; the message says how to get it
"""


def why(error: BaseException) -> str:
    """Return the reason of an error in words, without the numbers and names of the operating system.

    >>> why(FileNotFoundError(2, "No such file or directory", "study.toml"))
    'there is no such file or folder'
    """
    match error:
        case FileNotFoundError():
            return "there is no such file or folder"
        case IsADirectoryError():
            return "it is a folder, not a file"
        case NotADirectoryError():
            return "a part of its path is a file, not a folder"
        case FileExistsError():
            return "there is one already"
        case PermissionError():
            return "this user may not do that there"
        case UnicodeDecodeError():
            return f"it is not UTF-8 text (byte {error.start})"
        case OSError() if error.strerror:
            return error.strerror
        case _:
            return str(error).rstrip(".")


class FedveilError(Exception):
    """Base of every error that fedveil raises on purpose.

    >>> issubclass(BadValue, FedveilError) and issubclass(CannotCertify, FedveilError)
    True
    """


class BadValue(FedveilError, ValueError):
    """A value breaks its rule. The message gives its name, the rule, what was given, and what to do instead.

    >>> from fedveil import Gaussian
    >>> Gaussian(noise_multiplier=-1.0, neighbours="zero-out")
    Traceback (most recent call last):
    fedveil.core.errors.BadValue: Gaussian.noise_multiplier must be finite and positive, got -1.0. ...
    """


class CannotCertify(FedveilError):
    """The question is well formed, but no safe answer is known.

    >>> from fedveil import CannotCertify, FedveilError
    >>> issubclass(CannotCertify, FedveilError)
    True
    """


class TooFewSurvivors(FedveilError):
    """A round lost more clients than the plan tolerates. Its sum is not used, and what was charged stays charged."""


class Interrupted(FedveilError):
    """The run was stopped and can be resumed."""


class AlreadyFinished(FedveilError):
    """A job that has finished was to be resumed. Nothing is wrong and nothing was done; the command exits with 0."""

    def __init__(self, folder: str) -> None:
        super().__init__(f"{folder} holds a job that has finished; nothing is left to resume.")
        self.folder = folder


class NotAvailable(FedveilError):
    """This installation lacks a part; the message says how to install it."""


# The one way to refuse a bad value: its name, the rule, what was given, and what to do instead.


def require(holds: object, name: str, rule: str, got: object, hint: str = "") -> None:
    """Raise :class:`BadValue` (a ``ValueError``) unless ``holds``.

    State the condition that must hold: NaN fails every comparison, so it is refused for free.

    >>> require(0 < 64.0 <= 1, "PoissonSampled.rate", "lie in (0, 1]", 64.0, "Is it a batch size?")
    Traceback (most recent call last):
    fedveil.core.errors.BadValue: PoissonSampled.rate must lie in (0, 1], got 64.0. Is it a batch size?
    """
    if not bool(holds):
        message = f"{name} must {rule}, got {got!r}."
        raise BadValue(f"{message} {hint}" if hint else message)
