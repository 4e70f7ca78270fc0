"""What a party of a masked sum refuses; the message says in one sentence who caused it and why.

::

    FedveilError
    └── Refused                 anything below; the round goes on without the party that caused it, or ends
        ├── BadMessage          wrong type, kind or size, or impossible content
        ├── OtherRun            it belongs to another run
        ├── OtherRound          it belongs to another round
        ├── OtherParty          it is from or for another party
        ├── OutOfTurn           it is not expected at this stage, or this party has left the round
        ├── Duplicate           this client has already answered at this stage
        ├── RoundReused         this client has already been in this round, or in a later one
        ├── BadKey              a public key that is malformed, of low order, or used by two clients
        ├── BadSignature        an identity key did not sign this
        ├── BadEnvelope         a sealed share was changed in transit, or made wrong; names who sealed it
        ├── BadShare            a share does not fit its commitment; names who gave it
        ├── BadList             a list of participants that cannot follow from the earlier lists
        ├── ListsDiffer         others were told another list of participants
        ├── AliveAndGone        a client is said to be both in the sum and lost
        ├── ShareSpent          the shares of this round have already been given
        ├── TooFew              fewer participants than the plan promises, or than the threshold
        └── OutOfBounds         an input of the wrong type, length, range or norm
"""

from fedveil.core.errors import FedveilError


class Refused(FedveilError):
    """A party of a masked sum refuses to continue."""


class BadMessage(Refused):
    """A message of wrong type, kind or size, or with impossible content."""


class OtherRun(Refused):
    """The message belongs to another run."""


class OtherRound(Refused):
    """The message belongs to another round."""


class OtherParty(Refused):
    """The message is from or for another party."""


class OutOfTurn(Refused):
    """The message is not expected at this stage, or this party has left the round."""


class Duplicate(Refused):
    """This client has already answered at this stage; its first answer counts."""


class RoundReused(Refused):
    """This client has already been in this round, or in a later one."""


class BadKey(Refused):
    """A public key that is malformed, of low order, or used by two clients."""


class BadSignature(Refused):
    """An identity key did not sign this."""


class BadEnvelope(Refused):
    """A sealed share was changed in transit, or made wrong."""


class BadShare(Refused):
    """A share does not fit its commitment."""


class BadList(Refused):
    """A list of participants that cannot follow from the earlier lists."""


class ListsDiffer(Refused):
    """Others were told another list of participants."""


class AliveAndGone(Refused):
    """A client is said to be both in the sum and lost."""


class ShareSpent(Refused):
    """The shares of this round have already been given."""


class TooFew(Refused):
    """Fewer participants than the plan promises, or than the threshold."""


class OutOfBounds(Refused):
    """An input of the wrong type, length, range or norm."""
