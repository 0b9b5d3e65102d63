#!/usr/bin/env python3
"""A small GPT from scratch on the bytes of a text, AdamW, fp32: the loss of every step, by PyTorch or by plimsoll.compile, on the same data and
with the same dropout masks.

    gpt_curve.py eager|plimsoll [--minutes M] [--steps N] [--text FILE] [--memory SIZE]

Ends after M minutes, at N steps, or when both are told at whichever comes first. Prints one line of JSON: {"losses": one a step, "held_out": the loss
of the text's last tenth, "seconds": ...}. Masks are those that the core draws by counter (Philox); PyTorch's side is given them.
"""
import argparse
import json
import pathlib
import time

import torch
from torch import nn
from torch.nn import functional as F

LAYERS, HEADS, WIDTH, CONTEXT, BATCH, DROPOUT = 6, 6, 384, 128, 16, 0.1
RATE, WARM_UP = 1e-3, 100
SEED = 1234
TEXT = pathlib.Path(__file__).resolve().parents[2] / "data" / "paradise_lost.txt"


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.read, self.write = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(DROPOUT)
        self.kept = None  # given masks

    def forward(self, x):
        q, k, v = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self.read(x).chunk(3, 2))
        if self.kept is None or not self.training:
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=DROPOUT if self.training else 0.0, is_causal=True)
        else:
            scores = (q @ k.transpose(-2, -1)) * (WIDTH // HEADS) ** -0.5
            future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
            y = scores.masked_fill(future, float("-inf")).softmax(-1) * self.kept(scores.shape) @ v
        return self.drop(self.write(y.transpose(1, 2).flatten(2)))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(WIDTH), Attention(), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(DROPOUT))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.bytes, self.places, self.drop = nn.Embedding(256, WIDTH), nn.Embedding(CONTEXT, WIDTH), nn.Dropout(DROPOUT)
        self.layers = nn.Sequential(*[Layer() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, text):
        x = self.drop(self.bytes(text) + self.places(torch.arange(text.shape[1], device=text.device)))
        return self.head(self.norm(self.layers(x)))


def loss_of(output, batch):
    return F.cross_entropy(output.flatten(0, 1), batch[1].flatten())


def batches(text, count):
    """From the text's first nine tenths, the same for all."""
    random = torch.Generator().manual_seed(SEED)
    for _ in range(count):
        first = torch.randint(0, len(text) * 9 // 10 - CONTEXT - 1, (BATCH,), generator=random)
        rows = torch.stack([text[i : i + CONTEXT + 1] for i in first.tolist()])
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def held_out(text, loss):
    rows = text[len(text) * 9 // 10 :]
    rows = rows[: (len(rows) - 1) // (BATCH * CONTEXT) * BATCH * CONTEXT + 1]
    pairs = zip(rows[:-1].view(-1, BATCH, CONTEXT), rows[1:].view(-1, BATCH, CONTEXT))
    losses = [loss((x, y)) for x, y in pairs]
    return sum(losses) / len(losses)


def draws(step, salt, count):
    """Philox4x32-10, as the core draws (src/base/random.h): 32 bits each."""
    low = 0xFFFFFFFF
    blocks = (count + 3) // 4
    c = [torch.arange(blocks), torch.full((blocks,), salt & low), torch.full((blocks,), step & low), torch.full((blocks,), step >> 32)]
    key = [SEED & low, SEED >> 32]
    for _ in range(10):
        a, b = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(b >> 32) & low ^ c[1] ^ key[0], b & low, (a >> 32) & low ^ c[3] ^ key[1], a & low]
        key = [(key[0] + 0x9E3779B9) & low, (key[1] + 0xBB67AE85) & low]
    return torch.stack(c, 1).flatten()[:count]


class Kept(nn.Module):
    """Dropout by the core's draws: factors of a step's number."""

    def __init__(self, salt):
        super().__init__()
        self.salt, self.step = salt, 0

    def factors(self, shape):
        kept = draws(self.step, self.salt, shape.numel()) >= int(DROPOUT * 2**32)
        return kept.reshape(shape) / (1 - DROPOUT)

    def forward(self, x):
        return x * self.factors(x.shape) if self.training else x


def give_masks(model, example):
    """Puts the core's draws in the place of PyTorch's own."""
    from plimsoll.capture import capture
    from plimsoll.convert import convert

    ops = convert(capture(model, loss_of, example), label_dtype="i32").document["training"]["ops"]
    given = []
    for op in ops:
        if op["type"] == "DropoutForward":
            parent, _, own = op["layer"].rpartition(".")
            given.append(Kept(op["attributes"]["salt"]))
            setattr(model.get_submodule(parent), own, given[-1])
        elif op["type"] == "AttentionForward":
            given.append(Kept(op["attributes"]["salt"]))
            object.__setattr__(model.get_submodule(op["layer"]), "kept", given[-1].factors)
    if len(given) != 3 * LAYERS + 1:
        raise RuntimeError(f"{len(given)} masks were found")
    return given


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=("eager", "plimsoll"))
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--text", type=pathlib.Path, default=TEXT)
    parser.add_argument("--memory")
    args = parser.parse_args()
    text = torch.frombuffer(bytearray(args.text.read_bytes()), dtype=torch.uint8).long()
    torch.manual_seed(SEED)
    model = Gpt().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.95))
    example = next(batches(text, 1))
    masks = []
    if args.way == "plimsoll":
        import plimsoll

        step = plimsoll.compile(model, optimizer, loss=loss_of, example=example, progress=False, **({"memory": args.memory} if args.memory else {}))
        evaluate = step.evaluate
    else:
        masks = give_masks(model, example)

        def step(batch):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(model(batch[0]), batch)
            loss.backward()
            optimizer.step()
            return loss.item()

        def evaluate(batch):
            with torch.no_grad():
                return loss_of(model(batch[0]), batch).item()

    losses, begin = [], time.monotonic()
    for number, batch in enumerate(batches(text, args.steps)):
        for mask in masks:
            mask.step = number
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1, (number + 1) / WARM_UP)
        losses.append(step(batch))
        if time.monotonic() - begin > 60 * args.minutes:
            break
    seconds = time.monotonic() - begin
    model.eval()
    told = {"losses": losses, "held_out": held_out(text, evaluate), "seconds": seconds, "parameters": sum(p.numel() for p in model.parameters())}
    if args.way == "plimsoll":
        told["arena_bytes"] = step.plan["measured_peak_bytes"]
    print(json.dumps(told))


if __name__ == "__main__":
    main()
