"""What a data holder should know about its own columns: sentences that must never leave, computed without noise."""

import numpy as np

from fedveil.core.values import Vector
from fedveil.data.records import Records
from fedveil.data.row_rule import RowRule
from fedveil.stages.prepare.columns import MISSING_WORD, Columns
from fedveil.stages.prepare.contributions import scaled_numbers
from fedveil.stages.prepare.learned import LearnedRule

_MANY_CUT = 0.05  # of the rows: from here on a column's range, or the rows' bound, is worth a sentence
_MANY_OUTSIDE = 0.2  # of a column's values
_SHOWN = 5  # columns in one sentence
_FLAT = 0.02  # of the scale from -1 to 1: a column that varies less has no scale to speak of
_FEW = 10  # records of a class
_GAPS = 0.5
_MOST = 200  # sentences


def notes_for_holder(columns: Columns, targets: Vector, train: Records, learned: LearnedRule) -> list[str]:
    """Return what is worth knowing about the records to train on, whose cells and targets these are."""
    notes = [*_bound(columns, learned), *_numbers(columns, learned), *_texts(columns, learned)]
    return [*notes, *_classes(targets, train.classes)][:_MOST]


def notes_for_rows(records: Records, rule: RowRule | None) -> list[str]:
    """Return what is worth knowing about records whose rows were made by a stated rule; None: nobody knows it."""
    there = records.present()
    notes = []
    if rule is not None and len(there):
        rows = there.features[:, : there.features.shape[1] - (1 if rule.intercept else 0)]
        long = np.linalg.norm(rows, axis=1) >= rule.bound * (1 - 1e-9)
        share = float(np.mean(long))
        if share > _MANY_CUT:
            notes.append(_too_long(share, rule.bound))
        without = [one.name for one in rule.columns if not one.categories and one.range is None]
        if without:
            shown = ", ".join(without[:5]) + (", ..." if len(without) > 5 else "")
            notes.append(f"{len(without)} columns have no stated range (data.scale), so large values rule: {shown}.")
        whole = rows[~long]
        flat = np.flatnonzero(np.ptp(whole, axis=0) == 0).tolist() if len(whole) > 1 else []
        notes += [f"Feature {rule.features[place]!r} is constant: it tells nothing." for place in flat]
    return [*notes, *_classes(there.targets, there.classes)][:_MOST]


def _too_long(share: float, bound: float) -> str:
    return (
        f"{share:.0%} of the rows are longer than the feature bound ({bound:g}) and were scaled down, which can cost "
        "accuracy. State column ranges in data.scale, or a larger data.feature_bound."
    )


def _classes(targets: Vector, classes: int) -> list[str]:
    """Classes of so few records that nothing can be learned of them."""
    counts = np.bincount(targets.astype(np.int64), minlength=classes) if classes else np.zeros(0, dtype=np.int64)
    few = [(place, int(count)) for place, count in enumerate(counts) if count < _FEW]
    return [f"Class {place} has {count} records: too few to be learned." for place, count in few]


def _bound(columns: Columns, learned: LearnedRule) -> list[str]:
    """How many rows were cut to the bound, and what to do about it; of an additive model none is."""
    if learned.outline.knots is not None:
        return []
    norms = np.linalg.norm(learned.unprojected(columns), axis=1)
    share = float(np.mean(norms >= learned.outline.bound * (1 - 1e-9)))
    if share <= _MANY_CUT:
        return []
    way = 'an additive model (model.shape = "additive") cuts none.'
    return [f"{share:.1%} of the rows are longer than the feature bound and were scaled down; {way}"]


def _numbers(columns: Columns, learned: LearnedRule) -> list[str]:
    notes, outside = [], dict[str, float]()
    scaled = scaled_numbers(columns, [one.range for one in learned.numbers])
    for place, one in enumerate(learned.numbers):
        cells, own = columns.numbers[:, place], scaled[:, place]
        there = ~np.isnan(cells)
        gaps = 1 - float(np.mean(there)) if there.size else 1.0
        if not there.any():
            notes.append(f"Column {one.name!r} has no values: leave it out (data.ignore).")
            continue
        if gaps > _GAPS:
            notes.append(f"Column {one.name!r} lacks {gaps:.0%} of its values.")
        if np.ptp(cells[there]) == 0:
            notes.append(f"Column {one.name!r} is constant: leave it out (data.ignore).")
            continue
        share = float(np.mean((cells[there] < one.range.low) | (cells[there] > one.range.high)))
        if share > _MANY_OUTSIDE:
            outside[one.name] = share
        if float(np.std(own[there])) < _FLAT:
            notes.append(f"Column {one.name!r} hardly varies on the scale used: state its range, data.scale.")
    return [*_outside(outside), *notes]


def _outside(shares: dict[str, float]) -> list[str]:
    """One sentence for all columns of which much lies outside the range used, the worst first."""
    if not shares:
        return []
    worst = sorted(shares, key=lambda name: -shares[name])
    shown = ", ".join(f"{name!r} ({shares[name]:.0%})" for name in worst[:_SHOWN])
    more = f" and {len(worst) - _SHOWN} more" if len(worst) > _SHOWN else ""
    return [f"Many values lie outside the range used in the columns {shown}{more}. State their ranges in data.scale."]


def _texts(columns: Columns, learned: LearnedRule) -> list[str]:
    notes = []
    for name in learned.outline.open_texts:
        words = columns.texts[name]
        shown = {one.word for one in learned.categories if one.column == name}
        known = np.array([word in shown for word in words.spelt], dtype=np.bool_)[words.codes]
        rare = 1 - float(np.mean(known)) if known.size else 0.0
        if rare > _MANY_CUT:
            notes.append(
                f"Column {name!r}: {rare:.0%} of the records hold a category that was found too rare. "
                "List its public categories in data.categories, or raise epsilon."
            )
        if MISSING_WORD in words.spelt and np.mean(words.codes == words.spelt.index(MISSING_WORD)) > _GAPS:
            notes.append(f"Column {name!r} lacks most of its values.")
    return notes
