"""From noisy sums to a generator: ranges, words, single columns, all pairs coarsely, the chosen pairs precisely."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from fedveil.core.values import Indices, Vector
from fedveil.stages.measuring import Measures
from fedveil.stages.prepare.columns import Outline
from fedveil.stages.prepare.learn import categories_in, ranges_in
from fedveil.stages.prepare.ranges import Range
from fedveil.stages.sums import Measurement, NoisySums
from fedveil.stages.synthesise.budget import MEASURED_CELLS, most_pairs
from fedveil.stages.synthesise.fit import Clique, Limits, Marginal, cells_of, chosen_pairs, fitted, junction_tree
from fedveil.stages.synthesise.generator import Generator
from fedveil.stages.synthesise.request import GeneratorRequest
from fedveil.stages.synthesise.table import (
    CLEAR,
    SURE,
    Cells,
    Counted,
    DateCells,
    NumberCells,
    Table,
    WordCells,
    added,
    check_norm,
    indicator,
    merged_numbers,
    merged_words,
    shares_of,
    table_counts,
    tables_of,
)

_STEPS: Final = 600  # of the last fit
_RARE: Final = 0.02  # of the records: words below it are joined in the first look at all pairs


def learned_generator(
    name: str, planned: NoisySums, request: GeneratorRequest, table: Table, units: int, by: Measures
) -> Generator:
    """Measure all that is planned, and return the generator. ``units``: how many contribute to a sum."""
    table = replace(table, outline=request.stated(table.outline))
    cells = _cells(planned, request, table, units, by)
    codes = table.codes(cells)
    single = planned["ones"]
    tables = [Counted((column,), (np.arange(one.size),)) for column, one in enumerate(cells)]
    counts, deviation = _measured(single, tables, codes, by), single.noise * single.bound
    counted = counted_units(counts, deviation, units)
    shares, merged = _ones(cells, counts, deviation, request, counted)
    groups = tuple(groups for _, groups in merged)
    sizes = [int(own.max()) + 1 for own in groups]
    ones = [one for one, _ in merged]
    coarse = _pairs(planned["pairs"], request, cells, codes, groups, shares, counted, by)
    place = None if table.target is None else len(cells) - 1
    weights = {pair: request.target_weight if place in pair else 1.0 for pair in coarse}
    precise = planned["cliques"]
    limits = Limits(
        pairs=most_pairs(request, len(cells)),
        measured=min(MEASURED_CELLS, precise.size),
        model=max(request.model_cells, 2 * sum(sizes)),
        noise=precise.noise / counted,
    )
    chosen, limited = chosen_pairs(sizes, ones, coarse, weights, limits)
    cliques = _cliques(precise, chosen, codes, groups, weights, counted, by)
    tree = junction_tree(sizes, chosen)
    model = fitted(tree, [*ones, *coarse.values(), *cliques], _STEPS)
    return Generator(
        name=name,
        target=table.target,
        records=units,
        columns=cells,
        groups=groups,
        shares=tuple(shares),
        pairs=tuple(chosen),
        potentials=model.potentials,
        errors={one.name: one.noise * one.bound / units for one in planned.measurements},
        limited=limited,
        zeros=request.zeros,
        sums=request.sums,
        order=_order(table.outline, [*(one.name for one in cells), *request.sums]),
    )


def _order(outline: Outline, drawn: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that are drawn, in the order of the source; those that it does not have, last."""
    place = {name: index for index, name in enumerate(outline.order)}
    return tuple(sorted(drawn, key=lambda name: place.get(name, len(place))))


def _cells(planned: NoisySums, request: GeneratorRequest, table: Table, units: int, by: Measures) -> tuple[Cells, ...]:
    """The cells of every column, the target last, if there is one."""
    outline, labels = table.outline, table.labels
    ranges, _ = ranges_in(planned, outline, table.columns, by, units)
    words, _ = categories_in(planned, outline, table.columns, by, units)
    result: list[Cells] = [
        NumberCells(name=name, range=range_, whole=request.whole_in(outline, name))
        for name, range_ in zip(outline.numbers, ranges, strict=True)
        if name not in request.sums
    ]
    for name in outline.texts:
        if name in request.dates:
            first, last = request.dates[name]
            result.append(DateCells(name=name, first=first, last=last))
            continue
        listed = outline.categories.get(name)
        learned = tuple(sorted(one.word for one in words if one.column == name and one.word != ""))
        result.append(WordCells(name=name, words=learned if listed is None else listed, open=listed is None))
    if table.target is None:
        return tuple(result)
    if labels.span is None:
        return (*result, WordCells(name=table.target, words=labels.classes, complete=True))
    whole = request.whole_in(outline, table.target)
    return (*result, NumberCells(name=table.target, range=Range(*labels.span), whole=whole, complete=True))


def counted_units(counts: Sequence[Vector], deviation: float, units: int) -> float:
    """Return how many units there are in the noisy counts of single columns: ``units``, unless clearly fewer.

    A blank row is in no cell. Every other one is in one cell of each column, so each column says how many there are.
    """
    sizes = np.array([one.size for one in counts], dtype=np.float64)
    result = float(np.dot([one.sum() for one in counts], 1 / sizes) / (1 / sizes).sum())
    error = deviation / math.sqrt((1 / sizes).sum())
    return max(result, 1.0) if result < units - SURE * error else float(units)


def _ones(
    cells: Sequence[Cells], noisy: Sequence[Vector], deviation: float, request: GeneratorRequest, units: float
) -> tuple[list[Vector], list[tuple[Marginal, Indices]]]:
    """The shares of all cells of each column, and the groups into which they are merged, with theirs."""
    shares, result = [], []
    for column, (one, counts) in enumerate(zip(cells, noisy, strict=True)):
        own = shares_of(one.seen(counts, deviation), deviation, units)
        most = 2 * request.groups if isinstance(one, WordCells) else request.groups
        groups = one.merged(own, CLEAR * deviation / units, most)
        each = float(np.bincount(groups).mean())  # noise adds up within a group
        shares.append(own)
        result.append((Marginal((column,), added(own, groups), deviation * math.sqrt(each) / units), groups))
    return shares, result


def _pairs(
    planned: Measurement,
    request: GeneratorRequest,
    cells: Sequence[Cells],
    codes: Indices,
    groups: Sequence[Indices],
    shares: Sequence[Vector],
    units: float,
    by: Measures,
) -> dict[Clique, Marginal]:
    """All pairs of columns, in a few coarse groups each."""
    coarse = []
    for one, own, share in zip(cells, groups, shares, strict=True):
        held = added(share, own)
        numeric = not isinstance(one, WordCells)
        joined = merged_numbers(held, _RARE, request.coarse) if numeric else merged_words(held, _RARE, request.coarse)
        coarse.append(joined)
    pairs = list(itertools.combinations(range(len(cells)), 2))
    tables = [Counted(pair, tuple(coarse[column][groups[column]] for column in pair)) for pair in pairs]
    noisy = _measured(planned, tables, codes, by)
    deviation = planned.noise * planned.bound / units
    return {
        pair: Marginal(pair, counts / units, deviation, (indicator(coarse[pair[0]]), indicator(coarse[pair[1]])))
        for pair, counts in zip(pairs, noisy, strict=True)
    }


def _cliques(
    planned: Measurement,
    chosen: Sequence[Clique],
    codes: Indices,
    groups: Sequence[Indices],
    weights: Mapping[Clique, float],
    units: float,
    by: Measures,
) -> list[Marginal]:
    """The chosen pairs, group by group. Larger tables get more weight, so that errors in sum are smallest."""
    if not chosen:
        return []
    sizes = [int(own.max()) + 1 for own in groups]
    wanted = np.array([cells_of(pair, sizes) ** (1 / 3) * weights[pair] for pair in chosen])
    scale = planned.bound * (1 - 2.0**-40) / math.sqrt(math.fsum((wanted**2).tolist()))
    tables = [
        Counted(pair, (groups[pair[0]], groups[pair[1]]), weight * scale)
        for pair, weight in zip(chosen, wanted.tolist(), strict=True)
    ]
    noisy = _measured(planned, tables, codes, by)
    deviation = planned.noise * planned.bound / units
    return [
        Marginal(one.columns, counts / units, deviation / one.weight) for one, counts in zip(tables, noisy, strict=True)
    ]


def _measured(planned: Measurement, tables: Sequence[Counted], codes: Indices, by: Measures) -> list[Vector]:
    """The noisy counts of these tables; refused if a record would add more to them than is planned."""
    check_norm(tables, planned)
    sums = by.noisy_sum(planned, table_counts(codes, tables), sum(one.size for one in tables))
    return tables_of(sums, tables)


def cells_in(
    planned: NoisySums, request: GeneratorRequest, table: Table, units: int, by: Measures
) -> tuple[Cells, ...]:
    """Return the cells of every column, the target last: what the first sums of :func:`learned_generator` settle."""
    return _cells(planned, request, replace(table, outline=request.stated(table.outline)), units, by)
