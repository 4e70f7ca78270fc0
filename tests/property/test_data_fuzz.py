"""Whatever bytes a file holds, it is either loaded into bounded records or refused in one sentence."""

import gzip
import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveil.core.errors import BadValue
from fedveil.data.load import load
from fedveil.data.rows import row_norms
from fedveil.data.spec import Source, Split

cells = st.sampled_from(["0", "1", "-2.5", "1e400", "nan", "?", "", "x", '"', "1_0", "\0", "é", "1:2", "3:", " ", "#"])
lines = st.lists(cells, max_size=4).map(",".join) | st.lists(cells, max_size=4).map(" ".join)
texts = st.lists(lines, max_size=6).map(lambda found: "\n".join(found).encode())


def whole_files() -> dict[str, bytes]:
    archive, table = io.BytesIO(), io.BytesIO()
    np.savez(archive, X=np.eye(3), y=np.array([0, 1, 1]))
    pq.write_table(pa.table({"0": [1.0, 2.0], "y": [0, 1]}), table)
    images = b"\0\0\x08\x02" + b"\0\0\0\x02\0\0\0\x03" + bytes(range(6))
    return {"npz": archive.getvalue(), "parquet": table.getvalue(), "idx": images}


WHOLE = whole_files()
STATED: dict[str, dict[str, Any]] = {
    "csv": {"target": -1, "header": False},
    "libsvm": {"features": 3},
    "npz": {"target": "y"},
    "parquet": {"target": "y"},
    "idx": {"labels": "labels.idx"},
}


def loads_or_refuses(form: str, content: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder)
        (base / name).write_bytes(content)
        (base / "labels.idx").write_bytes(b"\0\0\x08\x01\0\0\0\x02\0\x01")
        stated = {"source": name, "format": form, "classes": 2, "feature_bound": 1.0, "default_fill": "drop-row"}
        source = Source.parse({**stated, **STATED[form]})
        sentence = "it must load"
        try:
            train = load(source, Split(kind="record"), base=base, generator=np.random.default_rng).train
            assert (row_norms(train.features) <= train.bound).all()
        except BadValue as error:
            sentence = str(error)
        assert "must" in sentence
        assert "\n" not in sentence


@settings(max_examples=150)
@given(content=texts | st.binary(max_size=60), form=st.sampled_from(["csv", "libsvm"]), packed=st.booleans())
def test_any_text(content: bytes, form: str, packed: bool) -> None:
    loads_or_refuses(form, gzip.compress(content) if packed else content, "a.gz" if packed else "a")


@pytest.mark.parametrize("form", ["npz", "parquet", "idx"])
def test_damaged_archives(form: str) -> None:
    @settings(max_examples=80)
    @given(place=st.integers(0, len(WHOLE[form]) - 1), byte=st.integers(0, 255), cut=st.booleans())
    def damaged(place: int, byte: int, cut: bool) -> None:
        content = bytearray(WHOLE[form])
        content[place] = byte
        loads_or_refuses(form, bytes(content[:place] if cut else content), "a")

    damaged()


@settings(max_examples=60)
@given(place=st.integers(0, 40), byte=st.integers(0, 255))
def test_damaged_gzip(place: int, byte: int) -> None:
    content = bytearray(gzip.compress(b"1,0\n2,1\n3,0\n4,1\n", mtime=0))
    content[place % len(content)] = byte
    loads_or_refuses("csv", bytes(content), "a.gz")
