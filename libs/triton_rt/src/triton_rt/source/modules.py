"""The module of a kernel's text, executed once per distinct text."""

import functools
import hashlib
import io
import linecache
import threading
import types

from triton_rt.errors import BadSource

#: Guards Triton's knobs, which belong to the whole process, while a module is executed.
_LOADING = threading.RLock()


@functools.lru_cache(maxsize=4096)
def load_module(name: str, text: str) -> types.ModuleType:
    """The module of a kernel's text. Raises `BadSource` where executing it fails."""
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
