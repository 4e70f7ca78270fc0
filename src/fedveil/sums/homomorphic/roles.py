"""Homomorphic sums in three roles: clients encrypt, the server adds without any secret, the key holder opens the sum.

The scheme is BFV: whole numbers, exact. Each role takes and returns bytes. The last place of every ciphertext counts
the clients, so the key holder sees how many are in what it opens. Page: docs/homomorphic.md; proof:
homomorphic-sums.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, final

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.sums.homomorphic.library import tenseal
from fedveil.sums.homomorphic.messages import (
    DEGREE,
    KEY_PRIMES,
    PER_CIPHERTEXT,
    Message,
    Parameters,
    Shared,
    fingerprint,
    read_keys,
    read_message,
    seal_name,
    write_keys,
    write_message,
)
from fedveil.sums.seam import Summed, Whole


@dataclass(frozen=True, slots=True)
class Keys:
    """``public`` is for clients and server; ``secret`` stays with the key holder, who must not be the server."""

    public: bytes
    secret: bytes = field(repr=False)


def make_keys(parameters: Parameters) -> Keys:
    """Return a new key pair for each prime; the randomness is SEAL's own, seeded by the operating system."""
    library = tenseal()
    made = [
        library.context(library.SCHEME_TYPE.BFV, poly_modulus_degree=DEGREE, plain_modulus=prime, n_threads=1)
        for prime in parameters.primes
    ]
    texts = [
        tuple(c.serialize(save_secret_key=secret, save_galois_keys=False, save_relin_keys=False) for c in made)
        for secret in (False, True)
    ]
    return Keys(write_keys("public", parameters, texts[0]), write_keys("secret", parameters, texts[1]))


@final
@dataclass(frozen=True, slots=True, eq=False)
class Encryptor:
    """Encrypts the vectors of one client."""

    parameters: Parameters
    key: bytes
    contexts: tuple[Any, ...] = field(repr=False)

    @classmethod
    def open(cls, public: bytes, parameters: Parameters) -> "Encryptor":
        """Read the public key; refuse it unless it has exactly the parameters that the client expects."""
        return cls(parameters, fingerprint(public), _public_contexts(public, parameters))

    def encrypt(self, turn: int, client: int, values: Whole) -> bytes:
        """Return the client's encrypted vector for the server; the values must already contain their noise."""
        _check_values(values, self.parameters.bound)
        texts = []
        for start in range(0, values.size, PER_CIPHERTEXT):
            chunk = values[start : start + PER_CIPHERTEXT]
            for prime, context in zip(self.parameters.primes, self.contexts, strict=True):
                places = np.zeros(DEGREE, dtype=np.int64)
                places[: chunk.size] = residues(chunk, prime)
                places[-1] = 1
                texts.append(tenseal().bfv_vector(context, places.tolist()).serialize())
        return write_message(
            Message(
                kind="part",
                turn=turn,
                size=values.size,
                senders=(client,),
                key=self.key,
                ciphertexts=tuple(texts),
            )
        )


@final
@dataclass(frozen=True, slots=True, eq=False)
class Adder:
    """Adds the messages of one round at the server; each step returns a new state."""

    parameters: Parameters
    key: bytes
    contexts: tuple[Any, ...] = field(repr=False)
    turn: int
    size: int
    senders: frozenset[int] = frozenset()
    total: tuple[Any, ...] = field(default=(), repr=False)

    @classmethod
    def open(cls, public: bytes, parameters: Parameters, *, turn: int, size: int) -> "Adder":
        """Return a round that has no messages yet."""
        return cls(parameters, fingerprint(public), _public_contexts(public, parameters), turn, size)

    def at(self, turn: int, size: int) -> "Adder":
        """Return another, empty round under the same key."""
        return replace(self, turn=turn, size=size, senders=frozenset(), total=())

    def take(self, message: bytes) -> "Adder":
        """Add one more client; refuse a second message of the same client, and anything that is not of this round."""
        found = _read(self, "part", message)
        client = found.senders[0]
        require(client not in self.senders, "A client", "send once a round", client)
        full = len(self.senders) < self.parameters.clients
        require(full, "The round", f"have at most {self.parameters.clients} clients", len(self.senders) + 1)
        vectors = _ciphertexts(self.parameters, self.contexts, found.ciphertexts)
        try:
            total = tuple(a + b for a, b in zip(self.total, vectors, strict=True)) if self.total else vectors
        except (RuntimeError, ValueError) as error:
            raise BadValue(f"A ciphertext must fit the others of its round: {error}.") from error
        return replace(self, senders=self.senders | {client}, total=total)

    def close(self) -> bytes:
        """Return the encrypted sum, for the key holder."""
        require(self.senders, "The round", "have at least one client", 0)
        return write_message(
            Message(
                kind="sum",
                turn=self.turn,
                size=self.size,
                senders=tuple(sorted(self.senders)),
                key=self.key,
                ciphertexts=tuple(vector.serialize() for vector in self.total),
            )
        )


@final
@dataclass(frozen=True, slots=True, eq=False)
class Decryptor:
    """Opens sums for the key holder: one sum a round, of at least ``least`` clients, in ascending order of rounds."""

    parameters: Parameters
    key: bytes
    contexts: tuple[Any, ...] = field(repr=False)
    least: int
    turn: int = -1  # the last round that was opened

    @classmethod
    def open(cls, keys: Keys, parameters: Parameters, *, least: int) -> "Decryptor":
        """Read the keys; ``least``: sums of fewer clients are refused.

        Choose the number of survivors that the plan promises.
        """
        require(1 <= least <= parameters.clients, "least", f"lie between 1 and {parameters.clients}", least)
        return cls(parameters, fingerprint(keys.public), _contexts(keys.secret, "secret", parameters), least)

    def decrypt(self, message: bytes, *, turn: int, size: int) -> tuple["Decryptor", Summed]:
        """Return the decrypted sum, and the state that will not open this round again."""
        require(turn > self.turn, "A round", f"come after round {self.turn}, which was opened already", turn)
        result = read_message(message, kind="sum", parameters=self.parameters, size=size, turn=turn, key=self.key)
        count, primes = len(result.senders), self.parameters.primes
        require(count >= self.least, "An encrypted sum", f"be of at least {self.least} clients", count)
        vectors = _ciphertexts(self.parameters, self.contexts, result.ciphertexts)
        opened = np.array([vector.decrypt() for vector in vectors], dtype=np.int64)
        counted = bool(np.all(opened[:, -1] == count))
        hint = "It was encrypted under another key, damaged, or is no sum of these clients."
        require(counted, "An encrypted sum", f"hold the {count} clients it names", "something else", hint)
        chunks = opened[:, :-1].reshape(-1, len(primes), PER_CIPHERTEXT)
        rows = np.moveaxis(chunks, 1, 0).reshape(len(primes), -1)[:, :size]
        total = joined(rows, primes)
        inside = max(int(total.max()), -int(total.min())) <= count * self.parameters.bound
        require(inside, "An encrypted sum", f"be within {count} times the bound", "more", hint)
        return replace(self, turn=turn), Summed(wrapped(total), result.senders)


def residues(values: Whole, prime: int) -> Whole:
    """Return the residues modulo the prime that are nearest to zero.

    >>> residues(np.array([-4, 3, 11, -(2**63)]), 7).tolist()
    [3, 3, -3, -1]
    """
    result = np.mod(values, np.int64(prime))
    return np.where(result > prime // 2, result - prime, result)


def joined(rows: Whole, primes: Sequence[int]) -> Any:
    """Return the exact integers of least absolute value with these residues (one row for each prime).

    >>> joined(np.array([[2, -1], [3, 1]]), (5, 7)).tolist()
    [17, -6]
    """
    total, product = rows[0].astype(object), primes[0]
    for row, prime in zip(rows[1:], primes[1:], strict=True):
        total = total + product * ((row.astype(object) - total) * pow(product, -1, prime) % prime)
        product *= prime
    total = total % product
    return np.where(total > product // 2, total - product, total)


def wrapped(total: Any) -> Whole:
    """Return the numbers modulo 2**64, read as signed, as adding int64 numbers gives.

    >>> wrapped(np.array([2**63, -1], dtype=object)).tolist()
    [-9223372036854775808, -1]
    """
    return np.asarray((total % 2**64).astype(np.uint64)).view(np.int64)


def _check_values(values: Whole, bound: int) -> None:
    right = isinstance(values, np.ndarray) and values.dtype == np.int64 and values.ndim == 1 and values.size >= 1
    require(right, "values", "be a vector of int64", getattr(values, "dtype", type(values).__name__))
    most = max(int(values.max()), -int(values.min()))  # in Python integers, so that -(-2**63) does not overflow
    require(most <= bound, "values", f"lie between -{bound} and {bound}", most)


def _read(adder: Adder, kind: Any, message: bytes) -> Message:
    return read_message(
        message, kind=kind, parameters=adder.parameters, size=adder.size, turn=adder.turn, key=adder.key
    )


@lru_cache(maxsize=8)
def _public_contexts(given: bytes, parameters: Parameters) -> tuple[Any, ...]:
    """Return the contexts of a public key, which every round of a run reads; secret keys are not kept."""
    return _contexts(given, "public", parameters)


def _contexts(given: bytes, what: Shared, parameters: Parameters) -> tuple[Any, ...]:
    """Return the contexts in these bytes; refuse unless each has exactly the expected ring, moduli and keys."""
    result = []
    for text, prime in zip(read_keys(given, what, parameters), parameters.primes, strict=True):
        try:
            context = tenseal().context_from(text, n_threads=1)
            name = context.seal_context().data.key_parms_id()
            keyed = context.has_public_key() and context.is_private() == (what == "secret")
        except (RuntimeError, ValueError, TypeError) as error:
            raise BadValue(f"A {what} key must be readable: {error}.") from error
        same = name == seal_name(prime, KEY_PRIMES)
        require(same, f"A {what} key", "have the parameters that were agreed on", "others")
        require(keyed, f"A {what} key", "hold the public key, and the secret one only if it is secret", "others")
        result.append(context)
    return tuple(result)


def _ciphertexts(parameters: Parameters, contexts: Sequence[Any], texts: Sequence[bytes]) -> tuple[Any, ...]:
    """Read ciphertexts; refuse unless they have two polynomials at the first level, all places, and real encryption."""
    names = [seal_name(prime, KEY_PRIMES[:-1]) for prime in parameters.primes]
    result = []
    for index, text in enumerate(texts):
        which = index % len(contexts)
        try:
            vector = tenseal().bfv_vector_from(contexts[which], text)
            inside = vector.ciphertext()
            shape = (vector.size(), len(inside), inside[0].size())
            right = shape == (DEGREE, 1, 2) and inside[0].parms_id() == names[which] and not inside[0].is_transparent()
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise BadValue(f"A ciphertext must be one of this run's: {error}.") from error
        require(right, "A ciphertext", "be one of this run's", shape)
        result.append(vector)
    return tuple(result)
