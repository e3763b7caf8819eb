"""Compiled graphs in AOTAutograd's cache.

A second process that compiles a graph which a first one compiled, with the same options, sources,
versions and GPU, captures it with Dynamo, and finds the rest in AOTAutograd's cache: nothing is
traced, lowered, fused, measured, planned or built again: an entry has the kernels' binaries, too.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache, partial
from hashlib import sha256
from importlib.metadata import version
from logging import DEBUG, LogRecord
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from compile_cli.artifact import Artifact
from compile_cli.errors import NoArtifact
from compile_cli.garbage import collected_later
from compile_cli.hosts import Runner, boxed
from compile_cli.options import Options
from compile_cli.ranks import Ranks
from compile_cli.stand_ins import standing_in
from compile_cli.torch_compat import (
    BypassAOTAutogradCache,
    CallbackArgs,
    LocalMap,
    OutputCode,
    SerializableAOTDispatchCompiler,
    call_log,
    callback_handler,
    compiler_config,
    functorch_config,
    guards,
    key_parts,
    sharing_groups,
    tracer,
    unset_fake_temporarily,
    untraced,
)
from compile_cli.undecided import Superseded, check_decided
from multikernel import RecordStore
from planner import source_digest

_asked_torch = key_parts.torch_key

# For the texts of the user's Triton kernels torch imports its own compiler, also where there are
# none: the module, and what it is asked for.
_TEXTS = (
    f"{key_parts.__package__}.codegen.wrapper",
    "user_defined_triton_kernel_transitive_closure_source_code",
)

# Of torch's key: the devices that its own compiler serves, with passes of theirs, for which all of
# that is imported, a digest of the files of Triton, half a gigabyte of them (the key has the
# version and the GPU from here), and each part of the key again, as text for logs. To ask takes
# longer than all else of a key.
_NOT_ASKED: tuple[tuple[Any, str, Any], ...] = (
    (key_parts, "init_backend_registration", lambda: None),
    (key_parts, "custom_backend_passes", {}),
    (key_parts, "custom_backend_codegen_configs", {}),
    (key_parts.CacheBase, "get_system", staticmethod(dict)),
    (key_parts.FxGraphCachePickler, "debug_lines", lambda *_: []),
)

PACKAGES = """
aten_lowering compile_cli cpp_emit cpp_loops cuda_graphs fx_emit gemm_templates loop_ir multikernel
planner symexpr tensor_ir triton_emit triton_rt tuning wrapper_ir
"""


class GraphCode(OutputCode):  # type: ignore[misc]  # torch has no types there
    """A compiled graph as AOTAutograd calls it, and keeps it in its cache. artifact: as data;
    raises `NoArtifact`."""

    def __init__(self, run: Runner | None, artifact: Callable[[], Artifact]) -> None:
        self._run = None if run is None else boxed(run)
        self.artifact = artifact
        # AOTAutograd's mark, which wrappers copy: the list of arguments is emptied by the call.
        self._boxed_call = True

    def __call__(self, inputs: Sequence[Any]) -> Any:
        assert self._run is not None, "post_compile comes first"
        return self._run(inputs if isinstance(inputs, list) else list(inputs))

    def __reduce__(self) -> tuple[Any, ...]:
        try:
            with unset_fake_temporarily():  # torch keeps it while it compiles
                data = pickle.dumps(self.artifact())
        except NoArtifact as why:
            raise BypassAOTAutogradCache(str(why)) from why
        return _read, (data, sha256(data).digest())

    def __copy__(self) -> GraphCode:
        """What torch keeps is made of this, and is not read again here."""
        return GraphCode(None, self.artifact)

    def prepare_for_serialization(self) -> None:
        """Of a copy, which holds nothing but the artifact."""

    def post_compile(self, *_: Any) -> None:
        """What was read from the cache is loaded."""
        if self._run is None:
            artifact = self.artifact()
            self._run = boxed(artifact.load())
            if (ranks := Ranks.of(artifact.shared)) is not None and ranks.rank == 0:
                ranks.tell(artifact)  # others may not have kept it


def _read(data: bytes, digest: bytes) -> GraphCode:
    """A graph of a cache's entry, which `post_compile` loads."""
    if sha256(data).digest() != digest:
        raise BypassAOTAutogradCache("an entry is damaged")
    with unset_fake_temporarily():
        artifact = pickle.loads(data)  # as torch reads all of an entry
    check_decided(artifact)
    return GraphCode(None, lambda: artifact)


@cache
def _makers() -> str:
    """What makes an artifact: our sources, and the versions of what they stand on."""
    versions = (f"{name} {version(name)}" for name in ("torch", "triton", "sympy"))
    return ", ".join((*versions, source_digest(*PACKAGES.split())))


@cache
def _torch_digest(kept: Path) -> bytes:
    """Torch's digest of its own files, which it reads for as long as all else of a key takes: not
    again while all have the sizes and times that they had."""
    stats = [str(torch.__version__)]
    for folder, _, names in os.walk(Path(torch.__file__).parent):
        for path in (f"{folder}/{name}" for name in names if name.endswith((".py", ".so"))):
            found = os.stat(path)  # noqa: PTH116  # of thousands: a Path takes thrice the time
            stats.append(f"{path} {found.st_size} {found.st_mtime_ns}")
    store, stamp = RecordStore(kept), sha256("\n".join(sorted(stats)).encode()).hexdigest()
    if (known := store.get(stamp)) is None:
        known = {"digest": _asked_torch().hex()}
        store.put(stamp, known)
    return bytes.fromhex(known["digest"])


def cacheable(compile_fx: Callable[..., GraphCode]) -> Callable[..., GraphCode]:
    """A compiler of flat graphs, with the mark that AOTAutograd looks for before it asks its
    cache."""
    marked: Callable[..., GraphCode] = SerializableAOTDispatchCompiler(OutputCode, compile_fx)
    return marked


def until_compiled() -> ExitStack:
    """What ends with the compilation that torch is at: from the first of this backend's on, Python
    looks for no garbage while Dynamo captures, either, which takes it as long."""
    if _BEGINS not in callback_handler.start_callbacks:  # `torch._dynamo.reset` forgets them
        callback_handler.register_start_callback(_BEGINS)
        callback_handler.register_end_callback(_ENDS)
    return _UNTIL_COMPILED


def kept_when_compiled() -> None:
    """Of a graph of `cached`, as its backward pass is compiled. Most are when they first run, this
    backend having returned: AOTAutograd then keeps forward and backward, if its switch is on."""
    if not functorch_config.bundled_autograd_cache:
        until_compiled().enter_context(functorch_config.patch(bundled_autograd_cache=True))


_UNTIL_COMPILED = ExitStack()


def _begins(_: CallbackArgs) -> None:
    """Dynamo asks neither for the names in a log's lines, for which it parses files, where nobody
    reads that, nor for the time that its guards take, with all caches of the CPU flushed, which is
    for logs, nor for what local maps are of, which are off, and imports all of DTensor's."""
    _UNTIL_COMPILED.enter_context(collected_later())
    if not guards.guards_log.isEnabledFor(DEBUG):
        untimed = mock.patch.object(guards, "profile_guard_manager", lambda *_: 0.0)
        _UNTIL_COMPILED.enter_context(untimed)
    if not call_log.isEnabledFor(DEBUG):
        _UNTIL_COMPILED.enter_context(mock.patch.object(tracer, "get_funcname", lambda *_: None))
    asked = LocalMap.should_wrap_in_hop
    off = staticmethod(lambda value: LocalMap._enabled and asked(value))
    _UNTIL_COMPILED.enter_context(mock.patch.object(LocalMap, "should_wrap_in_hop", off))


# Torch calls these under a lock that tracing takes, and inside of compiled functions, too.
_BEGINS = untraced(_begins)
_ENDS = untraced(lambda _: _UNTIL_COMPILED.close())


def cached(options: Options) -> ExitStack:
    """Inside, AOTAutograd's cache (where the user has it on) looks graphs up, and keeps them whole,
    under what this backend makes them with besides what torch's own key has.

    What torch offers no switch for (`_NOT_ASKED`) is replaced in its modules meanwhile, for all
    threads. Dynamo holds its lock while a backend compiles, so that no other graph of
    `torch.compile` gets such a key; a thread that asks torch's compiler for one without Dynamo
    meanwhile would get one without the GPU and the digest of Triton."""
    cudnn = torch.backends.cudnn
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    settings = (
        *(getattr(cudnn, part).fp32_precision for part in ("conv", "rnn")),
        cudnn.deterministic,
        torch.version.cuda,
        gpu,
    )
    stack = ExitStack()
    tag = f"{compiler_config.cache_key_tag} {options} {settings} {_makers()} {sharing_groups()}"
    stack.enter_context(compiler_config.patch(cache_key_tag=tag))
    stack.enter_context(functorch_config.patch(bundled_autograd_cache=True))
    stack.enter_context(standing_in(*_TEXTS))
    digest = partial(_torch_digest, options.cache_path / "torch")
    for of, name, none in (*_NOT_ASKED, (key_parts, "torch_key", digest)):
        stack.enter_context(mock.patch.object(of, name, none))
    key_parts.log.addFilter(_no_news)
    stack.callback(key_parts.log.removeFilter, _no_news)
    return stack


def _no_news(record: LogRecord) -> bool:
    """Torch passes over an entry that does not load, and warns of it. What is superseded is no
    news."""
    error = record.exc_info and record.exc_info[1]
    return not isinstance(error, Superseded)
