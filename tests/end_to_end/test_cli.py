"""The command line as a user meets it: exit codes, one sentence for a mistake, pure JSON.

Processes of their own where the process is the point (one of each kind of answer, and what might hang)."""

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commands import called

from fedveil.cli.studies import _fresh

FIGURE_2 = """
[mechanism]
kind = "last-iterate"
rounds = 40
place = 39
step_size = 0.5
lipschitz = 1.0
smoothness = 0.5
diameter = 1.0
noise_std = 2.0
"""
DP_SGD = """
[mechanism]
kind = "dp-sgd"
sampling = "poisson"
rate = 0.01
noise_multiplier = 1.0
rounds = 1000
"""


def process(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "fedveil", *words], capture_output=True, text=True, timeout=60)


def answer(*words: str) -> dict[str, Any]:
    done = called(*words, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert isinstance(result, dict)
    return result


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    def save(text: str) -> str:
        path = tmp_path / "mechanism.toml"
        path.write_text(text)
        return str(path)

    return save


def test_account_prints_the_stable_json(write: Any) -> None:
    result = answer("account", write(FIGURE_2), "--delta", "1e-5")
    assert result["delta"] == 1e-5
    assert result["certified_by"] == "transport"
    names = [bound["name"] for bound in result["bounds"]]
    assert names == [
        "unhidden",
        "linear-contraction",
        "nonlinear-contraction",
        "shift",
        "block",
        "transport",
        "position",
        "renyi-diffusion",
        "renyi-iteration",
    ]
    bounds = {bound["name"]: bound for bound in result["bounds"]}
    assert bounds["block"]["epsilon"] == pytest.approx(1.361092, abs=2e-6)
    assert bounds["unhidden"]["epsilon"] == pytest.approx(4.377178, abs=2e-6)
    assert bounds["position"] == {
        "name": "position",
        "epsilon": None,
        "delta": None,
        "status": "does-not-apply",
        "reason": "the order is public",
    }
    assert {bound["status"] for bound in result["bounds"]} <= {"certified", "numerical", "comparison", "does-not-apply"}


def test_account_for_a_given_epsilon(write: Any) -> None:
    path = write(FIGURE_2)
    e = answer("account", path, "--delta", "1e-5")["epsilon"]
    result = answer("account", path, "--epsilon", str(e))
    assert result["epsilon"] == e
    assert result["delta"] <= 1e-5 * (1 + 1e-9)


def test_dp_sgd_has_a_lower_value(write: Any) -> None:
    result = answer("account", write(DP_SGD), "--delta", "1e-5")
    bounds = {bound["name"]: bound for bound in result["bounds"]}
    assert set(bounds) == {"loss-distribution", "renyi", "central-limit"}
    assert bounds["loss-distribution"]["epsilon_lower"] <= 1.82824 + 1e-5
    assert 1.8282 <= bounds["loss-distribution"]["epsilon"] <= 1.8282 * 1.005
    assert bounds["renyi"]["epsilon"] > bounds["loss-distribution"]["epsilon"]
    assert bounds["central-limit"]["status"] == "comparison"


def test_every_place_has_its_own_guarantee(write: Any) -> None:
    result = answer("account", write(FIGURE_2.replace("place = 39\n", "")), "--delta", "1e-5", "--per-place")
    curve = [row["epsilon"] for row in result["places"]["curve"]]
    assert len(curve) == 40
    assert curve == sorted(curve)
    assert result["places"]["worst"] == pytest.approx(result["epsilon"])
    assert curve[38] == pytest.approx(1.32336, abs=1e-4)  # by transport, as account has it
    _refused(called("account", write(DP_SGD), "--delta", "1e-5", "--per-place"), "--per-place must go with")


def test_the_version_is_printed() -> None:
    assert process("--version").stdout == called("--version").stdout == "fedveil 1.0.0rc1\n"


def test_a_process_of_its_own_answers_the_same(write: Any) -> None:
    """An answer, a user's mistake, a mistake in the options: the same bytes on both outputs, the same exit code."""
    path, bad = write(DP_SGD), ("--delta", "2")
    for words in (("--delta", "1e-5", "--json"), bad, ("--dleta", "1e-5")):
        there, here = process("account", path, *words), called("account", path, *words)
        assert (there.returncode, there.stdout, there.stderr) == (here.returncode, here.stdout, here.stderr)


def test_groups_cost_more(write: Any) -> None:
    path = write(DP_SGD)
    single = answer("account", path, "--delta", "1e-5")["epsilon"]
    assert answer("account", path, "--delta", "1e-5", "--group", "3")["epsilon"] > 2 * single


def test_calibrate_needs_no_noise_in_the_file_and_is_confirmed_by_account(write: Any, tmp_path: Path) -> None:
    result = answer(
        "calibrate", write(DP_SGD.replace("noise_multiplier = 1.0\n", "")), "--epsilon", "1", "--delta", "1e-5"
    )
    assert result["epsilon"] <= 1.0
    noise = result["noise"][0]
    again = write(DP_SGD.replace("noise_multiplier = 1.0", f"noise_multiplier = {noise!r}"))
    assert 0.999 <= answer("account", again, "--delta", "1e-5")["epsilon"] <= 1.0


def test_composition_of_a_hidden_run_and_a_release(write: Any) -> None:
    hidden = FIGURE_2.replace("[mechanism]", "[[mechanism.parts]]")
    release = '[[mechanism.parts]]\nkind = "gaussian"\nnoise_multiplier = 5.0\nneighbours = "replace-one"\n'
    result = answer("account", write(f'[mechanism]\nkind = "compose"\n{hidden}{release}'), "--delta", "1e-5")
    alone, released = 1.3233, answer("convert", "--gdp", "0.4", "--delta", "1e-5")["epsilon"]
    assert max(alone, released) < result["epsilon"] < alone + released


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--rdp", "2", "0.1", "--delta", "1e-5"), {"epsilon": 7.87484, "closed": 8.5678, "mironov": 11.6129}),
        (("--rdp", "10", "1", "--delta", "1e-5"), {"epsilon": 1.917997}),
        (("--gdp", "1", "--delta", "1e-5"), {"epsilon": 4.377178}),
        (("--gdp", "0.1", "--times", "100", "--delta", "1e-5"), {"epsilon": 4.377178}),
        (("--dp", "1", "1e-6", "--group", "2"), {"epsilon": 2.0, "delta": 1e-6 * (math.e**2 - 1) / (math.e - 1)}),
    ],
)
def test_convert(words: tuple[str, ...], expected: dict[str, float]) -> None:
    result = answer("convert", *words)
    for name, value in expected.items():
        assert result[name] == pytest.approx(value, rel=1e-4)


def test_convert_gives_the_largest_renyi_budget() -> None:
    zeta = answer("convert", "--dp", "1.917997", "1e-5", "--alpha", "10")["zeta"]
    assert zeta == pytest.approx(1.0, abs=1e-5)


def test_bounds_shows_the_federated_gain() -> None:
    result = answer("bounds", "--nodes", "10", "--samples", "100", "--local-epsilon", "1", "--simulate", "200")
    values = {row["name"]: row["value"] for row in result["bounds"]}
    assert values["gaussian-mean-federated"] < values["gaussian-mean-centralised"]
    assert values["gaussian-mean-simulated"] < values["gaussian-mean-federated"]


def test_demo_trains_certifies_and_reports(tmp_path: Path) -> None:
    result = json.loads(called("demo", "--out", tmp_path / "demo", "--json").stdout)
    assert result["guarantees"][0]["epsilon"] <= 1.0
    assert result["metrics"]["test"]["accuracy"] > 0.8  # 95% on average; its columns are learned, nothing is stated
    assert (tmp_path / "demo" / "report.html").exists()
    assert (tmp_path / "demo" / "preparation.json").exists()
    stable = answer("bounds", "--of", str(tmp_path / "demo"))["bounds"][0]
    assert stable["name"] == "stable"
    assert 0 < stable["value"] < math.tanh(result["guarantees"][0]["epsilon"] / 2)  # more than one point of its curve
    assert "drawn independently" in stable["assumes"]
    assert called("bounds", "--of", tmp_path / "demo", "--nodes", "3").returncode == 2
    assert called("bounds").returncode == 2
    left = {path.name for path in _fresh(tmp_path / "demo").iterdir()}  # it may be repeated in the same folder
    assert not left & {"plan.toml", "model.npz", "preparation.json", "private"}


BAD = [  # what is changed in the file, what the sentence must say
    ("noise_std = 2.0", "noise_std = nan", "mechanism.noise_std must be a finite number"),
    ("noise_std = 2.0", "noise_std = inf", "mechanism.noise_std must be a finite number"),
    ("noise_std = 2.0", "noise_std = 0.0", "LastIterate.noise_std must be positive"),
    ("noise_std = 2.0", "noise_std = -1.0", "LastIterate.noise_std must be positive"),
    ("noise_std = 2.0", "noise_std = 1e300", "mechanism.noise_std must be"),
    ("noise_std = 2.0", "noise_std = [1.0, 2.0]", "one per round"),
    ("noise_std = 2.0", "noise_sdt = 2.0", "Did you mean noise_std?"),
    ("rounds = 40", "rounds = 0", "LastIterate.rounds must lie between 1 and"),
    ("rounds = 40", "rounds = 10.5", "mechanism.rounds must be a whole number"),
    ("rounds = 40", 'rounds = "many"', "mechanism.rounds must be a number"),
    ("rounds = 40", "rounds = 99999999999", "LastIterate.rounds must lie between 1 and"),
    ("place = 39", "place = 41", "LastIterate.place must lie between 1 and rounds, 40"),
    ("diameter = 1.0", "diameter = 0", "LastIterate.diameter must be positive"),
    ('kind = "last-iterate"', 'kind = "last-iterat"', "Did you mean last-iterate?"),
    ("[mechanism]", "[mechanisms]", "Did you mean mechanism?"),
    ("[mechanism]", "[mechanism", "The mechanism file must be TOML"),
]


@pytest.mark.parametrize(("old", "new", "sentence"), BAD)
def test_a_bad_file_is_refused_in_one_sentence(write: Any, old: str, new: str, sentence: str) -> None:
    assert old in FIGURE_2
    _refused(called("account", write(FIGURE_2.replace(old, new)), "--delta", "1e-5"), sentence)


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("rate = 0.01", "rate = 0.0", "rate must lie in (0, 1]"),
        ("rate = 0.01", "rate = 64", "Is it a batch size?"),
        ("rate = 0.01", "rate = -0.5", "rate must lie in (0, 1]"),
        ("rate = 0.01", "records = 100", "both records and batch"),
        ("rounds = 1000", "rounds = 0", "rounds must be at least 1"),
        ('sampling = "poisson"', 'sampling = "shuffle"', "mechanism.sampling must be one of"),
        ("noise_multiplier = 1.0", "noise_multiplier = [1.0]", "one per round"),
    ],
)
def test_a_bad_dp_sgd_file_is_refused_in_one_sentence(write: Any, old: str, new: str, sentence: str) -> None:
    _refused(called("account", write(DP_SGD.replace(old, new)), "--delta", "1e-5"), sentence)


@pytest.mark.parametrize("delta", ["0", "1", "-1", "nan", "2"])
def test_a_senseless_delta_is_refused(write: Any, delta: str) -> None:
    _refused(called("account", write(DP_SGD), "--delta", delta), "delta must lie strictly between 0 and 1")


def test_a_tiny_delta_works_on_the_safe_side(write: Any) -> None:
    path = write(DP_SGD)
    usual = answer("account", path, "--delta", "1e-5")["epsilon"]
    assert usual < answer("account", path, "--delta", "1e-15")["epsilon"] < 20


@pytest.mark.parametrize(
    "words", [(), ("--delta", "1e-5", "--epsilon", "1"), ("--delta", "small"), ("--dleta", "1e-5")]
)
def test_bad_options_exit_with_2(write: Any, words: tuple[str, ...]) -> None:
    done = called("account", write(DP_SGD), *words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1


def test_a_missing_file_is_a_users_mistake() -> None:
    _refused(called("account", "nowhere.toml", "--delta", "1e-5"), "must be a readable text file")


EXTREME = [
    {"noise_multiplier": "1e-5"},
    {"noise_multiplier": "1e8"},
    {"rate": "1e-11", "rounds": "1000000000000"},
    {"rate": "1.0", "rounds": "1000000000"},
    {"noise_multiplier": "0.01", "rounds": "1000000"},
    {"rate": "0.5", "noise_multiplier": "0.3", "rounds": "100000000"},
]


@pytest.mark.parametrize("change", EXTREME)
def test_extremes_are_answered_or_refused_quickly_and_never_small(write: Any, change: dict[str, str]) -> None:
    text = DP_SGD
    for key, value in change.items():
        line = next(line for line in text.splitlines() if line.startswith(key))
        text = text.replace(line, f"{key} = {value}")
    began = time.monotonic()
    done = process("account", write(text), "--delta", "1e-5", "--json")
    assert time.monotonic() - began < 120  # a hang, not a speed test
    assert done.returncode in (0, 2)
    assert "Traceback" not in done.stderr
    if done.returncode == 0:
        result = json.loads(done.stdout)
        lower = next(b.get("epsilon_lower") or 0.0 for b in result["bounds"] if b["name"] == "loss-distribution")
        assert result["epsilon"] is None or result["epsilon"] >= lower


def _refused(done: subprocess.CompletedProcess[str], sentence: str) -> None:
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
