"""Builds the native launcher once per machine and Python, and loads it."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.machinery
import importlib.util
import shlex
import subprocess
import sysconfig
import tempfile
import threading
import types
import warnings
from pathlib import Path

from multikernel import write_whole
from triton_rt import driver as cuda
from triton_rt.config import Config
from triton_rt.errors import LauncherFallback
from triton_rt.files import private
from triton_rt.launch import torch_abi
from triton_rt.tma import TensorMap

_SOURCE = Path(__file__).with_name("launcher.c")
_HEADERS = ("tensors.h", "kinds.h", "driver.h", "map_cache.h", "maps.h", "same.h", "../tma/rules.h")
_NAME = "_triton_rt_launcher"


def extension() -> types.ModuleType | None:
    """The extension module; None, with a `LauncherFallback` warning, where it cannot be built."""
    return _extension(Config.from_environment())


@functools.lru_cache(maxsize=4)
def _extension(config: Config) -> types.ModuleType | None:
    if not config.native_launcher:
        return None
    _ahead(config).join()
    try:
        module = _load(build(config))
    except (OSError, ImportError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", None)
        warnings.warn(
            "the native launcher could not be built, so launches go through ctypes and cost some "
            f"ten microseconds more: {error}{': ' + detail if detail else ''}. A C compiler (CC) "
            "and Python's headers are needed.",
            LauncherFallback,
            stacklevel=4,
        )
        return None
    return module


def build_ahead() -> None:
    """Begins to build the native launcher in a thread, unless it is built. The first launch waits
    for it, and raises what went wrong."""
    config = Config.from_environment()
    if config.native_launcher:
        _ahead(config)


@functools.lru_cache(maxsize=4)
def _ahead(config: Config) -> threading.Thread:
    """The thread that builds it for a configuration, once; `build` says afterwards what it made."""

    def work() -> None:
        with contextlib.suppress(Exception):
            build(config)

    thread = threading.Thread(target=work, daemon=True, name="triton_rt-launcher")
    thread.start()
    return thread


def build(config: Config) -> Path:
    """Compiles launcher.c into the cache folder unless it is there, as it was written; returns the
    shared library.

    Raises `UnsafeFolder`, and `OSError` or `subprocess.SubprocessError` where that fails."""
    include = sysconfig.get_path("include")
    suffix = sysconfig.get_config_var("EXT_SUFFIX") or ".so"
    texts = [_SOURCE.read_text(), *((_SOURCE.parent / n).read_text() for n in _HEADERS)]
    source = "\0".join(texts)
    tag = hashlib.sha256(f"{source}\0{suffix}\0{config.compiler}".encode()).hexdigest()[:16]
    out = config.cache_dir / "launcher" / f"{_NAME}-{tag}{suffix}"
    private(out.parent)
    digest = out.with_suffix(".sha256")
    with contextlib.suppress(OSError):
        if digest.read_text() == _digest(out):
            return out
    if not Path(include, "Python.h").exists():
        raise FileNotFoundError(f"no Python.h in {include}")
    out.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        made = Path(folder, out.name)
        command = [*shlex.split(config.compiler), "-O2", "-std=c11", "-shared", "-fPIC"]
        command += [f"-I{include}", str(_SOURCE), "-o", str(made)]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        found = _digest(made)
        made.replace(out)
    write_whole(digest, found.encode())  # last: a reader between the two builds once more
    return out


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _load(path: Path) -> types.ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(_NAME, str(path))
    spec = importlib.util.spec_from_file_location(_NAME, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    module.set_symbols_from(lambda name: cuda.driver().address(name))
    module.use_maps(TensorMap)
    torch_abi.enable(module)
    return module
