"""Files, numbers and messages that are too large: one sentence, before anything of their size is in memory.

Every trial is a process of its own that may have 1.5 GB of address space, less than what is asked for would need.
"""

import gzip
import io
import os
import resource
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedveil.core.errors import BadValue
from fedveil.core.limits import BLOCKS, ENVELOPE
from fedveil.data.opening import bytes_of
from fedveil.wire import frames

MEMORY = 3 * 2**29
SECONDS = 30  # of a processor; most of them take one, which is the program's start
STUDY = """
[data]
source = "{source}"
feature_bound = 1.0
classes = 2
default_scale = [0.0, 1.0]
{data}
[model]
kind = "logistic"
radius = 5.0
[privacy]
epsilon = 2.0
delta = 1e-4
{more}
"""


def npz(folder: Path) -> None:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head,
        {"descr": "<f8", "fortran_order": False, "shape": (400_000, 100)},  # 320 MB of zeros in .3 MB
    )
    with zipfile.ZipFile(folder / "data.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("X.npy", "w", force_zip64=True) as part:
            part.write(head.getvalue())
            for _ in range(320):
                part.write(bytes(10**6))
        small = io.BytesIO()
        np.save(small, np.zeros(400_000, dtype=np.int8))
        archive.writestr("y.npy", small.getvalue())


def lying_npz(folder: Path) -> None:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (10**8,)})
    with zipfile.ZipFile(folder / "data.npz", "w") as archive:
        archive.writestr("y.npy", head.getvalue())


def wide(folder: Path) -> None:
    with gzip.open(folder / "data.csv.gz", "wb") as file:
        file.write(b"0," * 4_000_000 + b"0\n")


def endless_line(folder: Path) -> None:
    with (folder / "data.csv").open("wb") as file:
        for _ in range(100):
            file.write(b"0" * 10**6)


def countless_lines(folder: Path) -> None:
    with gzip.open(folder / "data.csv.gz", "wb") as file:
        file.write(b"a,y\n")
        for _ in range(20):
            file.write(b"0,1\n" * 10**6)


def long_dictionary(folder: Path) -> None:
    """A text of a megabyte, once, and a million rows that name it."""
    words = pa.DictionaryArray.from_arrays(pa.array(np.zeros(10**5, dtype=np.int32)), pa.array(["x" * 10**6]))
    rows = pa.table({"a": words, "y": pa.array(np.zeros(10**5, dtype=np.int8))})
    with pq.ParquetWriter(folder / "data.parquet", rows.schema, compression="zstd") as writer:
        for _ in range(10):
            writer.write_table(rows)


def countless_rows(folder: Path) -> None:
    """A run of one value."""
    rows = pa.table({"a": np.zeros(10**7, dtype=np.int64), "y": np.zeros(10**7, dtype=np.int64)})
    with pq.ParquetWriter(folder / "data.parquet", rows.schema) as writer:
        for _ in range(5):
            writer.write_table(rows)


def lake(folder: Path) -> None:
    (folder / "lake").mkdir()
    countless_rows(folder / "lake")


def pipe(folder: Path) -> None:
    os.mkfifo(folder / "data.csv")


def packed_pipe(folder: Path) -> None:
    os.mkfifo(folder / "data.csv.gz")


def long_text(folder: Path) -> None:
    (folder / "data.csv").write_text("a,c,y\n" + f"0,{'x' * 100_000},1\n" + "0,z,0\n" * 20_000)


def idx(folder: Path) -> None:
    (folder / "labels.idx").write_bytes(b"\0\0\x08\x01\0\0\0\x02\0\x01")
    with gzip.open(folder / "data.idx.gz", "wb") as file:
        file.write(b"\0\0\x08\x02" + (2_000_000).to_bytes(4, "big") + (1000).to_bytes(4, "big"))


def parquet(folder: Path) -> None:
    names = [f"c{index}" for index in range(200)]
    rows = np.zeros(200_000, dtype=np.float32)
    schema = pa.schema([(name, pa.float32()) for name in (*names, "y")])
    with pq.ParquetWriter(folder / "data.parquet", schema) as writer:
        writer.write_table(pa.table(dict.fromkeys((*names, "y"), rows), schema=schema))


def svm(folder: Path) -> None:
    (folder / "data.svm").write_text("1 1:1\n" * 3000)


def small(folder: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(400, 4)) / 4
    np.savez(folder / "data.npz", X=rows, y=(rows[:, 0] > 0).astype(int))


CASES: dict[str, tuple[Callable[[Path], None], str, str, str, str]] = {
    "an archive that unpacks to gigabytes": (npz, "data.npz", "target = 'y'", "", "unpack to at most"),
    "an array whose head lies": (lying_npz, "data.npz", "target = 'y'", "", "as its head says"),
    "four million columns": (wide, "data.csv.gz", "target = -1\nheader = false", "", "at most 1e+06 columns"),
    "a line that never ends": (endless_line, "data.csv", "target = 0\nheader = false", "", "fewer than"),
    "lines without end": (countless_lines, "data.csv.gz", "target = 'y'", "", "unpack to at most"),
    "a long text in every row": (
        *(long_dictionary, "data.parquet", "target = 'y'\n[data.categories]\na = ['x']", "", "texts of at most 1000"),
    ),
    "a long text in every row, by a query": (
        *(
            long_dictionary,
            "duckdb:data.parquet",
            "target = 'y'\nquery = 'SELECT y, a FROM data'",
            "",
            "texts of at most",
        ),
    ),
    "rows without end": (countless_rows, "data.parquet", "target = 'y'", "", "unpack to at most"),
    "rows without end, by a query": (lake, "duckdb:lake", "target = 'y'", "", "unpack to at most"),
    "a pipe": (pipe, "data.csv", "target = 'y'", "", "a pipe, a device or a socket, not a file"),
    "a packed pipe": (packed_pipe, "data.csv.gz", "target = 'y'", "", "a pipe, a device or a socket, not a file"),
    "a device": (lambda _: None, "/dev/zero", "target = 'y'\nformat = 'csv'", "", "a pipe, a device or a socket"),
    "a key of fifty thousand parts": (
        small,
        "data.npz",
        "target = 'y'",
        f"{'.'.join('a' * 50_000)} = 1",
        "at most 32 parts",
    ),
    "a table of fifty thousand parts": (
        small,
        "data.npz",
        "target = 'y'",
        f"[{'.'.join('a' * 50_000)}]",
        "at most 32 parts",
    ),
    "a quoted key of many parts": (
        *(
            small,
            "data.npz",
            "target = 'y'",
            f"{' . '.join([chr(34) + 'a' + chr(34)] * 50_000)} = 1",
            "at most 32 parts",
        ),
    ),
    "keys behind a text that seems open": (
        *(
            small,
            "data.npz",
            "target = 'y'",
            'x = {y = """a"""", ' + ".".join("a" * 50_000) + ' = 1, z = "q"}',
            "32 parts",
        ),
    ),
    "brackets within brackets": (
        small,
        "data.npz",
        "target = 'y'",
        f"x = {'[' * 40_000}{']' * 40_000}",
        "at most 32 brackets",
    ),
    "more keys than anybody writes": (
        *(small, "data.npz", "target = 'y'", "\n".join(f"k{n} = 1" for n in range(150_000)), "at most 100000 keys"),
    ),
    "a text in every cell's room": (
        *(long_text, "data.csv", "target = 'y'\n[data.categories]\nc = ['z']", "", "texts of at most 1000"),
    ),
    "images that unpack to gigabytes": (idx, "data.idx.gz", "labels = 'labels.idx'", "", "unpack to at most"),
    "columns of one value": (parquet, "data.parquet", "target = 'y'", "", "unpack to at most"),
    "sparse rows that are dense here": (svm, "data.svm", "features = 1000000", "", "at most 2e+09 numbers"),
    "passes without end": (small, "data.npz", "target = 'y'", "[schedule]\npasses = 30000000", "schedule.passes"),
    "rounds without end": (
        *(small, "data.npz", "target = 'y'", "[schedule]\nrounds = 400\npasses = 9000", "schedule.rounds * passes"),
    ),
    "rounds of dpsgd without end": (
        *(small, "data.npz", "target = 'y'", "[algorithm]\nkind = 'dpsgd'\nrounds = 1000000000000", "at most 20000000"),
    ),
    "more clients than there are": (
        *(small, "data.npz", "target = 'y'", "[clients]\nkind = 'equal'\ncount = 1000000000000", "clients.count"),
    ),
}


def bounded() -> None:
    """Of the process that tries it: its memory, and its time on the processor; a pipe that blocks takes neither."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


@pytest.mark.parametrize("case", CASES)
def test_too_large_is_one_sentence(tmp_path: Path, case: str) -> None:
    make, source, data, more, sentence = CASES[case]
    make(tmp_path)
    study = tmp_path / "study.toml"
    study.write_text(STUDY.format(source=source, data=data, more=more))
    done = subprocess.run(
        [sys.executable, "-m", "fedveil", "plan", str(study), "--json"],
        preexec_fn=bounded,
        env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_what_unpacks_to_more_than_a_file_of_its_size_may_is_refused(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "data.csv.gz", "wb", compresslevel=1) as file:
        for _ in range(300):
            file.write(bytes(10**6))
    sentence = r"unpack to at most \d+ bytes \(50 times its size\)"
    with pytest.raises(BadValue, match=sentence), bytes_of(tmp_path / "data.csv.gz"):
        pass


def test_a_frame_that_is_too_large_is_refused_before_it_is_read() -> None:
    """Nothing but the frame's first 8 bytes is ever sent."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall((400_000_000).to_bytes(8, "big"))
        with pytest.raises(frames.Closed, match="too large"):
            frames.receive(ours, ENVELOPE + 1024)


def test_a_frame_of_countless_empty_parts_is_refused() -> None:
    ours, theirs = socket.socketpair()
    frame = (BLOCKS + 1).to_bytes(4, "big") + bytes(12 * (BLOCKS + 1))
    with ours, theirs:
        sender = threading.Thread(target=theirs.sendall, args=(len(frame).to_bytes(8, "big") + frame,))
        sender.start()
        with pytest.raises(frames.Closed, match="too many blocks"):
            frames.receive(ours)
        sender.join()


REFUSING = """
from pathlib import Path
from fedveil.wire.envelope import LARGEST, Head, Refused, seal, unseal
from fedveil.wire.keys import Identity
one, two = (Identity.make(name, name.encode().ljust(64)) for name in ("aggregator", "site"))
head = Head(run="a" * 32, sender="aggregator", receiver="site", kind="step", round=0, number=1)
envelope = seal(head, b"", one, two.card, bytes(32))
start = envelope[:-80]
whole = b"".join([start, bytes(200_000_000)])
def peak():
    status = Path("/proc/self/status").read_text().split()
    return int(status[status.index("VmHWM:") + 1])
before = peak()
try:
    unseal(whole, two, one.card)
except Refused as refused:
    assert refused.code == "bad-signature", refused.code
print(peak() - before)
"""


def test_a_forged_envelope_is_not_copied_to_be_refused() -> None:
    done = subprocess.run([sys.executable, "-c", REFUSING], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 50_000  # kilobytes, where one copy takes 200,000
