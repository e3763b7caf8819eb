"""Launches that begin while the one before them in the stream ends.

On Hopper and later a kernel may be launched early (programmatic dependent launch): its programs
take their places as those of the kernel before leave theirs, and wait for its results only before
they touch memory. What a launch costs between two kernels is then hidden behind the first."""

import inspect
from dataclasses import replace

from triton_rt.errors import BadSource
from triton_rt.source.flat_tuples import path
from triton_rt.source.kernel_source import KernelSource


def overlapped(source: KernelSource, *, early: bool = False) -> KernelSource:
    """The same kernel, with programmatic dependent launch: sm_90 and later.

        kernel(x, n)  ->  gdc_wait(); kernel(x, n)

    for any kernel: it waits for all that earlier launches of the stream wrote before it begins, and
    they, too, have waited for theirs. With `early` it first lets the next launch begin as soon as
    every program of this one has started, and not only as they end; of that the next must be
    overlapped as well to gain anything. On an H200 that helps kernels whose programs do much (2048
    elements with eight warps), and hurts those with many small programs. Raises `BadSource` for
    `@gluon.jit` kernels, which must wait by themselves."""
    if source.is_gluon:
        raise BadSource(
            f"{source.name} is a @gluon.jit kernel: call gdc_wait() at its beginning, with pdl=True"
        )
    constants = {name for name, _ in source.constants}
    given = {path(p.name)[0] for p in source.params} | {path(n)[0] for n in constants}
    names = [n for n in inspect.signature(source.python).parameters if n in given]
    params = (f"{n}: tl_.constexpr" if n in constants else n for n in names)
    name = f"{source.name}_overlapped"
    lines = [
        "import triton as triton_",
        "import triton.language as tl_",
        "@triton_.jit",
        f"def {name}({', '.join(params)}):",
        *(["    tl_.extra.cuda.gdc_launch_dependents()"] if early else []),
        "    tl_.extra.cuda.gdc_wait()",
        f"    {source.name}({', '.join(f'{n}={n}' for n in names)})",
    ]
    text = "\n".join([source.text, "", *lines, ""])
    return replace(source, name=name, text=text, pdl=True)
