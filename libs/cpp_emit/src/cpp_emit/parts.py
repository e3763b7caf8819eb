"""What all emitted programs share, compiled once: a build takes a fifth of its time.

A folder holds the headers with a precompiled `runtime.h` (GCC finds it beside the header, and reads
the header where it does not fit), the object of `runtime_body.h`, and a stand-in for
`libtorch_cpu.so`: an empty library of that name. A shared library keeps its undefined symbols, so
the linker need not read torch's, which takes half a second. A loader finds torch's by the rpath."""

import hashlib
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cpp_emit.errors import CompilerNotFound

_STAND_IN = "libtorch_cpu.so"


@dataclass(frozen=True)
class Parts:
    """`command`: the compiler with its flags and where it finds headers."""

    folder: Path
    command: tuple[str, ...]

    def link(self, source: Path, library: Path, torch_lib: Path) -> bool:
        """Whether the text of `source` could be made a library with these parts."""
        given = [str(source), str(self.folder / "runtime.o"), "-o", str(library)]
        linked = ["-Wl,--no-as-needed", str(self.folder / _STAND_IN), "-ldl"]
        ran = run([*self.command, *given, *linked, f"-Wl,-rpath,{torch_lib}"])
        return ran.returncode == 0


def compiled_parts(
    folder: Path, compiler: Sequence[str], headers: Mapping[str, str], torch_include: Path
) -> Parts | None:
    """The parts in `folder`, made unless they are there as they were written; None where the
    compiler cannot make them. Raises CompilerNotFound."""

    def parts(at: Path) -> Parts:
        where = (f"-I{at}", "-isystem", str(torch_include), "-DCPP_EMIT_LINKED")
        return Parts(at, (*compiler, *where))

    if _is_intact(folder):
        return parts(folder)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        work = Path(temporary) / "made"
        write_all(work, headers)
        made = parts(work)
        (work / "empty.cpp").touch()
        # The precompiled header serves only a file that includes it first.
        (work / "runtime.cpp").write_text(
            '#include "cpp_emit/runtime.h"\n#include "cpp_emit/runtime_body.h"\n'
        )
        runtime = work / "cpp_emit" / "runtime.h"
        named = f"-Wl,-soname,{_STAND_IN}"
        steps = (
            [*compiler, named, str(work / "empty.cpp"), "-o", str(work / _STAND_IN)],
            [*made.command, "-x", "c++-header", str(runtime), "-o", f"{runtime}.gch"],
            [*made.command, "-c", str(work / "runtime.cpp"), "-o", str(work / "runtime.o")],
        )
        if any(run(step).returncode != 0 for step in steps):
            return None
        (work / "digest").write_text(_digests(work))
        try:
            work.rename(folder)
        except OSError:  # it is there: of another process, or damaged
            if not _is_intact(folder):
                folder.rename(Path(temporary) / "damaged")
                work.rename(folder)
    return parts(folder)


def write_all(folder: Path, files: Mapping[str, str]) -> None:
    """Writes texts by their paths within a folder."""
    for path, content in files.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content, encoding="utf-8")


def run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs a compiler. Raises CompilerNotFound."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as problem:
        raise CompilerNotFound(f"cannot run the compiler {command[0]}: {problem}") from problem


def digest(file: Path) -> str:
    """sha256 of a file's bytes, in hexadecimal digits."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _digests(folder: Path) -> str:
    files = sorted(f for f in folder.rglob("*") if f.is_file() and f.name != "digest")
    return "".join(f"{_known_digest(file)} {file.relative_to(folder)}\n" for file in files)


def _known_digest(file: Path) -> str:
    """`digest`, computed once while the file is not touched: a precompiled header has 50 MB."""
    at = file.stat()
    return _digest_at(file, (at.st_ino, at.st_size, at.st_mtime_ns, at.st_ctime_ns))


@lru_cache(maxsize=64)
def _digest_at(file: Path, _state: tuple[int, ...]) -> str:
    return digest(file)


def _is_intact(folder: Path) -> bool:
    try:
        return (folder / "digest").read_text() == _digests(folder)
    except OSError:
        return False
