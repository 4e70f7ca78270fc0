"""Other people's trainings: four known faults are each caught in a real small training, right ones are not accused.

False alarms: 1e-6 for each check that is a test (draws, noise); the others are no matter of chance.
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedveil.accounting.compare import account_for
from fedveil.audit.claim import Claim
from fedveil.audit.finding import Finding
from fedveil.audit.training_log import Statement, check_log, judge_draws, read_log
from fedveil.core.errors import BadValue
from fedveil.jobs.attack.command import Trainer, audit_command, parse_claim, read_rows
from fedveil.privacy.guarantee import Neighbours

SMALL = Path(__file__).with_name("small_trainer.py")
DELTA = 1e-5


def records(path: Path, count: int = 200, columns: int = 4, missing: bool = False) -> Path:
    generator = np.random.default_rng(0)
    X = generator.normal(0, 3, (count, columns))
    lines = [",".join([*(f"x{k}" for k in range(columns)), "y"])]
    lines += [",".join([*(f"{v:.4f}" for v in row), str(int(row[0] > 0))]) for row in X]
    if missing:
        lines[5] = "nan" + lines[5][lines[5].index(",") :]
    path.write_text("\n".join(lines) + "\n")
    return path


def training(folder: Path, *options: str, missing: bool = False) -> str:
    data = records(folder / "data.csv", missing=missing)
    log = folder / "log.jsonl"
    words = [sys.executable, str(SMALL), str(data), str(folder / "out"), "--log", str(log), "--seed", "3", *options]
    subprocess.run(words, check=True)
    return log.read_text()


def claimed(log: str, neighbours: Neighbours) -> Claim:
    """What the accountant says of the statement, for these neighbours."""
    statement, _ = read_log(log, neighbours)
    return Claim(((account_for(statement.mechanism, delta=DELTA).epsilon, DELTA),))


def broken(log: str, claim: Claim, neighbours: Neighbours | None = None) -> list[str]:
    found: tuple[Finding, ...] = check_log(*read_log(log, neighbours), claim, delta=DELTA)
    return [one.attack for one in found if one.verdict == "broken"]


@pytest.mark.parametrize("neighbours", ["zero-out", "replace-one"])
@pytest.mark.parametrize("missing", [False, True])
def test_right_trainings_are_not_accused(tmp_path: Path, neighbours: Neighbours, missing: bool) -> None:
    log = training(tmp_path, missing=missing)
    assert broken(log, claimed(log, neighbours), neighbours) == []


@pytest.mark.parametrize(
    ("fault", "check"),
    [("shuffled", "draws of the sampler"), ("realised", "averaging"), ("nan", "clipping"), ("silent", "noise")],
)
def test_a_fault_of_the_training_is_caught(tmp_path: Path, fault: str, check: str) -> None:
    log = training(tmp_path, "--fault", fault, missing=True)
    assert broken(log, claimed(log, "zero-out")) == [check]


def _changed(log: str, **fault: object) -> str:
    """The log of a right training, with other rounds."""
    head, *rounds = log.splitlines()
    rows = [json.loads(line) for line in rounds]
    match fault:
        case {"again": True}:
            rows[7]["noise"] = rows[2]["noise"]
        case {"twice": True}:
            row = next(one for one in rows if one["batch"])
            row["batch"].append(row["batch"][0])
            row["norms"].append(row["norms"][0])
        case {"longer": True}:
            head = json.dumps(json.loads(head) | {"rounds": len(rows) - 1})
        case {"sampler": name}:
            head = json.dumps(json.loads(head) | {"sampler": name})
    return "\n".join([head, *(json.dumps(row) for row in rows)])


def test_rounds_that_are_not_accounted_for_are_caught(tmp_path: Path) -> None:
    """More rounds than stated, noise that is used again, a record twice in a batch, or in more batches than passes."""
    log = training(tmp_path)
    for fault, check in (("longer", "rounds"), ("again", "noise"), ("twice", "draws of the sampler")):
        assert broken(_changed(log, **{fault: True}), claimed(log, "zero-out")) == [check]
    once = _changed(log, sampler="shuffled")
    assert broken(once, claimed(once, "zero-out")) == ["draws of the sampler"]
    right = _changed(training(tmp_path, "--fault", "shuffled"), sampler="shuffled")
    assert broken(right, claimed(right, "zero-out")) == []


def test_batches_of_one_size_are_seen_whatever_their_size() -> None:
    """21 of 215 in each round, where coins of 0.1 were meant: the planned size would have been rounded to 22."""
    generator = np.random.default_rng(0)
    joined = generator.random((60, 1, 215)).argsort(axis=2) < 21
    assert judge_draws(joined, order="poisson", rate=0.1).verdict == "broken"
    coins = generator.random((60, 1, 215)) < 0.1
    assert judge_draws(coins, order="poisson", rate=0.1).verdict == "consistent"


def test_a_log_is_held_to_the_neighbours_that_it_states(tmp_path: Path) -> None:
    log = training(tmp_path)
    (tmp_path / "log.jsonl").write_text(log)
    told = f"epsilon={claimed(log, 'zero-out').epsilon_at(DELTA)},delta={DELTA}"
    words = ["-m", "fedveil", "audit", "--log", str(tmp_path / "log.jsonl"), "--claim", told, "--quiet"]
    for more, code in (([], 0), (["--neighbours", "replace-one"], 1)):
        assert subprocess.run([sys.executable, *words, *more], check=False).returncode == code


def test_replaced_records_with_the_reach_of_added_ones_are_caught(tmp_path: Path) -> None:
    log = training(tmp_path)
    assert broken(log, claimed(log, "zero-out"), "replace-one") == ["accounting"]


def test_a_shuffled_loader_is_accounted_as_one_batch_a_pass() -> None:
    stated = {"records": 100, "rate": 0.1, "clip": 1.0, "noise_multiplier": 1.0, "rounds": 50, "neighbours": "zero-out"}
    shuffled, sampled = (Statement(sampler=name, **stated) for name in ("shuffled", "poisson"))  # type: ignore[arg-type]
    five = account_for(shuffled.mechanism, delta=DELTA).epsilon
    assert five > 2 * account_for(sampled.mechanism, delta=DELTA).epsilon


@pytest.mark.parametrize("bad", ["", "{}", '{"sampler": "poisson"}\n{"batch": []}', '{"sampler": "dice"}\n{}'])
def test_a_log_that_is_none_is_refused(bad: str) -> None:
    with pytest.raises(BadValue, match="log"):
        read_log(bad)


def audited(folder: Path, command: str, claim: str, trainings: int = 1, **more: object) -> Finding:
    promise, delta = parse_claim(claim)
    trainer = Trainer(
        command=command, data=records(folder / "mine.csv", columns=120), target="y", neighbours="replace-one"
    )
    return audit_command(
        trainer, promise, delta=delta, canaries=100, trainings=trainings, alarm=0.05,
        generator=np.random.default_rng(1), **more,  # type: ignore[arg-type]
    )  # fmt: skip


def test_a_trainer_with_noise_keeps_its_claim_and_one_without_is_found_out(tmp_path: Path) -> None:
    """One training each, 100 canaries; the second adds no noise, and claims 0.5."""
    command = f"{sys.executable} {SMALL} {{data}} {{out}} --seed 1 --noise 2"
    sound = audited(tmp_path, command, "epsilon=3,delta=1e-5")
    assert sound.verdict == "consistent"
    bare = audited(tmp_path, f"{command} --fault silent --clip 100 --rounds 300 --rate 1", "epsilon=0.5,delta=1e-5")
    assert bare.verdict == "broken", bare.evidence
    assert bare.measured > 1


def test_many_trainings_play_the_game(tmp_path: Path) -> None:
    said: list[str] = []
    command = f"{sys.executable} {SMALL} {{data}} {{out}} --fault silent --rounds 5 --rate 1 --clip 100"
    found = audited(tmp_path, command, "epsilon=0.1,delta=0.01", trainings=40, processes=2, watch=said.append)
    assert (found.attack, found.verdict) == ("distinguishing-game", "broken")
    assert found.details["runs"] <= 40
    assert said[0].startswith("1 of at most 80 trainings, at most ")
    with pytest.raises(BadValue, match="--trainings must be at least"):
        audited(tmp_path, command, "epsilon=6,delta=0.01", trainings=40)


def test_commands_that_do_not_keep_the_contract_are_refused(tmp_path: Path) -> None:
    for command, words in {
        "true {data} {out}": "must write",
        "false {data} {out}": "exit with 0",
        "no-such-program {data} {out}": "must run",
    }.items():
        with pytest.raises(BadValue, match=words):
            audited(tmp_path, command, "epsilon=1,delta=1e-5")
    with pytest.raises(BadValue, match=r"name \{out\}"):
        audited(tmp_path, "true {data}", "epsilon=1,delta=1e-5")
    for claim in ("epsilon", "epsilon=1", "epsilon=x,delta=1e-5", "epsilon=1,delta=2"):
        with pytest.raises(BadValue, match="--claim must"):
            parse_claim(claim)
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(BadValue, match="--data must"):
        read_rows(tmp_path / "empty.csv")
