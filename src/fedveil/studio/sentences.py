"""What went wrong, in one sentence for a person: the same that the command line prints."""

from fedveil.core.errors import FedveilError, why


class Refused(FedveilError):
    """A worker refused a question; the message is the sentence for the person who asked."""


def sentence_of(error: BaseException) -> str:
    """Return what a person is told about an error.

    >>> sentence_of(ValueError("privacy.epsilon must lie in [1e-4, 40],   got 99."))
    'privacy.epsilon must lie in [1e-4, 40], got 99.'
    """
    match error:
        case FedveilError() | ValueError():
            sentence = str(error)
        case MemoryError():
            sentence = "this machine has not enough memory for this; choose fewer rows, columns or rounds"
        case OSError():
            sentence = f"{error.filename or 'the output'} cannot be used: {why(error)}"
        case KeyboardInterrupt():
            sentence = "stopped"
        case _:
            sentence = f"internal error, please report it: {type(error).__name__}: {error}"
    return " ".join(sentence.split())
