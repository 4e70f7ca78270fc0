"""Secret randomness by address: the words of round k are a function of the key and of k, and of nothing else.

A round that is computed again after a crash therefore gets the same noise. No round can be noised twice with different
values, whose mean would reveal what the noise covers. The words are AES-256 in counter mode, under a separate key for
each address. That they are as good as uniform is the only computational assumption here.
"""

import hashlib
import os
from collections.abc import Callable
from typing import Final, NoReturn, final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Indices

Words = NDArray[np.uint64]

KEY_BYTES: Final = 32
_DOMAIN: Final = b"fedveil entropy"  # BLAKE2b personalisation, so that these keys are used for nothing else
_CONTEXT: Final = b"fedveil context"
_WORD: Final = np.dtype("<u8")  # the same words on every machine
_LAST_INDEX: Final = 2**64 - 1


@final
class Stream:
    """The words of one address, in order; each is returned once."""

    __slots__ = ("_cipher", "_process", "taken")

    def __init__(self, key: bytes) -> None:
        # The counter may start at zero, because the key belongs to this address alone.
        self._cipher = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
        self._process = os.getpid()
        self.taken = 0

    def words(self, count: int) -> Words:
        """Return the next ``count`` independent, uniform 64-bit words."""
        same = os.getpid() == self._process
        require(same, "Stream", "be used by the process that opened it", "a forked child", "Open it after the fork.")
        self.taken += count
        return np.frombuffer(self._cipher.update(bytes(8 * count)), dtype=_WORD)


@final
class Entropy:
    """A 256-bit key that opens streams; ``private`` is False if the key came from a seed that others may know.

    A forked child that uses its parent's object gets a new key from the system, so that the two never add the same
    noise; open what must be repeatable in the process that uses it. The object cannot be copied or pickled.

    >>> Entropy.from_seed(7).stream("noise", 3).words(2) == Entropy.from_seed(7).stream("noise", 3).words(2)
    array([ True,  True])
    """

    __slots__ = ("_key", "_process", "_system", "private")

    def __init__(self, key: bytes, *, private: bool, system: Callable[[int], bytes] = os.urandom) -> None:
        right = isinstance(key, bytes) and len(key) == KEY_BYTES
        # the message must not show the key
        require(right, "key", f"be {KEY_BYTES} bytes", f"{type(key).__name__} of {len(key)}")
        self._key, self._process, self._system = key, os.getpid(), system
        self.private = private

    @classmethod
    def from_system(cls, system: Callable[[int], bytes] = os.urandom) -> "Entropy":
        """Return a new key from the operating system."""
        return cls(system(KEY_BYTES), private=True, system=system)

    @classmethod
    def from_key(cls, key: bytes, context: str = "") -> "Entropy":
        """Return the randomness of a key that was kept, to continue an interrupted run.

        ``context`` names what the key is used for (a plan's hash). Another context gives other words, so a key that is
        used with the wrong plan does not repeat its noise.
        """
        cls(key, private=True)  # refuses anything that is not a key
        if context:
            key = hashlib.blake2b(context.encode(), key=key, person=_CONTEXT, digest_size=KEY_BYTES).digest()
        return cls(key, private=True)

    @classmethod
    def from_seed(cls, seed: int) -> "Entropy":
        """Return randomness that is the same for the same seed, for trials: whoever knows the seed knows the noise."""
        whole = isinstance(seed, int) and not isinstance(seed, bool)
        require(whole and seed >= 0, "seed", "be a whole number, 0 or more", seed)
        return cls(hashlib.sha256(f"fedveil seed {seed}".encode()).digest(), private=False)

    def stream(self, label: str, index: int = 0) -> Stream:
        """Return the stream of this address, from its beginning."""
        require(0 <= index <= _LAST_INDEX, "index", "lie between 0 and 2**64 - 1", index)
        self._leave_parent()
        # The index comes first and has a fixed length, so that no two addresses give the same bytes.
        address = int(index).to_bytes(8, "little") + label.encode()
        return Stream(hashlib.blake2b(address, key=self._key, person=_DOMAIN, digest_size=KEY_BYTES).digest())

    def words(self, label: str, index: int, count: int) -> Words:
        """Return the first ``count`` words of an address."""
        return self.stream(label, index).words(count)

    def _leave_parent(self) -> None:
        if os.getpid() != self._process:
            self._key, self._process, self.private = self._system(KEY_BYTES), os.getpid(), True

    def __repr__(self) -> str:
        return f"Entropy(private={self.private})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("Entropy cannot be copied or pickled: two holders of one stream would add the same noise")


def permutation(entropy: Entropy, size: int, label: str = "order") -> Indices:
    """Return a uniformly random order of 0 .. size - 1.

    The ranks of distinct random words are exactly uniform; with a tie (chance below size**2 / 2**65) all are redrawn.

    >>> sorted(permutation(Entropy.from_seed(0), 5).tolist())
    [0, 1, 2, 3, 4]
    """
    require(0 <= size < 2**32, "size", "lie between 0 and 2**32 - 1", size)
    source = entropy.stream(label)
    while True:
        words = source.words(size)
        order = ranked(words)
        if order is not None:
            return order


def ranked(words: Words) -> Indices | None:
    """Return the order that sorts the words; None if two are equal, since a rule for ties would favour some orders.

    >>> ranked(np.array([30, 10, 20], dtype=np.uint64)), ranked(np.array([1, 1], dtype=np.uint64))
    (array([1, 2, 0]), None)
    """
    order = np.argsort(words)
    lined = words[order]
    return None if bool(np.any(lined[1:] == lined[:-1])) else order.astype(np.int64)


def uniform_below(entropy: Entropy, label: str, count: int, index: int = 0) -> int:
    """Return a whole number from 0 to count - 1, exactly uniform.

    Words above the last multiple of ``count`` are skipped.

    >>> 0 <= uniform_below(Entropy.from_seed(0), "stop", 10) < 10
    True
    """
    require(1 <= count <= 2**64, "count", "lie between 1 and 2**64", count)
    source = entropy.stream(label, index)
    fair = 2**64 - 2**64 % count
    while True:
        word = int(source.words(1)[0])
        if word < fair:
            return word % count
