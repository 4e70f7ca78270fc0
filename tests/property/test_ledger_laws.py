"""Laws of the books: any order of events keeps the chain, sums are exact, an export cannot be bent."""

import json
import math
import tempfile
from fractions import Fraction
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.core.errors import FedveilError
from fedveil.ledger.books import Ledger
from fedveil.ledger.budget import Cap, CapExceeded, Cost, check_caps, total
from fedveil.ledger.entry import canonical, parse, parse_export

epsilons = st.floats(0, 1e6, allow_subnormal=True)
deltas = st.floats(0, 1)


def cost(epsilon: float, delta: float) -> Cost:
    return Cost(adversary="final-model", unit="record", neighbours="replace-one", epsilon=epsilon, delta=delta)


@given(st.lists(st.tuples(epsilons, deltas), max_size=30))
def test_sums_are_exact_and_rounded_up(pairs: list[tuple[float, float]]) -> None:
    runs = [[cost(*pair)] for pair in pairs]
    found = total(runs, "final-model", "record", "replace-one")
    exact = sum((Fraction(repr(e)) for e, _ in pairs), Fraction(0))
    assert Fraction(repr(found.epsilon)) >= exact
    below = math.nextafter(found.epsilon, -math.inf)
    assert found.epsilon == 0 or Fraction(repr(below)) < exact
    assert Fraction(repr(found.delta)) >= min(1, sum((Fraction(repr(d)) for _, d in pairs), Fraction(0)))


@given(st.lists(epsilons, max_size=20), epsilons, epsilons)
def test_a_cap_holds_exactly_when_the_sum_is_within(spent: list[float], asked: float, most: float) -> None:
    cap = Cap(adversary="final-model", unit="record", neighbours="replace-one", epsilon=most, delta=1.0)
    fits = sum((Fraction(repr(e)) for e in [*spent, asked]), Fraction(0)) <= Fraction(repr(most))
    try:
        check_caps([cap], [[cost(e, 0.0)] for e in spent], [cost(asked, 0.0)])
        held = True
    except CapExceeded:
        held = False
    assert held == fits


@settings(max_examples=50)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_canonical_text_reads_back_to_itself(value: object) -> None:
    text = canonical(value)
    assert canonical(parse(text)) == text


events = st.tuples(
    st.sampled_from(["charge", "progress", "release", "failed"]), st.sampled_from("abc"), st.integers(0, 5)
)


def happen(ledger: Ledger, kind: str, run: str, number: int) -> None:
    match kind:
        case "charge":
            ledger.charge(run, f"plan{number // 3}", [cost(0.3, 0.0)], rounds=4)
        case "progress":
            ledger.progress(run, number)
        case "release":
            ledger.release(run, sha256(bytes([number])).hexdigest())
        case _:
            ledger.failed(run, "stopped")


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(events, max_size=25))
def test_whatever_is_tried_the_books_tell_one_story(tried: list[tuple[str, str, int]]) -> None:
    cap = Cap(adversary="final-model", unit="record", neighbours="replace-one", epsilon=0.7, delta=0.0)
    with tempfile.TemporaryDirectory() as folder, Ledger.open(Path(folder) / "books", bytes.hex) as ledger:
        ledger.set_cap(cap, "two runs and no more")
        for event in tried:
            try:
                happen(ledger, *event)
            except FedveilError:
                continue
        entries = ledger.entries()
        charged = {entry.run for entry in entries if entry.kind == "charge"}
        released = [entry.run for entry in entries if entry.kind == "release"]
        assert len(charged) <= 2
        assert len(released) == len(set(released))
        assert set(released) <= charged
        assert ledger.spent("final-model").epsilon == [0.0, 0.3, 0.6][len(charged)]
        for run in charged:
            export = parse_export(ledger.export(run))
            assert list(export.entries) == [entry for entry in entries if entry.run == run]
            assert ledger.remembers(export)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    with Ledger.open(tmp_path_factory.mktemp("books") / "books", bytes.hex) as ledger:
        for run in ("a", "b"):
            ledger.charge(run, "plan", [cost(0.25, 1e-6)], rounds=9, mechanism="as planned")
            ledger.progress(run, 3)
        ledger.release("b", sha256(b"model").hexdigest(), at="2026-01-31T12:00:00Z")
        return ledger.export("b")


def test_no_byte_of_an_export_can_be_changed(exported: bytes) -> None:
    parse_export(exported)
    for place, byte in enumerate(exported):
        for other in {byte ^ 1, byte ^ 0x20, 0x30} - {byte}:
            if exported[place : place + 1] == b"\n" and place == len(exported) - 1:
                continue  # the last line end carries nothing
            bent = exported[:place] + bytes([other]) + exported[place + 1 :]
            with pytest.raises(FedveilError):
                parse_export(bent)


def test_no_export_can_be_cut(exported: bytes) -> None:
    for length in range(len(exported) - 1):
        with pytest.raises(FedveilError):
            parse_export(exported[:length])


def test_lines_cannot_be_dropped_doubled_or_exchanged(exported: bytes) -> None:
    lines = exported.splitlines(keepends=True)
    for i in range(len(lines)):
        for changed in ([*lines[:i], *lines[i + 1 :]], [*lines[: i + 1], *lines[i:]]):
            with pytest.raises(FedveilError):
                parse_export(b"".join(changed))
        for j in range(i):
            swapped = list(lines)
            swapped[i], swapped[j] = lines[j], lines[i]
            with pytest.raises(FedveilError):
                parse_export(b"".join(swapped))


@settings(max_examples=150, derandomize=True)
@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.integers(0, 2) | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["format", "run", "entries", "head"]), inner)
        ),
        max_leaves=5,
    ).map(lambda value: json.dumps(value).encode())
)
def test_garbage_is_refused_in_words(garbage: bytes) -> None:
    with pytest.raises(FedveilError):
        parse_export(garbage)
