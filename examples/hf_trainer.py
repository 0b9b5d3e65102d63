"""A small GPT-2 on the bytes of this repository's texts, by Hugging Face's Trainer: run it as `python examples/hf_trainer.py runs/gpt`.

But for its first import of plimsoll, and memory=, this is a script for transformers.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, HfArgumentParser

from plimsoll.hf import Trainer, TrainingArguments

LENGTH = 128

folder, *more = sys.argv[1:] or ["runs/hf_trainer"]
defaults = ["--output_dir", folder, "--memory", "48MiB", "--max_steps", "200", "--per_device_train_batch_size", "8", "--learning_rate", "1e-3"]
defaults += ["--logging_steps", "10", "--eval_strategy", "steps", "--eval_steps", "50", "--save_strategy", "no", "--report_to", "none", "--warmup_steps", "10"]
(args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses([*defaults, *more])

text = b"".join(path.read_bytes() for path in sorted((Path(__file__).parent.parent / "docs").glob("*.md")))
rows = torch.frombuffer(bytearray(text), dtype=torch.uint8)[: len(text) // LENGTH * LENGTH].view(-1, LENGTH).long()
data = [{"input_ids": row, "labels": row} for row in rows]
held_out = len(data) // 20

torch.manual_seed(args.seed)
model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=LENGTH, n_embd=128, n_layer=4, n_head=4))
trainer = Trainer(model, args, train_dataset=data[held_out:], eval_dataset=data[:held_out])
trainer.train()
print(f"held out: {trainer.evaluate()['eval_loss']:.3f} a byte")

losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
peak = trainer.step.plan["measured_peak_bytes"] / 2**20
print(json.dumps({"first": losses[0], "last": losses[-1], "peak_mib": round(peak, 1), "memory_mib": 48}))
