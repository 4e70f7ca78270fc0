"""Read a mechanism from a small TOML file (see docs/mechanism-file.md); every mistake gets one sentence."""

import difflib
import math
from collections.abc import Mapping
from typing import Any

from fedveil.core.errors import require
from fedveil.core.tables import known, read_tables, table
from fedveil.privacy.mechanism import (
    ApproximateDP,
    ArsinhGaussian,
    Compose,
    FurtherRounds,
    Gaussian,
    IndependentGaussian,
    Laplace,
    LastIterate,
    Mechanism,
    Repeat,
    SampledGaussian,
    ShuffledGaussian,
    shuffled,
)

_LAST_ITERATE = [
    "rounds",
    "passes",
    "batch",
    "records",
    "order",
    "place",
    "stopping",
    "step_size",
    "lipschitz",
    "smoothness",
    "strong_convexity",
    "convex",
    "diameter",
    "noise",
    "noise_std",
    "noise_scale",
    "neighbours",
    "rate",
    "largest_batch",
    "further",
]
_FURTHER = ["rounds", "batch", "step_size", "noise_std", "keep"]
_KEYS = {
    "last-iterate": _LAST_ITERATE,
    "dp-sgd": ["sampling", "rate", "records", "batch", "noise_multiplier", "rounds", "neighbours"],
    "gaussian": ["noise_multiplier", "times", "neighbours"],
    "laplace": ["noise_multiplier", "times", "neighbours"],
    "arsinh-gaussian": ["noise_multiplier", "scale", "times", "neighbours"],
    "approximate-dp": ["epsilon", "delta", "times"],
    "compose": ["parts"],
}

_WORDS = {"sampling", "neighbours", "order", "stopping", "noise"}
_DEEPEST = 20  # depth of compositions within compositions


def parse_mechanism(text: str, *, default_noise: float | None = None) -> Mechanism:
    """Return the mechanism that a file describes.

    ``default_noise`` replaces noise that was left out (to be calibrated).

    >>> parse_mechanism('[mechanism]\\nkind = "gaussian"\\nnoise_multiplier = 2.0')
    Gaussian(noise_multiplier=2.0, neighbours='zero-out')
    """
    tables = read_tables(text, "The mechanism file")
    known(tables, ["mechanism"], "the file")
    require("mechanism" in tables, "The file", "have a [mechanism] table", sorted(tables))
    return mechanism_of(tables["mechanism"], default_noise=default_noise)


def mechanism_of(given: Any, *, default_noise: float | None = None) -> Mechanism:
    """Return the mechanism that a [mechanism] table describes."""
    return _mechanism(table(given, "mechanism"), default_noise)


def last_iterate_table(run: LastIterate) -> dict[str, Any]:
    """Return the [mechanism] table that reads back to this run."""
    values = {key: getattr(run, key) for key in _LAST_ITERATE if key not in ("noise_scale", "further")}
    if run.further:
        values["further"] = {key: getattr(run.further, key) for key in _FURTHER}
    return {"kind": "last-iterate", **values}


def _mechanism(given: Mapping[str, Any], default_noise: float | None, depth: int = 0) -> Mechanism:
    require(depth <= _DEEPEST, "mechanism.parts", f"be nested at most {_DEEPEST} deep", f"{depth} levels")
    kind = given.get("kind")
    hint = f"Did you mean {close[0]}?" if (close := difflib.get_close_matches(str(kind), _KEYS)) else ""
    require(isinstance(kind, str) and kind in _KEYS, "mechanism.kind", f"be one of {', '.join(_KEYS)}", kind, hint)
    known(given, ["kind", *_KEYS[str(kind)]], f"a mechanism of kind {kind}")
    values = {key: _value(key, value) for key, value in given.items() if key not in ("kind", "parts", "further")}
    match kind:
        case "compose":
            parts = given.get("parts")
            require(
                isinstance(parts, list) and parts,
                "mechanism.parts",
                "list at least one [[mechanism.parts]]",
                parts,
            )
            inner = (_mechanism(table(p, "mechanism.parts"), default_noise, depth + 1) for p in parts or ())
            return Compose(parts=tuple(inner))
        case "last-iterate":
            if "further" in given:
                values["further"] = _further(table(given["further"], "mechanism.further"))
            return _last_iterate(values, default_noise)
        case "dp-sgd":
            return _dp_sgd(values, default_noise)
        case "approximate-dp":
            return _repeated(ApproximateDP, values, "epsilon")
        case _:
            _fill(values, "noise_multiplier", default_noise)
            if kind == "arsinh-gaussian":
                require("scale" in values, "mechanism.scale", "be given for kind arsinh-gaussian", None)
            kinds = {"gaussian": Gaussian, "laplace": Laplace, "arsinh-gaussian": ArsinhGaussian}
            return _repeated(kinds[str(kind)], values, "noise_multiplier")


def _repeated(kind: Any, values: dict[str, Any], needed: str) -> Mechanism:
    times = _whole("times", values.pop("times", 1))
    require(needed in values, f"mechanism.{needed}", "be given", None)
    once = kind(**values)
    return once if times == 1 else Repeat(of=once, times=times)


def _last_iterate(values: dict[str, Any], default_noise: float | None) -> Mechanism:
    if "noise_scale" in values:
        require(
            "noise_std" not in values,
            "mechanism.noise_scale",
            "not be given beside noise_std",
            values["noise_scale"],
        )
        require(
            values.get("noise") == "laplace",
            "mechanism.noise_scale",
            'go with noise = "laplace"',
            values.get("noise"),
        )
        values["noise_std"] = values.pop("noise_scale")
    _fill(values, "noise_std", default_noise)
    for key in ("rounds", "step_size", "lipschitz", "noise_std"):
        require(key in values, f"mechanism.{key}", "be given for kind last-iterate", None)
    for key in ("rounds", "passes", "records", "place", "largest_batch"):
        if key in values:
            values[key] = _whole(key, values[key])
    if "batch" in values:
        batch = values["batch"]
        values["batch"] = (
            tuple(_whole("batch", b) for b in batch) if isinstance(batch, tuple) else _whole("batch", batch)
        )
    return LastIterate(**values)


def _further(given: Mapping[str, Any]) -> FurtherRounds:
    """Return the rounds that go on without the unit, from the table [mechanism.further]."""
    known(given, _FURTHER, "the table mechanism.further")
    for key in ("rounds", "step_size", "noise_std"):
        require(key in given, f"mechanism.further.{key}", "be given", None)
    values = {key: _value(key, value) for key, value in given.items()}
    values["rounds"] = _whole("further.rounds", values["rounds"])
    batch = values.get("batch", 1)
    several = isinstance(batch, tuple)
    values["batch"] = tuple(_whole("further.batch", b) for b in batch) if several else _whole("further.batch", batch)
    return FurtherRounds(**values)


def _dp_sgd(values: dict[str, Any], default_noise: float | None) -> Mechanism:
    _fill(values, "noise_multiplier", default_noise)
    for key in ("noise_multiplier", "rounds"):
        require(key in values, f"mechanism.{key}", "be given for kind dp-sgd", None)
    rounds = _whole("rounds", values["rounds"])
    require(rounds >= 1, "mechanism.rounds", "be at least 1", rounds)
    sampling, neighbours = values.get("sampling", "poisson"), values.get("neighbours", "zero-out")
    choices = ("poisson", "fixed-size", "shuffled", "independent")
    require(sampling in choices, "mechanism.sampling", f"be one of {', '.join(choices)}", sampling)
    rates, noises = (
        _per_round(key, value, rounds)
        for key, value in (("rate", _rate(values)), ("noise_multiplier", values["noise_multiplier"]))
    )
    if sampling in ("shuffled", "independent"):
        single, found = len(rates) == len(noises) == 1, (len(rates), len(noises))
        rule = f"be single numbers for {sampling} passes"
        require(single, "mechanism.rate and noise_multiplier", rule, found)
        make = _shuffled if sampling == "shuffled" else _independent
        return make(values, rates[0], noises[0], rounds)
    count = max(len(rates), len(noises))
    steps = [
        SampledGaussian(sampling=sampling, rate=rate, noise_multiplier=noise, neighbours=neighbours)
        for rate, noise in zip(rates * (count // len(rates)), noises * (count // len(noises)), strict=True)
    ]
    return Repeat(of=steps[0], times=rounds) if count == 1 else Compose(parts=tuple(steps))


def _shuffled(values: Mapping[str, Any], rate: float, noise: float, rounds: int) -> Mechanism:
    neighbours = values.get("neighbours", "zero-out")
    plain = shuffled(rate=rate, rounds=rounds, noise_multiplier=noise, neighbours=neighbours)
    passes = plain.times if isinstance(plain, Repeat) else 1
    size = _whole("batch", values["batch"]) if "batch" in values else None
    batches = max(1, math.floor(1 / rate * (1 + 4e-16)))
    once = ShuffledGaussian(batches=batches, size=size, noise_multiplier=noise, neighbours=neighbours)
    return Repeat(of=once, times=passes)


def _independent(values: Mapping[str, Any], rate: float, noise: float, rounds: int) -> Mechanism:
    """Return passes of balls in bins; a pass that was only started is charged as a whole, which is more."""
    require(0 < rate <= 1, "mechanism.rate", "lie in (0, 1]", rate, "Is it a batch size?")
    if "records" in values:  # the batch is planned; a pass has as many rounds as there are whole batches
        a_pass = _whole("records", values["records"]) // _whole("batch", values["batch"])
    else:
        a_pass = round(1 / rate)
        hint = "Every record picks one of the rounds of a pass."
        even = abs(a_pass * rate - 1) <= 1e-9
        require(even, "mechanism.rate", "be one over the rounds of a pass for independent draws", rate, hint)
    once = IndependentGaussian(rounds=a_pass, noise_multiplier=noise, neighbours=values.get("neighbours", "zero-out"))
    return Repeat(of=once, times=-(-rounds // a_pass))


def _rate(values: Mapping[str, Any]) -> Any:
    if "rate" in values:
        both = "records" in values or "batch" in values
        require(not both, "mechanism.rate", "not be given beside records and batch", values["rate"])
        return values["rate"]
    require(
        "records" in values and "batch" in values,
        "mechanism.rate",
        "be given, or both records and batch",
        None,
    )
    records, batch = (_whole(key, values[key]) for key in ("records", "batch"))
    require(1 <= batch <= records, "mechanism.batch", f"lie between 1 and records, {records}", batch)
    return batch / records


def _per_round(key: str, value: Any, rounds: int) -> tuple[float, ...]:
    if not isinstance(value, tuple):
        return (value,)
    require(
        len(value) == rounds,
        f"mechanism.{key}",
        f"be one number, or a list with one per round ({rounds})",
        f"{len(value)} numbers",
    )
    return value if rounds > 1 else value[:1]


def _fill(values: dict[str, Any], key: str, default_noise: float | None) -> None:
    if key not in values and "noise_scale" not in values and default_noise is not None:
        values[key] = default_noise


def _value(key: str, value: Any) -> Any:
    """Return numbers as floats and lists as tuples; anything else unchanged."""
    if isinstance(value, list):
        require(value, f"mechanism.{key}", "not be an empty list", value)
        require(key not in _WORDS | {"convex"}, f"mechanism.{key}", "be of the right kind", value)
        return tuple(_number(key, item) for item in value)
    if isinstance(value, bool | str):
        right = key == "convex" if isinstance(value, bool) else key in _WORDS
        require(
            right,
            f"mechanism.{key}",
            "be a number" if key not in _WORDS | {"convex"} else "be of the right kind",
            value,
        )
        return value
    require(
        key not in _WORDS | {"convex"},
        f"mechanism.{key}",
        "be of the right kind",
        value,
    )
    return _number(key, value)


def _number(key: str, value: Any) -> float:
    fine = isinstance(value, int | float) and not isinstance(value, bool)
    require(fine, f"mechanism.{key}", "be a number", value)
    require(abs(value) < 1e300, f"mechanism.{key}", "be a finite number", value if isinstance(value, float) else "more")
    return float(value)


def _whole(key: str, value: Any) -> int:
    fine = isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)
    require(fine, f"mechanism.{key}", "be a whole number", value)
    return int(value)
