"""Scattering features of images, by kymatio: ``python _scattering_features.py FOLDER``, of every *.images.npy in it.

Run by benchmarks/scattering.py in an environment of its own, so nothing of fedveil is imported. Two scales, eight
angles: 81 channels of 7 x 7 numbers for each image.
"""

import sys
from pathlib import Path

import numpy as np
import scipy.special

if not hasattr(scipy.special, "sph_harm"):  # kymatio asks for it, for three dimensions, and newer scipy has it no more
    scipy.special.sph_harm = None

BLOCK = 100  # images at a time: all blocks have one shape


def main(folder: Path) -> None:
    import torch
    from kymatio.torch import Scattering2D  # type: ignore[import-not-found]

    torch.set_num_threads(1)
    transform = Scattering2D(J=2, shape=(28, 28))
    for path in sorted(folder.glob("*.images.npy")):
        images = np.load(path)
        found = np.empty((len(images), 81 * 49), np.float32)
        for first in range(0, len(images), BLOCK):
            block = torch.from_numpy(images[first : first + BLOCK])
            found[first : first + BLOCK] = transform(block).numpy().reshape(len(block), -1)
        np.save(folder / path.name.replace(".images", ""), found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
