"""Records on disk: what earlier versions wrote is read, what is damaged goes and is reported."""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import multikernel
from multikernel import (
    BoundedFolder,
    ChoiceTable,
    Decision,
    InvalidChoices,
    RecordFolder,
    RecordStore,
    TableStore,
)

RECORD = {"version": 1, "winner": "a", "times": {"a": 1.5}, "sizes": [4, 8]}


def as_written_before(form: str) -> bytes:
    """`RECORD` in each of the forms that are on users' disks."""
    body = json.dumps(RECORD, indent=1).encode()
    if form == "checksum line":
        return hashlib.sha256(body).hexdigest().encode() + b"\n" + body
    if form == "checksum field":
        text = json.dumps(RECORD, sort_keys=True).encode()
        whole = {"sha256": hashlib.sha256(text).hexdigest()[:40], "record": RECORD}
        return json.dumps(whole).encode()
    return json.dumps({"key": "problem\nH200", "record": RECORD}, indent=1).encode()


def folder(path: Path, said: list[str], **more: Any) -> RecordFolder:
    return RecordFolder(path, lambda file, error: said.append(f"{file.name}: {error}"), **more)


@pytest.mark.parametrize("form", ["checksum line", "checksum field"])
def test_records_of_earlier_versions_are_read(tmp_path: Path, form: str) -> None:
    said: list[str] = []
    records = folder(tmp_path, said)
    (tmp_path / "k").mkdir()
    records.file("k/1").write_bytes(as_written_before(form))
    assert records.read("k/1", dict) == RECORD and list(records.names("k")) == ["k/1"]
    records.write("k/1", RECORD | {"winner": "b"})
    assert records.read("k/1", lambda record: record["winner"]) == "b" and not said
    records.file("k/1").write_bytes(as_written_before(form).replace(b'"a": 1.5', b'"a": 0.5'))
    assert records.read("k/1", dict) is None and "checksum" in said[0]
    assert not list(records.names("k"))


def test_a_store_finds_what_an_earlier_version_stored(tmp_path: Path) -> None:
    name = hashlib.sha256(b"problem\nH200").hexdigest()[:32]
    (tmp_path / f"{name}.json").write_bytes(as_written_before("key"))
    assert RecordStore(tmp_path).get("problem\nH200") == RECORD
    other = hashlib.sha256(b"another").hexdigest()[:32]
    (tmp_path / f"{other}.json").write_bytes(as_written_before("key"))
    with pytest.warns(UserWarning, match="ignoring .* another key"):
        assert RecordStore(tmp_path).get("another") is None


def test_brackets_without_end_are_damage(tmp_path: Path) -> None:
    """Python's reader of JSON gives up on them by a RecursionError."""
    said: list[str] = []
    records = folder(tmp_path, said)
    records.file("deep").write_bytes(b"[" * 100_000)
    assert records.read("deep", dict) is None and not records.file("deep").exists()
    assert said[0].startswith("deep.json: ")
    with pytest.raises(InvalidChoices):
        ChoiceTable.loads("[" * 100_000)


def test_a_table_of_an_earlier_version_is_loaded(tmp_path: Path) -> None:
    shelf = TableStore(tmp_path, "H200").shelf("mm", ("a", "b"), 4)
    assert shelf.path.name == "mm-586d75e47940d22ac2690fd6", "where earlier versions look"
    entry = {
        "key": "586d75e47940d22ac2690fd6",
        "cell": [9],
        "sizes": [5],
        "variant": "b",
        "seconds": {"b": 1e-6},
    }
    body = json.dumps(entry, indent=1).encode()
    shelf.path.mkdir()
    checksum = hashlib.sha256(body).hexdigest().encode()
    (shelf.path / "9.json").write_bytes(checksum + b"\n" + body)
    assert shelf.load() == {(9,): Decision("b", {"b": 1e-6}, (5,))}


def test_a_store_keeps_in_memory_and_on_disk(tmp_path: Path) -> None:
    store = RecordStore(tmp_path / "made")
    store.put("k", {"a": 1})
    store.put("k", {"a": 2})
    assert store.get("k") == RecordStore(tmp_path / "made").get("k") == {"a": 2}
    assert store.get("other") is None and RecordStore().get("k") is None
    (tmp_path / "file").write_text("")
    blocked = RecordStore(tmp_path / "file")
    with pytest.warns(UserWarning, match="not kept"):
        blocked.put("k", {"a": 1})
    assert blocked.get("k") == {"a": 1}


def test_of_several_writers_the_first_ones_record_stays(tmp_path: Path) -> None:
    said: list[str] = []
    records = folder(tmp_path, said)
    assert records.write_first("1", {"by": "a"}, dict) is None
    assert records.write_first("1", {"by": "b"}, dict) == {"by": "a"}
    records.file("1").write_text("{}")
    assert records.write_first("1", {"by": "c"}, dict) is None, "a damaged one is no record"
    assert records.read("1", dict) == {"by": "c"} and len(said) == 1


def test_a_bounded_folder_drops_what_was_not_of_use(tmp_path: Path) -> None:
    files = BoundedFolder(tmp_path, ".bin", 250, "things")
    for number in range(3):
        file = tmp_path / "ab" / f"{number}.bin"
        assert files.write(file, bytes(100))
        os.utime(file, (time.time() - 100 + number,) * 2)
        files.touch(tmp_path / "ab" / "0.bin")
    assert [file.name for _, _, file in sorted(files.entries())] == ["2.bin", "0.bin"]
    files.clear()
    assert not list(files.entries()) and files.read(tmp_path / "ab" / "0.bin") is None


def test_who_writes_files_alone_loads_no_more() -> None:
    """Compile workers of other libraries start with this import."""
    script = "import sys, multikernel; print(*[m for m in sys.modules if 'multikernel' in m])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert set(ran.stdout.split()) == {"multikernel", "multikernel.faces", "multikernel.files"}


def test_every_public_name_is_found() -> None:
    names = re.findall(r"import (\w+) as \1$", inspect.getsource(multikernel), re.MULTILINE)
    assert len(names) > 20
    for name in names:
        assert getattr(multikernel, name).__module__.startswith("multikernel.")
    with pytest.raises(AttributeError, match="no attribute 'Sequence'"):
        multikernel.Sequence  # noqa: B018 - what a module of it imports from elsewhere
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        multikernel.nothing  # noqa: B018 - the access is the test
