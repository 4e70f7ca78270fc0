"""Run several of Flower's own commands in one process, because loading its program costs more than the commands.

``python -m fedveil.federation.flower.commands '[["supernode", "register", ...], ["run", ...]]'`` runs them in turn and
ends at the first that fails, with its output.
"""

import io
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Final

REGISTER: Final = ("supernode", "register")


def main() -> None:
    """Run the commands; report success or failure on standard output."""
    for words in json.loads(sys.argv[1]):
        failed, text = _one(words)
        sys.stdout.write(text)
        # a node that the link already knows is not a failure
        known = tuple(words[:2]) == REGISTER and "already" in text
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
