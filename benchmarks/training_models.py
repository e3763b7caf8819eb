"""Models and optimizers that `training.py` measures: random weights, dropout on, usual batches.

Each function gives a module that returns its loss, and its inputs; `tiny` is the same program at a
size for a machine without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Made = tuple[nn.Module, tuple[Tensor, ...]]


@dataclass(frozen=True)
class Model:
    """make(tiny) -> a module and its inputs. autocast: weights of f32 under autocast to bf16; else
    they are bf16."""

    make: Callable[[bool], Made]
    what: str
    autocast: bool = True


class OfTokens(nn.Module):
    """A model of transformers that computes its own loss: tokens, and the targets."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, targets: Tensor) -> Any:
        return self.model(input_ids=tokens, labels=targets, return_dict=False)[0]


class OfImages(nn.Module):
    """A classifier of images, and the cross entropy of its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, targets: Tensor) -> Tensor:
        out = self.model(images)
        return F.cross_entropy(out if isinstance(out, Tensor) else out.logits, targets)


def tokens(vocabulary: int, batch: int, length: int, targets: int = 0) -> tuple[Tensor, ...]:
    sizes = (batch, length), (batch, targets or length)
    return tuple(torch.randint(0, vocabulary, size) for size in sizes)


def bert(tiny: bool) -> Made:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig()
    if tiny:
        config = BertConfig(
            hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=128,
            vocab_size=500,
        )  # fmt: skip
    given = tokens(config.vocab_size, *((2, 16) if tiny else (16, 512)))
    return OfTokens(BertForMaskedLM(config)), given


def gpt2(tiny: bool) -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(use_cache=False)
    if tiny:
        config = GPT2Config(use_cache=False, n_embd=64, n_layer=1, n_head=2, vocab_size=500)
    given = tokens(config.vocab_size, *((2, 16) if tiny else (8, 1024)))
    model = GPT2LMHeadModel(config)
    # Its class has no name of a loss: transformers logs that, and Dynamo parts the graph there.
    model.loss_type = "ForCausalLM"
    return OfTokens(model), given


def llama(tiny: bool) -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=64 if tiny else 2048, intermediate_size=128 if tiny else 5632,
        num_hidden_layers=1 if tiny else 8, num_attention_heads=2 if tiny else 16,
        num_key_value_heads=1 if tiny else 8, vocab_size=500 if tiny else 32000, use_cache=False,
    )  # fmt: skip
    given = tokens(config.vocab_size, *((2, 16) if tiny else (4, 1024)))
    return OfTokens(LlamaForCausalLM(config)), given


def t5(tiny: bool) -> Made:
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(use_cache=False, decoder_start_token_id=0, num_heads=8)
    if tiny:
        config = T5Config(
            use_cache=False, decoder_start_token_id=0, d_model=64, d_kv=16, d_ff=128, num_layers=1,
            num_heads=2, vocab_size=500,
        )  # fmt: skip
    given = tokens(config.vocab_size, *((2, 16, 8) if tiny else (16, 512, 128)))
    return OfTokens(T5ForConditionalGeneration(config)), given


def vit(tiny: bool) -> Made:
    from transformers import ViTConfig, ViTForImageClassification

    small: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    small |= {"intermediate_size": 128, "image_size": 32}
    config = ViTConfig(
        hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, num_labels=1000,
        **(small if tiny else {}),
    )  # fmt: skip
    model = ViTForImageClassification(config)
    return OfImages(model), images(2 if tiny else 64, config.image_size)


def images(batch: int, size: int) -> tuple[Tensor, ...]:
    return torch.randn(batch, 3, size, size), torch.randint(0, 1000, (batch,))


def of_timm(name: str, batch: int, tiny: bool, **options: Any) -> Made:
    import timm

    size = 224
    if tiny:
        batch, size = 2, 64
        if "swin" in name:
            options |= {"img_size": size, "window_size": 2, "depths": (1, 1), "num_heads": (1, 2)}
        if "convnext" in name:
            options |= {"depths": (1, 1, 1, 1)}
    model = timm.create_model(name, pretrained=False, **options)
    return OfImages(model), images(batch, size)


MODELS: dict[str, Model] = {
    "bert": Model(bert, "bert-base, 16 x 512"),
    "gpt2": Model(gpt2, "gpt2, 8 x 1024"),
    "llama": Model(llama, "llama, 8 layers of 2048, 4 x 1024", autocast=False),
    "t5": Model(t5, "t5-small, 16 x 512 to 128"),
    "vit": Model(vit, "vit-base, 64"),
    "resnet50": Model(partial(of_timm, "resnet50", 128), "resnet50, 128"),
    "convnext": Model(
        lambda tiny: of_timm("convnext_tiny", 64, tiny, drop_path_rate=0.1), "convnext-tiny, 64"
    ),
    "efficientnet": Model(
        lambda tiny: of_timm("efficientnet_b0", 128, tiny, drop_rate=0.2, drop_path_rate=0.2),
        "efficientnet-b0, 128",
    ),
    "swin": Model(
        lambda tiny: of_timm("swin_tiny_patch4_window7_224", 64, tiny, drop_path_rate=0.2),
        "swin-tiny, 64",
    ),
}


def optimizer(kind: Any, tiny: bool, device: str, **options: Any) -> torch.optim.Optimizer:
    """Of a GPT-2 whose head is not tied: 163 million parameters in 149 tensors, and their
    gradients."""
    width, vocabulary, depth = (16, 50, 2) if tiny else (768, 50257, 12)
    layer = [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,)]
    layer += [(width,), (width,), (4 * width, width), (4 * width,), (width, 4 * width), (width,)]
    ends = [(vocabulary, width), (1024, width), (width,), (width,), (vocabulary, width)]
    parameters = [
        nn.Parameter(torch.randn(size, device=device)) for size in (*ends, *layer * depth)
    ]
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    made: torch.optim.Optimizer = kind(parameters, lr=1e-3, **options)
    return made


Optimizer = Callable[[bool, str], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimizer] = {
    "adamw": partial(optimizer, torch.optim.AdamW),
    "adamw capturable": partial(optimizer, torch.optim.AdamW, capturable=True),
    "adamw each": partial(optimizer, torch.optim.AdamW, foreach=False),
    "adam": partial(optimizer, torch.optim.Adam),
    "sgd": partial(optimizer, torch.optim.SGD, momentum=0.9),
    "rmsprop": partial(optimizer, torch.optim.RMSprop),
}
_TENSORS = {"sgd": 5, "rmsprop": 5}  # that a step reads and writes; else of two moments
MOVED = {name: 163e6 * 4 * _TENSORS.get(name, 7) for name in OPTIMIZERS}  # bytes, at full size
