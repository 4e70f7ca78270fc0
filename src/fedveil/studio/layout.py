"""The frame of every page: its head, the way to the other pages, and small parts that several pages use."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

from fedveil.report.markup import Markup, tag
from fedveil.version import __version__

PAGES: Final = (
    ("/", "Design"),
    ("/ask", "Ask"),
    ("/sign", "Sign"),
    ("/runs", "Run and watch"),
    ("/explore", "Explore"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What every page needs: the word that its forms carry, and the name of the working folder."""

    word: str
    folder: str

    def page(self, title: str, here: str, *inside: object, scripts: Sequence[str] = (), lead: object = None) -> str:
        """Return a whole page; ``here`` is the address of its place in the navigation."""
        head = tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("meta", name="fedveil-word", content=self.word),
            tag("title", f"{title} – fedveil studio"),
            tag("link", rel="icon", href="data:,"),
            tag("link", rel="stylesheet", href="/static/page.css"),
            tag("link", rel="stylesheet", href="/static/studio.css"),
            [tag("script", src=f"/static/{name}", defer=True) for name in ("studio.js", *scripts)],
        )
        body = [
            tag("a", "Skip to the content", href="#content", class_="skip"),
            tag("header", tag("p", "fedveil studio", class_="kicker"), _navigation(here), class_="bar"),
            tag(
                "main",
                tag("h1", title),
                None if lead is None else tag("p", lead, class_="intro"),
                *inside,
                id="content",
                tabindex=-1,
                class_="studio",
            ),
            tag(
                "footer",
                tag(
                    "p",
                    f"fedveil {__version__}, working in {self.folder}. These pages load nothing from "
                    "elsewhere and send nothing away from this machine.",
                ),
            ),
        ]
        return "<!doctype html>\n" + tag("html", head, tag("body", *body), lang="en") + "\n"

    def form(self, action: str, *inside: object, **attributes: object) -> Markup:
        """Return a form that changes something."""
        return tag("form", hidden_field("word", self.word), *inside, method="post", action=action, **attributes)


def _navigation(here: str) -> Markup:
    links = [
        tag("li", tag("a", name, href=address, aria_current="page" if address == here else None))
        for address, name in PAGES
    ]
    return tag("nav", tag("ul", links), aria_label="Pages")


def hidden_field(name: str, value: str) -> Markup:
    """Return a field that a form sends along without showing it."""
    return Markup(tag("input", name=name, value=value).replace("<input", '<input type="hidden"', 1))


def link(text: object, address: str, **query: str) -> Markup:
    """Return a link to a page of the studio."""
    return tag("a", text, href=address_of(address, **query))


def address_of(address: str, **query: str) -> str:
    """Return an address with its query, whatever letters are in it."""
    return f"{address}?{urlencode(query)}" if query else address


def field(label: str, control: Markup, name: str, meaning: object = None, value: Markup | None = None) -> Markup:
    """Return a labelled control with a sentence that says what it means."""
    said = None if meaning is None else tag("p", meaning, class_="meaning", id=f"{name}-meaning")
    return tag("div", tag("label", label, value, for_=name), control, said, class_="field")


def chooser(name: str, options: Sequence[tuple[str, str]], chosen: str | None, **attributes: object) -> Markup:
    """Return a list to choose one from: (value, what is shown)."""
    inside = [tag("option", shown, value=value, selected=value == chosen) for value, shown in options]
    return tag("select", inside, id=name, name=name, **attributes)


def button(text: str, **attributes: object) -> Markup:
    """Return a button that sends its form, unless it says otherwise."""
    return tag("button", text, **{"type": "submit", **attributes})


def failure(sentence: str) -> Markup:
    """Return what went wrong, read out by a screen reader at once."""
    return tag("p", sentence, class_="sentence bad", role="alert")
