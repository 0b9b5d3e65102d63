#!/usr/bin/env python3
"""Records loss and gradients of small transformers of `transformers` and torchvision, for src/models/transformer_test.cpp.

    python scripts/record_transformers.py > tests/recorded/transformers.txt

A line a network: "# NAME loss"; then a line a parameter: its name, its shape, and the sum of its gradient times numbers that both
sides know. Parameters begin with `start_value`, as in record_torch.py.
"""

import math
import sys

import torch
import torch.nn.functional as F
from transformers import BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from torchvision.models import VisionTransformer

BATCH, CONTEXT, VOCABULARY = 2, 6, 11


def numbers(name: str, count: int) -> torch.Tensor:
    """Even in [-1, 1), the same as in tests/recorded/recorded.h."""
    mask = (1 << 64) - 1
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x100000001B3) & mask
    result = []
    for i in range(1, count + 1):
        x = (seed + i * 0x9E3779B97F4A7C15) & mask
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        x ^= x >> 31
        result.append((x >> 40) / 8388608.0 - 1.0)
    return torch.tensor(result, dtype=torch.float64)


def start(name: str, shape: torch.Size) -> torch.Tensor:
    u = numbers(name, math.prod(shape)).reshape(shape)
    is_scale = len(shape) == 1 and not name.endswith("bias")
    return (1 + 0.25 * u if is_scale else 0.5 * u).float()


def ids(name: str, shape: list[int]) -> torch.Tensor:
    return ((numbers(name, math.prod(shape)) + 1) / 2 * VOCABULARY).long().reshape(shape)


def record(name: str, model: torch.nn.Module, loss_of) -> None:
    model.train()
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for key, parameter in parameters.items():
            parameter.copy_(start(key, parameter.shape))
    loss = loss_of(model)
    loss.backward()
    print(f"# {name} {loss.item():.7g}")
    for key, parameter in sorted(parameters.items()):
        weights = numbers("gradient " + key, parameter.numel()).reshape(parameter.shape)
        total = (parameter.grad.double() * weights).sum().item()
        shape = "x".join(map(str, parameter.shape))
        print(f"{key} {shape} {total:.7g}")


def next_token(model: torch.nn.Module) -> torch.Tensor:
    logits = model(ids("data", [BATCH, CONTEXT])).logits
    return F.cross_entropy(logits.reshape(-1, VOCABULARY), ids("labels", [BATCH * CONTEXT]))


def image_class(model: torch.nn.Module) -> torch.Tensor:
    images = numbers("data", 2 * 3 * 32 * 32).float().reshape(2, 3, 32, 32)
    return F.cross_entropy(model(images), torch.tensor([1, 4]))


def main() -> None:
    torch.use_deterministic_algorithms(True)
    gpt2 = GPT2Config(vocab_size=VOCABULARY, n_positions=8, n_embd=8, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0,
                      attn_pdrop=0)
    record("gpt2:layers=2,width=8,heads=2,context=6,vocab=11,positions=8", GPT2LMHeadModel(gpt2), next_token)
    llama = LlamaConfig(vocab_size=VOCABULARY, hidden_size=16, intermediate_size=12, num_hidden_layers=2,
                        num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False)
    record("llama:layers=2,width=16,heads=4,kv_heads=2,ffn=12,context=6,vocab=11", LlamaForCausalLM(llama), next_token)
    bert = BertConfig(vocab_size=VOCABULARY, hidden_size=8, num_hidden_layers=2, num_attention_heads=2,
                      intermediate_size=32, max_position_embeddings=8, hidden_dropout_prob=0,
                      attention_probs_dropout_prob=0)
    record("bert:layers=2,width=8,heads=2,context=6,vocab=11,positions=8", BertForMaskedLM(bert), next_token)
    vit = VisionTransformer(image_size=32, patch_size=16, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=32,
                            num_classes=5)
    record("vit-b16:layers=2,width=8,heads=2", vit, image_class)


if __name__ == "__main__":
    sys.exit(main())
