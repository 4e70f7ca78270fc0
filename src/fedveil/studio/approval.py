"""An officer's approval of a plan: a signature over exactly the bytes of ``plan.toml``, in a file beside the study.

A run writes the very same bytes into its folder, so whether a finished run is the one that was approved can be checked
from files alone; a tuned run adds which of the approved candidates was chosen. The approval is no certificate: that is
signed when the run has ended.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from fedveil.core.errors import FedveilError

if TYPE_CHECKING:
    from fedveil.signing import Signature


def approval_file(study: Path) -> Path:
    """Return the file of a study's approval: its name with ``.approval`` added."""
    return study.with_name(study.name + ".approval")


def read_approval(study: Path) -> "Signature | None":
    """Return the approval beside a study, not yet held against a plan; None if there is none that can be read."""
    from fedveil.signing import Signature  # loads the library of signatures

    try:
        return Signature.read(approval_file(study).read_bytes())
    except (OSError, FedveilError):
        return None


def approval_words(study: Path | None, run: Path | None) -> str:
    """Return who approved a study, and, for a run, whether this is the plan that was approved."""
    approval = None if study is None else read_approval(study)
    if approval is None:
        return "Nobody has approved this plan."
    signer = approval.signer.fingerprint
    if run is None:
        return f"A plan of this study was approved by {signer}; the sign page says whether it is still this one."
    from fedveil.planning.plan import charged_text  # loads all that a plan may name

    try:
        data = (run / "plan.toml").read_bytes()
        fits = approval.fits(data) or approval.fits(charged_text(data.decode()).encode())
    except (OSError, ValueError, FedveilError):
        fits = False
    return f"Its plan was approved by {signer}." if fits else f"What {signer} approved was another plan."
