"""Homomorphic sums against plain ones, bit for bit; SEAL's noise against the bound that the parameters rest on."""

import hashlib
import math
from dataclasses import replace

import numpy as np
import pytest

from fedveil.core.errors import BadValue
from fedveil.sums.homomorphic.library import has_tenseal, tenseal
from fedveil.sums.homomorphic.messages import (
    CIPHERTEXT_MOST,
    DEGREE,
    FRESH_NOISE,
    KEY_PRIMES,
    MODULUS,
    PER_CIPHERTEXT,
    Message,
    Parameters,
    fingerprint,
    most_bytes,
    parameters_for,
    read_message,
    seal_name,
    write_message,
)
from fedveil.sums.homomorphic.roles import Adder, Decryptor, Encryptor, Keys, make_keys
from fedveil.sums.homomorphic.rounds import HomomorphicSumming
from fedveil.sums.seam import Whole

pytestmark = pytest.mark.skipif(not has_tenseal(), reason="TenSEAL is not installed (fedveil[he])")
EDGE = 2**63
PARAMETERS = parameters_for(4)


@pytest.fixture(scope="module")
def keys() -> Keys:
    return make_keys(PARAMETERS)


@pytest.fixture(scope="module")
def encryptor(keys: Keys) -> Encryptor:
    return Encryptor.open(keys.public, PARAMETERS)


@pytest.fixture(scope="module")
def message(encryptor: Encryptor) -> bytes:
    return encryptor.encrypt(3, 1, vector(9))


def vector(seed: int, size: int = 20) -> Whole:
    return np.random.default_rng(seed).integers(-EDGE, EDGE - 1, size, endpoint=True)


def adder(keys: Keys, turn: int = 3, size: int = 20) -> Adder:
    return Adder.open(keys.public, PARAMETERS, turn=turn, size=size)


def plain(parts: dict[int, Whole]) -> Whole:
    return np.add.reduce(list(parts.values()))  # wraps modulo 2**64, as int64 does


@pytest.mark.parametrize("size", [1, PER_CIPHERTEXT, PER_CIPHERTEXT + 1])
@pytest.mark.parametrize("clients", [1, 5])
def test_the_sum_is_the_plain_one(clients: int, size: int) -> None:
    parts = {7 * client: vector(client, size) for client in range(clients)}
    found = HomomorphicSumming(clients)(0, parts)
    assert found.survivors == tuple(parts)
    assert np.array_equal(found.total, plain(parts))


def test_extreme_values() -> None:
    edges = np.array([-EDGE, -EDGE + 1, -1, 0, 1, EDGE - 1], dtype=np.int64)
    summing = HomomorphicSumming(4)
    for turn, parts in enumerate([dict.fromkeys(range(4), edges), {c: np.roll(edges, c) for c in range(4)}]):
        assert np.array_equal(summing(turn, parts).total, plain(parts))


def test_one_prime_suffices_for_small_values() -> None:
    summing = HomomorphicSumming(10, bound=1000)
    assert len(summing.parameters.primes) == 1
    parts = {c: np.array([1000, -1000, c], dtype=np.int64) for c in range(10)}
    assert summing(5, parts).total.tolist() == [10_000, -10_000, 45]


def test_whom_a_message_of_the_wrong_kind_leaves_out() -> None:
    summing = HomomorphicSumming(4, least=2, bound=100)
    parts = {0: np.array([1, 2]), 1: np.array([3, 200]), 2: np.array([1, 2, 3]), 3: np.array([5, 6])}
    found = summing(0, parts)
    assert (found.survivors, found.total.tolist()) == ((0, 3), [6, 8])
    with pytest.raises(BadValue, match="have at least 2 clients"):
        summing(1, {0: np.array([1, 2]), 1: np.array([1.0, 2.0])})  # type: ignore[dict-item]
    with pytest.raises(BadValue, match="have 2 to 4 clients"):
        summing(1, {0: np.array([1, 2])})
    with pytest.raises(BadValue, match="come after round 0"):
        summing(0, parts)


@pytest.mark.parametrize("part", [0, 1])
def test_noise_of_a_fresh_ciphertext_is_below_its_bound(part: int) -> None:
    """SEAL tells how many bits of room are left; the worst of many must stay above what the parameters count on."""
    seal = pytest.importorskip("tenseal.sealapi")
    prime = parameters_for(1).primes[part]
    made = seal.EncryptionParameters(seal.SCHEME_TYPE.BFV)
    made.set_poly_modulus_degree(DEGREE)
    standard = seal.CoeffModulus.BFVDefault(DEGREE, seal.SEC_LEVEL_TYPE.TC128)
    assert tuple(modulus.value() for modulus in standard) == KEY_PRIMES
    made.set_coeff_modulus(standard)
    made.set_plain_modulus(prime)
    context = seal.SEALContext(made, True, seal.SEC_LEVEL_TYPE.TC128)
    generator = seal.KeyGenerator(context)
    public = seal.PublicKey()
    generator.create_public_key(public)
    encryptor, decryptor = seal.Encryptor(context, public), seal.Decryptor(context, generator.secret_key())
    promised = math.log2(MODULUS / (2 * prime * FRESH_NOISE))
    worst = math.inf
    for _ in range(50):
        plaintext, ciphertext = seal.Plaintext(), seal.Ciphertext(context)
        seal.BatchEncoder(context).encode([prime // 2] * DEGREE, plaintext)
        encryptor.encrypt(plaintext, ciphertext)
        worst = min(worst, decryptor.invariant_noise_budget(ciphertext))
    assert worst >= promised


def test_the_name_of_parameters_is_seals() -> None:
    prime = PARAMETERS.primes[0]
    library = tenseal()
    made = library.context(library.SCHEME_TYPE.BFV, poly_modulus_degree=DEGREE, plain_modulus=prime)
    data = made.seal_context().data
    assert data.parameters_set()
    assert data.key_parms_id() == seal_name(prime, KEY_PRIMES)
    assert data.first_parms_id() == seal_name(prime, KEY_PRIMES[:-1])


def test_as_many_clients_as_the_parameters_promise() -> None:
    """The noise of one ciphertext added over and over, so it grows as fast as the bound says, not as its root."""
    parameters = parameters_for(1024)
    own = make_keys(parameters)
    encryptor = Encryptor.open(own.public, parameters)
    server = Adder.open(own.public, parameters, turn=0, size=2)
    values = np.array([-EDGE, EDGE - 1], dtype=np.int64)
    doubled = server.take(encryptor.encrypt(0, 0, values)).total
    for _ in range(10):
        doubled = tuple(a + a for a in doubled)  # 1024 times the same message, noise and all
    texts = tuple(vector.serialize() for vector in doubled)
    key, who = fingerprint(own.public), tuple(range(1024))
    sent = Message(kind="sum", turn=0, size=2, senders=who, key=key, ciphertexts=texts)
    _, found = Decryptor.open(own, parameters, least=1024).decrypt(write_message(sent), turn=0, size=2)
    assert found.total.tolist() == [0, -1024]  # 1024 * 2**63 is 0 modulo 2**64


class TestRefusals:
    def test_a_ciphertext_under_another_key(self, keys: Keys) -> None:
        other = Encryptor.open(make_keys(PARAMETERS).public, PARAMETERS)
        with pytest.raises(BadValue, match="encrypted under this run's key"):
            adder(keys).take(other.encrypt(3, 0, vector(0)))

    def test_another_key_in_disguise_is_seen_by_the_key_holder(self, keys: Keys) -> None:
        others = make_keys(PARAMETERS)
        foreign = read_back(others, Encryptor.open(others.public, PARAMETERS).encrypt(3, 2, vector(0)))
        disguised = replace(foreign, key=fingerprint(keys.public))
        total = adder(keys).take(write_message(disguised)).close()
        with pytest.raises(BadValue, match="hold the 1 clients it names"):
            Decryptor.open(keys, PARAMETERS, least=1).decrypt(total, turn=3, size=20)

    def test_a_sum_that_holds_fewer_than_it_names(self, keys: Keys, message: bytes) -> None:
        texts = read_back(keys, adder(keys).take(message).close(), kind="sum").ciphertexts
        key = read_back(keys, message).key
        claimed = Message(kind="sum", turn=3, size=20, senders=(0, 1, 2), key=key, ciphertexts=texts)
        with pytest.raises(BadValue, match="hold the 3 clients it names"):
            Decryptor.open(keys, PARAMETERS, least=3).decrypt(write_message(claimed), turn=3, size=20)
        with pytest.raises(BadValue, match="at least 2 clients"):
            Decryptor.open(keys, PARAMETERS, least=2).decrypt(adder(keys).take(message).close(), turn=3, size=20)

    def test_a_round_is_opened_once(self, keys: Keys, message: bytes) -> None:
        total = adder(keys).take(message).close()
        later, found = Decryptor.open(keys, PARAMETERS, least=1).decrypt(total, turn=3, size=20)
        assert np.array_equal(found.total, vector(9))
        with pytest.raises(BadValue, match="opened already"):
            later.decrypt(total, turn=3, size=20)

    def test_other_parameters(self, keys: Keys) -> None:
        with pytest.raises(BadValue, match="be for clients and bound"):
            Encryptor.open(keys.public, parameters_for(5))
        swapped = Parameters(clients=4, bound=EDGE, primes=PARAMETERS.primes[::-1])
        with pytest.raises(BadValue, match="have the parameters that were agreed on"):
            Encryptor.open(keys.public, swapped)

    def test_the_secret_key_is_not_taken_for_the_public_one(self, keys: Keys) -> None:
        with pytest.raises(BadValue, match="A public key must"):
            Encryptor.open(keys.secret, PARAMETERS)
        relabelled = keys.public[:5] + keys.secret[5:6] + keys.public[6:]
        with pytest.raises(BadValue, match="the secret one only if it is secret"):
            Decryptor.open(Keys(keys.public, relabelled), PARAMETERS, least=1)
        leaked = keys.secret[:5] + keys.public[5:6] + keys.secret[6:]
        with pytest.raises(BadValue, match="A public key must"):
            Encryptor.open(leaked, PARAMETERS)
        assert "secret" not in repr(keys)

    @pytest.mark.parametrize("cut", [0, 10, 53, 57, 60, 1000, -1, -40_000])
    def test_truncated_messages(self, keys: Keys, message: bytes, cut: int) -> None:
        with pytest.raises(BadValue, match=r"message must"):
            adder(keys).take(message[:cut])

    def test_longer_than_any_message(self, keys: Keys, message: bytes) -> None:
        with pytest.raises(BadValue, match="at most"):
            adder(keys).take(message + bytes(most_bytes(PARAMETERS, 20, 4)))
        with pytest.raises(BadValue, match="arrive whole and unchanged"):
            adder(keys).take(message + b"x")
        longer = message[:-32] + b"x"
        with pytest.raises(BadValue, match="end with its last piece"):
            adder(keys).take(longer + hashlib.sha256(longer).digest())

    def test_wrong_round_length_kind_and_sender(self, keys: Keys, encryptor: Encryptor, message: bytes) -> None:
        with pytest.raises(BadValue, match="be of round 4"):
            adder(keys, turn=4).take(message)
        with pytest.raises(BadValue, match="hold 21 values"):
            adder(keys, size=21).take(message)
        with pytest.raises(BadValue, match="be a part"):
            adder(keys).take(adder(keys).take(message).close())
        with pytest.raises(BadValue, match="send once a round"):
            adder(keys).take(message).take(message)
        with pytest.raises(BadValue, match="be bytes"):
            adder(keys).take("no bytes")  # type: ignore[arg-type]
        with pytest.raises(BadValue, match="at least one client"):
            adder(keys).close()
        crowd = adder(keys)
        for client in range(4):
            crowd = crowd.take(encryptor.encrypt(3, client, vector(client)))
        with pytest.raises(BadValue, match="at most 4 clients"):
            crowd.take(encryptor.encrypt(3, 4, vector(4)))

    def test_damaged_ciphertexts_are_refused_or_seen(self, keys: Keys, message: bytes) -> None:
        """Whatever 60 damages do, none ends in a wrong sum: each is refused, or opens to the right one."""
        rng, refused = np.random.default_rng(5), 0
        for _ in range(60):
            damaged = bytearray(message)
            start = int(rng.integers(58, len(damaged) - 40))
            damaged[start : start + 8] = rng.bytes(8)
            with pytest.raises(BadValue, match="arrive whole and unchanged"):
                adder(keys).take(bytes(damaged))  # the server sees it at once
            damaged[-32:] = hashlib.sha256(damaged[:-32]).digest()  # unless it was done on purpose
            try:
                total = adder(keys).take(bytes(damaged)).close()
                _, found = Decryptor.open(keys, PARAMETERS, least=1).decrypt(total, turn=3, size=20)
            except BadValue:
                refused += 1
            else:
                assert np.array_equal(found.total, vector(9))
        assert refused >= 50

    @pytest.mark.parametrize("values", [np.zeros(0, np.int64), np.zeros((2, 2), np.int64), np.zeros(3), [1, 2]])
    def test_values_of_another_kind(self, encryptor: Encryptor, values: Whole) -> None:
        with pytest.raises(BadValue, match="be a vector of int64"):
            encryptor.encrypt(0, 0, values)


def read_back(keys: Keys, given: bytes, kind: str = "part") -> Message:
    return read_message(  # type: ignore[arg-type]
        given, kind=kind, parameters=PARAMETERS, size=20, turn=3, key=fingerprint(keys.public)
    )


def test_ciphertexts_of_equal_values_differ(encryptor: Encryptor) -> None:
    values = vector(1)
    one, two = encryptor.encrypt(0, 0, values), encryptor.encrypt(0, 0, values)
    assert one != two
    assert len(one) < most_bytes(PARAMETERS, 20, 1) < 2 * CIPHERTEXT_MOST + 200
