"""Columns of Arrow in one of two forms, numbers or texts: every source is typed here, once, when it is read.

Numbers stay as they are stored, whole or floating, and a null is a missing one; truth values are 0 and 1, decimals are
floating. Texts are a dictionary: each different text once, without the blanks around it. Dates and times count as texts
in the form of ISO 8601. Lists and structures are refused.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fedveil.core.errors import require
from fedveil.core.values import Vector
from fedveil.data.cells import Texts, canonical
from fedveil.data.fingerprint import Cells
from fedveil.data.opening import arrow, compute

Column = Any  # a ChunkedArray or an Array of Arrow
Respell = Callable[[list[str]], list[str]]
_ZEROS: Final = r"\.(\d*?)0+(Z|[+-]\d{2}:?\d{2})?$"  # of a fraction of a second, which Arrow writes in full


def typed(column: Column, name: str, file: str, respell: Respell | None = None) -> Column:
    """Return a column in one of the two forms. ``respell`` changes the different texts before they are compared."""
    kinds, kind = arrow.types, column.type
    column = column if isinstance(column, arrow.ChunkedArray) else arrow.chunked_array([column])
    if kinds.is_dictionary(kind):
        if _is_text(kind.value_type):
            return _texts(column, respell)
        column, kind = column.cast(kind.value_type), kind.value_type
    if kinds.is_boolean(kind):
        return column.cast(arrow.uint8())
    if kinds.is_null(kind):
        return column.cast(arrow.float64())
    if kinds.is_float16(kind):
        return column.cast(arrow.float32())
    if kinds.is_integer(kind) or kinds.is_floating(kind):
        return column
    if kinds.is_decimal(kind):  # over its digits, since a direct cast may err in the last bit
        return column.cast(arrow.string()).cast(arrow.float64())
    if _is_text(kind):
        return _texts(column.dictionary_encode(), respell)
    require(not is_nested(kind), f"The column {name!r} of {file}", "hold numbers or texts", str(kind))
    return _texts(_written(column.dictionary_encode()), respell)


def is_nested(kind: Any) -> bool:
    """Return whether a type is a list or a structure, which no column may hold."""
    return bool(arrow.types.is_nested(kind))


def is_numbers(column: Column) -> bool:
    """Return whether a typed column holds numbers."""
    return not arrow.types.is_dictionary(column.type)


def vector_of(column: Column) -> Vector:
    """Return the numbers of a typed column, NaN where one is missing."""
    array = _in_one_piece(column)
    if array.null_count:
        array = _filled(array.cast(arrow.float64(), safe=False), np.float64(np.nan))
    return np.asarray(_numpy(array), dtype=np.float64)


def texts_of(column: Column) -> Texts:
    """Return a typed column as texts, the empty one where a cell is missing; numbers are spelt as labels are."""
    numeric = is_numbers(column)
    array = _in_one_piece(column.dictionary_encode() if numeric else column)
    values = array.dictionary
    words = ["" if one != one else canonical(one) for one in _numpy(values)] if numeric else values.to_pylist()
    codes = array.indices
    if codes.null_count:
        words = [*words, ""]
        codes = _filled(codes, np.int32(len(words) - 1))
    result = Texts(words, _numpy(codes))
    return result if len(set(words)) == len(words) else result.respelt(str)


def cells_of(column: Column) -> Cells:
    """Return a typed column as numbers or texts."""
    return vector_of(column) if is_numbers(column) else texts_of(column)


def stacked(parts: Sequence[Column]) -> Column:
    """Return the parts of one column as one; if some of them hold texts, the numbers of the others are texts too."""
    if len(parts) == 1:
        return parts[0]
    numeric = [is_numbers(part) for part in parts]
    if not any(numeric):
        return arrow.chunked_array([chunk for part in parts for chunk in _chunks(part)]).unify_dictionaries()
    if all(numeric):
        kinds = {part.type for part in parts}
        same = parts if len(kinds) == 1 else [part.cast(arrow.float64(), safe=False) for part in parts]
        return arrow.chunked_array([chunk for part in same for chunk in _chunks(part)])
    return stacked([coded(texts_of(part)) if own else part for part, own in zip(parts, numeric, strict=True)])


def column_of(values: NDArray[Any]) -> Column:
    """Return an array of numbers or texts as a column of Arrow, numbers without a copy."""
    if values.dtype.kind not in "iuf" or values.dtype.itemsize > 8:
        return arrow.array(values.astype(np.uint8) if values.dtype.kind == "b" else values)
    plain = np.ascontiguousarray(values)
    return arrow.Array.from_buffers(arrow.from_numpy_dtype(plain.dtype), plain.size, [None, arrow.py_buffer(plain)])


def coded(texts: Texts) -> Column:
    """Return texts as a typed column."""
    codes = column_of(texts.codes.astype(np.int32))
    made = arrow.DictionaryArray.from_arrays(codes, arrow.array(list(texts.words), type=arrow.string()))
    return arrow.chunked_array([made])


def _in_one_piece(column: Column) -> Any:
    result = column.combine_chunks() if isinstance(column, arrow.ChunkedArray) else column
    return result.chunk(0) if isinstance(result, arrow.ChunkedArray) else result


def _numpy(array: Any) -> Any:
    """Return the numbers of an array without nulls; Arrow's own way loads pandas first, which takes half a second."""
    return np.from_dlpack(array)


def _filled(array: Any, value: np.generic) -> Any:
    """Return an array with a value for its nulls, which is taken out of an array for the same reason."""
    return compute.fill_null(array, column_of(np.array([value]))[0])


def _chunks(column: Column) -> list[Any]:
    return list(column.chunks) if isinstance(column, arrow.ChunkedArray) else [column]


def _is_text(kind: Any) -> bool:
    kinds = arrow.types
    view = getattr(kinds, "is_string_view", lambda _: False)
    return bool(kinds.is_string(kind) or kinds.is_large_string(kind) or view(kind))


def _texts(column: Column, respell: Respell | None) -> Column:
    """Return a dictionary of texts without blanks around them, without texts that no row holds, each once."""
    array = _in_one_piece(column.unify_dictionaries())
    words, codes = array.dictionary.cast(arrow.string()), array.indices.cast(arrow.int32())
    plain = compute.utf8_trim_whitespace(words)
    if respell is not None:
        written = words.to_pylist()
        spelt = respell(written)
        plain = plain if spelt == plain.to_pylist() else arrow.array(spelt, type=arrow.string())
    used = np.zeros(len(words), dtype=np.bool_)
    used[_numpy(codes.drop_null())] = True
    if used.all() and not plain.null_count and len(plain.unique()) == len(plain):
        return arrow.chunked_array([arrow.DictionaryArray.from_arrays(codes, plain)])
    again = plain.take(codes).dictionary_encode()
    return arrow.chunked_array([arrow.DictionaryArray.from_arrays(again.indices, again.dictionary)])


def _written(column: Column) -> Column:
    """Return a dictionary of other values (dates, times, bytes) as one of texts."""
    kind = column.type.value_type
    plain = arrow.types.is_temporal(kind) and not arrow.types.is_interval(kind)
    array = _in_one_piece(column.unify_dictionaries())
    if plain:
        words = compute.replace_substring_regex(array.dictionary.cast(arrow.string()), _ZEROS, r".\1\2")
        words = compute.replace_substring_regex(words, r"\.(Z|[+-]\d{2}:?\d{2})?$", r"\1")
    else:
        words = arrow.array([None if one is None else str(one) for one in array.dictionary.to_pylist()])
    return arrow.chunked_array([arrow.DictionaryArray.from_arrays(array.indices, words)])
