"""Whole networks: converted, at two batch sizes, against eager PyTorch; and what record.py has written of them."""

from __future__ import annotations

import json

import pytest
import torch

import record
from networks import EXAMPLES, with_given_dropout
from support import assert_same, both, start


@pytest.mark.parametrize("name", EXAMPLES)
def test_network(name):
    example = EXAMPLES[name]
    captured, converted = record.converted_example(example)
    assert converted.fixed_batch == []
    eager = with_given_dropout(start(example.build()), record.draws(converted, 5))
    result = both(
        start(example.build()),
        example.batch(2),
        example.loss,
        run_batch=example.batch(5),
        eager=eager,
        captured=captured,
        converted=converted,
    )
    assert_same(result)

    written = json.loads((record.FOLDER / f"{name}.json").read_text())
    recorded = json.loads((record.FOLDER / f"{name}.expected.json").read_text())
    assert without_origin(written) == without_origin(
        json.loads(json.dumps(converted.document))
    ), "run python/tests/record.py"
    again = record.expected(example, captured, converted)
    assert again["loss"] == pytest.approx(recorded["loss"], rel=1e-10)
    for parameter, values in recorded["gradients"].items():
        assert again["gradients"][parameter] == pytest.approx(values, rel=1e-7, abs=1e-12)


def without_origin(document: dict) -> dict:
    """Without the lines of the sources, which move with every edit, and names that versions of torch choose."""
    for op in document["training"]["ops"]:
        op.pop("source", None)
    return document


def test_the_recorded_files_name_only_ops_that_the_contract_has():
    known = """AdaptiveAvgPoolForward AdaptiveMaxPoolForward Add Assign AttentionForward AvgPoolForward BatchNormForward Bernoulli Cast Concat Constant
    ConvForward ConvTransposeForward CumulativeSum DropoutForward Embedding Expand FullyConnectedForward Gather GatherBackward GroupNormForward Index
    IndexBackward IndexSelect IndexSelectBackward LayerNormForward MatMul MaxPoolForward Pad Permute Pointwise RandomNormal RecurrentForward Reduce ReluForward Reshape ResizeForward RmsNormForward Slice
    SoftmaxCrossEntropyForward SoftmaxForward Sort StopGradient TopK""".split()
    for path in record.FOLDER.glob("*.json"):
        document = json.loads(path.read_text())
        for op in document.get("training", {"ops": []})["ops"]:
            assert op["type"] in known, op["name"]


def test_torch_is_one_that_we_name():
    assert tuple(int(n) for n in torch.__version__.split(".")[:2]) >= (2, 10)
