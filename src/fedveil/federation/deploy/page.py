"""What people read in a deployment: a page of instructions, from the texts page*.md beside it."""

from collections.abc import Sequence
from importlib.resources import files
from string import Template


def page(
    sites: Sequence[str], host: str, port: int, inside: int, holder: str | None = None, on_flare: bool = False
) -> str:
    """Return the page for these sites, and for a key holder where there is one.

    ``on_flare``: the consortium runs NVFlare already, so there is no link of ours.
    """
    listed = [f"- `sites/{site}/` goes to {site}, by a way that nobody else can read" for site in sites]
    if holder is not None:
        listed.append(f"- `key-holder/` goes to {holder}, who is neither a site nor the aggregator, in the same way")
    values = {"host": host, "port": port, "inside": inside, "count": len(sites), "names": ", ".join(sites)}
    text = _text("page_nvflare.md" if on_flare else "page.md", values | {"listed": "\n".join(listed)})
    return (
        text if holder is None or on_flare else f"{text}\n{_text('page_key_holder.md', {**values, 'holder': holder})}"
    )


def _text(file: str, values: dict[str, object]) -> str:
    text = files("fedveil.federation.deploy").joinpath(file).read_text(encoding="utf-8")
    return Template(text).substitute(values)
