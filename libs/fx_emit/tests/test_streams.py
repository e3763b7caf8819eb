"""Switches of streams, without a GPU: which is current, and on which device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fx_emit
from fx_emit import host
from wrapper_ir import parse_program

TEXT = """program p(x: f32[4] cuda:1, o: f32[4] cuda:1):
  stream 1 cuda:1
  wait 0 cuda:1
  extern ours.fails(x)
  stream 0 cuda:1
  wait 1 cuda:1
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
