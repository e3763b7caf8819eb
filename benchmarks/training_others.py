"""What `training.py` measures by name beside its own: architectures of transformers, `timm/NAME` or
`timm/NAME/BATCH`, any classifier of timm, and `steps/NAME/COUNT`, an optimizer's step of so many
parameters of mixed sizes. `tiny` is as in `training_models`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from training_models import Made, Model, OfTokens, Optimizer, images, of_timm, tokens


class Text(NamedTuple):
    """A model of tokens that computes its own loss: the classes of its config and of itself, what
    the config is told, what a tiny one is told too, and the sizes of its batch: how many, how
    long, and of how many targets (0: as many as tokens)."""

    config: str
    model: str
    more: dict[str, Any]
    tiny: dict[str, Any]
    size: tuple[int, int, int] = (8, 1024, 0)
    autocast: bool = True


_HEADS = {"num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 500}
_TINY = {"hidden_size": 64, "num_hidden_layers": 1, **_HEADS}
_GROUPS = {**_TINY, "num_key_value_heads": 1, "head_dim": 32}
_FAST = {"use_cache": False}
_SMALL = {
    "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 8, "vocab_size": 32000,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64, **_FAST,
}  # fmt: skip
_BOTH = {
    "d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
    "vocab_size": 500, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2,
    "decoder_start_token_id": 2,
}  # fmt: skip

TEXTS = {
    "roberta": Text("RobertaConfig", "RobertaForMaskedLM", {}, _TINY, (16, 512, 0)),
    "distilbert": Text(
        "DistilBertConfig", "DistilBertForMaskedLM", {},
        {"dim": 64, "n_layers": 1, "n_heads": 2, "hidden_dim": 128, "vocab_size": 500},
        (16, 512, 0),
    ),
    "deberta": Text(
        "DebertaV2Config", "DebertaV2ForMaskedLM",
        {"hidden_size": 768, "num_hidden_layers": 6, "num_attention_heads": 12,
         "intermediate_size": 3072, "relative_attention": True, "position_buckets": 256,
         "norm_rel_ebd": "layer_norm", "share_att_key": True, "pos_att_type": ["p2c", "c2p"],
         "position_biased_input": False, "type_vocab_size": 0, "vocab_size": 32000},
        _TINY, (8, 512, 0),
    ),
    "electra": Text(
        "ElectraConfig", "ElectraForMaskedLM", {}, {**_TINY, "embedding_size": 32}, (32, 512, 0)
    ),
    "albert": Text(
        "AlbertConfig", "AlbertForMaskedLM",
        {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
        {**_TINY, "embedding_size": 32}, (16, 512, 0),
    ),
    "modernbert": Text(
        "ModernBertConfig", "ModernBertForMaskedLM", {"num_hidden_layers": 12},
        {**_TINY, "num_hidden_layers": 2, "pad_token_id": 0, "bos_token_id": 0,
         "eos_token_id": 0, "cls_token_id": 0, "sep_token_id": 0}, (16, 512, 0),
    ),
    "opt": Text("OPTConfig", "OPTForCausalLM", _FAST,
        {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 128,
         "vocab_size": 500, "word_embed_proj_dim": 64},
    ),
    "bloom": Text("BloomConfig", "BloomForCausalLM",
        {"hidden_size": 1024, "n_layer": 8, "n_head": 16, "vocab_size": 32000, **_FAST},
        {"hidden_size": 64, "n_layer": 1, "n_head": 2, "vocab_size": 500}, (4, 1024, 0),
    ),
    "neox": Text("GPTNeoXConfig", "GPTNeoXForCausalLM",
        {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8,
         "num_attention_heads": 16, **_FAST}, _TINY, (4, 1024, 0),
    ),
    "gemma": Text("Gemma2Config", "Gemma2ForCausalLM", _SMALL, _GROUPS, (4, 1024, 0), False),
    "qwen": Text("Qwen3Config", "Qwen3ForCausalLM", _SMALL, _GROUPS, (4, 1024, 0), False),
    "phi": Text("PhiConfig", "PhiForCausalLM",
        {**{n: v for n, v in _SMALL.items() if n != "head_dim"}, "num_key_value_heads": 16},
        {**_TINY, "num_key_value_heads": 2}, (4, 1024, 0), False,
    ),
    "mixtral": Text("MixtralConfig", "MixtralForCausalLM",
        {**_SMALL, "num_hidden_layers": 4}, _GROUPS, (4, 1024, 0), False,
    ),
    "mamba": Text("Mamba2Config", "Mamba2ForCausalLM",
        {"hidden_size": 768, "num_hidden_layers": 4, "num_heads": 24, "head_dim": 64,
         "n_groups": 1, "vocab_size": 32000, "chunk_size": 128, **_FAST},
        {"hidden_size": 64, "num_hidden_layers": 1, "num_heads": 4, "head_dim": 32,
         "state_size": 16, "vocab_size": 500, "chunk_size": 8}, (4, 1024, 0), False,
    ),
    "bart": Text("BartConfig", "BartForConditionalGeneration",
        {"d_model": 768, "encoder_layers": 6, "decoder_layers": 6, "encoder_attention_heads": 12,
         "decoder_attention_heads": 12, "encoder_ffn_dim": 3072, "decoder_ffn_dim": 3072, **_FAST},
        _BOTH, (16, 512, 128),
    ),
}  # fmt: skip


def text(name: str, tiny: bool) -> Made:
    import transformers

    row = TEXTS[name]
    config = getattr(transformers, row.config)(**(row.more | (row.tiny if tiny else {})))
    batch, length, targets = (2, 16, row.size[2] and 8) if tiny else row.size
    given = tokens(config.vocab_size, batch, length, targets)
    model = getattr(transformers, row.model)(config)
    model.loss_type = "ForMaskedLM" if "Masked" in row.model else "ForCausalLM"
    return OfTokens(model), given


class Named(nn.Module):
    """A model of transformers that computes its own loss, given its inputs by their names."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], **more: Any) -> None:
        super().__init__()
        self.model, self.names, self.more = model, names, more

    def forward(self, *given: Tensor) -> Any:
        named = dict(zip(self.names, given, strict=True))
        return self.model(**named, **self.more, return_dict=False)[0]


def whisper(tiny: bool) -> Made:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    more: dict[str, Any] = {"max_source_positions": 40, "max_target_positions": 16}
    config = WhisperConfig(**({**_BOTH, **more} if tiny else {}), dropout=0.1)
    model = WhisperForConditionalGeneration(config)
    batch, length, targets = (2, 80, 8) if tiny else (16, 3000, 128)
    sound = torch.randn(batch, config.num_mel_bins, length)
    labels = torch.randint(0, config.vocab_size, (batch, targets))
    return Named(model, ("input_features", "labels"), use_cache=False), (sound, labels)


def wav2vec(tiny: bool) -> Made:
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    small = {**_TINY, "conv_dim": (16,) * 7, "num_conv_pos_embeddings": 8}
    config = Wav2Vec2Config(
        **({**small, "num_conv_pos_embedding_groups": 2} if tiny else {}),
        mask_time_prob=0.0, layerdrop=0.0, ctc_loss_reduction="mean",
    )  # fmt: skip
    batch, length, targets = (2, 4000, 4) if tiny else (8, 80000, 32)
    labels = torch.randint(1, 32, (batch, targets))
    return Named(Wav2Vec2ForCTC(config), ("input_values", "labels")), (
        torch.randn(batch, length), labels,
    )  # fmt: skip


def clip(tiny: bool) -> Made:
    from transformers import CLIPConfig, CLIPModel

    part = {**_TINY, "projection_dim": 32}
    more: dict[str, Any] = {"text_config": {**part, "eos_token_id": 2}, "projection_dim": 32}
    more["vision_config"] = {**part, "image_size": 32, "patch_size": 8}
    config = CLIPConfig(**(more if tiny else {}))
    batch, length = (2, 16) if tiny else (128, 77)
    size, vocabulary = config.vision_config.image_size, config.text_config.vocab_size
    ids = torch.randint(0, vocabulary, (batch, length))
    named = Named(CLIPModel(config), ("input_ids", "pixel_values"), return_loss=True)
    return named, (ids, torch.randn(batch, 3, size, size))


def segformer(tiny: bool) -> Made:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    small = {"hidden_sizes": [16, 32, 32, 64], "depths": [1] * 4, "decoder_hidden_size": 32}
    config = SegformerConfig(num_labels=150, **(small if tiny else {}))
    batch, size = (2, 64) if tiny else (8, 512)
    model = Named(SegformerForSemanticSegmentation(config), ("pixel_values", "labels"))
    labels = torch.randint(0, 150, (batch, size, size))
    return model, (torch.randn(batch, 3, size, size), labels)


_MADE = {"whisper": whisper, "wav2vec": wav2vec, "clip": clip, "segformer": segformer}
OTHERS = [*TEXTS, *_MADE, "timm/NAME", "timm/NAME/BATCH", "steps/NAME/COUNT"]


def other(name: str) -> Model:
    """Of a name of `OTHERS`. KeyError: there is none."""
    if name.startswith("timm/"):
        of, _, batch = name.removeprefix("timm/").partition("/")

        def classifier(tiny: bool) -> Made:
            if not tiny:
                return of_timm(of, int(batch or 64), tiny)
            import timm

            size = timm.models.get_pretrained_cfg(of).input_size[-1]  # not all take another
            from training_models import OfImages

            return OfImages(timm.create_model(of, pretrained=False)), images(2, size)

        return Model(classifier, name)
    if name in _MADE:
        return Model(_MADE[name], name)
    return Model(lambda tiny: text(name, tiny), name, TEXTS[name].autocast)


def lion(params: list[Tensor], grads: list[Tensor], means: list[Tensor]) -> None:
    """Chen et al."""
    for p, g, m in zip(params, grads, means, strict=True):
        p.mul_(1 - 1e-4).add_((m * 0.9 + g * 0.1).sign(), alpha=-1e-3)
        m.lerp_(g, 0.01)


def adafactor(
    params: list[Tensor], grads: list[Tensor], rows: list[Tensor], columns: list[Tensor]
) -> None:
    """Factored second moments of matrices, whole ones of the rest; the update clipped by its
    norm (Shazeer and Stern)."""
    for p, g, r, c in zip(params, grads, rows, columns, strict=True):
        squares = g.square() + 1e-30
        if p.dim() < 2:
            u = g * c.lerp_(squares, 0.1).rsqrt()
        else:
            r.lerp_(squares.mean(-1), 0.1)
            c.lerp_(squares.mean(-2), 0.1)
            u = g * (r / r.mean(-1, keepdim=True)).rsqrt()[..., None] * c.rsqrt()[..., None, :]
        p.add_(u / u.square().mean().sqrt().clamp(min=1.0), alpha=-1e-2)


class Lists:
    """A step of lists of tensors, of which the first are the parameters, called as optimizers
    are."""

    def __init__(self, run: Callable[..., None], *lists: list[Tensor]) -> None:
        self.run, self.lists = run, lists
        self.param_groups = [{"params": lists[0]}]

    @torch.no_grad()
    def step(self) -> None:
        self.run(*self.lists)


_SIZES = [
    (256, 256), (256,), (512, 256), (512,), (64, 3, 7, 7), (1,), (13,), (768, 256), (1000, 500),
    (1000,),
]  # fmt: skip
_OF_TORCH: dict[str, Any] = {
    "sgd": torch.optim.SGD, "momentum": partial(torch.optim.SGD, momentum=0.9),
    "adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam, "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
}  # fmt: skip


def steps(name: str) -> Optimizer:
    """Of a name that begins with `steps/`."""
    _, kind, count = name.split("/")

    def make(tiny: bool, device: str) -> Any:
        shapes = [_SIZES[n % len(_SIZES)] for n in range(int(count))]
        if tiny:
            shapes = [tuple(min(size, 9) for size in shape) for shape in shapes]
        params, grads, means = ([torch.randn(s, device=device) for s in shapes] for _ in range(3))
        if kind == "lion":
            return Lists(lion, params, grads, means)
        if kind == "adafactor":
            rows = [torch.rand(s[:-1], device=device) for s in shapes]
            columns = [torch.rand((*s[:-2], s[-1]), device=device) for s in shapes]
            return Lists(adafactor, params, grads, rows, columns)
        leaves = [nn.Parameter(p) for p in params]
        for leaf, grad in zip(leaves, grads, strict=True):
            leaf.grad = grad
        return _OF_TORCH[kind](leaves, lr=1e-3)

    return make
