"""What a guard or a key holder removes when it starts: remains of killed writes, and secrets of runs that ended.

A run may have ended on the disk just before the process was killed; its keys are then not needed any more.
"""

import ctypes
import functools
import gc
from contextlib import suppress
from pathlib import Path
from typing import Final

from fedveil.core.errors import BadValue
from fedveil.core.recent import Recent
from fedveil.engine.ending import destroy_secrets
from fedveil.engine.files import clear_parts
from fedveil.federation.agreements.encrypted import KEY_FILE
from fedveil.federation.agreements.masked import MASK_KEY
from fedveil.federation.site.state import load_state

# at a site; a key holder has only the second
SECRETS: Final = ("key", KEY_FILE, MASK_KEY, "memory", "proposal", "prepared", "preparation.sums")


def clear_records(folder: Path, secrets: tuple[str, ...] = SECRETS) -> None:
    """Clean up all runs of a site, or of a key holder; no other process may be working there."""
    for private in sorted((folder / "runs").glob("*/private")):
        clear_parts(private.parent)
        clear_parts(private)
        with suppress(BadValue):  # a run with damaged memory is refused when it is asked for, without affecting others
            if load_state(private / "state").finished:
                destroy_secrets(private.parent, secrets)


def forget_computed() -> None:
    """Drop what functions of fedveil keep of earlier calls, and return the memory to the system.

    Accounting for a plan takes hundreds of megabytes once; the guard then waits for messages for days.
    """
    for one in gc.get_objects():
        if type(one) in (functools._lru_cache_wrapper, Recent) and str(one.__module__).startswith("fedveil."):
            one.cache_clear()
    gc.collect()
    with suppress(OSError, AttributeError):  # only the GNU C library has it
        ctypes.CDLL(None).malloc_trim(0)
