"""Hugging Face's transformers: what their graphs hold, and plimsoll.hf.Trainer beside transformers' own."""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import plimsoll
from plimsoll.capture import capture
from support import Both, assert_same, both

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("accelerate", reason="accelerate, which transformers' Trainer wants, is not installed")

from plimsoll import hf  # noqa: E402

SIZES = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=64)
ONE_LAYER = SIZES | dict(num_hidden_layers=1)
NO_DROPOUT = dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)


def gpt2(layers: int = 2) -> nn.Module:
    sizes = dict(vocab_size=96, n_layer=layers, n_embd=32, n_head=4, n_positions=64)
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False, **sizes))


def bert() -> nn.Module:
    return transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, **NO_DROPOUT))


def classifier() -> nn.Module:
    return transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=3, **SIZES, **NO_DROPOUT, classifier_dropout=0.0))


def llama() -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, use_cache=False, **SIZES))


def mistral(window: int = 16) -> nn.Module:
    return transformers.MistralForCausalLM(transformers.MistralConfig(num_key_value_heads=2, use_cache=False, sliding_window=window, **SIZES))


def qwen() -> nn.Module:
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(num_key_value_heads=2, use_cache=False, **SIZES))


def neox() -> nn.Module:
    """Half of each head has positions."""
    no_dropout = dict(hidden_dropout=0.0, attention_dropout=0.0)
    return transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(rotary_pct=0.5, use_cache=False, **SIZES, **no_dropout))


def vit() -> nn.Module:
    sizes = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8)
    return transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=3, **sizes, **NO_DROPOUT))


def built(build) -> nn.Module:
    torch.manual_seed(3)
    return build()


# --- the captured graph ----------------------------------------------------------------------------------------------

LENGTH = 40  # as no other size of these networks


def tokens(rows: int = 3, padded: bool = True) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    ids = torch.randint(0, 96, (rows, LENGTH), generator=generator)
    batch = {"input_ids": ids, "labels": ids.clone()}
    if padded:
        batch["attention_mask"] = torch.ones_like(ids)
        for row in range(1, rows):
            batch["attention_mask"][row, LENGTH - 5 * row :] = 0
            batch["labels"][row, LENGTH - 5 * row :] = -100
    return batch


def pixels(rows: int = 3) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return {"pixel_values": torch.randn(rows, 3, 32, 32, generator=generator), "labels": torch.randint(0, 3, (rows,), generator=generator)}


def assert_alike_in_single(result: Both) -> None:
    """Transformers computes losses, norms and rotations in single precision, whatever the model is of."""
    assert_same(result, 2e-5)


def square_tensors(result) -> list[str]:
    """All tensors with the length twice among their sizes."""
    shapes = {t["name"]: t["shape"] for t in result.section["tensors"]}
    shapes |= {name: shape for op in result.section["ops"] for name, shape in zip(op["outputs"], op["shapes"])}
    return [name for name, shape in shapes.items() if list(shape).count(LENGTH) > 1]


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("build", [gpt2, bert, llama, qwen, lambda: mistral(4096)], ids=["gpt2", "bert", "llama", "qwen", "mistral"])
def test_no_tensor_of_queries_by_keys_is_in_the_graph(build, padded):
    result = both(built(build), tokens(padded=padded), run_batch=tokens(5, padded))
    assert_alike_in_single(result)
    assert square_tensors(result) == []
    attention = [op for op in result.section["ops"] if op["type"] == "AttentionForward"]
    assert len(attention) == 2
    assert all(op["attributes"]["causal"] == int(build is not bert) for op in attention)


@pytest.mark.parametrize("build, norms", [(llama, "RmsNormForward"), (qwen, "RmsNormForward"), (neox, "LayerNormForward")], ids=["llama", "qwen", "neox"])
def test_rotary_positions_and_norms_are_one_op_each(build, norms, tmp_path):
    model, twin = built(build), built(build)
    batch = tokens(padded=False)
    step = plimsoll.compile(
        model, torch.optim.SGD(model.parameters(), lr=1.0), example=batch, memory="64MiB", costs="estimated", progress=False
    )
    loss = step(batch)
    step.sync()
    step.report(tmp_path / "plan.html")
    text = (tmp_path / "plan.html").read_text()
    assert "Rotary" in text and norms in text
    assert "Slice" not in text or build is neox  # which takes queries, keys and values from one product
    expected = twin(**batch).loss
    expected.backward()
    assert abs(loss - float(expected.detach())) < 1e-4
    given = dict(model.named_parameters())
    before = dict(built(build).named_parameters())
    for name, parameter in twin.named_parameters():
        moved = before[name].detach() - given[name].detach()
        assert torch.allclose(moved, parameter.grad, rtol=1e-3, atol=1e-5), name


def test_a_vision_transformer_has_no_mask():
    result = both(built(vit), pixels(), run_batch=pixels(5))
    assert_alike_in_single(result)
    assert [len(op["inputs"]) for op in result.section["ops"] if op["type"] == "AttentionForward"] == [3, 3]


def windows(result: Both) -> list[tuple]:
    """What the attention of every layer is told: before, behind, and whether there are documents."""
    names = ("window_left", "window_right", "documents")
    told = [op["attributes"] for op in result.section["ops"] if op["type"] == "AttentionForward"]
    assert all(a["causal"] == 0 or "window_right" not in a for a in told)
    return [tuple(a.get(name, 0 if name == "window_right" and a["causal"] else None) for name in names) for a in told]


# Models with a sliding window, and what their layers are told. A causal window of 8 is a query's own place and 7 before it.
_CAUSAL, _WINDOW = (None, 0, None), (7, 0, None)
_ROWS = SIZES | dict(num_hidden_layers=4)
_GROUPED = dict(num_key_value_heads=2, use_cache=False, sliding_window=8)
WINDOWED = {
    "mistral": (lambda: mistral(8), [_WINDOW] * 2),
    "mistral with a cache": (lambda: transformers.MistralForCausalLM(transformers.MistralConfig(**SIZES, **_GROUPED | dict(use_cache=True))), [_WINDOW] * 2),
    "phi3": (lambda: transformers.Phi3ForCausalLM(transformers.Phi3Config(**SIZES, **_GROUPED, pad_token_id=0, bos_token_id=1, eos_token_id=2)), [_WINDOW] * 2),
    "qwen2": (lambda: transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES, **_GROUPED, use_sliding_window=True, max_window_layers=1)), [_CAUSAL, _WINDOW]),
    "gemma3": (lambda: transformers.Gemma3ForCausalLM(transformers.Gemma3TextConfig(
        **_ROWS, **_GROUPED, head_dim=8, query_pre_attn_scalar=8, layer_types=["sliding_attention", "full_attention"] * 2)), [_WINDOW, _CAUSAL] * 2),
    "modernbert": (lambda: transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(
        **_ROWS, local_attention=16, global_attn_every_n_layers=2, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)),
        [(None, None, None), (8, 8, None)] * 2),
}  # fmt: skip


@pytest.mark.parametrize("kind", WINDOWED)
def test_every_layer_has_the_window_of_the_eager_model(kind):
    build, expected = WINDOWED[kind]
    model = built(build)
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    result = both(model, tokens(padded=False), run_batch=tokens(5, False), eager=eager)
    assert_alike_in_single(result)
    assert windows(result) == expected
    assert square_tensors(result) == []


@pytest.mark.parametrize("kind", ["mistral", "gemma3", "modernbert"])
def test_a_window_stands_beside_a_mask_of_the_padding(kind):
    build, expected = WINDOWED[kind]
    result = both(built(build), tokens(), run_batch=tokens(5))
    assert_alike_in_single(result)
    assert windows(result) == expected
    assert {len(op["inputs"]) for op in result.section["ops"] if op["type"] == "AttentionForward"} == {4}
    assert square_tensors(result) == []


# Models that write their attention out, and what their layers are told.
_OF_GPT = dict(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=64)
WRITTEN = {
    "gemma2": (lambda: transformers.Gemma2ForCausalLM(transformers.Gemma2Config(
        **_ROWS, **_GROUPED, head_dim=8, query_pre_attn_scalar=8, layer_types=["sliding_attention", "full_attention"] * 2)), [_WINDOW, _CAUSAL] * 2),
    "gptj": (lambda: transformers.GPTJForCausalLM(transformers.GPTJConfig(**_OF_GPT, rotary_dim=4, use_cache=False)), [_CAUSAL] * 2),
    "bloom": (lambda: transformers.BloomForCausalLM(transformers.BloomConfig(vocab_size=96, hidden_size=32, n_layer=2, n_head=4, use_cache=False)), [_CAUSAL] * 2),
    "mpt": (lambda: transformers.MptForCausalLM(transformers.MptConfig(
        vocab_size=96, d_model=32, n_layers=2, n_heads=4, max_seq_len=64, expansion_ratio=2, use_cache=False)), [_CAUSAL] * 2),
    "llama, eager": (lambda: transformers.LlamaForCausalLM._from_config(
        transformers.LlamaConfig(num_key_value_heads=2, use_cache=False, **SIZES), attn_implementation="eager"), [_CAUSAL] * 2),
    "gpt_neo": (lambda: transformers.GPTNeoForCausalLM(transformers.GPTNeoConfig(
        vocab_size=96, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=8, max_position_embeddings=64,
        intermediate_size=48, use_cache=False)), [_CAUSAL, _WINDOW]),
}  # fmt: skip


def without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name in ("attn_dropout", "attn_dropout_p", "attention_dropout", "hidden_dropout", "dropout_rate"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("kind", WRITTEN)
def test_attention_that_is_written_out_is_one_operator(kind, padded):
    build, expected = WRITTEN[kind]
    if padded and kind == "gemma2":
        pytest.skip("transformers casts the least number and a score to single, which overflows from doubles; it is trained below")
    result = both(without_dropout(built(build)), tokens(padded=padded), run_batch=tokens(5, padded))
    assert_alike_in_single(result)
    if padded and kind == "gpt_neo":  # two masks that are added, of which one stands in the place of scores: the second layer stays as it is
        assert windows(result) == [(None, None, None)]
        return
    assert windows(result) == expected
    assert square_tensors(result) == []


@pytest.mark.parametrize("kind", ["gemma2", "gptj", "llama, eager"])
def test_queries_that_see_no_key_are_trained_as_pytorch_trains_them(kind):
    """Padding stands in front, and is learnt as everything else."""
    model = without_dropout(built(WRITTEN[kind][0]))
    eager = copy.deepcopy(model)
    batch = padded_in_front(3)
    batch["labels"] = batch["input_ids"]
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, eager)]
    step = plimsoll.compile(model, optimizers[0], example=batch, memory="64MiB")
    for _ in range(3):
        loss = eager(**batch).loss
        assert step(batch) == pytest.approx(loss.item(), rel=2e-5)
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
    for ours, theirs in zip(model.parameters(), eager.parameters()):
        assert (ours.detach() - theirs.detach()).norm() <= 2e-5 * theirs.detach().norm()


def in_a_row(*lengths: int) -> torch.Tensor:
    return torch.cat([torch.arange(n) for n in lengths])


def packed(rows: int = 3) -> dict[str, torch.Tensor]:
    batch = tokens(rows, padded=False)
    places = [in_a_row(15, 25), in_a_row(40), in_a_row(1, 9, 30), in_a_row(30, 10), in_a_row(13, 13, 14)]
    return batch | {"position_ids": torch.stack(places[:rows])}


@pytest.mark.parametrize("window", [None, 8], ids=["llama", "mistral"])
def test_texts_in_a_row_see_their_own_alone(window):
    model = built(llama if window is None else lambda: mistral(window))
    eager = copy.deepcopy(model)
    eager.set_attn_implementation("eager")
    result = both(model, packed(), run_batch=packed(5), eager=eager)
    assert_alike_in_single(result)
    assert windows(result) == [(window and window - 1, 0, 1)] * 2
    assert square_tensors(result) == []


class Chunked(nn.Module):
    """Attention in pieces of eight tokens, as in Llama 4, whose rotation is of complex numbers."""

    def __init__(self):
        super().__init__()
        self.inner = mistral(None).model
        self.inner.config.attention_chunk_size = 8

    def forward(self, input_ids, labels, attention_mask=None, position_ids=None):
        from transformers.masking_utils import create_chunked_causal_mask

        hidden = self.inner.embed_tokens(input_ids)
        positions = torch.arange(LENGTH)[None] if position_ids is None else position_ids
        mask = create_chunked_causal_mask(self.inner.config, hidden, attention_mask, None, positions)
        rotary = self.inner.rotary_emb(hidden, positions)
        for layer in self.inner.layers:
            hidden = layer(hidden, attention_mask=mask, position_ids=positions, position_embeddings=rotary)
        return (hidden * (labels != -100)[:, :, None]).square().mean()


def padded_in_front(rows: int) -> dict[str, torch.Tensor]:
    return {name: x.flip(1) for name, x in tokens(rows).items()}


def test_texts_whose_positions_are_those_of_the_row_are_texts_too():  # as transformers 5.17 has them
    from transformers import masking_utils as masking

    from plimsoll.hf_attention import _short

    texts = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]])
    function = masking.and_masks(masking.causal_mask_function, masking.packed_sequence_mask_function(texts))
    short = _short(masking, q_length=4, kv_length=4, mask_function=function)
    assert short is not None and (short.left, short.right) == (None, 0) and torch.equal(short.texts, texts.int())


@pytest.mark.parametrize("batches", [lambda rows: tokens(rows, False), tokens, padded_in_front, packed], ids=["whole", "padded", "padded in front", "packed"])
def test_chunks_are_documents(batches):
    result = both(built(Chunked), batches(3), run_batch=batches(5))
    assert_alike_in_single(result)
    assert windows(result) == [(None, 0, 1)] * 2
    assert square_tensors(result) == []


def mistral_for(length: int) -> nn.Module:
    sizes = dict(vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=length)
    return transformers.MistralForCausalLM(transformers.MistralConfig(num_key_value_heads=2, use_cache=False, sliding_window=256, **sizes))


@pytest.mark.parametrize("packed", [False, True], ids=["whole", "packed"])
def test_memory_grows_with_the_length_and_not_with_its_square(packed):
    least = []
    for length in (2048, 4096):
        ids = torch.zeros(1, length, dtype=torch.long)
        batch = {"input_ids": ids, "labels": ids} | ({"position_ids": in_a_row(length // 2, length // 2)[None]} if packed else {})
        with torch.device("meta"):
            model = mistral_for(length)
        found = plimsoll.fits(model, torch.optim.SGD(model.parameters(), lr=0.1), example=batch, memory="4GiB")
        least.append(found["minimum_bytes"])
    assert least[1] < 2.25 * least[0] and least[1] < 4096 * 4096  # 2, and what the search for the least leaves; the square would be 4


def test_a_window_that_is_as_long_as_the_batch_hides_nothing():
    result = both(built(lambda: mistral(LENGTH)), tokens(padded=False))
    assert_alike_in_single(result)
    assert square_tensors(result) == []


def test_heads_of_keys_are_not_written_out_for_their_groups():
    result = both(built(llama), tokens())
    assert [op["attributes"]["enable_gqa"] for op in result.section["ops"] if op["type"] == "AttentionForward"] == [1, 1]
    assert "Expand" not in result.types()


def test_transformers_is_as_it_was_after_a_capture():
    from transformers.masking_utils import AttentionMaskInterface
    from transformers.modeling_utils import AttentionInterface

    before = dict(AttentionMaskInterface._global_mapping), dict(AttentionInterface._global_mapping)
    both(built(gpt2), tokens())
    assert before == (AttentionMaskInterface._global_mapping, AttentionInterface._global_mapping)


class Slicing(nn.Module):
    """Does with a mask what our short form does not know of."""

    def __init__(self):
        super().__init__()
        self.inner = mistral(8).model

    def forward(self, input_ids, attention_mask, labels):
        from transformers.masking_utils import create_causal_mask

        hidden = self.inner.embed_tokens(input_ids)
        mask = create_causal_mask(self.inner.config, hidden, attention_mask, None)
        mask = mask & (torch.arange(LENGTH) % 2 == 0)
        positions = torch.arange(LENGTH)[None]
        rotary = self.inner.rotary_emb(hidden, positions)
        hidden = self.inner.layers[0](hidden, attention_mask=mask, position_ids=positions, position_embeddings=rotary)
        return hidden.square().mean()


def test_a_mask_that_a_model_changes_counts_as_it_is():
    assert_alike_in_single(both(built(Slicing), tokens(), run_batch=tokens(5)))


# --- the Trainer -----------------------------------------------------------------------------------------------------


class Rows(torch.utils.data.Dataset):
    def __init__(self, rows: list[dict]):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict:
        return self.rows[i]


def texts(count: int = 22, length: int = 24) -> Rows:
    text = (Path(__file__).read_bytes() * 2)[: count * length]
    ids = [min(b, 127) - 32 if b >= 32 else 0 for b in text]
    pieces = [ids[i : i + length] for i in range(0, count * length, length)]
    return Rows([{"input_ids": torch.tensor(p), "labels": torch.tensor(p)} for p in pieces])


def masked_texts() -> Rows:
    rows = []
    for i, row in enumerate(texts().rows):
        hidden = torch.arange(24) % 7 == i % 7
        padded = torch.arange(24) >= 24 - i % 5
        labels = torch.where(hidden & ~padded, row["labels"], -100)
        rows.append({"input_ids": torch.where(hidden, 95, row["input_ids"]), "attention_mask": (~padded).long(), "labels": labels})
    return Rows(rows)


def classified_texts() -> Rows:
    return Rows([{"input_ids": row["input_ids"], "attention_mask": torch.ones(24, dtype=torch.long), "labels": int(row["input_ids"][0]) % 3} for row in texts().rows])


def images() -> Rows:
    batch = pixels(22)
    return Rows([{"pixel_values": x, "labels": int(y)} for x, y in zip(batch["pixel_values"], batch["labels"])])


def arguments(folder, ours: bool, **more):
    told = dict(
        output_dir=str(folder), per_device_train_batch_size=4, num_train_epochs=2, learning_rate=5e-3, logging_steps=1, report_to=[],
        save_strategy="no", disable_tqdm=True, weight_decay=0.1, warmup_steps=3, lr_scheduler_type="cosine", seed=7,
    )  # fmt: skip
    if ours:
        return hf.TrainingArguments(**told | dict(memory="64MiB", threads=1) | more)
    return transformers.TrainingArguments(**told | dict(use_cpu=True) | more)


def trainers(tmp_path, build, data, more=None, **arguments_):
    """Ours and transformers', on models with the same weights."""
    model = built(build)
    made = []
    for ours, kind in ((True, hf.Trainer), (False, transformers.Trainer)):
        args = arguments(tmp_path / ("ours" if ours else "theirs"), ours, **arguments_)
        made.append(kind(copy.deepcopy(model), args, train_dataset=data, **(more or {})))
    return made


def logged(trainer, name="loss") -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def assert_alike(ours, theirs, tolerance=2e-4, names=("loss", "grad_norm", "learning_rate", "epoch")):
    for name in names:
        assert logged(ours, name) == pytest.approx(logged(theirs, name), rel=tolerance), name
    a, b = (torch.cat([p.flatten() for p in trainer.model.state_dict().values()]) for trainer in (ours, theirs))
    assert float((a - b).norm()) <= 10 * tolerance * float(b.norm())  # all together: Adam makes steps of what is nothing but rounding


KINDS = {"causal": (gpt2, texts), "masked": (bert, masked_texts), "sequences": (classifier, classified_texts), "images": (vit, images), "llama": (llama, texts)}


@pytest.mark.parametrize("kind", KINDS)
def test_the_losses_are_those_of_transformers_trainer(tmp_path, kind):
    build, data = KINDS[kind]
    ours, theirs = trainers(tmp_path, build, data(), learning_rate=1e-3 if kind == "sequences" else 5e-3)
    a, b = ours.train(), theirs.train()
    assert len(logged(ours)) == 12 and min(logged(ours)[6:]) < logged(ours)[0]
    assert_alike(ours, theirs)
    assert a.training_loss == pytest.approx(b.training_loss, rel=1e-4) and a.global_step == b.global_step
    assert ours.step.plan["measured_peak_bytes"] <= 64 << 20


@pytest.mark.parametrize("optim", ["rmsprop", "adagrad", "adafactor"])
def test_other_optimizers_are_taken_by_their_names(tmp_path, optim):
    # Adafactor's first step goes by the sign of a gradient, and that of the keys' bias is rounding alone.
    ours, theirs = trainers(tmp_path, gpt2, texts(), optim=optim, learning_rate=3e-4 if optim == "adafactor" else 1e-3)
    ours.train(), theirs.train()
    assert_alike(ours, theirs)


def test_flattened_texts_are_trained_as_transformers_trainer_does(tmp_path):
    more = dict(data_collator=transformers.DataCollatorWithFlattening())
    ours, theirs = trainers(tmp_path, lambda: mistral(8), texts(), more)
    ours.train(), theirs.train()
    assert_alike(ours, theirs)
    attention = [op for form, _ in ours.step._shapes.values() for op in form.section["ops"] if op["type"] == "AttentionForward"]
    assert attention and all(op["attributes"]["documents"] == 1 for op in attention)


def tokenizer():
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[PAD]": 0, "[UNK]": 1}, unk_token="[UNK]"))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", model_max_length=64)


def padding(**more):
    """A collator that pads each batch to its longest text."""
    return transformers.DataCollatorWithPadding(tokenizer(), **more)


def texts_of_many_lengths(longest: int) -> Rows:
    lengths = [2 + (7 * i) % (longest - 1) for i in range(48)]
    return Rows([{"input_ids": [2 + (i + j * j) % 90 for j in range(length)], "labels": i % 3} for i, length in enumerate(lengths)])


def test_texts_of_many_lengths_are_padded_to_few(tmp_path):
    data = texts_of_many_lengths(30)
    made = []
    for ours, kind in ((True, hf.Trainer), (False, transformers.Trainer)):
        args = arguments(tmp_path / str(ours), ours, learning_rate=1e-3, eval_strategy="epoch", num_train_epochs=1)
        made.append(kind(built(classifier), args, train_dataset=data, eval_dataset=data, data_collator=padding()))
    ours, theirs = made
    ours.train(), theirs.train()
    assert_alike(ours, theirs)
    assert logged(ours, "eval_loss") == pytest.approx(logged(theirs, "eval_loss"), rel=2e-4)
    assert ours.data_collator.pad_to_multiple_of == 8 and theirs.data_collator.pad_to_multiple_of is None
    assert len({number for _, number in ours.step._shapes.values()}) <= 4


@pytest.mark.parametrize("collator, data", [(lambda: padding(pad_to_multiple_of=4), lambda: texts_of_many_lengths(62)), (padding, lambda: texts_of_many_lengths(5))])
def test_a_collator_that_gives_few_lengths_stays_as_it_is(tmp_path, collator, data):
    chosen = collator()
    before = chosen.pad_to_multiple_of
    trainer = hf.Trainer(built(classifier), arguments(tmp_path, True), train_dataset=data(), data_collator=chosen)
    trainer.get_train_dataloader()
    assert chosen.pad_to_multiple_of == before


def test_looking_at_lengths_draws_no_random_numbers(tmp_path):
    class Noisy(Rows):
        def __getitem__(self, i):
            return super().__getitem__(i) | {"noise": (random.random(), np.random.rand(), torch.rand(()))}

    data = Noisy(texts_of_many_lengths(30).rows)
    trainer = hf.Trainer(built(classifier), arguments(tmp_path, True), train_dataset=data, data_collator=padding())
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    trainer._pad_to_few_lengths(data)
    assert trainer.data_collator.pad_to_multiple_of == 8
    assert before == (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())


def t5() -> nn.Module:
    sizes = dict(vocab_size=96, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, dropout_rate=0.0)
    return transformers.T5ForConditionalGeneration(transformers.T5Config(decoder_start_token_id=0, pad_token_id=0, **sizes))


@pytest.mark.parametrize("generate", [True, False])
def test_sequences_are_trained_as_transformers_seq2seq_trainer_does(tmp_path, generate):
    lengths = [(3 + (5 * i) % 12, 2 + (3 * i) % 6) for i in range(16)]
    data = Rows([{"input_ids": [2 + (i + j * j) % 90 for j in range(a)], "labels": [2 + (i + 3 * j) % 90 for j in range(b)]} for i, (a, b) in enumerate(lengths)])
    common = dict(
        per_device_train_batch_size=4, num_train_epochs=2, learning_rate=2e-3, logging_steps=1, report_to=[], save_strategy="no", disable_tqdm=True, seed=7,
        eval_strategy="epoch", predict_with_generate=generate, generation_max_length=6,
    )  # fmt: skip
    made = []
    for ours in (True, False):
        own = hf.Seq2SeqTrainingArguments(str(tmp_path / "ours"), memory="64MiB", threads=1, **common) if ours else transformers.Seq2SeqTrainingArguments(str(tmp_path / "theirs"), use_cpu=True, **common)
        model = built(t5)
        collator = transformers.DataCollatorForSeq2Seq(tokenizer(), model=model)
        metrics = lambda p: {"sum": float((p.predictions[0] if isinstance(p.predictions, tuple) else p.predictions).sum())}  # noqa: E731
        kind = hf.Seq2SeqTrainer if ours else transformers.Seq2SeqTrainer
        made.append(kind(model, own, train_dataset=data, eval_dataset=data, data_collator=collator, processing_class=tokenizer(), compute_metrics=metrics if generate else None))
    ours, theirs = made
    ours.train(), theirs.train()
    assert_alike(ours, theirs)
    for name in ("eval_loss", "eval_sum") if generate else ("eval_loss",):
        assert logged(ours, name) == pytest.approx(logged(theirs, name), rel=1e-3) and len(logged(ours, name)) == 2
    assert len({number for _, number in ours.step._shapes.values()}) <= 3


class Freezing(transformers.TrainerCallback):
    def on_step_begin(self, args, state, control, model=None, **_):
        if state.global_step == 5:
            for parameter in model.bert.encoder.layer[0].parameters():
                parameter.requires_grad_(False)


def test_layers_that_a_callback_freezes_stay_as_they_are(tmp_path):
    ours, theirs = trainers(tmp_path, classifier, classified_texts(), dict(callbacks=[Freezing()]), learning_rate=1e-3, max_grad_norm=0.0)
    ours.train(), theirs.train()
    assert_alike(ours, theirs, names=("loss", "learning_rate"))
    assert not any(p.requires_grad for p in ours.model.bert.encoder.layer[0].parameters())


def test_an_optimizer_that_the_step_has_not_is_refused_before_training(tmp_path):
    with pytest.raises(ValueError, match="optim='adamw_bnb_8bit'.*adamw_torch"):
        hf.Trainer(built(classifier), arguments(tmp_path, True, optim="adamw_bnb_8bit"), train_dataset=classified_texts())


def test_accumulated_batches_are_one_update_also_at_the_end_of_an_epoch(tmp_path):
    ours, theirs = trainers(tmp_path, gpt2, texts(), gradient_accumulation_steps=4, max_grad_norm=0.3)
    ours.train(), theirs.train()
    assert len(logged(ours)) == 4  # 6 batches an epoch: of 4, and of 2
    assert_alike(ours, theirs)


def test_accumulated_means_are_averaged(tmp_path):
    ours, theirs = trainers(tmp_path, classifier, classified_texts(), gradient_accumulation_steps=4)
    ours.train(), theirs.train()
    assert_alike(ours, theirs)


class Stream(torch.utils.data.IterableDataset):
    def __init__(self, rows: Rows):
        self.rows = rows

    def __iter__(self):
        return iter(self.rows.rows)


@pytest.mark.parametrize("build, data", [(gpt2, texts), (classifier, classified_texts)], ids=["sums", "means"])
def test_batches_of_a_stream_that_are_too_few_for_an_update_are_kept_for_the_next_epoch(tmp_path, build, data):
    ours, theirs = trainers(tmp_path, build, Stream(data()), gradient_accumulation_steps=4, max_steps=4, learning_rate=1e-3)
    ours.train(), theirs.train()
    assert len(logged(ours)) == 4  # of 4 batches, and then of 2 and 4
    assert_alike(ours, theirs)


def test_label_smoothing_and_sgd_are_as_transformers_has_them(tmp_path):
    ours, theirs = trainers(tmp_path, classifier, classified_texts(), label_smoothing_factor=0.1, optim="sgd")
    ours.train(), theirs.train()
    assert_alike(ours, theirs)


class Doubled:
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return 2 * super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)


class Rising:
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return (1 + self.state.epoch) * super().compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)


@pytest.mark.parametrize("further, most", [((), 1), ((Doubled,), 1), ((Rising,), 4)], ids=["theirs", "one's own", "of the epoch"])
def test_a_smoothed_loss_is_captured_once_unless_it_reads_the_epoch(tmp_path, monkeypatch, further, most):
    captured = []
    monkeypatch.setattr(plimsoll.step, "capture", lambda *a, **k: captured.append(a) or capture(*a, **k))
    model, data = built(lambda: gpt2(1)), Rows(texts().rows[:20])
    kinds = (type("Kind", (*further, kind), {}) for kind in (hf.Trainer, transformers.Trainer))
    ours, theirs = (
        kind(copy.deepcopy(model), arguments(tmp_path / str(mine), mine, num_train_epochs=1, label_smoothing_factor=0.1, logging_steps=1), train_dataset=data)
        for mine, kind in zip((True, False), kinds)
    )
    ours.train(), theirs.train()
    assert len(logged(ours)) == 5
    assert_alike(ours, theirs)
    assert 0 < len(captured) <= most and len(ours.step._shapes) <= most


def test_without_clipping_no_norm_is_logged_and_the_losses_are_the_same(tmp_path):
    ours, theirs = trainers(tmp_path, gpt2, texts(), max_grad_norm=0.0)
    ours.train(), theirs.train()
    assert logged(ours, "grad_norm") == []
    assert_alike(ours, theirs, names=("loss", "learning_rate"))


class Weighted:
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = nn.functional.cross_entropy(outputs.logits, labels, weight=torch.tensor([1.0, 2.0, 3.0]))
        return (loss, outputs) if return_outputs else loss


def test_a_loss_of_ones_own_is_captured(tmp_path):
    model = built(classifier)
    kinds = type("Ours", (Weighted, hf.Trainer), {}), type("Theirs", (Weighted, transformers.Trainer), {})
    ours, theirs = (k(copy.deepcopy(model), arguments(tmp_path / k.__name__, k is kinds[0]), train_dataset=classified_texts()) for k in kinds)
    ours.train(), theirs.train()
    assert_alike(ours, theirs)


class WeightedAnew:
    """As the documentation of transformers writes it."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        weight = getattr(self, "class_weights", None)
        criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]) if weight is None else weight)
        loss = criterion(outputs.logits, labels)
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize("weights", [None, torch.tensor([3.0, 1.0, 2.0])], ids=["made in the pass", "of the trainer"])
def test_a_criterion_that_is_made_for_every_batch_is_captured(tmp_path, weights):
    model = built(classifier)
    kinds = type("Ours", (WeightedAnew, hf.Trainer), {}), type("Theirs", (WeightedAnew, transformers.Trainer), {})
    ours, theirs = (k(copy.deepcopy(model), arguments(tmp_path / k.__name__, k is kinds[0], num_train_epochs=1), train_dataset=classified_texts()) for k in kinds)
    for trainer in (ours, theirs):
        if weights is not None:
            trainer.class_weights = weights.clone()
        trainer.train()
    assert_alike(ours, theirs)


class Logging:
    """Numbers of a loss for a log, in three ways."""

    way = ""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, num_items_in_batch=num_items_in_batch)
        mean = outputs.logits.mean()
        if self.way == "logged":
            self.log({"logged": mean.item()})
        elif self.way == "attribute":
            self.attribute = mean.detach()
        else:
            self.lists.setdefault("listed", []).append(mean.item())
        return (loss, outputs) if return_outputs else loss

    def log(self, logs, *more):
        if hasattr(self, "attribute"):
            logs["attribute"] = float(self.attribute)
        super().log(logs | {name: sum(values) / len(values) for name, values in self.lists.items()}, *more)
        self.lists.clear()


@pytest.mark.parametrize("way", ["logged", "attribute", "listed"])
def test_what_a_loss_logs_is_told_to_have_no_value(tmp_path, way):
    kind = type("Kind", (Logging, hf.Trainer), dict(way=way, lists={}))
    trainer = kind(built(classifier), arguments(tmp_path, True, max_steps=4, save_strategy="steps", save_steps=2), train_dataset=classified_texts())
    with pytest.warns(UserWarning, match=f"compute_loss computes {way} for a log, which has no values of these"):
        trainer.train()
    assert len(logged(trainer)) == 4
    assert all(value != value for value in logged(trainer, way)) and len(logged(trainer, way)) == (5 if way == "attribute" else 0)
    assert json.loads((tmp_path / "checkpoint-4" / "trainer_state.json").read_text())["global_step"] == 4


def accuracy(prediction) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def test_evaluation_metrics_and_predictions_are_those_of_transformers(tmp_path):
    held_out = Rows(classified_texts().rows[:7])
    more = dict(eval_dataset=held_out, compute_metrics=accuracy)
    told = dict(eval_strategy="steps", eval_steps=4, per_device_eval_batch_size=3, learning_rate=1e-3)
    ours, theirs = trainers(tmp_path, classifier, classified_texts(), more, **told)
    before = ours.evaluate(), theirs.evaluate()  # no step yet
    assert before[0]["eval_loss"] == pytest.approx(before[1]["eval_loss"], rel=1e-5)
    ours.train(), theirs.train()
    assert len(logged(ours, "eval_loss")) == 3
    assert_alike(ours, theirs, names=("loss", "eval_loss", "eval_accuracy"))
    a, b = ours.predict(held_out), theirs.predict(held_out)
    assert a.predictions.shape == (7, 3)
    assert a.predictions == pytest.approx(b.predictions, abs=2e-3) and (a.label_ids == b.label_ids).all()
    unlabelled = Rows([{k: v for k, v in row.items() if k != "labels"} for row in held_out.rows])
    assert ours.predict(unlabelled).predictions == pytest.approx(a.predictions, abs=1e-4)


def test_the_best_model_is_loaded_at_the_end_and_training_stops_early(tmp_path):
    more = dict(eval_dataset=Rows(texts().rows[:5]), callbacks=[transformers.EarlyStoppingCallback(early_stopping_patience=2)])
    told = dict(eval_strategy="steps", save_strategy="steps", eval_steps=2, save_steps=2, load_best_model_at_end=True, num_train_epochs=4, learning_rate=0.1)
    ours, theirs = trainers(tmp_path, gpt2, texts(), more, **told)
    ours.train(), theirs.train()
    assert ours.state.global_step == theirs.state.global_step < 24
    assert ours.state.best_global_step == theirs.state.best_global_step < ours.state.global_step
    assert ours.evaluate()["eval_loss"] == pytest.approx(min(logged(ours, "eval_loss")), rel=1e-5)


def test_training_goes_on_from_a_checkpoint_with_the_same_losses(tmp_path):
    told = dict(save_strategy="steps", save_steps=5, exact=True)
    model, data = built(gpt2), texts()
    whole = hf.Trainer(copy.deepcopy(model), arguments(tmp_path, True, **told), train_dataset=data)
    whole.train()
    again = hf.Trainer(copy.deepcopy(model), arguments(tmp_path, True, **told), train_dataset=data)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-5"))
    assert logged(again) == logged(whole)
    for a, b in zip(again.model.parameters(), whole.model.parameters()):
        assert torch.equal(a, b)


def test_a_checkpoint_that_was_not_written_to_its_end_is_passed_over(tmp_path):
    told = dict(save_strategy="steps", save_steps=2, max_steps=4, exact=True)
    model, data = built(gpt2), texts()
    whole = hf.Trainer(copy.deepcopy(model), arguments(tmp_path, True, **told), train_dataset=data)
    whole.train()
    (tmp_path / "checkpoint-4" / "trainer_state.json").unlink()
    again = hf.Trainer(copy.deepcopy(model), arguments(tmp_path, True, **told), train_dataset=data)
    again.train(resume_from_checkpoint=True)
    assert logged(again) == logged(whole)
    for state in tmp_path.glob("*/trainer_state.json"):
        state.write_text(state.read_text()[:50])
    with pytest.raises(ValueError, match="none of the checkpoints in .* was written to its end"):
        hf.Trainer(copy.deepcopy(model), arguments(tmp_path, True, **told), train_dataset=data).train(resume_from_checkpoint=True)


def test_a_model_is_not_captured_anew_behind_a_checkpoint(tmp_path, monkeypatch):
    """Which writes into its configuration."""
    captured = []
    monkeypatch.setattr(plimsoll.step, "capture", lambda *a, **k: captured.append(a) or capture(*a, **k))
    trainer = hf.Trainer(built(gpt2), arguments(tmp_path, True, save_strategy="steps", save_steps=1, max_steps=4), train_dataset=texts())
    trainer.train()
    assert len(captured) == 1 and len(list(tmp_path.glob("checkpoint-*"))) == 4


def test_a_checkpoint_of_transformers_trainer_goes_on_here(tmp_path):
    told = dict(save_strategy="steps", save_steps=5)
    _, theirs = trainers(tmp_path, gpt2, texts(), **told)
    theirs.train()
    ours = hf.Trainer(built(gpt2), arguments(tmp_path / "ours", True), train_dataset=texts())
    ours.train(resume_from_checkpoint=str(tmp_path / "theirs" / "checkpoint-5"))
    assert logged(ours) == pytest.approx(logged(theirs), rel=2e-4)


def test_a_saved_model_is_what_transformers_reads(tmp_path):
    trainer = hf.Trainer(built(gpt2), arguments(tmp_path, True, max_steps=3), train_dataset=texts())
    trainer.train()
    trainer.save_model(str(tmp_path / "saved"))
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "saved")
    for (name, a), b in zip(trainer.model.state_dict().items(), again.state_dict().values()):
        assert torch.equal(a, b), name


def test_callbacks_see_what_transformers_shows_them(tmp_path):
    class Seen(transformers.TrainerCallback):
        def __init__(self):
            self.events, self.norms = [], []

        def on_step_end(self, args, state, control, model=None, **kwargs):
            self.events.append(state.global_step)
            self.norms.append(float(model.get_input_embeddings().weight.norm()))

    seen = Seen(), Seen()
    ours, theirs = trainers(tmp_path, gpt2, texts())
    ours.add_callback(seen[0]), theirs.add_callback(seen[1])
    ours.train(), theirs.train()
    assert seen[0].events == seen[1].events
    assert seen[0].norms == pytest.approx(seen[1].norms, rel=1e-4)


def test_less_memory_than_is_needed_is_told_before_the_first_step(tmp_path):
    trainer = hf.Trainer(built(gpt2), arguments(tmp_path, True, memory="64KiB"), train_dataset=texts())
    with pytest.raises(plimsoll.Infeasible) as raised:
        trainer.train()
    assert raised.value.minimum_bytes > 64 << 10 and trainer.state.global_step == 0
    least = hf.Trainer(built(gpt2), arguments(tmp_path, True, memory=str(raised.value.minimum_bytes), max_steps=2), train_dataset=texts())
    assert least.train().global_step == 2


@pytest.mark.parametrize("argument", [dict(bf16=True), dict(torch_compile=True), dict(auto_find_batch_size=True), dict(neftune_noise_alpha=5.0)])
def test_what_the_step_does_not_do_is_refused_by_name(tmp_path, argument):
    (name,) = argument
    with pytest.raises(ValueError, match=f"refuses\n  {name}="):
        hf.Trainer(built(gpt2), arguments(tmp_path, True, **argument), train_dataset=texts())


def test_a_training_step_of_ones_own_and_other_optimizers_are_refused(tmp_path):
    class Own(hf.Trainer):
        def training_step(self, model, inputs, num_items_in_batch=None):
            loss = self.compute_loss(model, inputs)
            self.accelerator.backward(loss)
            return loss.detach()

    class Twice(hf.Trainer):
        def training_step(self, model, inputs, *more):
            loss = super().training_step(model, inputs, *more)
            self.compute_loss(model, inputs).backward()
            return loss

    for kind in (Own, Twice):
        with pytest.raises(ValueError, match=f"{kind.__name__}.training_step.*override compute_loss"):
            kind(built(gpt2), arguments(tmp_path, True), train_dataset=texts())
    with pytest.raises(TypeError, match="not by torch.optim.*Rprop"):
        model = built(gpt2)
        hf.Trainer(model, arguments(tmp_path, True), train_dataset=texts(), optimizers=(torch.optim.Rprop(model.parameters()), None)).train()


class Around:
    def training_step(self, model, inputs, num_items_in_batch=None):
        self.calls = getattr(self, "calls", 0) + 1
        hidden = inputs["attention_mask"].clone()
        hidden[:, -2:] = 0
        return super().training_step(model, {**inputs, "attention_mask": hidden}, num_items_in_batch)


def test_what_stands_around_a_training_step_is_done_at_every_batch(tmp_path):
    model = built(classifier)
    kinds = type("Ours", (Around, hf.Trainer), {}), type("Theirs", (Around, transformers.Trainer), {})
    ours, theirs = (k(copy.deepcopy(model), arguments(tmp_path / k.__name__, k is kinds[0], num_train_epochs=1), train_dataset=classified_texts()) for k in kinds)
    ours.train(), theirs.train()
    assert_alike(ours, theirs)
    assert ours.calls == theirs.calls == 6


def test_another_model_is_evaluated_as_it_is(tmp_path):
    trainer = hf.Trainer(built(classifier), arguments(tmp_path, True, max_steps=2), train_dataset=classified_texts(), eval_dataset=classified_texts())
    trainer.train()
    trainer.model = torch.manual_seed(8) and classifier()
    own = transformers.Trainer(trainer.model, arguments(tmp_path, False), eval_dataset=classified_texts())
    assert trainer.evaluate()["eval_loss"] == pytest.approx(own.evaluate()["eval_loss"], rel=1e-5)


def test_a_checkpoint_that_a_signal_asks_for_counts_the_update_that_it_has(tmp_path):
    class Signal(transformers.TrainerCallback):
        def on_substep_end(self, args, state, control, **_):
            (manager,) = [callback.jit_manager for callback in trainer.callback_handler.callbacks if hasattr(callback, "jit_manager")]
            manager.is_checkpoint_requested |= state.global_step == 2

    told = dict(gradient_accumulation_steps=2, enable_jit_checkpoint=True)
    trainer = hf.Trainer(built(lambda: gpt2(1)), arguments(tmp_path, True, **told), train_dataset=texts(), callbacks=[Signal()])
    trainer.train()
    (folder,) = tmp_path.glob("checkpoint-*")
    assert folder.name == "checkpoint-3"
    assert {float(state["step"]) for state in torch.load(folder / "optimizer.pt", weights_only=True)["state"].values()} == {3.0}


def test_gradient_checkpointing_is_left_to_the_plan(tmp_path):
    ours, theirs = trainers(tmp_path, gpt2, texts(), gradient_checkpointing=True)
    ours.train(), theirs.train()
    assert_alike(ours, theirs)


# --- LoRA ------------------------------------------------------------------------------------------------------------


def with_adapters(build):
    peft = pytest.importorskip("peft", reason="peft is not installed")
    config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, init_lora_weights=False, target_modules=["q_proj", "v_proj"])
    return lambda: peft.get_peft_model(build(), config)


def test_lora_trains_adapters_alone_as_transformers_trainer_does(tmp_path):
    ours, theirs = trainers(tmp_path, with_adapters(llama), texts(), save_strategy="steps", save_steps=12)
    frozen = {name: p.clone() for name, p in ours.model.named_parameters() if not p.requires_grad}
    ours.train(), theirs.train()
    assert_alike(ours, theirs)
    for name, parameter in ours.model.named_parameters():
        assert name not in frozen or torch.equal(parameter, frozen[name]), name
    assert all("lora_" in state.rsplit(".", 1)[0] for state in ours.step._states if state.endswith("exp_avg"))

    peft = pytest.importorskip("peft")
    torch.manual_seed(3)
    again = peft.PeftModel.from_pretrained(llama(), tmp_path / "ours" / "checkpoint-12")
    for (name, a), b in zip(again.state_dict().items(), ours.model.state_dict().values()):
        assert torch.equal(a, b), name
    assert not (tmp_path / "ours" / "checkpoint-12" / "model.safetensors").exists()


def test_prompts_train_alone_as_transformers_trainer_does(tmp_path):
    """Peft gives the embedding of words a second name."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    config = peft.PromptTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM")
    ours, theirs = trainers(tmp_path, lambda: peft.get_peft_model(llama(), config), texts())
    frozen = {name: p.clone() for name, p in ours.model.named_parameters() if not p.requires_grad}
    ours.train(), theirs.train()
    assert_alike(ours, theirs)
    for name, parameter in ours.model.named_parameters():
        assert name not in frozen or torch.equal(parameter, frozen[name]), name


def test_adapters_that_share_their_tables_are_trained(tmp_path):
    """Each layer has the same module of buffers, of which it asks for one by its key."""
    peft = pytest.importorskip("peft", reason="peft is not installed")
    config = peft.VeraConfig(r=4, target_modules=["q_proj", "o_proj"], vera_dropout=0.0)
    ours, theirs = trainers(tmp_path, lambda: peft.get_peft_model(llama(), config), texts(), num_train_epochs=1)
    ours.train(), theirs.train()
    assert_alike(ours, theirs)


# --- a whole script --------------------------------------------------------------------------------------------------


def test_the_example_runs(tmp_path):
    script = Path(__file__).resolve().parents[2] / "examples" / "hf_trainer.py"
    done = subprocess.run([sys.executable, script, str(tmp_path), "--max_steps", "20"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["last"] < told["first"] and told["peak_mib"] <= told["memory_mib"]


def test_speech_is_masked_anew_for_every_batch():
    """SpecAugment's masks, which transformers draws by numpy."""
    from plimsoll.hf_masks import drawn

    torch.manual_seed(0)
    padding = torch.ones(400, 60).long()
    padding[200:, 40:] = 0
    masks = drawn((400, 60), 0.3, 5, padding)
    assert not masks[200:, 40:].any()
    spans = 0.3 * torch.tensor([60.0, 40.0]) / 5  # of which some overlap
    shares = torch.stack([masks[:200].float().mean(), masks[200:, :40].float().mean()])
    assert (0.2 < shares).all() and (shares < 0.3).all() and spans[0] > 3
    assert all(1 <= len(row.nonzero()) <= 20 for row in masks)
    config = transformers.Wav2Vec2Config(
        vocab_size=12, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, conv_dim=(8, 8), conv_kernel=(10, 3), conv_stride=(5, 2),
        num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2, mask_time_prob=0.5, mask_time_length=2, layerdrop=0.0,
        hidden_dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, feat_proj_dropout=0.0, final_dropout=0.0,
    )  # fmt: skip
    torch.manual_seed(1)
    model = transformers.Wav2Vec2ForCTC(config)
    batch = {"input_values": torch.randn(2, 400), "labels": torch.tensor([[3, 4, 4, 5], [2, 7, -100, -100]])}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    step = plimsoll.compile(model, optimizer, example=batch, memory="8MiB", threads=1, costs="estimated", progress=False)
    losses = [step(batch) for _ in range(8)]
    assert len({round(loss, 4) for loss in losses}) > 4
    with torch.no_grad():
        expected = [model(**batch).loss.item() for _ in range(40)]
    assert min(expected) - 1 < min(losses) and max(losses) < max(expected) + 1
    assert step.evaluate(batch) == pytest.approx(model.eval()(**batch).loss.item(), rel=1e-4)


@pytest.mark.parametrize("kind", ["Deberta", "DebertaV2"])
def test_texts_without_a_label_do_not_count(kind):
    """DeBERTa asks how many labels there are."""
    kinds = dict(type_vocab_size=0, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8, pooler_dropout=0.0, num_labels=3)
    config = getattr(transformers, f"{kind}Config")(**kinds, **SIZES, **NO_DROPOUT)
    model = built(lambda: getattr(transformers, f"{kind}ForSequenceClassification")(config))
    batches = [{"input_ids": tokens(n, False)["input_ids"], "labels": torch.tensor([1, -100, 2, 0, 1][:n])} for n in (3, 5)]
    assert_alike_in_single(both(model, batches[0], run_batch=batches[1]))
    none = batches[0] | {"labels": torch.full((3,), -100)}
    step = plimsoll.compile(model, torch.optim.SGD(model.parameters(), lr=0.1), example=batches[0], memory="64MiB")
    before = copy.deepcopy(model.state_dict())
    assert step(none) == 0.0 and all(torch.equal(x, before[name]) for name, x in model.state_dict().items())


@pytest.mark.parametrize("kind", ["mixtral", "switch"])
def test_experts_one_after_the_other(kind):
    """Those that have rows, and what their router costs."""
    if kind == "mixtral":
        experts = dict(num_local_experts=4, num_experts_per_tok=2, num_key_value_heads=2, output_router_logits=True, router_aux_loss_coef=0.1, experts_implementation="eager")
        model, more = built(lambda: transformers.MixtralForCausalLM(transformers.MixtralConfig(use_cache=False, **experts, **SIZES))), {}
    else:
        sizes = dict(vocab_size=96, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=2, num_heads=4, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1)
        routed = dict(num_experts=4, expert_capacity=8, router_jitter_noise=0.0, output_router_logits=True, decoder_start_token_id=0, dropout_rate=0.0, use_cache=False)
        model = built(lambda: transformers.SwitchTransformersForConditionalGeneration(transformers.SwitchTransformersConfig(**sizes, **routed)))
        more = {f"{which}attention_mask": torch.ones(3, LENGTH) for which in ("", "decoder_")}
    result = both(model, tokens(3, False) | more)
    for name in [name for name in result.file if name not in result.eager]:
        assert ".experts." in name and not result.file.pop(name).any()
    assert_alike_in_single(result)


def xmod() -> nn.Module:
    """All texts are of one of three languages, each of which has layers of its own."""
    return transformers.XmodForMaskedLM(transformers.XmodConfig(languages=["a", "b", "c"], default_language="b", **ONE_LAYER, **NO_DROPOUT))


def longformer(kind: str = "SequenceClassification") -> nn.Module:
    config = transformers.LongformerConfig(attention_window=8, num_labels=2 if kind == "QuestionAnswering" else 3, pad_token_id=1, sep_token_id=2, **ONE_LAYER, **NO_DROPOUT)
    return getattr(transformers, f"LongformerFor{kind}")(config)


def led() -> nn.Module:
    layers = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in dict(layers=1, attention_heads=4, ffn_dim=48).items()}
    places = dict(max_encoder_position_embeddings=64, max_decoder_position_embeddings=64)
    return transformers.LEDForConditionalGeneration(transformers.LEDConfig(vocab_size=96, d_model=32, attention_window=8, dropout=0.0, use_cache=False, **layers, **places))


@pytest.mark.parametrize("build", [xmod, longformer, led], ids=["xmod", "longformer", "led"])
def test_masks_that_are_the_same_for_every_batch(build):
    """Which language a text is of, and which places all others attend to, where the batch does not say it."""
    ours, theirs = built(build), built(build)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1) for m in (ours, theirs)]
    batches = [tokens(n, False) for n in (3, 3, 2)]
    if "Classification" in type(ours).__name__:
        for batch in batches:
            batch["labels"] = batch["labels"][:, 0] % 3
    assert_trained_alike(ours, theirs, optimizers, batches)


def assert_trained_alike(ours: nn.Module, theirs: nn.Module, optimizers, batches):
    step = plimsoll.compile(ours, optimizers[0], example=batches[0], memory="64MiB", threads=1, costs="estimated", progress=False)
    for batch in batches:
        optimizers[1].zero_grad()
        loss = theirs(**batch).loss
        loss.backward()
        optimizers[1].step()
        assert step(batch) == pytest.approx(loss.item(), rel=1e-4)
    for (name, expected), found in zip(theirs.named_parameters(), ours.parameters()):
        assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5), name


@pytest.mark.filterwarnings("ignore:whether masks hold")
def test_all_places_attend_to_a_question():
    """Which the model finds by three separators in each text."""
    ours, theirs = (built(lambda: longformer("QuestionAnswering")) for _ in range(2))
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1) for m in (ours, theirs)]
    batches = [tokens(3) for _ in range(3)]
    for i, batch in enumerate(batches):
        ids = batch["input_ids"].clamp(min=3)
        for row in range(3):
            ids[row, [2 + (i + row) % 3, 9, 20 + row]] = ours.config.sep_token_id
        batch |= {"input_ids": ids, "start_positions": torch.tensor([10, 12, 9]), "end_positions": torch.tensor([13, 12, 11])}
        del batch["labels"]
    assert_trained_alike(ours, theirs, optimizers, batches)


@pytest.mark.filterwarnings("ignore:whether masks hold")
@pytest.mark.parametrize("build, at", [(longformer, [(0, 3), (1, 0)]), (lambda: longformer("MaskedLM"), []), (led, [(0, 0), (1, 0), (2, 0), (2, 7)])], ids=["longformer", "longformer_without_global", "led"])
def test_texts_with_padding_and_places_that_all_attend_to(build, at):
    """Of the second batch there are fewer such places in each text, of the third as many elsewhere."""
    ours, theirs = built(build), built(build)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1) for m in (ours, theirs)]
    batches = [tokens(3) for _ in range(3)]
    for i, batch in enumerate(batches):
        batch["attention_mask"][0, 30 + i :] = 0
        if at:
            batch["global_attention_mask"] = torch.zeros_like(batch["input_ids"])
        for row, place in at if i != 1 else at[:2]:
            batch["global_attention_mask"][row, place + i] = 1
        if "Classification" in type(ours).__name__:
            batch["labels"] = batch["labels"].clamp(min=0)[:, 0] % 3
    assert_trained_alike(ours, theirs, optimizers, batches)
