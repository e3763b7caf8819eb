"""Collects `tests/corpus.txt`: the index, size, stride, offset and grid expressions of real models.

Models of transformers and timm, made in code with random weights, widths and layer kinds of the
real ones and one or two layers of each kind, captured by torch.export with dynamic dimensions,
lowered, fused and emitted by the compiler's own libraries. Every expression counts once: as
lowering wrote it, as fusion hands it to `simplify`, and in its final form.

    python libs/symexpr/benchmarks/collect_corpus.py [--only NAME ...] [--out FILE]

Needs torch, transformers, timm and the compiler's libraries; the library itself needs none.
"""

from __future__ import annotations

import argparse
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import sympy
import timm
import torch
import transformers as hf
from torch import nn

import symexpr
import triton_emit.body
from aten_lowering import lower
from compile_cli.capture import capture, export
from loop_ir import Extern, Graph, Indirect, Kernel, Matmul, TensorRef, fuse
from symexpr import from_torch, sstr, symbol
from triton_emit import TritonEmitError, candidate_schedules, default_schedule, emit

CORPUS = Path(__file__).parent.parent / "tests" / "corpus.txt"
Found = tuple[sympy.Basic, dict[sympy.Symbol, tuple[Any, Any]], str]
Dynamic = dict[int, set[int]]
Made = tuple[nn.Module, tuple[torch.Tensor, ...], Dynamic]


class Call(nn.Module):
    """A model whose tensors come by name, called by position."""

    def __init__(self, model: nn.Module, names: list[str], **fixed: Any) -> None:
        super().__init__()
        self.model, self.names, self.fixed = model, names, fixed

    def forward(self, *tensors: torch.Tensor) -> Any:
        named = dict(zip(self.names, tensors, strict=True))
        out = self.model(**named, **self.fixed)
        return out.to_tuple()[0] if hasattr(out, "to_tuple") else out


def text(model: type, config: Any, mask: bool = True, length: int = 24, **fixed: Any) -> Made:
    """A language model on ids [batch, length], both dynamic."""
    ids = torch.randint(0, 100, (3, length))
    args = (ids, torch.ones_like(ids)) if mask else (ids,)
    names = ["input_ids", "attention_mask"][: len(args)]
    module = Call(model(config), names, **fixed)
    return module, args, {i: {0, 1} for i in range(len(args))}


def decoder(model: type, config: Any) -> Made:
    config._attn_implementation = "eager"
    return text(model, config, use_cache=False)


def image(name: str, size: int, dynamic: set[int], **options: Any) -> Made:
    """A timm model on images [batch, 3, size, size]."""
    model = timm.create_model(name, pretrained=False, **options)
    return model, (torch.randn(2, 3, size, size),), {0: dynamic}


def bert() -> Made:
    return text(hf.BertModel, hf.BertConfig(num_hidden_layers=2))


def bert_large() -> Made:
    config = hf.BertConfig(
        hidden_size=1024, num_attention_heads=16, intermediate_size=4096, num_hidden_layers=1
    )
    return text(hf.BertForMaskedLM, config)


def distilbert() -> Made:
    return text(hf.DistilBertModel, hf.DistilBertConfig(n_layers=1))


def albert() -> Made:
    config = hf.AlbertConfig(
        hidden_size=768, num_attention_heads=12, intermediate_size=3072, num_hidden_layers=1
    )
    return text(hf.AlbertModel, config)


def roberta() -> Made:
    return text(hf.RobertaModel, hf.RobertaConfig(num_hidden_layers=1))


def electra() -> Made:
    return text(hf.ElectraModel, hf.ElectraConfig(num_hidden_layers=1))


def mpnet() -> Made:
    return text(hf.MPNetModel, hf.MPNetConfig(num_hidden_layers=1))


def gpt2() -> Made:
    return decoder(hf.GPT2LMHeadModel, hf.GPT2Config(n_layer=2))


def opt() -> Made:
    return decoder(hf.OPTForCausalLM, hf.OPTConfig(num_hidden_layers=1))


def bloom() -> Made:
    return decoder(hf.BloomModel, hf.BloomConfig(hidden_size=1024, n_head=16, n_layer=1))


def llama() -> Made:
    config = hf.LlamaConfig(
        hidden_size=2048, intermediate_size=5632, num_hidden_layers=1, num_attention_heads=32,
        num_key_value_heads=4,
    )  # fmt: skip
    return decoder(hf.LlamaForCausalLM, config)


def mistral() -> Made:
    config = hf.MistralConfig(
        hidden_size=1024, intermediate_size=3584, num_hidden_layers=1, num_attention_heads=16,
        num_key_value_heads=4, sliding_window=16,
    )  # fmt: skip
    return decoder(hf.MistralForCausalLM, config)


def qwen2() -> Made:
    config = hf.Qwen2Config(
        hidden_size=896, intermediate_size=4864, num_hidden_layers=1, num_attention_heads=14,
        num_key_value_heads=2,
    )  # fmt: skip
    return decoder(hf.Qwen2ForCausalLM, config)


def gemma() -> Made:
    config = hf.GemmaConfig(
        hidden_size=1152, intermediate_size=6912, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=1, head_dim=256, vocab_size=32000,
    )  # fmt: skip
    return decoder(hf.GemmaForCausalLM, config)


def phi() -> Made:
    config = hf.PhiConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=1, num_attention_heads=32
    )
    return decoder(hf.PhiForCausalLM, config)


def gpt_neox() -> Made:
    config = hf.GPTNeoXConfig(
        hidden_size=512, num_attention_heads=8, intermediate_size=2048, num_hidden_layers=1
    )
    return decoder(hf.GPTNeoXForCausalLM, config)


def t5() -> Made:
    config = hf.T5Config(num_layers=1, num_decoder_layers=1)
    config._attn_implementation = "eager"
    ids, target = torch.randint(0, 100, (3, 24)), torch.randint(0, 100, (3, 17))
    model = Call(
        hf.T5ForConditionalGeneration(config), ["input_ids", "decoder_input_ids"], use_cache=False
    )
    return model, (ids, target), {0: {0, 1}, 1: {0, 1}}


def bart() -> Made:
    config = hf.BartConfig(d_model=768, encoder_layers=1, decoder_layers=1,
                           encoder_attention_heads=12, decoder_attention_heads=12,
                           encoder_ffn_dim=3072, decoder_ffn_dim=3072)  # fmt: skip
    ids, target = torch.randint(0, 100, (3, 24)), torch.randint(0, 100, (3, 17))
    model = Call(hf.BartModel(config), ["input_ids", "decoder_input_ids"], use_cache=False)
    return model, (ids, target), {0: {0, 1}, 1: {0, 1}}


def whisper() -> Made:
    config = hf.WhisperConfig(d_model=384, encoder_layers=1, decoder_layers=1,
                              encoder_attention_heads=6, decoder_attention_heads=6,
                              encoder_ffn_dim=1536, decoder_ffn_dim=1536)  # fmt: skip
    sound, ids = torch.randn(2, 80, 3000), torch.randint(0, 100, (2, 11))
    model = Call(hf.WhisperModel(config), ["input_features", "decoder_input_ids"], use_cache=False)
    return model, (sound, ids), {0: {0}, 1: {0, 1}}


def wav2vec2() -> Made:
    model = Call(hf.Wav2Vec2Model(hf.Wav2Vec2Config(num_hidden_layers=1)), ["input_values"])
    return model, (torch.randn(2, 16000),), {0: {0, 1}}


def hubert() -> Made:
    model = Call(hf.HubertModel(hf.HubertConfig(num_hidden_layers=1)), ["input_values"])
    return model, (torch.randn(2, 12000),), {0: {0, 1}}


def clip() -> Made:
    config = hf.CLIPConfig(
        text_config={"num_hidden_layers": 1}, vision_config={"num_hidden_layers": 1}
    )
    args = (torch.randint(0, 100, (3, 20)), torch.randn(2, 3, 224, 224))
    model = Call(hf.CLIPModel(config), ["input_ids", "pixel_values"])
    return model, args, {0: {0, 1}, 1: {0}}


def siglip() -> Made:
    config = hf.SiglipVisionConfig(num_hidden_layers=1)
    model = Call(hf.SiglipVisionModel(config), ["pixel_values"])
    return model, (torch.randn(2, 3, 224, 224),), {0: {0}}


def dinov2() -> Made:
    model = Call(hf.Dinov2Model(hf.Dinov2Config(num_hidden_layers=1)), ["pixel_values"])
    return model, (torch.randn(2, 3, 224, 224),), {0: {0}}


BATCH, AREA = {0}, {0, 2, 3}
IMAGES: dict[str, tuple[str, int, set[int], dict[str, Any]]] = {
    "vit": ("vit_base_patch16_224", 224, BATCH, {"depth": 1}),
    "vit_small_dynamic": ("vit_small_patch16_224", 224, AREA,
                          {"depth": 1, "dynamic_img_size": True}),
    "deit": ("deit_tiny_distilled_patch16_224", 224, BATCH, {"depth": 1}),
    "swin": ("swin_tiny_patch4_window7_224", 224, BATCH, {"depths": (2, 2, 2, 2)}),
    "swinv2": ("swinv2_tiny_window8_256", 256, BATCH, {"depths": (2, 2, 1, 1)}),
    "beit": ("beit_base_patch16_224", 224, BATCH, {"depth": 1}),
    "mixer": ("gmixer_24_224", 224, BATCH, {}),
    "convnext": ("convnext_tiny", 224, AREA, {"depths": (1, 1, 1, 1)}),
    "convnextv2": ("convnextv2_nano", 192, AREA, {"depths": (1, 1, 1, 1)}),
    "resnet18": ("resnet18", 224, AREA, {}),
    "resnet50": ("resnet50", 224, AREA, {}),
    "resnet50_batch": ("resnet50", 224, BATCH, {}),
    "resnext": ("resnext50_32x4d", 160, AREA, {"layers": (1, 1, 1, 1)}),
    "seresnet": ("seresnet50", 192, AREA, {"layers": (1, 1, 1, 1)}),
    "densenet": ("densenet121", 224, AREA, {"block_config": (2, 2, 2, 2)}),
    "mobilenetv2": ("mobilenetv2_100", 224, AREA, {}),
    "mobilenetv3": ("mobilenetv3_large_100", 224, AREA, {}),
    "efficientnet": ("efficientnet_b0", 224, AREA, {}),
    "efficientnetv2": ("tf_efficientnetv2_b0", 192, BATCH, {}),
    "regnet": ("regnety_008", 224, AREA, {}),
    "vgg": ("vgg11_bn", 96, BATCH, {}),
    "inception": ("inception_v3", 299, BATCH, {}),
    "poolformer": ("poolformer_s12", 224, AREA, {}),
    "coatnet": ("coatnet_0_rw_224", 224, BATCH, {}),
    "maxvit": ("maxvit_tiny_rw_224", 224, BATCH, {}),
    "ghostnet": ("ghostnet_100", 224, AREA, {}),
    "levit": ("levit_128s", 224, BATCH, {}),
    "pvt": ("pvt_v2_b0", 224, AREA, {}),
    "cait": ("cait_xxs24_224", 224, BATCH, {"depth": 1}),
    "xcit": ("xcit_nano_12_p16_224", 224, BATCH, {"depth": 1}),
    "edgenext": ("edgenext_xx_small", 224, BATCH, {}),
    "dpn": ("dpn68", 160, AREA, {}),
    "volo": ("volo_d1_224", 224, BATCH, {}),
}  # fmt: skip

MODELS: dict[str, Callable[[], Made]] = {
    f.__name__: f
    for f in (
        bert, bert_large, distilbert, albert, roberta, electra, mpnet, gpt2, opt, bloom, llama,
        mistral, qwen2, gemma, phi, gpt_neox, t5, bart, whisper, wav2vec2, hubert, clip, siglip,
        dinov2,
    )
}  # fmt: skip
MODELS |= {
    name: (lambda spec=spec: image(*spec[:3], **spec[3]))  # type: ignore[misc]
    for name, spec in IMAGES.items()
}


def expressions(graph: Graph) -> Iterator[Found]:
    """Every integer expression that a graph holds, with the ranges of its symbols."""
    sizes = {symbol(s.name): (0 if s.low is None else s.low, s.high) for s in graph.symbols}
    for node in graph.nodes:
        kernels: list[Kernel] = []
        if isinstance(node, Kernel):
            kernels = [node]
        elif isinstance(node, Matmul):
            kernels = [node.epilogue] if node.epilogue else []
            for ref in (node.a, node.b, node.bias):
                yield from layout(ref, sizes)
            yield from layout(node, sizes)
        elif isinstance(node, Extern):
            for arg in (*node.args, *(v for _, v in node.kwargs)):
                yield from arguments(arg, sizes)
            for out in node.outs:
                if out is not None:
                    yield from ((e, sizes, "size") for e in (*out[1].size, *out[1].stride))
        for kernel in kernels:
            yield from of_kernel(kernel, sizes)


def layout(ref: Any, sizes: dict[Any, Any]) -> Iterator[Found]:
    if ref is not None:
        for e in (*ref.type.size, *ref.type.stride, ref.type.offset):
            yield e, sizes, "size"


def arguments(arg: Any, sizes: dict[Any, Any]) -> Iterator[Found]:
    if isinstance(arg, tuple):
        for a in arg:
            yield from arguments(a, sizes)
    elif isinstance(arg, TensorRef):
        yield from layout(arg, sizes)
    elif isinstance(arg, sympy.Basic):
        yield arg, sizes, "argument"


def of_kernel(kernel: Kernel, sizes: dict[Any, Any]) -> Iterator[Found]:
    ranges = dict(sizes)
    bodies = [s for p in kernel.phases for s in p.body]
    axes = [*kernel.axes, *(a for p in kernel.phases for a in p.axes)]
    axes += [s for s in bodies if isinstance(s, Indirect)]
    for axis in axes:
        ranges[axis.symbol] = (0, axis.extent - 1)
        yield axis.extent, sizes, "extent"
    for buffer in kernel.buffers:
        yield from layout(buffer, sizes)
    for statement in bodies:
        for field in ("index", "expr"):
            e = getattr(statement, field, None)
            if isinstance(e, sympy.Basic):
                yield e, ranges, "index"
    hints = {s.name: s.hint or 64 for s in kernel.symbols}
    try:
        for schedule in (default_schedule(kernel, hints), *candidate_schedules(kernel, hints)):
            made = emit(kernel, schedule)
            yield from ((e, sizes, "grid") for e in made.grid)
            yield from ((e, sizes, "argument") for e in made.args if isinstance(e, sympy.Basic))
    except TritonEmitError:
        return  # kernels that Triton lacks types for still have indices


def shapes(gm: torch.fx.GraphModule, sizes: dict[Any, Any]) -> Iterator[Found]:
    """Sizes and strides as torch's shape propagation writes them."""
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        for tensor in value if isinstance(value, tuple | list) else [value]:
            if isinstance(tensor, torch.Tensor):
                for e in (*tensor.shape, *tensor.stride(), tensor.numel()):
                    yield from_torch(e), sizes, "torch"
            elif isinstance(tensor, torch.SymInt):
                yield from_torch(tensor), sizes, "torch"


class Recorder:
    """What is handed to `simplify` and to the Triton printer meanwhile."""

    def __init__(self) -> None:
        self.found: list[Found] = []
        self.real = symexpr.simplify, triton_emit.body.to_triton

    def __enter__(self) -> Recorder:
        simplify, to_triton = self.real

        def record_simplify(e: Any, ranges: Any = None) -> Any:
            self.found.append((e, dict(ranges or {}), "simplify"))
            return simplify(e, ranges)

        def record_print(e: Any, int_bits: int = 32, ranges: Any = None) -> str:
            self.found.append((e, dict(ranges or {}), "printed"))
            return to_triton(e, int_bits, ranges)

        symexpr.simplify, triton_emit.body.to_triton = record_simplify, record_print
        return self

    def __exit__(self, *_: object) -> None:
        symexpr.simplify, triton_emit.body.to_triton = self.real


def collect(made: Made) -> Iterator[Found]:
    model, args, dynamic = made
    captured = capture(export(model.eval(), args, dynamic))
    with Recorder() as recorder:
        lowered = lower(captured.graph)
        fused = fuse(lowered)
        sizes = {symbol(s.name): (s.low or 0, s.high) for s in lowered.symbols}
        final = list(expressions(fused))
    yield from expressions(lowered)
    yield from recorder.found
    yield from final
    yield from shapes(captured.graph, sizes)


_NAME = re.compile(r"[A-Za-z_]\w*")


def line(e: sympy.Basic, ranges: dict[sympy.Symbol, tuple[Any, Any]]) -> tuple[str, str]:
    """The expression and its ranges, symbols renamed in order: s0 s1 for sizes, i0 i1 for loops."""
    needed = sorted(e.free_symbols, key=lambda s: s.name)
    for s in needed:
        for end in ranges.get(s, (None, None)):
            if isinstance(end, sympy.Basic):
                needed += [t for t in end.free_symbols if t not in needed]
    order = list(dict.fromkeys(n for n in _NAME.findall(sstr(e))))
    names = [n for n in order if symbol(n) in needed]
    names += [s.name for s in needed if s.name not in names]
    counts: Counter[str] = Counter()
    new: dict[sympy.Symbol, sympy.Symbol] = {}
    for n in names:
        kind = "s" if re.fullmatch(r"[su]\d+", n) else "r" if re.fullmatch(r"r\d+", n) else "i"
        new[symbol(n)] = symbol(f"{kind}{counts[kind]}")
        counts[kind] += 1
    parts = []
    for s, t in new.items():
        low, high = (
            "" if x is None else sstr(sympy.sympify(x).xreplace(new)).replace(" ", "")
            for x in ranges.get(s, (None, None))
        )
        parts.append(f"{t.name}:{low}..{high}")
    return sstr(e.xreplace(new)), " ".join(parts)


def keep(found: Iterable[Found], corpus: dict[str, str], kinds: Counter[str]) -> None:
    seen: set[Any] = set()
    for e, ranges, kind in found:
        if not e.free_symbols or (e, kind) in seen:
            continue
        seen.add((e, kind))
        text, limits = line(e, ranges)
        if len(text) <= 400 and text not in corpus and not _NAME.fullmatch(text):
            corpus[text] = limits
            kinds[kind] += 1


def too_long(*_: object) -> None:
    raise TimeoutError("beyond the limit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--out", type=Path, default=CORPUS)
    parser.add_argument("--limit", type=int, default=120, help="seconds for one model")
    options = parser.parse_args()
    signal.signal(signal.SIGALRM, too_long)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    corpus: dict[str, str] = {}
    kinds: Counter[str] = Counter()
    used = []
    for name in options.only:
        start, before = time.perf_counter(), len(corpus)
        signal.alarm(options.limit)
        try:
            keep(collect(MODELS[name]()), corpus, kinds)
        except Exception as error:  # a model that torch cannot capture is not this script's subject
            print(f"{name:20} failed: {type(error).__name__}: {str(error).splitlines()[0][:120]}")
            continue
        finally:
            signal.alarm(0)
        used.append(name)
        seconds = time.perf_counter() - start
        print(f"{name:20} {len(corpus) - before:5} new, {len(corpus):5} in all, {seconds:.0f} s",
              flush=True)  # fmt: skip
    header = [
        "# Expressions of real models, captured, lowered, fused and emitted; made by",
        "# benchmarks/collect_corpus.py. A line: expression | symbol:low..high ... (ends included)",
        f"# models: {' '.join(used)}",
    ]
    lines = [f"{text} | {limits}" for text, limits in corpus.items()]
    options.out.write_text("\n".join([*header, *lines]) + "\n")
    print(
        f"{len(lines)} expressions, {options.out.stat().st_size} bytes; first met as {dict(kinds)}"
    )


if __name__ == "__main__":
    main()
