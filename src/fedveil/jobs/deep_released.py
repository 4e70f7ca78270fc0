"""A torch generator that was released: found in its folder, and read after its certificate was recomputed."""

from pathlib import Path

from fedveil.bundle.bundle import Bundle
from fedveil.bundle.generating import FILE, DeepGenerator, Drawing
from fedveil.certificate.certify import certify
from fedveil.checks import require
from fedveil.files import read_file
from fedveil.model.torch import OWN
from fedveil.version import __version__


def holds_deep(folder: Path) -> bool:
    """Return whether a folder holds the records of a torch generator."""
    path, drawing = folder / "plan.toml", folder / FILE
    text = read_file(path).decode("utf-8", "replace") if path.is_file() else ""
    return drawing.is_file() and f'criterion = "{OWN}"' in text


def released_generator(folder: Path) -> DeepGenerator:
    """Return the generator of a folder, after its certificate was recomputed."""
    certify(folder, __version__)
    bundle = Bundle.read(folder)
    same = bundle.files["model.npz"] == read_file(folder / "model.npz")
    require(same, "bundle.zip", "hold the model beside it, which was certified", "another one")
    return DeepGenerator(bundle, Drawing.read(read_file(folder / FILE)))
