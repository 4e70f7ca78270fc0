"""Whole rounds of homomorphic sums in this process: all clients, the server and the key holder, through bytes."""

from collections.abc import Mapping
from statistics import mode
from typing import final

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.sums.homomorphic.messages import LARGEST, Parameters, parameters_for
from fedveil.sums.homomorphic.roles import Adder, Decryptor, Encryptor, make_keys
from fedveil.sums.seam import Summed, Whole


@final
class HomomorphicSumming:
    """Adds up rounds; a client whose message is refused is left out of its round, and of the survivors.

    ``clients``: the most that take part in a round; ``least``: a round of fewer is refused; ``bound``: on each value.
    ``uploaded`` and ``downloaded``: bytes of one client's message and of the public key it is sent once.
    """

    __slots__ = ("_adder", "_decryptor", "_encryptor", "downloaded", "parameters", "uploaded")

    def __init__(self, clients: int, *, least: int = 1, bound: int = LARGEST) -> None:
        self.parameters: Parameters = parameters_for(clients, bound)
        keys = make_keys(self.parameters)
        self._encryptor = Encryptor.open(keys.public, self.parameters)
        self._adder = Adder.open(keys.public, self.parameters, turn=0, size=1)
        self._decryptor = Decryptor.open(keys, self.parameters, least=least)
        self.uploaded, self.downloaded = 0, len(keys.public)

    def __call__(self, turn: int, parts: Mapping[int, Whole], /) -> Summed:
        """Return the exact sum of the round; rounds must be in ascending order."""
        least, most = self._decryptor.least, self.parameters.clients
        require(least <= len(parts) <= most, "The round", f"have {least} to {most} clients", len(parts))
        # the most common length; a vector of another length is refused as a client error
        size = mode(np.size(values) for values in parts.values())
        adder = self._adder.at(turn, size)
        for client, values in sorted(parts.items()):
            try:
                message = self._encryptor.encrypt(turn, client, values)
                adder = adder.take(message)
            except BadValue:
                continue  # counts as a dropout; the key holder refuses the round if too few are left
            self.uploaded = len(message)
        require(len(adder.senders) >= least, "The round", f"have at least {least} clients", len(adder.senders))
        self._decryptor, result = self._decryptor.decrypt(adder.close(), turn=turn, size=size)
        return result
