"""Wrap the prose of Markdown files at 120 characters: ``python tools/wrap_docs.py docs/*.md``.

Only lines that are too long are touched, with the rest of their paragraph. Code, tables, headings, comments and display
formulas stay as they are; a line is never broken inside code, a formula or a link, nor where the next word would begin
a list, a heading or a quotation.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

WIDTH = 120
FENCE = re.compile(r"\s*(`{3,}|~{3,})")
ITEM = re.compile(r"(\s*)([-*+]|\d+\.)\s+")
STAYS = re.compile(r"\s*(\||#|<|>|\$\$|\[[^\]]+\]:|:::|    )")
WHOLE = re.compile(r"`+[^`]*`+|\$[^$]+\$|!?\[[^\]]*\]\([^)]*\)")  # not to be broken
STARTS = re.compile(r"([-+*>|]|#+|\d+[.)])$|\$\$|```")  # would mean something at the beginning of a line


def words_of(text: str) -> list[str]:
    """Return the words of a paragraph; code, formulas and links count as letters."""
    kept = WHOLE.sub(lambda match: re.sub(r"\s+", "\0", match[0]), text)
    words: list[str] = []
    for word in kept.split():
        if words and STARTS.match(word):
            words[-1] += f" {word}"
        else:
            words.append(word)
    return [word.replace("\0", " ") for word in words]


def wrapped(lines: list[str]) -> list[str]:
    """Return one paragraph or list item in lines of at most ``WIDTH`` characters, where its words allow."""
    item = ITEM.match(lines[0])
    first = item[0] if item else re.match(r"\s*", lines[0])[0]  # type: ignore[index]
    later = " " * len(first) if item else first
    text = " ".join([lines[0][len(first) :], *(line.strip() for line in lines[1:])])
    found, line = [], first
    for word in words_of(text):
        if len(line) + len(word) + 1 > WIDTH and line.strip() and line != first:
            found.append(line.rstrip())
            line = later
        line += word if line in (first, later) else f" {word}"
    return [*found, line.rstrip()]


def paragraphs(lines: list[str]) -> Iterator[tuple[bool, list[str]]]:
    """Yield parts of a page: whether it is prose, and its lines."""
    fence, formula, part = "", False, list[str]()
    for line in lines:
        mark = FENCE.match(line)
        inside = bool(fence) or formula
        if line.strip().startswith("$$") or line.rstrip().endswith("$$"):
            formula = formula != (line.count("$$") % 2 == 1)
            inside = True
        if mark and not formula:
            fence = mark[1] if not fence else "" if mark[1].startswith(fence) else fence
            inside = True
        begun = bool(part) and not ITEM.match(line)
        stays = inside or not line.strip() or (STAYS.match(line) and not (begun and line.startswith("    ")))
        if stays or (part and ITEM.match(line)) or (part and part[-1].endswith("  ")):
            if part:
                yield True, part
            part = []
        if stays:
            yield False, [line]
        else:
            part.append(line)
    if part:
        yield True, part


def wrap(text: str) -> str:
    """Return the page with paragraphs that have a line above ``WIDTH`` wrapped again."""
    found: list[str] = []
    for prose, lines in paragraphs(text.splitlines()):
        found += wrapped(lines) if prose and max(map(len, lines)) > WIDTH else lines
    return "\n".join(found) + "\n"


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name)
        path.write_text(wrap(path.read_text(encoding="utf-8")), encoding="utf-8")
