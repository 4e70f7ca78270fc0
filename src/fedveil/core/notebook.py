"""Tables for notebooks: plain HTML without scripts or styles from elsewhere, every text escaped."""

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

_MOST: Final = 60  # rows that are shown


def html_table(rows: Sequence[Mapping[str, Any]], caption: str = "") -> str:
    """Return rows of equal keys as a table; of many rows the first, with a line that says how many there are.

    >>> html_table([{"share": 0.25}])
    '<table><thead><tr><th scope="col">share</th></tr></thead><tbody><tr><td>0.25</td></tr></tbody></table>'
    """
    heads = "".join(f'<th scope="col">{escape(str(key))}</th>' for key in (rows[0] if rows else ()))
    body = "".join(f"<tr>{''.join(_cell(value) for value in row.values())}</tr>" for row in rows[:_MOST])
    title = f'<caption style="text-align:left">{escape(caption)}</caption>' if caption else ""
    more = f"<p>and {len(rows) - _MOST:,} more rows</p>" if len(rows) > _MOST else ""
    return f"<table>{title}<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{more}"


def _cell(value: Any) -> str:
    if isinstance(value, str):
        return f'<td style="text-align:left">{escape(value)}</td>'
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "<td></td>"
    return f"<td>{value:.5g}</td>" if isinstance(value, float) else f"<td>{escape(str(value))}</td>"
