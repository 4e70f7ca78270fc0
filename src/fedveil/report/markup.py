"""HTML and SVG without injection: every text is escaped unless it is already markup."""

from collections.abc import Iterable
from html import escape
from typing import Any, final

_EMPTY = {"br", "col", "hr", "img", "input", "link", "meta"}  # HTML elements without an end tag
_FOREIGN = {"circle", "line", "path", "polyline", "rect", "use"}  # SVG elements that close themselves


@final
class Markup(str):
    """Text that is already markup, and so is not escaped again."""

    __slots__ = ()


def tag(name: str, /, *inside: object, **attributes: object) -> Markup:
    """Return one element; ``None`` inside is left out.

    An attribute that is ``None`` or false is left out, and ``True`` gives a bare attribute. A trailing underscore is
    dropped from an attribute's name, others become dashes: ``class_``, ``aria_label``.

    >>> tag("p", "a < b", tag("b", "&"), class_="x", id=None)
    '<p class="x">a &lt; b<b>&amp;</b></p>'
    """
    start = "".join([f"<{name}", *(_attribute(key, value) for key, value in attributes.items())])
    if name in _EMPTY:
        return Markup(f"{start}>")
    if name in _FOREIGN and not inside:
        return Markup(f"{start}/>")
    return Markup(f"{start}>{joined(inside)}</{name}>")


def joined(parts: Iterable[object]) -> Markup:
    """Return all parts one after another, with texts escaped.

    >>> joined(["<", Markup("<br>"), None, 3, ["a", "&"]])
    '&lt;<br>3a&amp;'
    """
    return Markup("".join(_text(part) for part in parts))


def _text(part: Any) -> str:
    match part:
        case None:
            return ""
        case Markup():
            return part
        case str():
            return escape(part)
        case list() | tuple():
            return joined(part)
        case _:
            return escape(str(part))


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'
