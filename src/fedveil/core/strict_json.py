"""Read the JSON of a run strictly: text that two readers could understand differently is refused.

Of two equal keys, Python's reader takes the last and others take the first; Python also reads ``NaN``, which is not
JSON. A record with either could show one number to a person and another to a program.
"""

import json
from typing import Any

from fedveil.core.errors import BadValue


def read_json(text: str | bytes, what: str) -> Any:
    """Return the value of a JSON text; ``what`` names the text in an error message.

    >>> read_json('{"epsilon": 1.5}', "certificate.json")
    {'epsilon': 1.5}
    >>> read_json('{"epsilon": 0.1, "epsilon": 1.5}', "certificate.json")
    Traceback (most recent call last):
    fedveil.core.errors.BadValue: certificate.json must name every key once, and it names 'epsilon' twice.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key, value in pairs:
            if key in result:
                raise BadValue(f"{what} must name every key once, and it names {key[:80]!r} twice.")
            result[key] = value
        return result

    def no_number(name: str) -> Any:
        raise BadValue(f"{what} must hold finite numbers, and it says {name}.")

    def finite(digits: str) -> float:
        number = float(digits)
        if number in (float("inf"), float("-inf")):
            raise BadValue(f"{what} must hold finite numbers, and it says {digits[:40]}.")
        return number

    try:
        plain = text.decode("utf-8") if isinstance(text, bytes) else text
        return json.loads(plain, object_pairs_hook=once, parse_constant=no_number, parse_float=finite)
    except BadValue:
        raise
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, nested too deep, or a number too long
        raise BadValue(f"{what} must be JSON: {error}.") from error


def read_object(text: str | bytes, what: str) -> dict[str, Any]:
    """Return the value of a JSON text that must be an object."""
    result = read_json(text, what)
    if not isinstance(result, dict):
        raise BadValue(f"{what} must hold a JSON object, got {type(result).__name__}.")
    return result
