"""Commands of Flower's own, several in one process: loading its program costs more than what they do.

``python -m fedveil.federation.flower.commands '[["supernode", "register", ...], ["run", ...]]'`` carries them out in
turn and ends at the first that fails, with what it wrote.
"""

import io
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Final

REGISTER: Final = ("supernode", "register")


def main() -> None:
    """What succeeded and what failed is said on standard output."""
    for words in json.loads(sys.argv[1]):
        failed, text = _one(words)
        sys.stdout.write(text)
        known = tuple(words[:2]) == REGISTER and "already" in text  # a node that the link knows is no failure
        if failed and not known:
            sys.exit(1)


def _one(words: Sequence[str]) -> tuple[bool, str]:
    from flwr.cli.app import app

    written = io.StringIO()
    with redirect_stdout(written), redirect_stderr(written):
        try:
            app(words)
        except SystemExit as end:
            return end.code not in (0, None), written.getvalue()
    return False, written.getvalue()


if __name__ == "__main__":
    main()
