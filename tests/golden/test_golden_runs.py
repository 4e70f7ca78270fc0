"""Certified numbers stay as they were, and the same key trains to the same bits.

What is frozen and how: golden_runs.py and provenance.json. A number moves only in a commit that says why. Where
floating point differs from the machine that froze them, certified numbers agree to a millionth, and released bits are
not compared.
"""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from golden_runs import HERE, MECHANISMS, NAMES, NUMBERS, RUNS, again, answer, arithmetic

from fedveil.planning.study import read_study

PROVENANCE = json.loads((HERE / "provenance.json").read_text(encoding="utf-8"))
FROZEN = json.loads(NUMBERS.read_text(encoding="utf-8"))
ANSWERS = json.loads((MECHANISMS / "answers.json").read_text(encoding="utf-8"))
SAME_ARITHMETIC = arithmetic() == PROVENANCE["arithmetic"]


def test_the_frozen_numbers_say_where_they_come_from() -> None:
    assert {"tool", "version", "command", "date", "arithmetic"} <= set(PROVENANCE)
    assert set(FROZEN) == set(NAMES)


def test_every_algorithm_and_every_way_to_add_up_is_there() -> None:
    studies = [read_study(path) for path in RUNS.glob("*.toml")]
    found = {(study.algorithm.kind, study.trust.server if study.trust.shared else "none") for study in studies}
    servers = ("none", "trusted", "secure-aggregation")
    assert found >= {(kind, server) for kind in ("hidden", "dpsgd", "fedavg") for server in servers}
    assert found >= {("simfl", "none"), ("hidden", "homomorphic"), ("fedavg", "homomorphic")}


@pytest.mark.parametrize("name", NAMES)
def test_numbers_and_bits_are_as_they_were(name: str, tmp_path: Path) -> None:
    if "encrypted" in name and find_spec("tenseal") is None:
        pytest.skip("needs the extra fedveil[he]")
    if name == "shared-second":  # its ledger holds the first run already
        again("shared-first", tmp_path)
    made, frozen = again(name, tmp_path), FROZEN[name]
    assert _agree(made["promised"], frozen["promised"])
    if not SAME_ARITHMETIC:
        return
    assert made == {**made, **{key: value for key, value in frozen.items() if key != "measured"}}
    assert _kept(frozen.get("measured"), made.get("measured")) == frozen.get("measured")


def _kept(then: object, now: object) -> object:
    """Of what is measured now, what was measured then; more may be told, and what was told keeps its value."""
    if isinstance(then, dict) and isinstance(now, dict):
        return {key: _kept(value, now[key]) for key, value in then.items() if key in now}
    return now


def _agree(made: dict[str, list[str]], frozen: dict[str, list[str]]) -> bool:
    """Whether every number has its frozen neighbour's words and, on this machine's arithmetic, its value."""
    if SAME_ARITHMETIC:
        return made == frozen
    words = {name: said for name, (_, said) in made.items()} == {name: said for name, (_, said) in frozen.items()}
    return words and all(_close(made[name][0], number) for name, (number, _) in frozen.items())


def _close(made: str, frozen: str) -> bool:
    return made == frozen or ("None" not in (made, frozen) and float(made) == pytest.approx(float(frozen), rel=1e-6))


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_a_mechanism_file_has_the_same_answer(name: str) -> None:
    found, frozen = (
        {"best": [said["epsilon"], said["certified_by"]], **said["bounds"]}
        for said in (answer(MECHANISMS / f"{name}.toml"), ANSWERS[name])
    )
    assert _agree(found, frozen)


def test_every_mechanism_file_has_an_answer() -> None:
    assert {path.stem for path in MECHANISMS.glob("*.toml")} == set(ANSWERS)
