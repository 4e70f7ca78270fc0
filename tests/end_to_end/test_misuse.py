"""What people type by mistake: one sentence and exit code 2; in Python a clear refusal, never a crash deep inside."""

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedveil import (
    BadValue,
    Compose,
    FedveilError,
    Gaussian,
    LastIterate,
    Repeat,
    SampledGaussian,
    account_for,
    calibrate,
    cli,
    parse_mechanism,
    place_curve,
    shuffled,
)
from fedveil.cli.show import digits, rounded_up

HEAD = '[mechanism]\nkind = "last-iterate"\n'
BODY: dict[str, str] = {"rounds": "4", "step_size": "0.5", "lipschitz": "1.0", "smoothness": "0.5", "noise_std": "2.0"}
PLAIN: dict[str, Any] = {"rounds": 4, "step_size": 0.5, "lipschitz": 1.0, "smoothness": 0.5, "noise_std": 2.0}


def file_with(**changes: str) -> str:
    return HEAD + "\n".join(f"{key} = {value}" for key, value in (BODY | changes).items())


BAD_FILES = {
    "empty": "",
    "not TOML": "rounds 4",
    "no table": "mechanism = 3",
    "list of tables": "[[mechanism]]\nkind = 'gaussian'",
    "kind is a list": "[mechanism]\nkind = ['gaussian']",
    "date": file_with(step_size="2020-01-01"),
    "list of lists": file_with(step_size="[[0.5], [0.5]]"),
    "boolean": file_with(rounds="true"),
    "string": file_with(lipschitz="'1'"),
    "400 digits": file_with(rounds="9" * 400),
    "5000 digits": file_with(rounds="9" * 5000),
    "5000 hex digits": file_with(rounds="0x" + "f" * 5000),
    "infinite": file_with(rounds="inf"),
    "nan": file_with(noise_std="nan"),
    "convex is a word": file_with(convex="'false'"),
    "convex is a number": file_with(convex="0"),
    "list of words": file_with(order="['secret']"),
    "half a record": file_with(batch="1.5"),
    "list for one number": file_with(smoothness="[0.5]"),
    "unknown key": file_with(smothness="1"),
    "deep brackets": "a = " + "[" * 20000,
    "deep parts": '[mechanism]\nkind = "compose"\nparts = '
    + '[{kind = "compose", parts = ' * 40
    + '[{kind = "gaussian", noise_multiplier = 1.0}]'
    + "}]" * 40,
    "tiny rate": '[mechanism]\nkind = "dp-sgd"\nsampling = "shuffled"\nrate = 1e-310\n'
    "noise_multiplier = 1.0\nrounds = 5",
}


def run_cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["fedveil", *words])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    out, err = capsys.readouterr()
    return int(stopped.value.code or 0), out, err


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_one_sentence_and_exit_code_2(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mechanism.toml"
    path.write_text(BAD_FILES[name])
    code, out, err = run_cli(monkeypatch, capsys, "account", str(path), "--delta", "1e-5")
    assert (code, out) == (2, "")
    assert err.startswith("fedveil: ")
    assert err.count("\n") == 1
    assert "internal error" not in err


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", None])
def test_what_is_no_text_file_is_refused(
    content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path if content is None else tmp_path / "mechanism.toml"
    if content is not None:
        path.write_bytes(content)
    code, _, err = run_cli(monkeypatch, capsys, "account", str(path), "--delta", "1e-5")
    assert code == 2
    assert "must be a readable text file" in err


BAD_CONVERSIONS = [
    "--dp 1 1e-5 --epsilon nan",
    "--dp 2 1e-5 --epsilon -1",
    "--dp 1 1e-5 --delta 7",
    "--gdp 1 --epsilon -1",
    "--rdp 2 nan --delta 1e-5",
]


@pytest.mark.parametrize("words", BAD_CONVERSIONS)
def test_senseless_conversions_are_refused(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(monkeypatch, capsys, "convert", *words.split())[0] == 2


def test_infinity_is_null_in_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_cli(monkeypatch, capsys, "convert", "--rdp", "2", "inf", "--delta", "1e-5", "--json")
    assert code == 0
    assert json.loads(out) == {"epsilon": None, "delta": 1e-5, "closed": None, "mironov": None}


def test_a_promise_that_ran_out_is_delta_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run_cli(monkeypatch, capsys, "convert", "--dp", "1", "0.5", "--times", "4", "--json")
    assert code == 0
    assert json.loads(out) == {"epsilon": 4.0, "delta": 1.0}


@pytest.mark.parametrize(
    "value", [0.1, 1 / 3, 2 / 3, 1.00000000001, 0.30000000000000004, 4.3771780959, 1e-9, 123456.75]
)
def test_printed_numbers_are_never_below_the_value(value: float) -> None:
    exact = Decimal(repr(value))
    assert exact <= Decimal(rounded_up(value)) <= exact + Decimal("0.0001")
    assert exact <= Decimal(digits(value, 4)) <= exact * Decimal("1.001")
    assert Decimal(digits(value, 4, "ROUND_FLOOR")) <= exact


@pytest.mark.parametrize("shown", ["epsilon", "delta"])
def test_conversions_print_upwards(
    shown: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["--delta", "1e-5"] if shown == "epsilon" else ["--epsilon", "1.5"]
    for mu in ("0.3", "0.7", "1.1", "1.9"):
        _, text, _ = run_cli(monkeypatch, capsys, "convert", "--gdp", mu, *asked)
        _, out, _ = run_cli(monkeypatch, capsys, "convert", "--gdp", mu, *asked, "--json")
        words = text.split()
        assert float(words[words.index(shown) + 1]) >= json.loads(out)[shown]


ODD_BUT_FINE: list[dict[str, Any]] = [
    {"step_size": [0.5] * 4},
    {"step_size": np.full(4, 0.5), "noise_std": np.full(4, 2)},
    {"batch": [1, 1, 1, 1]},
    {"rounds": np.int64(4), "step_size": np.float32(0.5), "lipschitz": 1, "noise_std": 2},
    {"rounds": 4.0, "convex": np.True_},
]


@pytest.mark.parametrize("changes", ODD_BUT_FINE)
def test_other_kinds_of_numbers_and_lists_give_the_same_answer(changes: dict[str, Any]) -> None:
    plain = account_for(LastIterate(**PLAIN), delta=1e-5).epsilon
    assert account_for(LastIterate(**(PLAIN | changes)), delta=1e-5).epsilon == pytest.approx(plain, rel=1e-9)


REFUSED: list[dict[str, Any]] = [
    {"rounds": 4.5},
    {"rounds": "4"},
    {"rounds": True},
    {"place": 1.5},
    {"batch": 1.5},
    {"order": "secret", "records": math.inf},
    {"order": "secret", "records": 4.5},
    {"convex": "false"},
    {"convex": None},
    {"lipschitz": None},
    {"lipschitz": "1"},
    {"noise_std": 1j},
    {"noise_std": ((1.0,),) * 4},
    {"noise_std": np.ones((2, 2))},
    {"noise_std": 10**400},
    {"neighbours": ["replace-one"]},
]


@pytest.mark.parametrize("changes", REFUSED)
def test_other_values_are_refused_where_they_are_born(changes: dict[str, Any]) -> None:
    with pytest.raises(BadValue, match=r"LastIterate\."):
        LastIterate(**(PLAIN | changes))


ONE = Gaussian(noise_multiplier=1)
CALLS: dict[str, Any] = {
    "a word for noise": lambda: Gaussian(noise_multiplier="1"),  # type: ignore[arg-type]
    "an array for noise": lambda: Gaussian(noise_multiplier=np.ones(2)),  # type: ignore[arg-type]
    "half a repetition": lambda: Repeat(of=ONE, times=2.5),  # type: ignore[arg-type]
    "a class for a mechanism": lambda: Compose(parts=(Gaussian,)),  # type: ignore[arg-type]
    "a word for parts": lambda: Compose(parts="ab"),  # type: ignore[arg-type]
    "one part without a list": lambda: Compose(parts=ONE),  # type: ignore[arg-type]
    "a word for a mechanism": lambda: account_for("x", delta=1e-5),  # type: ignore[arg-type]
    "a word for delta": lambda: account_for(ONE, delta="1e-5"),  # type: ignore[arg-type]
    "half a group": lambda: account_for(ONE, delta=1e-5, group=1.5),  # type: ignore[arg-type]
    "calibrating nothing": lambda: calibrate(None, epsilon=1.0, delta=1e-5),  # type: ignore[arg-type]
    "no tolerance": lambda: calibrate(ONE, epsilon=1.0, delta=1e-5, tolerance=0.0),
    "places of a Gaussian": lambda: place_curve(ONE, delta=1e-5),  # type: ignore[arg-type]
    "half a shuffled round": lambda: shuffled(rate=0.1, rounds=2.5, noise_multiplier=1.0, neighbours="zero-out"),  # type: ignore[arg-type]
    "bytes for a file": lambda: parse_mechanism(b""),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", CALLS)
def test_misused_functions_refuse_clearly(name: str) -> None:
    with pytest.raises(FedveilError):
        CALLS[name]()


def test_lists_of_parts_and_numpy_counts_are_fine() -> None:
    sampled = SampledGaussian(sampling="poisson", rate=np.float64(0.1), noise_multiplier=1)
    parts: Any = [Repeat(of=sampled, times=np.int64(3))]
    plain = account_for(Repeat(of=sampled, times=3), delta=np.float64(1e-5), group=np.int64(2))
    assert account_for(Compose(parts=parts), delta=1e-5, group=2).epsilon == plain.epsilon


def test_calibration_climbs_out_of_hopeless_noise() -> None:
    """A hidden part with next to no noise has no curve to compose; more noise gives it one."""
    weak = LastIterate(rounds=3, step_size=0.5, lipschitz=1.0, smoothness=0.5, noise_std=0.01)
    both = Compose(parts=(weak, Gaussian(noise_multiplier=0.01, neighbours="replace-one")))
    _, found = calibrate(both, epsilon=1.0, delta=1e-5, tolerance=1e-2)
    assert 0.9 <= account_for(found, delta=1e-5).epsilon <= 1.0
