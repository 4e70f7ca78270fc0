"""What a guard or a key holder removes when it starts: remains of killed writes, and secrets of runs that ended.

A run may have ended on the disk just before the process was killed; its keys are then not needed any more.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

from fedveil.core.errors import BadValue
from fedveil.engine.ending import destroy_secrets
from fedveil.engine.files import clear_parts
from fedveil.federation.agreements.encrypted import KEY_FILE
from fedveil.federation.site.state import load_state

# at a site; a key holder has only the second
SECRETS: Final = ("key", KEY_FILE, "memory", "proposal", "prepared", "preparation.sums")


def clear_records(folder: Path, secrets: tuple[str, ...] = SECRETS) -> None:
    """Clean up all runs of a site, or of a key holder; no other process may be working there."""
    for private in sorted((folder / "runs").glob("*/private")):
        clear_parts(private.parent)
        clear_parts(private)
        with suppress(BadValue):  # a run with damaged memory is refused when it is asked for, without affecting others
            if load_state(private / "state").finished:
                destroy_secrets(private.parent, secrets)
