"""A torch generator that was released: found in its folder, and read after its certificate was recomputed."""

from pathlib import Path

from fedveil.certificate.certify import certify
from fedveil.core.checks import require
from fedveil.core.files import read_file
from fedveil.core.tables import read_tables
from fedveil.release.bundle import Bundle
from fedveil.release.generating import FILE, DeepGenerator, Drawing
from fedveil.version import __version__


def holds_deep(folder: Path) -> bool:
    """Return whether a folder holds the records of a torch generator."""
    path = folder / "plan.toml"
    if not (path.is_file() and (folder / FILE).is_file()):
        return False
    return "model" in read_tables(read_file(path).decode("utf-8", "replace"), "plan.toml")


def released_generator(folder: Path) -> DeepGenerator:
    """Return the generator of a folder, after its certificate was recomputed."""
    certify(folder, __version__)
    bundle = Bundle.read(folder)
    same = bundle.files["model.npz"] == read_file(folder / "model.npz")
    require(same, "bundle.zip", "hold the model beside it, which was certified", "another one")
    return DeepGenerator(bundle, Drawing.read(read_file(folder / FILE)))
