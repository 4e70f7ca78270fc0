"""``fedveil`` called in this process, as its own process would answer: for tests in which the process is not the point.

A new process takes a second to load the program; a call takes what its work takes.
"""

import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack, chdir, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from subprocess import CompletedProcess
from unittest.mock import patch

from fedveil.cli import main


def called(*words: object, cwd: Path | None = None, settings: Mapping[str, str] | None = None) -> CompletedProcess[str]:
    """Return what the command printed and its exit code; the folder, the environment and the umask are put back."""
    out, err, texts = StringIO(), StringIO(), [str(word) for word in words]
    mask = os.umask(0o022)
    try:
        with ExitStack() as changed:
            changed.enter_context(patch.object(sys, "argv", ["fedveil", *texts]))
            changed.enter_context(patch.dict(os.environ, settings or {}))
            changed.enter_context(chdir(cwd or Path.cwd()))
            changed.enter_context(redirect_stdout(out))
            changed.enter_context(redirect_stderr(err))
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
        return CompletedProcess(texts, code, out.getvalue(), err.getvalue())
    finally:
        os.umask(mask)
    raise AssertionError("a command ends by saying how it ended")
