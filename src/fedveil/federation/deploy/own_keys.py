"""What a party reads of its deployment: its own key, and the public keys of the others beside it."""

from pathlib import Path
from typing import Final

from fedveil.core.errors import BadValue, require, why
from fedveil.core.files import read_file
from fedveil.wire.keys import Card, Identity

HOLDER_CARD: Final = "key-holder.pub"


def read_site(key: Path) -> tuple[Identity, Card]:
    """Return a site's own key, and the public keys of its aggregator from the file beside it."""
    return Identity.read(read_text(key)), Card.read(read_text(key.parent / "aggregator.pub"))


def read_peers(key: Path) -> dict[str, Card]:
    """Return the public keys of the other sites, from the folder peers beside a site's own key.

    Return no keys if there is no such folder.
    """
    cards = {path.stem: Card.read(read_text(path)) for path in sorted((key.parent / "peers").glob("*.pub"))}
    for name, card in cards.items():
        require(card.name == name, f"peers/{name}.pub", f"be the key of {name}", card.name)
    return cards


def read_holder(key: Path) -> Card | None:
    """Return the key holder's public keys, from the file beside a site's own key; None if there is no key holder."""
    path = key.parent / HOLDER_CARD
    return Card.read(read_text(path)) if path.exists() else None


def read_text(path: Path) -> str:
    """Return a text file of a deployment."""
    try:
        return read_file(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadValue(f"{path} must be a readable file of a deployment: {why(error)}.") from error
