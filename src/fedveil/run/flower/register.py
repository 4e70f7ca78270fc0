"""Flower's ``supernode register`` for several nodes in one process: its commands take longer to start than to work.

Words: the link's name, then the name and the public key of each node.
"""

import sys
from collections.abc import Sequence

KNOWN = "already"  # in what Flower says of a key that it has


def main(words: Sequence[str]) -> None:
    """Register them all; one that is known stays known."""
    from flwr.cli.app import app

    link, *rest = words
    for site, key in zip(rest[::2], rest[1::2], strict=True):
        try:
            app(["supernode", "register", key, link, "--name", site], standalone_mode=False)
        except Exception as error:
            if KNOWN not in str(error):
                sys.exit(f"{site}: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
