"""ViT, BERT, GPT-2 and Llama, as the transformers library writes them."""

from __future__ import annotations

import torch
from torch import nn

from architectures.family import Family, Inputs, Size


def _vit(width: int, layers: int, heads: int, image: int, classes: int, patch: int) -> nn.Module:
    from transformers.models.vit import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=2 * width,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        image_size=image,
        patch_size=patch,
        num_labels=classes,
    )
    return ViTForImageClassification(config)


def _bert(width: int, layers: int, heads: int, vocabulary: int, positions: int) -> nn.Module:
    from transformers.models.bert import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        max_position_embeddings=positions,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=5,
        pad_token_id=None,  # torch trains no padding, which files that were optimized do not tell
    )
    return BertForSequenceClassification(config)


def _gpt2(width: int, layers: int, heads: int, vocabulary: int, positions: int) -> nn.Module:
    from transformers.models.gpt2 import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocabulary,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        n_positions=positions,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config)


def _llama(width: int, layers: int, heads: int, vocabulary: int, positions: int) -> nn.Module:
    from transformers.models.llama import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        intermediate_size=2 * width,
        max_position_embeddings=positions,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    return LlamaForCausalLM(config)


def _pixels(size: Size, samples: int, _: int) -> Inputs:
    return {"pixel_values": torch.randn(samples, 3, size["image"], size["image"])}


def _tokens(size: Size, samples: int, length: int) -> Inputs:
    """Sentences; every second one ends early, which the mask says."""
    mask = torch.ones(samples, length, dtype=torch.int64)
    mask[1::2, length - length // 3 :] = 0
    tokens = torch.randint(0, size["vocabulary"], (samples, length))
    return {"input_ids": tokens, "attention_mask": mask}


_OPEN = {0: "batch", 1: "length"}
_TEXT = {"input_ids": _OPEN, "attention_mask": _OPEN}
_SMALL = {"width": 16, "layers": 2, "heads": 4, "vocabulary": 40, "positions": 32}
_LARGE = {"width": 256, "layers": 4, "heads": 8, "vocabulary": 8000, "positions": 512}

VIT = Family(
    _vit,
    _pixels,
    {"pixel_values": {0: "batch"}},
    small={"width": 16, "layers": 2, "heads": 4, "image": 16, "classes": 5, "patch": 4},
    large={"width": 256, "layers": 4, "heads": 8, "image": 224, "classes": 1000, "patch": 16},
)
BERT = Family(_bert, _tokens, _TEXT, _SMALL, _LARGE)
GPT2 = Family(_gpt2, _tokens, _TEXT, _SMALL, _LARGE, per_token=True)
LLAMA = Family(_llama, _tokens, _TEXT, _SMALL, _LARGE, per_token=True, mixed=True)
