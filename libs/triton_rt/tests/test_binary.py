"""Binaries: what the record says, and what becomes of damaged bytes."""

from __future__ import annotations

import hashlib
import json
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import triton
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from triton_rt import Binary, KernelSource, Target, compile, errors
from triton_rt.compiler.binary import FORMAT_VERSION
from triton_rt.compiler.cache import cache_key

Make = Callable[..., KernelSource]


@pytest.fixture(scope="module")
def sample() -> Binary:
    from triton_rt import KernelParam

    return Binary(
        "k", Target(90), (KernelParam("x", "*f32", True), KernelParam("n", "i64")), 1, 4, 1, 32,
        0, 1, 16, 8, False, False, "triton 3.6.0", b"\x7fELF not really", "// ptx",
    )  # fmt: skip


@pytest.mark.parametrize("arch", [80, 90, 100])
def test_cross_compiles_without_a_gpu(add_one: KernelSource, arch: int) -> None:
    binary = compile(add_one, Target(arch), keep_ptx=True)
    assert binary.cubin.startswith(b"\x7fELF")
    suffix = "a" if arch >= 90 else ""
    assert f".target sm_{arch}{suffix}" in binary.ptx and ".entry kernel(" in binary.ptx
    assert [p.kind for p in binary.params] == ["*f32", "*f32", "i32"]
    assert Binary.from_bytes(binary.to_bytes()) == binary


def test_lines_of_sources_are_asked_for(
    add_one: KernelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    without, key = compile(add_one, Target(90)).cubin, cache_key(add_one, Target(90), 0, "c")
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "0")
    lines = compile(add_one, Target(90)).cubin
    assert b"debug_line" in lines and b"debug_line" not in without
    assert cache_key(add_one, Target(90), 0, "c") != key  # neither is found as the other
    assert "disable_line_info" not in vars(triton.knobs.compilation)  # the process's own, as before


def test_alignment_is_an_assumption_of_the_code(make_source: Make) -> None:
    """16-byte aligned pointers and sizes give 128-bit loads; without it they are narrower."""
    source = make_source(
        "x:*f32 y:*f32! n:i32",
        """
        i = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(y + i, tl.load(x + i, i < n) + 1, i < n)
        """,
        B=1024,
    )
    wide = compile(source, Target(90), alignment=0b111, keep_ptx=True)
    narrow = compile(source, Target(90), alignment=0, keep_ptx=True)
    assert "ld.global.v4" in wide.ptx and "ld.global.v4" not in narrow.ptx
    assert wide.alignment == 0b111 and wide.key != narrow.key


def test_only_one_constant_says_what_is_aligned(make_source: Make) -> None:
    """A user's constant that is named alike is the user's."""
    body = "tl.store(x, {0})"
    for name, stored in (("TRITON_RT_ALIGNED", {"16", "1"}), ("ALIGNED", {"16"})):
        source = make_source("x:*i32!", body.format(name), **{name: 16})
        both = [compile(source, Target(90), alignment=a, keep_ptx=True).ptx for a in (1, 0)]
        assert {re.findall(r"mov\.b32 \s*%r1, (\d+);", ptx)[0] for ptx in both} == stored


def test_products_are_rounded_before_they_are_added(make_source: Make) -> None:
    """Unless asked for `contract`; what the text says is one rounding is one in any case."""
    source = make_source("x:*f32 y:*f32!", "tl.store(y, tl.fma(tl.load(x) * 3 + 1, 5.0, 7.0))")
    for contract, fused in ((False, 1), (True, 2)):
        binary = compile(replace(source, contract=contract), Target(90), keep_ptx=True)
        assert binary.ptx.count("fma.rn.f32") == fused


def test_the_record_of_a_kernel_with_shared_memory(make_source: Make) -> None:
    source = make_source(
        "x:*f16 z:*f32!",
        """
        i = tl.arange(0, N)
        at = i[:, None] * N + i[None, :]
        acc = tl.zeros([N, N], tl.float32)
        for k in range(8):
            a = tl.load(x + k * N * N + at)
            acc = tl.dot(a, tl.trans(a), acc)
        tl.store(z + at, acc)
        """,
        N=128,
    )
    assert compile(source, Target(90), alignment=0b11).shared_bytes > 48 * 1024


def test_reading_a_binary_needs_neither_triton_nor_torch(sample: Binary, tmp_path: Path) -> None:
    file = tmp_path / "k.bin"
    file.write_bytes(sample.to_bytes())
    code = (
        "import sys; sys.modules['triton'] = sys.modules['torch'] = None\n"
        "from triton_rt import Binary\n"
        f"b = Binary.from_bytes(open({str(file)!r}, 'rb').read())\n"
        "print(b.name, b.target, len(b.params), b.profile_scratch_bytes)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "k sm_90 2 16", run.stderr


def test_a_missing_field_is_named(sample: Binary) -> None:
    data = sample.to_bytes()
    head = struct.Struct("<8sIIQQ")
    magic, version, size, cubin, ptx = head.unpack_from(data)
    record = json.loads(data[head.size : head.size + size])
    del record["shared_bytes"], record["num_ctas"]
    header = json.dumps(record).encode()
    body = (
        head.pack(magic, version, len(header), cubin, ptx) + header + data[head.size + size : -32]
    )
    with pytest.raises(errors.BadBinary, match="lacks num_ctas, shared_bytes"):
        Binary.from_bytes(body + hashlib.sha256(body).digest())


def test_another_format_version_is_named(sample: Binary) -> None:
    data = bytearray(sample.to_bytes())
    data[8:12] = struct.pack("<I", FORMAT_VERSION + 1)
    with pytest.raises(errors.BadBinary, match=f"format version {FORMAT_VERSION + 1}"):
        Binary.from_bytes(bytes(data))
    with pytest.raises(errors.BadBinary, match="not a kernel binary"):
        Binary.from_bytes(b"x" * 100)


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_damage_is_found(sample: Binary, data: st.DataObject) -> None:
    good = sample.to_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    if data.draw(st.booleans()):
        bad = good[:at]
    else:
        flipped = good[at] ^ data.draw(st.integers(1, 255))
        bad = good[:at] + bytes([flipped]) + good[at + 1 :]
    with pytest.raises(errors.BadBinary):
        Binary.from_bytes(bad)


def test_targets() -> None:
    assert Target(80).runs_on(86) and Target(80).runs_on(80)
    assert not Target(86).runs_on(80) and not Target(80).runs_on(90)
    assert Target(90).runs_on(90) and not Target(90).runs_on(100) and not Target(90).runs_on(89)
    assert Target(100).runs_on(100) and not Target(100).runs_on(103)


def test_a_kernel_that_does_not_compile(make_source: Make) -> None:
    with pytest.raises(errors.CompileFailed, match=r"(?s)kernel for sm_90.*power of 2"):
        compile(make_source("y:*i32!", "tl.store(y + tl.arange(0, 3), 1)"), Target(90))


def test_sources_that_do_not_fit_their_function(add_one: KernelSource) -> None:
    def with_(**changes: object) -> KernelSource:
        fields = {"name": "kernel", "text": add_one.text, "params": add_one.params}
        return KernelSource(**{**fields, "constants": add_one.constants, **changes})  # type: ignore[arg-type]

    cases = [
        (with_(constants=()), "parameter B of the function has neither a kind nor a constant"),
        (with_(constants=(("B", 1), ("C", 2))), "the function has no parameter C"),
        (with_(params=add_one.params[::-1]), "params are in the order n, y, x"),
        (with_(name="other"), "defines no function of that name"),
        (with_(text="x = ("), "SyntaxError"),
        (with_(text="def kernel(x): pass"), "decorate it with @triton.jit"),
    ]
    for source, message in cases:
        with pytest.raises(errors.BadSource, match=message):
            source.signature()
    with pytest.raises(errors.BadSource, match="names given twice: x"):
        with_(params=add_one.params + add_one.params[:1])
    with pytest.raises(errors.BadSource, match=r"unknown kind '\*f31'.*\*f32"):
        type(add_one.params[0])("x", "*f31")
