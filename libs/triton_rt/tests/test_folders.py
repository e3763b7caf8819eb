"""Code is loaded from folders that nobody else can write to."""

from __future__ import annotations

import os
import stat
import subprocess

import pytest

from triton_rt import Cache, Config, private
from triton_rt.errors import UnsafeFolder
from triton_rt.launch import native


def test_a_folder_for_everyone_is_refused(tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    for path in (shared, shared / "kernels", shared / "a" / "b"):
        with pytest.raises(UnsafeFolder, match=f"everyone may write to {shared}"):
            Cache(path)
    shared.chmod(0o1777)  # as /tmp: what is ours in it nobody replaces, but all may add to it
    assert private(shared / "mine") == shared / "mine"
    with pytest.raises(UnsafeFolder):
        private(shared)
    shared.chmod(0o775)
    assert Cache(shared).path == shared


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    if tmp_path.stat().st_uid == 0:  # root's folders are trusted
        assert private(tmp_path) == tmp_path
        os.chown(tmp_path, 12345, -1)
    with pytest.raises(UnsafeFolder, match="belongs to user"):
        private(tmp_path)


def test_new_folders_are_their_owners_alone(tmp_path):
    cache = tmp_path / "cache"
    library = native.build(Config(cache))
    assert stat.S_IMODE(library.parent.stat().st_mode) == 0o700
    before = library.stat().st_mtime_ns
    assert native.build(Config(cache)).stat().st_mtime_ns == before
    library.write_bytes(b"damaged")
    assert native.build(Config(cache)).read_bytes()[:4] == b"\x7fELF"


def test_a_launcher_that_is_built_ahead_is_built_once(tmp_path, monkeypatch):
    built = []
    run = subprocess.run

    def noted(command, **options):
        built.append(command)
        return run(command, **options)

    monkeypatch.setenv("TRITON_RT_CACHE_DIR", str(tmp_path / "cache"))
    native._ahead.cache_clear()
    monkeypatch.setattr(subprocess, "run", noted)
    native.build_ahead()
    native.build_ahead()
    assert native._extension.__wrapped__(Config.from_environment()) is not None
    assert len(built) == 1
