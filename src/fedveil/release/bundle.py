"""``bundle.zip``: a released model with everything that a prediction needs, in one file.

It holds the run's own ``plan.toml``, ``model.npz``, ``certificate.json`` and, if there is one, ``certificate.sig``,
byte for byte, and ``preparation.json``: how a record becomes a row, and what the classes are called. So whoever has it
can check that the parameters are those that were certified. There is nothing else in it, and nothing of single records:
the model is what the certificate is about, and the rest is what the study states and the names of the columns.
"""

import hashlib
import io
import json
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from fedveil.core.errors import BadValue, require
from fedveil.core.files import read_file
from fedveil.core.limits import check_unpacked
from fedveil.core.strict_json import read_object
from fedveil.core.values import Vector
from fedveil.data.opening import damage_told
from fedveil.data.read_formats import model_arrays
from fedveil.data.row_rule import RowRule
from fedveil.planning.plan import Plan, read_plan
from fedveil.release.personal import FILE as PERSONAL
from fedveil.release.personal import Personal
from fedveil.signing import FILE as SIGNATURE
from fedveil.signing import Signature

FILE: Final = "bundle.zip"
_RECORDS: Final = ("plan.toml", "model.npz", "certificate.json")
_PREPARATION: Final = "preparation.json"
_DATE: Final = (1980, 1, 1, 0, 0, 0)  # equal contents give equal bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bundle:
    """A model that is whole. ``preparation`` is None where the records came prepared, or were prepared at sites.

    ``start``: of a torch model, the public parameters that training began with; ``parameters`` is the way from there.
    ``personal``: a party's own model, made from the one that was released; ``parameters`` are then its own.
    """

    plan: Plan
    parameters: Vector
    start: Vector | None
    preparation: RowRule | None
    certificate: dict[str, Any]
    files: dict[str, bytes]
    personal: Personal | None = None

    @classmethod
    def of(cls, files: dict[str, bytes], preparation: RowRule | None, personal: Personal | None = None) -> "Bundle":
        """Make a bundle from a run's records, which must belong together."""
        for name in _RECORDS:
            require(name in files, "The bundle", f"hold {name}", sorted(files))
        plan = read_plan(_text(files, "plan.toml"))
        certificate = read_object(files["certificate.json"], "certificate.json")
        hint = "One of them is of another run."
        stated = certificate.get("plan")
        require(stated == plan.hash, "certificate.json", f"be of the plan beside it, {plan.hash}", stated, hint)
        _check_model(certificate, files["model.npz"])
        if SIGNATURE in files:
            fits = Signature.read(files[SIGNATURE]).fits(files["certificate.json"])
            require(fits, SIGNATURE, "fit the certificate", "a signature of something else")
        if preparation is not None:
            _check_preparation(plan, preparation)
        parameters, start = _parameters(plan, files["model.npz"])
        if personal is not None:
            same = personal.parameters.size == parameters.size and plan.model.linear
            require(same, PERSONAL, f"hold {parameters.size} parameters of a linear model", personal.parameters.size)
            parameters = personal.parameters
        return cls(
            plan=plan,
            parameters=parameters,
            start=start,
            preparation=preparation,
            certificate=certificate,
            files=files,
            personal=personal,
        )

    def with_personal(self, personal: Personal) -> "Bundle":
        """Return the same model as a party's own."""
        return Bundle.of(self.files, self.preparation, personal)

    @classmethod
    def of_run(cls, folder: Path, preparation: RowRule | None) -> "Bundle":
        """Make a bundle from the folder of a run."""
        names = [*_RECORDS, *([SIGNATURE] if (folder / SIGNATURE).exists() else [])]
        return cls.of({name: _record(folder / name) for name in names}, preparation)

    @classmethod
    def read(cls, path: Path) -> "Bundle":
        """Read a bundle from its file, or from the folder of a run."""
        file = path / FILE if path.is_dir() else path
        if path.is_dir() and not file.exists():
            raise BadValue(f"{path} must hold {FILE}, and there is none: is it the folder of a finished run?")
        members = _members(file)
        preparation = None
        if _PREPARATION in members:
            table = read_object(members.pop(_PREPARATION), _PREPARATION)
            require(table.pop("format", None) == 1, f"{_PREPARATION}: format", "be 1", "something else")
            preparation = RowRule.read(table)
        personal = Personal.read(members.pop(PERSONAL)) if PERSONAL in members else None
        return cls.of(members, preparation, personal)

    def write(self) -> bytes:
        """Return the bytes of the file."""
        contents = dict(self.files)
        if self.preparation is not None:
            text = json.dumps({"format": 1, **self.preparation.table()}, indent=1, allow_nan=False) + "\n"
            contents[_PREPARATION] = text.encode()
        if self.personal is not None:
            contents[PERSONAL] = (json.dumps(self.personal.as_json(), indent=1, allow_nan=False) + "\n").encode()
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in contents.items():
                member = zipfile.ZipInfo(name, _DATE)
                member.external_attr = 0o644 << 16
                archive.writestr(member, content, zipfile.ZIP_DEFLATED)
        return buffer.getvalue()


def _members(path: Path) -> dict[str, bytes]:
    if not path.exists():
        raise BadValue(f"{path} must be a run's folder or its {FILE}, and there is nothing of that name.")
    known = {*_RECORDS, SIGNATURE, _PREPARATION, PERSONAL}
    with damage_told(path.name, f"a {FILE} that a run left"), zipfile.ZipFile(io.BytesIO(read_file(path))) as archive:
        names = archive.namelist()
        require(len(names) == len(set(names)), path.name, "hold every file once", sorted(names)[:8])
        stray = sorted(set(names) - known)
        require(not stray, path.name, f"hold only {', '.join(sorted(known))}", stray[:5])
        check_unpacked(path.name, path.stat().st_size, sum(member.file_size for member in archive.infolist()))
        return {name: archive.read(name) for name in archive.namelist()}


def _record(path: Path) -> bytes:
    try:
        return read_file(path)
    except OSError as error:
        raise BadValue(f"The run's record {path} must be readable: {error.strerror}.") from error


def _text(files: dict[str, bytes], name: str) -> str:
    try:
        return files[name].decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadValue(f"{name} must be UTF-8 text: {error.reason}.") from error


def _check_model(certificate: dict[str, Any], model: bytes) -> None:
    """The parameters must be those that were certified."""
    digest = hashlib.sha256(model).hexdigest()
    rows = certificate.get("released")
    listed = rows if isinstance(rows, list) else []
    stated = [row.get("sha256") for row in listed if isinstance(row, dict) and row.get("file") == "model.npz"]
    require(digest in stated, "model.npz", f"be the model that was certified, {stated[:1]}", digest)


def _check_preparation(plan: Plan, preparation: RowRule) -> None:
    width, classes = len(preparation.features), len(preparation.labels.classes)
    same = (width, classes) == (plan.real_features, plan.data.classes)
    rule = f"make {plan.real_features} features and {plan.data.classes} classes, as the plan says"
    require(same, _PREPARATION, rule, (width, classes))
    mapped = preparation.feature_map == plan.origin.feature_map
    require(mapped, _PREPARATION, f"name the plan's feature map, {plan.origin.feature_map}", preparation.feature_map)
    near = abs(preparation.total_bound - plan.data.bound) <= 1e-9 * plan.data.bound
    require(near, _PREPARATION, f"bound rows by {plan.data.bound}, as the plan says", preparation.total_bound)


def _parameters(plan: Plan, data: bytes) -> tuple[Vector, Vector | None]:
    """Flat, as the loss takes them; without those of canaries' columns, which are zero in every other record."""
    with model_arrays(data) as arrays:
        values = np.asarray(arrays["parameters"], dtype=np.float64).reshape(-1)
        start = np.asarray(arrays["start"], dtype=np.float64).reshape(-1) if "start" in arrays.files else None
    require(values.size == plan.dimension, "model.npz", f"hold {plan.dimension} parameters", values.size)
    require(start is None or start.size == values.size, "model.npz", "begin with as many parameters", "others")
    if plan.real_features == plan.data.features:
        return values, start
    return values.reshape(plan.data.features, -1)[: plan.real_features].reshape(-1), None
