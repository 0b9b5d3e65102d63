"""Recurrent layers: an op a direction. What the input adds to the gates is one product for all steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

from torch.fx import Node

from .random import dropped
from .registry import Arguments, Refusal, converts

if TYPE_CHECKING:
    from ..writer import Writer

CELLS = {"lstm": "lstm", "gru": "gru", "rnn_tanh": "tanh", "rnn_relu": "relu"}


@converts("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input")
def recurrent(w: "Writer", node: Node, a: Arguments):
    """Gives (y, h, c) or (y, h) as the operator does: y of all steps, h and c of the last step of each direction."""
    cell = CELLS[str(node.target).split(".")[1]]
    first = list(a["hx"]) if cell == "lstm" else [a["hx"]]
    directions = 2 if a["bidirectional"] else 1
    each = 4 if a["has_biases"] else 2
    if len(a["params"]) != each * directions * a["num_layers"]:
        raise Refusal("an LSTM with proj_size")
    x = w.permute(a["input"], [1, 0, 2], "steps_first") if a["batch_first"] else w.value(a["input"])
    last: list[list[str]] = [[] for _ in first]
    for layer in range(a["num_layers"]):
        ways = []
        for way in range(directions):
            i = layer * directions + way
            state = [_state(w, s, i) for s in first]
            results = _direction(w, x, cell, a["params"][i * each : (i + 1) * each], state, bool(way), f"{layer}.{way}")
            ways.append(results[0])
            for k, sequence in enumerate(results):
                steps = w.shape_of[sequence][0]
                last[k].append(w.slice(sequence, 0, 0 if way else steps - 1, 1, part=f"last{layer}.{way}"))
        x = w.concat(ways, 2, f"ways{layer}")
        if a["train"] and layer + 1 < a["num_layers"]:
            x = dropped(w, x, a["dropout"], f"dropout{layer}")
    y = w.permute(x, [1, 0, 2], "batch_first") if a["batch_first"] else x
    return (y, *(w.concat(parts, 0, "last") for parts in last))


def _state(w: "Writer", states: Node, i: int) -> str:
    """h or c before the first step, of the i-th direction."""
    rows = w.shape(states)[1:]
    if w.number(states) is not None:
        return w.fill(rows, w.number(states) or 0.0, "first")
    return w.reshape(w.slice(states, 0, i, 1, part="first"), rows)


def _direction(
    w: "Writer", x: str, cell: str, weights: list[Node], state: list[str], reverse: bool, part: str
) -> list[str]:
    """y, and of an LSTM c, of all steps."""
    steps, rows, features = w.shape_of[x]
    of_input, of_state = weights[:2]
    bias_input: Optional[Node] = weights[2] if len(weights) > 2 else None
    gates, width = w.shape(of_state)
    flat = w.reshape(x, [steps * rows, features], "rows")
    inputs = [flat, w.weight(of_input, [gates, features])] + ([bias_input] if bias_input is not None else [])
    given = w.emit("FullyConnectedForward", inputs, [steps * rows, gates], part=f"input{part}")
    inputs = [w.reshape(given, [steps, rows, gates]), w.weight(of_state, [gates, width]), *state, *weights[3:]]
    shapes, outputs = [[steps, rows, width]], ["y"]
    if cell == "lstm":
        shapes, outputs = shapes * 2, ["y", "c"]
    if cell in ("lstm", "gru"):
        shapes, outputs = [*shapes, [steps, rows, 4 * width]], [*outputs, "gates"]
    attributes = {"cell": cell, "reverse": int(reverse)}
    results = w.emit("RecurrentForward", inputs, shapes, attributes, f"cells{part}", outputs=outputs)
    return list(results[:2]) if cell == "lstm" else [results[0]]


@converts("plimsoll.recurrence.default")
def one_direction(w: "Writer", node: Node, a: Arguments):
    """Of sequences of different lengths (packed.py). Gives (h, c) of all steps."""
    results = _direction(w, w.value(a["x"]), CELLS[a["cell"]], a["weights"], [_row_of_states(w, s) for s in a["state"]], False, "")
    return results[0], results[-1]


def _row_of_states(w: "Writer", state: Node) -> str:
    number = w.number(state)
    return w.value(state) if number is None else w.fill(w.shape(state), number, "first")


@converts("plimsoll.packed.default")
def packed(w: "Writer", node: Node, a: Arguments):
    raise Refusal(".data of a packed sequence, whose size depends on values; do before pack_padded_sequence, or after pad_packed_sequence, what is done with it")
