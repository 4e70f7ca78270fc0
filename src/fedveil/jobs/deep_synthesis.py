"""A torch generator from a study: trained, charged and certified as any torch model, then rows are drawn from it, free.

The loss of a record is its own (of an autoencoder, minus the evidence bound), so the plan, the algorithm, the books and
the certificate are those of a run. Only the end differs: rows, and a page about them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedveil.certificate.certify import Certificate
from fedveil.core.errors import BadValue, require
from fedveil.core.tables import known, table
from fedveil.data.load import Loaded
from fedveil.data.records import Records
from fedveil.engine.files import PUBLIC, sole_use, write_atomically
from fedveil.engine.measured import check_secret
from fedveil.engine.study import conduct_study
from fedveil.engine.synthetic_quality import deep_quality
from fedveil.engine.system import Progress, System
from fedveil.jobs.local import ReadTables, conclude, open_any_study, with_function
from fedveil.models.loss import NetworkLoss
from fedveil.models.spec import ModelPlan
from fedveil.models.torch.criteria import moments_name, pair_name, vae_name
from fedveil.planning.study import Study, study_of
from fedveil.release.bundle import Bundle
from fedveil.release.generating import FILE, DeepGenerator, Drawing, check_invertible
from fedveil.stages.prepare.loading import Unprepared
from fedveil.stages.synthesise.request import KIND, MOMENTS, PAIR, VAE, DeepRequest
from fedveil.stages.train.registry import ANSWERING, ONE_ROUND

TABLES = ("study", "data", "clients", "privacy", "algorithm", "schedule", "trust", "books", "generator")
_BOUND: Final = 1e4  # of a row: none of up to 10**8 entries in [-1, 1] is longer, so none is cut; the clip protects
_LATENT, _UNITS = 8, 128


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trained:
    """A finished generator, its certificate, how its rows compare with public records, and these, if there are any."""

    generator: DeepGenerator
    certificate: Certificate
    quality: dict[str, Any] | None
    public: Records | None


def is_deep(tables: Mapping[str, Any]) -> bool:
    """Return whether a study asks for a torch generator."""
    given = tables.get("generator")
    return isinstance(given, dict) and given.get("kind") == KIND


def open_deep(read: ReadTables, module: Callable[..., Any] | None = None) -> tuple[Study, DeepRequest, Loaded]:
    """Return the study, with the module that it trains, its [generator] table, and its records."""
    known(read.tables, TABLES, "a study of a torch generator")
    request = _request(read.tables, module)
    rest = {key: value for key, value in read.tables.items() if key != "generator"}
    data = dict(table(rest.get("data", {}), "data"))
    require("intercept" not in data, "data.intercept", "be left out of a generator's study", data.get("intercept"))
    data = {"feature_bound": _BOUND, **data, "intercept": 0.0}
    rest.setdefault("clients", {"kind": "equal", "count": 1})  # one holder of all records
    if request.module == MOMENTS and not {"algorithm", "schedule"} & set(rest):
        rest |= ONE_ROUND  # moments are sums, of which one round learns all there is
    study = study_of({**rest, "data": data, "model": {"kind": "logistic"}}, base=read.base, name=read.name)
    check_secret(study)
    study, loaded = open_any_study(study)
    if isinstance(loaded, Unprepared):
        raise BadValue("[data] must state the ranges and categories of a torch generator's columns.")
    check_invertible(loaded.preparation)
    shape = loaded.train.shape
    hint = "State data.classes: a generator draws rows of each class."
    require(shape.classes >= 2, "[data]", "have classes for a torch generator", shape.classes, hint)
    model = ModelPlan.generator(
        _module(request, shape.features, shape.classes),
        clip=request.clip,
        radius=request.radius,
        precision=request.precision,
    )
    _check_drawing(request, loaded)
    return replace(study, model=model), request, loaded


def _request(tables: Mapping[str, Any], module: Callable[..., Any] | None) -> DeepRequest:
    given = dict(table(tables.get("generator", {}), "generator"))
    if module is not None:
        given = with_function(given, "generator", "module", module)
    return DeepRequest.read(given)


def _module(request: DeepRequest, features: int, classes: int) -> str:
    """Return the name of the module that the plan states."""
    if request.module == MOMENTS:
        return moments_name(features, classes)
    if request.module not in (VAE, PAIR):
        return request.module
    name = vae_name if request.module == VAE else pair_name
    return name(features, classes, request.latent or _LATENT, request.units or _UNITS)


def _check_drawing(request: DeepRequest, loaded: Loaded) -> None:
    """Refuse what does not fit the data, before anything is charged."""
    shape, prepared = loaded.train.shape, check_invertible(loaded.preparation)
    if request.image:
        sides = request.image[0] * request.image[1]
        fits = sides == shape.features
        require(fits, "generator.image", f"have {shape.features} points, as a row has entries", request.image)
    same = len(request.shares) in (0, shape.classes)
    require(same, "generator.shares", f"list a share of each of the {shape.classes} classes", len(request.shares))
    numbers = [column.name for column in prepared.columns if not column.categories]
    for name in () if isinstance(request.whole, bool) else request.whole:
        require(name in numbers, "generator.whole", "name columns of numbers", name)


def drawing_of(request: DeepRequest, loaded: Loaded) -> Drawing:
    """Return how rows are drawn."""
    shape, prepared = loaded.train.shape, check_invertible(loaded.preparation)
    numbers = tuple(column.name for column in prepared.columns if not column.categories)
    given = request.whole
    whole = (numbers if given else ()) if isinstance(given, bool) else given
    shares = request.shares or (1 / shape.classes,) * shape.classes
    return Drawing(records=shape.records, shares=shares, image=request.image, whole=whole)


def trained_generator(
    read: ReadTables,
    folder: Path,
    *,
    module: Callable[..., Any] | None = None,
    resume: bool = False,
    watch: Callable[[Progress], None] | None = None,
    system: System,
) -> Trained:
    """Train a generator in ``folder``; what may be published but its rows is on the disk when this returns."""
    study, request, loaded = open_deep(read, module)
    study.model.for_data(loaded.train.shape.classes, loaded.train.shape.features)  # refuses a module before the charge
    _check_samples(study, loaded)
    metrics = conduct_study(study, loaded, folder, resume=resume, watch=watch, system=system)
    drawing = drawing_of(request, loaded)
    with sole_use(folder / "private"):
        write_atomically(folder / FILE, drawing.text().encode(), mode=PUBLIC)
        certificate = conclude(folder, metrics, None, loaded.preparation).certificate
    generator = DeepGenerator(Bundle.read(folder), drawing)
    quality = deep_quality(generator, loaded, np.random.default_rng(0), training_public=study.data.public)
    public = loaded.test.present() if loaded.test is not None and loaded.test_public else None
    return Trained(generator=generator, certificate=certificate, quality=quality, public=public)


def _check_samples(study: Study, loaded: Loaded) -> None:
    """Refuse a module that draws nothing, and a pair by an algorithm that has no place for its answer."""
    shape = loaded.train.shape
    loss = replace(study.model, classes=shape.classes).loss
    if not isinstance(loss, NetworkLoss):
        raise BadValue(f"A generator must be a torch module, got {loss.kind!r}.")
    loss.sampler(np.zeros(loss.size(shape.features)), shape.features)(np.arange(2), 0)
    fits, kind = study.algorithm.kind in ANSWERING or not loss.answers(shape.features), study.algorithm.kind
    rule = f"be {' or '.join(ANSWERING)} for an adversarial pair"
    require(fits, "algorithm.kind", rule, kind, "Its maker sees every judge, so every model is counted as seen.")
