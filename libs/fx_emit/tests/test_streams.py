"""Switches of streams and devices, and what is kept by stream, without a GPU."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.node import has_side_effect

import fx_emit
from fx_emit import host
from wrapper_ir import parse_program

TEXT = """program p(x: f32[4] cuda:1, o: f32[4] cuda:1):
  stream 1
  wait 0
  extern ours.fails(x)
  stream 0
  wait 1
  return (o,)
"""


@pytest.mark.parametrize("fails", [False, True])
def test_the_stream_of_the_call_is_current_afterwards(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    own: Any = SimpleNamespace(device_index=1, device="cuda:1", cuda_stream=7, name="own")
    side = SimpleNamespace(device_index=1, name="side")
    now, told = {"device": 0, 1: own}, list[str]()

    def set_stream(stream: Any) -> None:
        now[1], now["device"] = stream, 1  # as torch does

    side.wait_stream = lambda other: told.append(f"side waits for {other.name}")
    own.wait_stream = lambda other: told.append(f"own waits for {other.name}")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: now[index])
    monkeypatch.setattr(torch.cuda, "Stream", lambda device, priority: side)
    monkeypatch.setattr(torch.cuda, "set_stream", set_stream)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: now["device"])
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: now.update(device=index))
    host._beside.cache_clear()

    def call(x: torch.Tensor) -> None:
        assert now[1] is side and now["device"] == 0
        told.append("called")
        if fails:
            raise ValueError("it fails")

    gm = fx_emit.emit(
        parse_program(TEXT), "direct", load_kernel=lambda _: None,
        operators={"ours.fails": call}, checks=False, values=False,
    )  # fmt: skip
    run, args = fx_emit.Run(gm), [torch.ones(4), torch.zeros(4)]
    if fails:
        with pytest.raises(ValueError, match="it fails"):
            run(*args)
    else:
        assert run.boxed(args)[0].sum() == 0
    assert told == ["side waits for own", "called", "own waits for side"]
    assert now == {"device": 0, 1: own}
    host._beside.cache_clear()


DEVICES = """program p(x: f32[4] cuda:1, y: f32[4] cuda:0):
  extern ours.sees(1)
  device cuda:0
  extern ours.sees(0)
  device cuda:1
  extern ours.sees(1)
  return (x,)
"""


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("launch", ["direct", "hop"])
def test_the_device_of_the_call_is_current_afterwards(
    monkeypatch: pytest.MonkeyPatch, launch: str, fails: bool
) -> None:
    now, seen = [2], list[int]()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: now[0])
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: now.__setitem__(0, index))

    def sees(index: int) -> None:
        assert now == [index]
        seen.append(index)
        if fails and len(seen) == 2:
            raise ValueError("it fails")

    gm = fx_emit.emit(
        parse_program(DEVICES), launch, load_kernel=lambda _: None,
        operators={"ours.sees": has_side_effect(sees)}, checks=False, values=False,
    )  # fmt: skip
    gm.graph.eliminate_dead_code()
    gm.recompile()
    run, args = fx_emit.Run(gm), (torch.ones(4), torch.zeros(4))
    if fails:
        with pytest.raises(ValueError, match="it fails"):
            run(*args)
    else:
        run(*args)
    assert seen == [1, 0, 1][: 2 if fails else 3] and now == [2]


INNER = """program p(x: f32[4] cuda:0, y: f32[4] cuda:1):
  subgraph inner(x: f32[4] cuda:0, y: f32[4] cuda:1):
    device cuda:1
    extern ours.fails()
    device cuda:0
    return ()
  () = extern subgraph.inner(x, y) -> ()
  return ()
"""


def test_devices_of_subgraphs_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [2]
    monkeypatch.setattr(torch.cuda, "current_device", lambda: now[0])
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: now.__setitem__(0, index))

    def fails() -> None:
        assert now == [1]
        raise ValueError("it fails")

    gm = fx_emit.emit(
        parse_program(INNER), "direct", load_kernel=lambda _: None,
        operators={"ours.fails": has_side_effect(fails)}, checks=False, values=False,
    )  # fmt: skip
    with pytest.raises(ValueError, match="it fails"):
        fx_emit.Run(gm)(torch.ones(4), torch.zeros(4))
    assert now == [2]


LAUNCHED = """program p(x: f32[4] cuda:1):
  kernel k(x: *f32 mutated) warps 4 stages 1:
    def k(x): ...
  end
  launch k grid (1, 1, 1) (x)
  extern ours.sees()
  return (x,)
"""


@pytest.mark.parametrize("fails", [False, True])
def test_the_operator_of_torch_launches_where_the_program_is(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    now, seen = [0], list[int]()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: now[0])
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: now.__setitem__(0, index))

    def sees() -> None:
        seen.append(now[0])
        if fails:
            raise ValueError("it fails")

    gm = fx_emit.emit(
        parse_program(LAUNCHED), "hop", load_kernel=lambda _: object(),
        operators={"ours.sees": has_side_effect(sees)}, checks=False, values=False,
    )  # fmt: skip
    run = fx_emit.Run(gm)
    (launch,) = (n for n in gm.graph.nodes if n.name.startswith("launch"))
    gm.graph.erase_node(launch)
    gm.recompile()
    with pytest.raises(ValueError, match="it fails") if fails else contextlib.nullcontext():
        run(torch.ones(4))
    assert seen == [1] and now == [0]


def test_workspaces_are_kept_by_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, captured = [5], [False]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captured[0])
    monkeypatch.setattr(
        torch._C, "_cuda_getCurrentRawStream", lambda index: stream[0], raising=False
    )
    made = host.Workspace(torch.int32, torch.device("cpu", 0))
    with FakeTensorMode():  # which it outlives
        first = made(6)
    assert made(4) is first and type(first) is torch.Tensor and not first.any()
    stream[0] = 7
    other = made(6)
    assert other is not first
    larger = made(9)
    assert larger.numel() == 9 and made(6) is larger
    captured[0] = True
    spare = made(6)
    again = made(6)  # nothing is left that was filled before
    assert len({id(x) for x in (first, other, larger, spare, again)}) == 5
    assert any(x is spare for x in host._CAPTURED) and not any(x is again for x in host._CAPTURED)
    captured[0] = False
    assert made(6) is larger  # and fills another for the next capture
    captured[0] = True
    assert made(9).numel() == 9 and len(host._CAPTURED) == 2
    captured[0] = False
    made(6)
    made(12)
    captured[0] = True
    assert made(12) is host._CAPTURED[-1]  # as large as the largest since
    host._CAPTURED.clear()


def test_graphs_that_come_and_go_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    captured = [False]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captured[0])
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 5, raising=False)
    made = host.Workspace(torch.int32, torch.device("cpu", 0))
    for _ in range(200):
        for captured[0] in (False, True):
            assert made(6).numel() == 6
    assert len(host._CAPTURED) == 64
    host._CAPTURED.clear()


def test_workspaces_of_the_current_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams of two devices may have one address, as the default ones have."""
    device = [0]
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: device[0])
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    made = host.Workspace(torch.int32, torch.device("cpu"))
    first = made(6)
    device[0] = 1
    assert made(6) is not first
    device[0] = 0
    assert made(6) is first
