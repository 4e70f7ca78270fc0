"""A profile of records at sites: the answers to the standard questions, read as what the columns hold."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fedveil.stages.ask.rows import MISSING, OTHER
from fedveil.stages.profile.profile import NumberColumn, Profile, TextColumn

_RARE = 2.0  # half-widths: what has no more is not told from nothing


def profile_from(answers: Mapping[str, Any], target: str | None = None) -> Profile:
    """Return the profile that the answers to the standard questions give; nothing but them enters it."""
    records = int(answers["records"])
    by_name = {one["question"]["name"]: one for one in answers["answers"]}
    learned: Mapping[str, Mapping[str, float]] = answers.get("ranges", {})

    def rows(name: str, what: str) -> list[dict[str, Any]]:
        result = by_name.get(f"{name}: {what}"[-60:])
        return [] if result is None else list(result["tables"][""])

    numbers, texts, widths = [], [], []
    for one in by_name.values():
        question, name = one["question"], one["question"].get("column")
        if question["kind"] == "quantiles":
            gone = rows(name, "missing")
            widths += [(row["high"] - row["low"]) / 2 for row in gone]
            numbers.append(_number(name, learned[name], rows(name, "mean"), one["tables"][""], gone, records))
        elif question["kind"] in ("words", "histogram"):
            texts.append(_text(name, one["tables"][""], records))
    pairs = list(by_name["correlations"]["tables"][""]) if "correlations" in by_name else []
    names, matrix = _matrix(pairs)
    errors = {"ranges": max(widths) / records} if widths else {}
    listed = [(row["high"] - row["low"]) / 2 for one in by_name.values() for row in _words_in(one)]
    errors |= {"categories": max(listed) / records} if listed else {}
    errors |= {"correlations": max((row["high"] - row["low"]) / 2 for row in pairs)} if pairs else {}
    return Profile(
        records=records,
        target=target,
        numbers=tuple(numbers),
        texts=tuple(texts),
        correlated=names,
        correlations=matrix,
        errors=errors,
    )


def _words_in(answer: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    kind = answer["question"]["kind"]
    return list(answer["tables"][""]) if kind in ("words", "histogram") else []


def _number(
    name: str,
    learned: Mapping[str, float],
    means: Sequence[Mapping[str, Any]],
    quantiles: Sequence[Mapping[str, Any]],
    gone: Sequence[Mapping[str, Any]],
    records: int,
) -> NumberColumn:
    """On a bent scale the mean is that of a few large numbers: the median stands for the centre."""
    straight = bool(means) and learned["bend"] == 0
    median = next((row["estimate"] for row in quantiles if row["quantile"] == 0.5), math.nan)
    return NumberColumn(
        name=name,
        low=learned["low"],
        high=learned["high"],
        bend=learned["bend"],
        centre=means[0]["estimate"] if straight else median,
        spread=means[0]["spread"] if straight else None,
        missing=_share(gone, records),
        share=learned["share"],
    )


def _share(rows: Sequence[Mapping[str, Any]], records: int) -> float:
    """The share of records in the first of these rows; 0 where it is not told from nothing."""
    if not rows or rows[0]["estimate"] <= _RARE * (rows[0]["high"] - rows[0]["low"]) / 2:
        return 0.0
    return float(min(rows[0]["estimate"] / records, 1.0))


def _text(name: str, rows: Sequence[Mapping[str, Any]], records: int) -> TextColumn:
    gone = [row for row in rows if row[name] == MISSING]
    words = [(str(row[name]), _share([row], records)) for row in rows if row[name] not in (MISSING, OTHER)]
    words = sorted((one for one in words if one[1] > 0), key=lambda one: (-one[1], one[0]))
    missing = _share(gone, records)
    other = min(max(1 - missing - math.fsum(share for _, share in words), 0.0), 1.0)
    return TextColumn(name=name, words=tuple(words), missing=missing, other=other)


def _matrix(pairs: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], tuple[tuple[float, ...], ...]]:
    names = tuple(dict.fromkeys(row[key] for row in pairs for key in ("column", "other")))
    known = {frozenset((row["column"], row["other"])): round(row["estimate"], 4) for row in pairs}
    return names, tuple(tuple(known.get(frozenset((one, two)), 1.0) for two in names) for one in names)
