"""What a guard or a key holder clears when it starts: the remains of writes that were killed, and of runs that ended.

A run may have ended here, on the disk, just before the process was killed; its keys then wait for nobody.
"""

from contextlib import suppress
from pathlib import Path
from typing import Final

from fedveil.errors import BadValue
from fedveil.federation.agreements.encrypted import KEY_FILE
from fedveil.federation.site.state import load_state
from fedveil.run.ending import destroy_secrets
from fedveil.run.files import clear_parts

# Of a run at a site; a key holder has the second alone.
SECRETS: Final = ("key", KEY_FILE, "memory", "proposal", "prepared")


def clear_records(folder: Path, secrets: tuple[str, ...] = SECRETS) -> None:
    """Go through all runs of a site, or of a key holder; nobody else may be at work there."""
    for private in sorted((folder / "runs").glob("*/private")):
        clear_parts(private.parent)
        clear_parts(private)
        with suppress(BadValue):  # a run whose memory is damaged is refused when it is asked for, and only that one
            if load_state(private / "state").finished:
                destroy_secrets(private.parent, secrets)
