"""C++ text -> shared library, with a C++ compiler and the headers of the installed torch."""

import errno
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cpp_emit.errors import BuildFailed, CompilerKilled, CompilerNotFound, TorchNotFound
from cpp_emit.parts import compiled_parts, digest, run, write_all
from symexpr import CPP_PRELUDE

FLAGS = ("-std=c++17", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall")

_HEADERS = Path(__file__).parent / "include"


def headers() -> dict[str, str]:
    """Every header that an emitted text includes besides torch's, by its include path."""
    out = {
        str(path.relative_to(_HEADERS)): path.read_text() for path in sorted(_HEADERS.rglob("*.h"))
    }
    out["cpp_emit/expr.h"] = (
        "// Integer division and remainder as Python means them, for negative numbers too.\n"
        f"#pragma once\n\n#include <cstdint>\n\n{CPP_PRELUDE}\n"
    )
    return out


@dataclass(frozen=True)
class Torch:
    """Where a torch is installed."""

    include: Path
    lib: Path
    version: str


def find_torch() -> Torch:
    """The torch of this Python, found without importing it. Raises TorchNotFound."""
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise TorchNotFound("no torch is installed in this Python: its C++ headers are needed")
    root = Path(next(iter(spec.submodule_search_locations)))
    include, lib = root / "include", root / "lib"
    if not (include / "torch/csrc/stable/c/shim.h").exists() or not lib.exists():
        raise TorchNotFound(
            f"{root} has no torch/csrc/stable/c/shim.h: torch 2.10 or newer, as a binary "
            "package, is needed"
        )
    return Torch(include, lib, importlib.metadata.version("torch"))


def find_compiler() -> str:
    """Raises CompilerNotFound."""
    for name in ("g++", "clang++", "c++"):
        found = shutil.which(name)
        if found is not None:
            return found
    raise CompilerNotFound("no g++, clang++ or c++ on the PATH: install one, or pass `compiler`")


def build(
    text: str,
    out_dir: str | os.PathLike[str],
    name: str = "program",
    *,
    compiler: str | None = None,
    flags: Sequence[str] = FLAGS,
) -> Path:
    """Compiles a text of `emit` and returns the path of the library.

    The name of the file ends with a hash of everything that went in, so building the same text
    again finds it there; a file that is no longer what was written is built again, with a
    warning. The text is left beside it (`.cpp`). What all programs share is compiled once for a
    folder (`cpp_emit.parts`). Whoever can write to `out_dir` can have code run here: it is made for
    its owner alone (0700) unless it is there.

    Raises CompilerNotFound, CompilerKilled, TorchNotFound, BuildFailed (with the lines the compiler
    refused)."""
    compiler = find_compiler() if compiler is None else compiler
    torch = find_torch()
    sources = headers()
    common = (compiler, torch.version, str(torch.lib), *flags, *sources.values())
    folder = Path(out_dir)

    def make(work: Path, source: Path, made: Path) -> None:
        parts = compiled_parts(
            folder / f"parts_{_key(*common)}", [compiler, *flags], sources, torch.include
        )
        if parts is None or not parts.link(source, made, torch.lib):
            # The compiler lacks an option, or refuses the text: it says so below.
            write_all(work, sources)
            where = [f"-I{work}", "-isystem", str(torch.include), f"-L{torch.lib}"]
            linked = ["-ltorch_cpu", "-ldl", f"-Wl,-rpath,{torch.lib}"]
            _compile([compiler, *flags, str(source), "-o", str(made), *where, *linked], text)

    return _kept(folder, f"{name}_{_key(text, *common)}", text, make)


def build_plain(
    text: str,
    out_dir: str | os.PathLike[str],
    name: str,
    sources: Mapping[str, str],
    ways: Sequence[Sequence[str]],
    *,
    compiler: str | None = None,
) -> Path:
    """Compiles a text that needs nothing of torch, with these headers by their include paths, for
    this machine's processor. ways: arguments of the compiler; the first with which it compiles and
    links are taken. The library is kept as those of `build` are.

    Raises CompilerNotFound, CompilerKilled, BuildFailed (of the last way)."""
    compiler = find_compiler() if compiler is None else compiler
    common = (compiler, _processor(), *("\0".join(way) for way in ways), *sources.values())

    def make(work: Path, source: Path, made: Path) -> None:
        write_all(work, sources)
        for way in ways:
            command = [compiler, f"-I{work}", str(source), "-o", str(made), *way]
            if way is ways[-1]:
                _compile(command, text)
            elif run(command).returncode == 0:
                return

    return _kept(Path(out_dir), f"{name}_{_key(text, *common)}", text, make)


@cache
def _processor() -> str:
    """What decides which instructions a program may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n")
    except OSError:
        return platform.platform()
    kinds = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({x for x in lines if x.startswith(kinds)}))


def _kept(folder: Path, stem: str, text: str, make: Callable[[Path, Path, Path], None]) -> Path:
    """The library of that name in a folder, which `make(work, source, library)` makes unless it is
    there as it was written."""
    stem = re.sub(r"[^0-9A-Za-z_]", "_", stem)
    library = folder / f"{stem}.so"
    if library.exists():
        if _is_intact(library):
            return library
        warnings.warn(f"{library} is damaged; it was dropped and is built again", stacklevel=3)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        work = Path(temporary)
        source, made = work / f"{stem}.cpp", work / f"{stem}.so"
        source.write_text(text, encoding="utf-8")
        make(work, source, made)
        # Another process may have built the same. Compilers may differ in a bit from run to run,
        # so the digest goes last: a reader between the two builds once more.
        source.replace(library.with_suffix(".cpp"))
        written = work / "digest"
        written.write_text(digest(made))
        made.replace(library)
        written.replace(_digest_path(library))
    return library


def _compile(command: Sequence[str], text: str) -> None:
    """Raises BuildFailed, CompilerKilled, and OSError where the disk is full."""
    ran = run(command)
    full = os.strerror(errno.ENOSPC)
    if ran.returncode != 0 and full in ran.stderr:
        raise OSError(errno.ENOSPC, full)
    if ran.returncode < 0 or (ran.returncode != 0 and "Killed signal" in ran.stderr):
        raise CompilerKilled(f"{command[0]} was ended by a signal\n  {ran.stderr.strip()}")
    if ran.returncode != 0:
        source = next(part for part in command if part.endswith(".cpp"))
        raise BuildFailed(_report(ran.stderr, source, text, command))


def _key(*parts: str) -> str:
    return hashlib.sha256(b"".join(part.encode() + b"\0" for part in parts)).hexdigest()[:16]


def _is_intact(library: Path) -> bool:
    """The file is what was written: a loader would run a damaged one."""
    try:
        return _digest_path(library).read_text() == digest(library)
    except OSError:
        return False


def _digest_path(library: Path) -> Path:
    return library.with_suffix(".sha256")


def _report(stderr: str, source: str, text: str, command: Sequence[str]) -> str:
    """The compiler's errors, each with the line of the text that it is about."""
    lines = text.split("\n")
    out = []
    for match in re.finditer(rf"{re.escape(source)}:(\d+):(?:\d+:)? error: (.*)", stderr):
        number = int(match[1])
        shown = lines[number - 1].strip() if 0 < number <= len(lines) else ""
        out.append(f"line {number}: {match[2]}\n    {shown}")
    if not out:
        out = [stderr.strip()]
    return "the C++ compiler refused the text:\n" + "\n".join(out) + f"\n{' '.join(command)}"
