"""`compile-cli doctor`: what this machine can do, in a few lines."""

import shutil
import sys
from importlib.metadata import version

import torch

from compile_cli.options import Options


def examine(options: Options) -> str:
    """Versions, GPUs, the C++ compiler and the cache, and what their absence means."""
    lines = [f"python    {sys.version.split()[0]}"]
    lines += [f"{name:9} {version(name)}" for name in ("torch", "triton", "compile-cli")]
    if torch.cuda.is_available():
        for i in range(torch.cuda.device_count()):
            p = torch.cuda.get_device_properties(i)
            lines.append(
                f"cuda:{i}    {p.name}, sm_{p.major}{p.minor}, {p.total_memory / 1e9:.0f} GB"
            )
    else:
        lines.append("cuda      none: kernels run on the CPU")
    compiler = shutil.which("g++")
    without = "none: --emit cpp cannot build, and kernels on the CPU are interpreted"
    lines.append(f"g++       {compiler or without}")
    path = options.cache_path
    files = [f for f in path.rglob("*") if f.is_file()] if path.is_dir() else []
    size = sum(f.stat().st_size for f in files)
    lines.append(f"cache     {path}: {len(files)} files, {size / 1e6:.1f} MB")
    return "\n".join(lines)
