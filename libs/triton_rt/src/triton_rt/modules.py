"""The module of a kernel's text, and the function in it."""

from __future__ import annotations

import functools
import hashlib
import inspect
import io
import linecache
import threading
import types
from typing import TYPE_CHECKING, Any

from triton_rt.errors import BadSource, NotInterpretable
from triton_rt.kinds import SCALARS

if TYPE_CHECKING:
    from triton_rt.source import KernelSource


def load_jit(source: KernelSource, interpret: bool = False) -> Any:
    """The kernel's function, ready for `fn[grid](*args, **constants)`.

    `interpret=False`: Triton's `JITFunction`. `interpret=True`: an `InterpretedKernel` for CPU
    tensors. Neither depends on TRITON_INTERPRET, nor changes it.
    """
    if interpret:
        from triton_rt.interp import InterpretedKernel

        if is_gluon(getattr(load_module(source), source.name)):
            raise NotInterpretable(
                f"{source.name} is a @gluon.jit kernel, whose layouts and barriers only a GPU has: "
                "use CUDA tensors, or a @triton.jit kernel"
            )
        scalars = {p.name: p.kind for p in source.params if p.kind in SCALARS}
        function = getattr(load_module(source), source.name)
        return InterpretedKernel(function, scalars, tuple(source.constant_values()), tma=source.tma)
    from triton.runtime.jit import JITFunction

    function = getattr(load_module(source), source.name)
    return function if isinstance(function, JITFunction) else JITFunction(function.fn)


def is_gluon(function: Any) -> bool:
    """Whether a kernel is `@gluon.jit`, which Triton compiles by other stages."""
    return bool(getattr(function, "is_gluon", bool)())


def plain_function(source: KernelSource) -> Any:
    """The Python function under the kernel's decorator. Raises `BadSource` if there is none."""
    module = load_module(source)
    function = getattr(module, source.name, None)
    if function is None:
        raise BadSource(f"the text of {source.name} defines no function of that name")
    python = getattr(function, "fn", None)
    if not inspect.isfunction(python):
        raise BadSource(f"{source.name} is {function!r}: decorate it with @triton.jit, alone")
    return python


def load_module(source: KernelSource) -> types.ModuleType:
    """The module of the source's text, executed once per distinct text."""
    return _load_text(source.name, source.text)


#: Guards Triton's knobs, which belong to the whole process, while a module is executed.
_LOADING = threading.RLock()


@functools.lru_cache(maxsize=4096)
def _load_text(name: str, text: str) -> types.ModuleType:
    import triton

    tag = hashlib.sha256(text.encode()).hexdigest()[:12]
    module = types.ModuleType(f"triton_rt_kernel_{name}_{tag}")
    module.__file__ = f"<{name} {tag}>"
    # Triton and the interpreter read a function's source through linecache, by the line numbers
    # of the tokenizer: a form feed or U+2028 ends no line.
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = io.StringIO(text).readlines()
    linecache.cache[module.__file__] = (len(text), None, lines, module.__file__)
    try:
        code = compile(text, module.__file__, "exec")
        with _LOADING, triton.knobs.runtime.scope():
            if triton.knobs.runtime.interpret:
                triton.knobs.runtime.interpret = False
            exec(code, module.__dict__)
    except Exception as error:
        # The text is the user's program: whatever it raises, it is the text that is wrong.
        raise BadSource(f"the text of {name} fails: {type(error).__name__}: {error}") from error
    return module
