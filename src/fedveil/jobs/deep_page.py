"""Write the page of a torch generator, with pictures where its rows are some, and how its rows compare."""

import json
from pathlib import Path
from typing import Final

import numpy as np

from fedveil.audit.pictures import Greys, greys
from fedveil.core.values import Matrix
from fedveil.data.records import Records
from fedveil.engine.files import PUBLIC, write_atomically
from fedveil.jobs.deep_synthesis import Trained
from fedveil.release.generating import DeepGenerator
from fedveil.report.synthesis_page import Album, deep_page

_EACH: Final = 12  # pictures of a class
_MOST: Final = 20  # classes that are shown


def write_deep_page(trained: Trained, page: Path, quality: Path) -> None:
    """Write the page, and how rows compare with public held-out records, if there are any."""
    if trained.quality is not None:
        text = json.dumps(trained.quality, indent=1, allow_nan=False) + "\n"
        write_atomically(quality, text.encode(), mode=PUBLIC)
    generator = trained.generator
    text = deep_page(generator.name, trained.certificate, albums(generator, trained.public), trained.quality)
    write_atomically(page, text.encode(), mode=PUBLIC)


def albums(generator: DeepGenerator, public: Records | None) -> list[Album]:
    """Return pictures of each class, drawn with a fixed seed; none where rows are no pictures."""
    image = generator.drawing.image
    if not image:
        return []
    words = generator.preparation.labels.classes
    shown = min(len(words), _MOST)
    draw = generator.sampler()
    result = []
    for kind in range(shown):
        rows = draw(np.full(_EACH, kind, dtype=np.int64), kind)
        real = () if public is None else public.features[public.targets == kind][:_EACH]
        result.append(Album(name=words[kind], drawn=_greys(rows, image), public=_greys(np.asarray(real), image)))
    return result


def _greys(rows: Matrix, image: tuple[int, ...]) -> list[Greys]:
    return [greys(row, (image[0], image[1]), (-1.0, 1.0)) for row in rows]
