#!/usr/bin/env python3
"""Training steps of Hugging Face's networks at their real sizes, AdamW, fp32, on random data: by PyTorch or by plimsoll.compile.

    transformers_bench.py gpt2|bert|vit-b16|llama-125m|llama-1b|llama-1b-lora BATCH eager|compiled|plimsoll [--memory SIZE] [--memory-is arena|process] [--host-memory SIZE] [--spill FOLDER:SIZE] [--steps N] [--tokens N] [--device cuda] [--tf32]

Prints one line of JSON: {"step_ms": [...], "losses": [...], "peak_bytes": the largest resident size less what the process had before the
model was made, "first_step_s": ..., and of plimsoll "arena_bytes" and "predicted_ms"}. With --device the batch lies there, of either. The first two steps are not among step_ms. What fails is a
line too: {"error": ...}. Sequences have 512 tokens (BERT: 128) or as many as said; dropout is as the configurations have it by default.
"""
import argparse
import json
import os
import statistics
import sys
import time

import torch


def tokens(batch, length, vocabulary):
    ids = torch.randint(0, vocabulary, (batch, length))
    return {"input_ids": ids, "labels": ids.clone()}


def gpt2(batch, length=512):
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(use_cache=False, n_positions=max(1024, length))), tokens(batch, length, 50257)


def bert(batch, length=128):
    from transformers import BertConfig, BertForMaskedLM

    given = tokens(batch, length, 30522)
    given["labels"][torch.rand(given["labels"].shape) > 0.15] = -100
    return BertForMaskedLM(BertConfig(max_position_embeddings=max(512, length))), given | {"attention_mask": torch.ones(batch, length, dtype=torch.long)}


def vit(batch):
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(num_labels=1000)), {"pixel_values": torch.randn(batch, 3, 224, 224), "labels": torch.randint(0, 1000, (batch,))}


def llama(batch, length=512):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = dict(vocab_size=32000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12, max_position_embeddings=max(1024, length))
    return LlamaForCausalLM(LlamaConfig(use_cache=False, **sizes)), tokens(batch, length, 32000)


def llama_1b(batch, length=512):
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = dict(vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=24, num_attention_heads=32, num_key_value_heads=4,
                 max_position_embeddings=max(1024, length))
    return LlamaForCausalLM(LlamaConfig(use_cache=False, **sizes)), tokens(batch, length, 32000)


def llama_1b_lora(batch, length=512):
    from peft import LoraConfig, get_peft_model

    model, given = llama_1b(batch, length)
    return get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])), given


MODELS = {"gpt2": gpt2, "bert": bert, "vit-b16": vit, "llama-125m": llama, "llama-1b": llama_1b, "llama-1b-lora": llama_1b_lora}


def resident(field):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(field + ":")) * 1024


def by_pytorch(model, batch, args):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = args.tf32
    model.to(args.device)
    batch = {name: given.to(args.device) for name, given in batch.items()}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)
    run = torch.compile(model) if args.way == "compiled" else model

    def step():
        optimizer.zero_grad(set_to_none=True)
        loss = run(**batch).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, lambda: {"gpu_peak_bytes": torch.cuda.max_memory_allocated()} if args.device != "cpu" else {}


def by_plimsoll(model, batch, args):
    import plimsoll

    batch = {name: given.to(args.device) for name, given in batch.items()}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    device = args.device + "+tf32" * args.tf32
    limits = {"memory": args.memory, "memory_is": args.memory_is, "host_memory": args.host_memory, "spill": args.spill}
    step = plimsoll.compile(model, optimizer, example=batch, progress=False, device=device, **{name: limit for name, limit in limits.items() if limit})
    return lambda: step(batch), lambda: {"arena_bytes": step.plan["measured_peak_bytes"], "predicted_ms": step.plan["step_time_ms"],
                                         "lower_bound_ms": step.plan.get("lower_bound_ms"), "bound_ms": step.plan.get("bound_ms")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("batch", type=int)
    parser.add_argument("way", choices=("eager", "compiled", "plimsoll"))
    for limit in ("--memory", "--memory-is", "--host-memory", "--spill"):
        parser.add_argument(limit)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--tokens", type=int, help="of a sequence")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--tf32", action="store_true", help="matrix products may round their inputs to TF32")
    args = parser.parse_args()
    try:
        import transformers  # noqa: F401

        before = resident("VmRSS")
        torch.manual_seed(0)
        model, batch = MODELS[args.model](args.batch, *[args.tokens] * bool(args.tokens))
        model.train()
        step, told = by_plimsoll(model, batch, args) if args.way == "plimsoll" else by_pytorch(model, batch, args)
        losses, step_ms = [], []
        for _ in range(2 + args.steps):
            start = time.perf_counter()
            losses.append(step())
            step_ms.append((time.perf_counter() - start) * 1000)
        if not statistics.fmean(losses) > 0:
            raise ArithmeticError(f"the losses are {losses}: these times would mean nothing")
        print(json.dumps({"step_ms": step_ms[2:], "first_step_s": step_ms[0] / 1000, "losses": losses, "peak_bytes": resident("VmHWM") - before, "process_bytes": resident("VmHWM"),
                          "threads": torch.get_num_threads(), "torch": torch.__version__, "transformers": transformers.__version__,
                          "preloaded": os.environ.get("LD_PRELOAD", ""), **told()}))
    except Exception as error:
        print(json.dumps({"error": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}))
        sys.exit(1)


if __name__ == "__main__":
    main()
