"""What `make docs` adds to MkDocs: formulas that browsers draw by themselves, and a site that needs no network.

``pymdownx.arithmatex`` marks the formulas of a page; here each mark becomes MathML. After the build every page and
script is looked through for addresses that a browser would fetch, and one that is found ends the build.
"""

import html
import re
import sys
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError

sys.path.insert(0, str(Path(__file__).parent))  # MkDocs loads this file by its path
from reference import PAGES

_INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
_DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)
_FETCHED = re.compile(r"<(?:script|link|img|iframe|source|video|audio)\b[^>]*?(?:src|href)=[\"']?(?:https?:)?//[^\s>]*")
_BY_SCRIPT = "https://unpkg.com/"  # the theme's scripts for diagrams, and for browsers of 2019: neither is used here


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill a reference page from the code."""
    make = PAGES.get(page.file.src_uri)
    return markdown if make is None else markdown.replace("<!-- made from the code -->", make())


def on_page_content(content: str, **_: Any) -> str:
    """Replace every marked formula of a page."""
    drawn = _DISPLAY.sub(lambda match: mathml(match[1], "block"), content)
    return _INLINE.sub(lambda match: mathml(match[1], "inline"), drawn)


def mathml(formula: str, display: str) -> str:
    """Return the MathML of a formula in TeX, which is kept as its label."""
    tex = html.unescape(formula).strip()
    drawn = str(convert(tex, display=display)).replace(r">\{<", ">{<").replace(r">\}<", ">}<")
    return drawn.replace("<math ", f'<math aria-label="{html.escape(tex, quote=True)}" ', 1)


def on_post_build(config: Any, **_: Any) -> None:
    """End the build if a page would fetch something from a network."""
    site = Path(config["site_dir"])
    for script in site.rglob("*.js"):
        text = script.read_text(encoding="utf-8")
        if _BY_SCRIPT in text:
            script.write_text(text.replace(_BY_SCRIPT, "not-fetched/"), encoding="utf-8")
    found = [
        f"{page.relative_to(site)}: {match[0]}"
        for page in sorted(site.rglob("*.html"))
        for match in _FETCHED.finditer(page.read_text(encoding="utf-8"))
    ]
    if found:
        raise PluginError("These pages would ask a network for something: " + "; ".join(found[:5]))
