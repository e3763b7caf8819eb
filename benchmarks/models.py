"""Models of transformers and timm through `torch.compile`: eager, Inductor and compile_cli.

    python benchmarks/models.py [--only bert vit] [--out models.json] [--repeats 20]
    python benchmarks/models.py --only resnet50 --backends compile_cli compile_cli:channels_last=off

Random weights, bf16, inference; every call gets another of a few input sets; times are medians
between CUDA events, the three interleaved; errors are against eager in float64. Needs transformers
and timm. A model that fails is a row that says so, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

Case = tuple[nn.Module, list[tuple[Tensor, ...]]]
SETS = 3


class First(nn.Module):
    """A model of transformers that returns its first output, as a tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Tensor) -> Any:
        return self.model(*args, return_dict=False)[0]


def ids(batch: int, length: int) -> list[tuple[Tensor, ...]]:
    return [(torch.randint(0, 1000, (batch, length)),) for _ in range(SETS)]


def images(batch: int, size: int = 224) -> list[tuple[Tensor, ...]]:
    return [(torch.randn(batch, 3, size, size),) for _ in range(SETS)]


def bert(batch: int = 32, layers: int = 12) -> Case:
    from transformers import BertConfig, BertModel

    return First(BertModel(BertConfig(num_hidden_layers=layers))), ids(batch, 128)


def gpt2(batch: int = 8) -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    return First(GPT2LMHeadModel(GPT2Config(use_cache=False))), ids(batch, 512)


def llama(batch: int = 4) -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=8, num_attention_heads=16,
        num_key_value_heads=8, vocab_size=32000, use_cache=False,
    )  # fmt: skip
    return First(LlamaForCausalLM(config)), ids(batch, 512)


def t5(batch: int = 16) -> Case:
    from transformers import T5Config, T5EncoderModel

    return First(T5EncoderModel(T5Config())), ids(batch, 256)


def family(name: str, task: str, inputs: list[tuple[Tensor, ...]], **settings: Any) -> Case:
    """A model of transformers: `family("Mixtral", "ForCausalLM", ...)`, in the size of settings."""
    import transformers

    config = getattr(transformers, f"{name}Config")(**settings)
    return First(getattr(transformers, f"{name}{task}")(config)), inputs


def waves(batch: int, length: int) -> list[tuple[Tensor, ...]]:
    return [(torch.randn(batch, length),) for _ in range(SETS)]


def timm_model(name: str, batch: int) -> Case:
    import timm

    return timm.create_model(name, pretrained=False), images(batch)


# fmt: off
CASES: dict[str, Callable[[], Case]] = {
    "bert": bert,
    "gpt2": gpt2,
    "llama": llama,
    "t5": t5,
    "deberta": lambda: family(
        "DebertaV2", "Model", ids(8, 256), hidden_size=768, num_hidden_layers=6,
        num_attention_heads=12, intermediate_size=3072, relative_attention=True,
        position_buckets=256, share_att_key=True, pos_att_type=["p2c", "c2p"], vocab_size=32000,
    ),
    "mixtral": lambda: family(
        "Mixtral", "ForCausalLM", ids(4, 256), hidden_size=1024, intermediate_size=1792,
        num_hidden_layers=4, num_attention_heads=16, num_key_value_heads=4, use_cache=False,
    ),
    "mamba2": lambda: family(
        "Mamba2", "ForCausalLM", ids(4, 512), hidden_size=768, num_heads=24, head_dim=64,
        state_size=64, n_groups=1, num_hidden_layers=4, chunk_size=128, use_cache=False,
    ),
    "wav2vec2": lambda: family("Wav2Vec2", "Model", waves(8, 48000)),
    "segformer": lambda: family(
        "Segformer", "ForSemanticSegmentation", images(4, 512), depths=[3, 4, 6, 3],
        hidden_sizes=[64, 128, 320, 512],
    ),
    "vit": lambda: timm_model("vit_base_patch16_224", 32),
    "resnet50": lambda: timm_model("resnet50", 32),
    "convnext": lambda: timm_model("convnext_tiny", 32),
    "mobilenetv3": lambda: timm_model("mobilenetv3_large_100", 64),
    "efficientnet": lambda: timm_model("efficientnet_b0", 32),
    "swin": lambda: timm_model("swin_tiny_patch4_window7_224", 32),
    "mixer": lambda: timm_model("mixer_b16_224", 32),
    "xcit": lambda: timm_model("xcit_small_12_p16_224", 32),
}
# fmt: on


def event_ms(call: Callable[[], Any]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end))


def to_gpu(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(x.cuda().bfloat16() if x.is_floating_point() else x.cuda() for x in inputs)


@torch.no_grad()
def bench(name: str, repeats: int, backends: list[str]) -> dict[str, Any]:
    import compile_cli  # noqa: F401  # registers the backend; `start.py` measures that
    from compile_cli.cli.measure import relative_error

    torch.manual_seed(0)
    torch._dynamo.reset()
    model, given = CASES[name]()
    model = model.eval().cuda().bfloat16()
    sets = [to_gpu(inputs) for inputs in given]
    wide = copy.deepcopy(model).double()
    reference = wide(*(x.double() if x.is_floating_point() else x for x in sets[0]))
    del wide
    calls: dict[str, Callable[..., Any]] = {"eager": model}
    compile_s = {"eager": 0.0}
    for backend in backends:
        start = time.perf_counter()
        name, _, option = backend.partition(":")  # compile_cli:channels_last=off
        options = dict([option.split("=")]) if option else None
        calls[backend] = torch.compile(model, backend=name, options=options)
        calls[backend](*sets[0])
        torch.cuda.synchronize()
        compile_s[backend] = time.perf_counter() - start
    times: dict[str, list[float]] = {key: [] for key in calls}
    for call in calls.values():
        for inputs in sets:
            call(*inputs)
    for i in range(repeats):
        for key, call in calls.items():
            times[key].append(event_ms(lambda c=call, x=sets[i % SETS]: c(*x)))
    return {
        key: {
            "ms": statistics.median(times[key]),
            "error": relative_error(call(*sets[0]), reference),
            "compile_s": compile_s[key],
        }
        for key, call in calls.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--backends", nargs="+", default=["compile_cli", "inductor"])
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("this benchmark needs a CUDA GPU")
    warnings.simplefilter("ignore")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bf16")
    print(f"{'':14}{'backend':>12}{'ms':>9}{'speedup':>9}{'error':>10}{'compile s':>11}")
    rows: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as caches:
        for variable in ("COMPILE_CLI_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            os.environ[variable] = f"{caches}/{variable.lower()}"
        for name in args.only:
            try:
                rows[name] = bench(name, args.repeats, args.backends)
            except Exception as error:  # one model must not hide the others
                rows[name] = {"failed": f"{type(error).__name__}: {error}"}
                print(f"{name:14} failed: {rows[name]['failed'][:600]}", flush=True)
                continue
            for key, row in rows[name].items():
                speedup = rows[name]["eager"]["ms"] / row["ms"]
                print(
                    f"{name:14}{key:>12}{row['ms']:9.3f}{speedup:8.2f}x{row['error']:10.2e}"
                    f"{row['compile_s']:11.1f}",
                    flush=True,
                )
    if args.out:
        device = torch.cuda.get_device_name()
        args.out.write_text(json.dumps({"device": device, "models": rows}, indent=1))
    if any("failed" in row for row in rows.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
