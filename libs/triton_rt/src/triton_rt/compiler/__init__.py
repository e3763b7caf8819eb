"""Kernel source -> binary: for a target, through the cache, in this process or in workers.

Imports neither torch, nor Triton before there is something to compile: readers of binaries do
without them."""

from triton_rt.compiler.binary import Binary
from triton_rt.compiler.build import compile, compile_many, submit
from triton_rt.compiler.cache import Cache
from triton_rt.compiler.pool import CompilePool, shared_pool, shared_workers
from triton_rt.compiler.target import Target
from triton_rt.compiler.workers import Workers
