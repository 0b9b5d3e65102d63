"""Views, permutations, slices, joins, pads, and reading by indices."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Sequence

import torch
from torch.fx import Node

from .registry import Arguments, Expanded, Refusal, axis, converts
from .scatter import note_idle

if TYPE_CHECKING:
    from ..writer import Writer


@converts(
    "alias.default",
    "clone.default",
    "contiguous.default",
    "lift_fresh_copy.default",
    "_unsafe_view.default",
    "view.default",
    "reshape.default",
    "unsqueeze.default",
    "squeeze.default",
    "squeeze.dim",
    "squeeze.dims",
    "flatten.using_ints",
    "unflatten.int",
)
def reshape(w: "Writer", node: Node, a: Arguments):
    return w.reshape(a["self"], w.shape(node), "")


@converts("view_as_real.default")
def pairs(w: "Writer", node: Node, a: Arguments):
    """Of a complex parameter, which the network has as its pairs; any other is pairs before it comes here (complex_numbers.py)."""
    name = w.parameter_of(a["self"])
    if name is None or w.dtype(node) != torch.float32:
        raise Refusal("a complex tensor that depends on parameters")
    return w.parameter(name, w.shape(node))


@converts("diagonal.default")
def diagonal(w: "Writer", node: Node, a: Arguments):
    """Every (columns + 1)-th element of the matrices' rows, one after the other."""
    shape, offset = w.shape(a["self"]), a["offset"]
    rank = len(shape)
    rows, columns = a["dim1"] % rank, a["dim2"] % rank
    rest = [d for d in range(rank) if d not in (rows, columns)]
    x = w.permute(a["self"], [*rest, rows, columns], "matrices")
    n, m = shape[rows], shape[columns]
    count = w.shape(node)[-1]
    flat = w.reshape(x, [*(shape[d] for d in rest), n * m], "flat")
    begin = offset if offset >= 0 else -offset * m
    return w.slice(flat, len(rest), begin, count, m + 1, "diagonal")


@converts("detach.default")
def detach(w: "Writer", node: Node, a: Arguments):
    if not w.is_trained(a["self"]):
        return w.value(a["self"])
    name = w.value(a["self"])
    return name if w.maker_is(name, "StopGradient") else w.emit("StopGradient", [name], w.shape(node))


@converts("permute.default")
def permute(w: "Writer", node: Node, a: Arguments):
    return w.permute(a["self"], [axis(d, len(a["dims"])) for d in a["dims"]], "")


@converts("transpose.int")
def transpose(w: "Writer", node: Node, a: Arguments):
    dims = list(range(len(w.shape(node))))
    i, j = axis(a["dim0"], len(dims)), axis(a["dim1"], len(dims))
    dims[i], dims[j] = dims[j], dims[i]
    return w.permute(a["self"], dims, "")


@converts("t.default")
def t(w: "Writer", node: Node, a: Arguments):
    return w.permute(a["self"], list(range(len(w.shape(node))))[::-1], "")


@converts("expand.default")
def expand(w: "Writer", node: Node, a: Arguments):
    base = w.value(a["self"])
    return base if w.shape_of[base] == w.shape(node) else Expanded(base, w.shape(node))


@converts("repeat.default")
def repeat(w: "Writer", node: Node, a: Arguments):
    """[s0, s1] -> [1, s0, 1, s1] -> [r0, s0, r1, s1] -> [r0 * s0, r1 * s1]."""
    before = [1] * (len(a["repeats"]) - len(w.shape(a["self"]))) + w.shape(a["self"])
    if w.shape(node) == before:
        return w.reshape(a["self"], before)
    split = [n for size in before for n in (1, size)]
    wide = [n for times, size in zip(a["repeats"], before) for n in (times, size)]
    x = w.reshape(a["self"], split, "split")
    return w.reshape(w.emit("Expand", [x], wide, {"shape": wide}, "expand"), w.shape(node))


@converts("slice.Tensor")
def slice_(w: "Writer", node: Node, a: Arguments):
    size_before, dim = w.shape(a["self"]), axis(a["dim"], len(w.shape(node)))
    begin = 0 if a["start"] is None else a["start"]
    begin = max(0, min(begin + size_before[dim] if begin < 0 else begin, size_before[dim]))
    size = w.shape(node)[dim]
    if size == 0:
        return None  # joins leave it out
    return w.slice(a["self"], dim, begin, size, a["step"] or 1, part="")


@converts("select.int")
def select(w: "Writer", node: Node, a: Arguments):
    before = w.shape(a["self"])
    dim = axis(a["dim"], len(before))
    return w.reshape(w.slice(a["self"], dim, axis(a["index"], before[dim]), 1), w.shape(node))


def _parts(w: "Writer", x: Node, dim: int, sizes: Sequence[int]) -> tuple:
    begins = [sum(sizes[:i]) for i in range(len(sizes))]
    return tuple(w.slice(x, dim, begin, size, part=str(i)) for i, (begin, size) in enumerate(zip(begins, sizes)))


@converts(
    "split_with_sizes.default",
    "split.Tensor",
    "chunk.default",
    "unsafe_split.Tensor",
    "split.sizes",
    "tensor_split.sections",
)
def split(w: "Writer", node: Node, a: Arguments):
    dim = axis(a["dim"], len(w.shape(a.get("self") or a.get("input"))))
    return _parts(w, a["self"], dim, [int(part.shape[dim]) for part in node.meta["val"]])


@converts("unbind.int")
def unbind(w: "Writer", node: Node, a: Arguments):
    before = w.shape(a["self"])
    dim = axis(a["dim"], len(before))
    parts = _parts(w, a["self"], dim, [1] * before[dim])
    return tuple(w.reshape(p, before[:dim] + before[dim + 1 :]) for p in parts)


@converts("cat.default")
def cat(w: "Writer", node: Node, a: Arguments):
    parts = [x for x in a["tensors"] if math.prod(w.shape(x)) > 0]
    for x in a["tensors"] if parts else ():
        if math.prod(w.shape(x)) == 0:
            note_idle(w, node, x)
    return w.concat([w.value(x) for x in parts], axis(a["dim"], len(w.shape(node))), "")


@converts("stack.default")
def stack(w: "Writer", node: Node, a: Arguments):
    dim = axis(a["dim"], len(w.shape(node)))
    one = w.shape(node)[:dim] + [1] + w.shape(node)[dim + 1 :]
    return w.concat([w.reshape(x, one, f"part{i}") for i, x in enumerate(a["tensors"])], dim)


@converts("roll.default")
def roll(w: "Writer", node: Node, a: Arguments):
    """The end before the beginning, one dimension after the other."""
    if not a["dims"]:
        flat = [math.prod(w.shape(node))]
        x = _rolled(w, w.reshape(a["self"], flat), 0, a["shifts"][0])
        return w.reshape(x, w.shape(node))
    x = w.value(a["self"])
    for shift, dim in zip(a["shifts"], a["dims"]):
        x = _rolled(w, x, axis(dim, len(w.shape(node))), shift)
    return x


def _rolled(w: "Writer", x: str, dim: int, shift: int) -> str:
    size = w.shape_of[x][dim]
    cut = size - shift % size
    if cut == size:
        return x
    return w.concat([w.slice(x, dim, cut, size - cut, part="end"), w.slice(x, dim, 0, cut, part="begin")], dim)


@converts("flip.default")
def flip(w: "Writer", node: Node, a: Arguments):
    x = w.value(a["self"])
    for dim in a["dims"]:
        d = axis(dim, len(w.shape(node)))
        index = w.add_constant(torch.arange(w.shape(node)[d] - 1, -1, -1))
        x = w.emit("IndexSelect", [x, index], w.shape(node), {"axis": d})
    return x


@converts("slice_scatter.default")
def slice_scatter(w: "Writer", node: Node, a: Arguments):
    shape, dim = w.shape(node), axis(a["dim"], len(w.shape(node)))
    begin = 0 if a["start"] is None else axis(a["start"], shape[dim])
    return _replaced(w, a, dim, begin, w.shape(a["src"])[dim], w.value(a["src"]), a["step"])


@converts("select_scatter.default")
def select_scatter(w: "Writer", node: Node, a: Arguments):
    shape, dim = w.shape(node), axis(a["dim"], len(w.shape(node)))
    one = w.reshape(a["src"], shape[:dim] + [1] + shape[dim + 1 :])
    return _replaced(w, a, dim, axis(a["index"], shape[dim]), 1, one, 1)


def _replaced(w: "Writer", a: Arguments, dim: int, begin: int, size: int, by: str, step: int) -> str:
    whole = w.shape(a["self"])[dim]
    if step != 1 and size > 1:
        place = torch.arange(whole)
        place[begin :: step][:size] = whole + torch.arange(size)
        both = w.concat([w.value(a["self"]), by], dim)
        return w.emit("IndexSelect", [both, w.add_constant(place)], w.shape(a["self"]), {"axis": dim}, dtype=w.dtype_of[both])
    parts = [by]
    if begin > 0:
        parts.insert(0, w.slice(a["self"], dim, 0, begin, part="before"))
    if begin + size < whole:
        parts.append(w.slice(a["self"], dim, begin + size, whole - begin - size, part="after"))
    return w.concat(parts, dim)


@converts("diagonal_scatter.default")
def diagonal_scatter(w: "Writer", node: Node, a: Arguments):
    shape = w.shape(node)
    rank = len(shape)
    rows, columns = a["dim1"] % rank, a["dim2"] % rank
    order = [*(d for d in range(rank) if d not in (rows, columns)), rows, columns]
    size = math.prod(shape[d] for d in (rows, columns))
    lead = [shape[d] for d in order[:-2]]
    places = torch.arange(size).reshape(shape[rows], shape[columns]).diagonal(a["offset"])
    matrices = w.permute(a["self"], order, "matrices")
    y = _written_at(w, w.reshape(matrices, [*lead, size], "flat"), a["src"], places)
    y = w.reshape(y, [*lead, shape[rows], shape[columns]])
    return w.permute(y, sorted(range(rank), key=lambda d: order[d]), "back")


@converts("as_strided_scatter.default")
def as_strided_scatter(w: "Writer", node: Node, a: Arguments):
    """As x.fill_diagonal_() writes: at places in memory, where the tensor lies there row by row."""
    if not a["self"].meta["val"].is_contiguous():
        raise Refusal("writing by as_strided into a tensor that does not lie row by row; call contiguous() before")
    count = math.prod(w.shape(node))
    places = torch.arange(count).as_strided(tuple(a["size"]), tuple(a["stride"]), a["storage_offset"] or 0).flatten()
    if len(places.unique()) != len(places):
        raise Refusal("writing by as_strided at one place again and again")
    return w.reshape(_written_at(w, w.reshape(a["self"], [count], "flat"), a["src"], places), w.shape(node))


def _written_at(w: "Writer", flat: str, source: Node, places: torch.Tensor) -> str:
    """A source [..., n] at n places of the last dimension of x."""
    shape, number = w.shape_of[flat], w.number(source)
    if number is not None and w.dtype_of[flat] == "f32":
        here = torch.zeros(shape[-1], dtype=torch.uint8)
        here[places] = 1
        return w.value(w.pointwise("where({0},{1},{2})", [w.add_constant(here), number, flat], "written"))
    both = w.concat([flat, w.reshape(w.value(source), [*shape[:-1], len(places)])], len(shape) - 1)
    taken = torch.arange(shape[-1])
    taken[places] = shape[-1] + torch.arange(len(places))
    return w.emit("IndexSelect", [both, w.add_constant(taken)], shape, {"axis": len(shape) - 1}, "written", dtype=w.dtype_of[both])


@converts("copy.default")
def copy(w: "Writer", node: Node, a: Arguments):
    """What becomes of x.copy_(src): src in the shape of x."""
    if w.dtype(a["src"]) != w.dtype(node):
        raise Refusal(f"copying {w.dtype(a['src'])} into {w.dtype(node)}")
    base = w.value(a["src"])
    return base if w.shape_of[base] == w.shape(node) else Expanded(base, w.shape(node))


@converts("full.default", "full_like.default")
def full(w: "Writer", node: Node, a: Arguments):
    return w.fill(w.shape(node), float(a["fill_value"]))


@converts("as_strided.default")
def as_strided(w: "Writer", node: Node, a: Arguments):
    """Elements by their places in memory, where the tensor's own lie there without gaps."""
    x, value = a["self"], a["self"].meta["val"]
    order = sorted(range(value.dim()), key=lambda d: (-value.stride(d), -value.shape[d]))  # in which they follow each other there
    if not value.permute(order).is_contiguous():
        raise Refusal("as_strided of a tensor that is a part of another, or an expanded one; call contiguous() before")
    first = 0 if a["storage_offset"] is None else a["storage_offset"] - value.storage_offset()
    if first < 0:
        raise Refusal("as_strided of a part of a tensor, from before that part")
    count = math.prod(w.shape(x))
    places = torch.arange(count).as_strided(tuple(w.shape(node)), tuple(a["stride"]), first).flatten()
    flat = w.reshape(x if order == sorted(order) else w.permute(x, order, "in_memory"), [count], "flat")
    if len(places) != count or not torch.equal(places, torch.arange(count)):
        flat = w.emit("IndexSelect", [flat, w.add_constant(places)], [len(places)], {"axis": 0})
    return w.reshape(flat, w.shape(node))


# --- pads ---

@converts(
    "constant_pad_nd.default",
    "pad.default",
    "reflection_pad1d.default",
    "reflection_pad2d.default",
    "replication_pad1d.default",
    "replication_pad2d.default",
)
def pad(w: "Writer", node: Node, a: Arguments):
    """PyTorch pads from the last dimension: [left, right, top, bottom, ...]."""
    name = str(node.target).split(".")[1]
    mode = a.get("mode") or (
        "reflect" if name.startswith("refl") else "replicate" if name.startswith("repl") else "constant"
    )
    pads, rank = list(a["pad"] if "pad" in a else a["padding"]), len(w.shape(node))
    if not any(pads):
        return w.value(a["self"])
    begin, end = [0] * rank, [0] * rank
    for i in range(len(pads) // 2):
        begin[rank - 1 - i], end[rank - 1 - i] = pads[2 * i], pads[2 * i + 1]
    if mode == "circular":
        return _padded_in_a_circle(w, w.value(a["self"]), begin, end)
    value = float(a.get("value") or 0.0)
    attributes = {"begin": begin, "end": end, "mode": mode} | ({"value": value} if mode == "constant" else {})
    name = w.value(a["self"])
    return w.emit("Pad", [name], w.shape(node), attributes, dtype=w.dtype_of[name])


def _padded_in_a_circle(w: "Writer", x: str, begin: Sequence[int], end: Sequence[int]) -> str:
    for d, (before, after) in enumerate(zip(begin, end)):
        size = w.shape_of[x][d]
        parts = [w.slice(x, d, size - before, before, part="before")] if before else []
        parts += [x] + ([w.slice(x, d, 0, after, part="after")] if after else [])
        x = w.concat(parts, d)
    return x


@converts("unfold.default")
def unfold(w: "Writer", node: Node, a: Arguments):
    """Windows of a dimension, their elements last."""
    before, size, step = w.shape(a["self"]), a["size"], a["step"]
    dim = axis(a["dimension"], len(before))
    count = w.shape(node)[dim]
    if step == size and count * size == before[dim]:
        x = w.value(a["self"])
    else:
        index = (torch.arange(count)[:, None] * step + torch.arange(size)).flatten()
        taken = before[:dim] + [count * size] + before[dim + 1 :]
        x = w.emit("IndexSelect", [a["self"], w.add_constant(index)], taken, {"axis": dim}, "windows")
    x = w.reshape(x, before[:dim] + [count, size] + before[dim + 1 :])
    return w.permute(x, [d for d in range(len(before) + 1) if d != dim + 1] + [dim + 1])


# --- indices ---


@converts("index_select.default")
def index_select(w: "Writer", node: Node, a: Arguments):
    return w.emit("IndexSelect", [a["self"], a["index"]], w.shape(node), {"axis": axis(a["dim"], len(w.shape(node)))})


@converts("gather.default")
def gather(w: "Writer", node: Node, a: Arguments):
    return w.emit("Gather", [a["self"], a["index"]], w.shape(node), {"axis": axis(a["dim"], len(w.shape(node)))})


@converts("index.Tensor")
def index(w: "Writer", node: Node, a: Arguments):
    """x[..., i, j, ...]: of one index IndexSelect; of several side by side Index, with their dimensions in front, which counts negative ones from the end."""
    x, indices = a["self"], list(a["indices"])
    at = [d for d, index in enumerate(indices) if index is not None]
    if any(w.dtype(indices[d]) in (torch.bool, torch.uint8) for d in at):
        raise Refusal("indexing by a mask gives a size that depends on values")
    before, after = w.shape(x), w.shape(node)
    if len(at) == 1:
        d, own = at[0], indices[at[0]]
        wraps = d == 0 and _may_be_negative(w, own)
        flat = w.reshape(_not_negative(w, own, before[d], wraps), [math.prod(w.shape(own))], "indices")
        selected = before[:d] + w.shape_of[flat] + before[d + 1 :]
        return w.reshape(w.emit("Index", [x, flat], selected) if wraps else w.emit("IndexSelect", [x, flat], selected, {"axis": d}), after)
    k, rank = len(at), len(before)
    first = at[0] if at == list(range(at[0], at[0] + k)) else 0  # with a slice between them, theirs are the first dimensions
    order = at + [d for d in range(rank) if d not in at]
    front = w.permute(x, order)
    names = [_not_negative(w, indices[d], before[d]) for d in at]
    chosen = len(after) - (rank - k)  # dimensions of the broadcast indices
    shape = after[first : first + chosen] + after[:first] + after[first + chosen :]
    result = w.emit("Index", [front, *names], shape)
    back = list(range(chosen, chosen + first)) + list(range(chosen)) + list(range(chosen + first, len(after)))
    return w.permute(result, back, "back")


def _may_be_negative(w: "Writer", index: Node) -> bool:
    """Of an index that no constant gives."""
    from .experts import extent

    known = extent(w, index)
    return w.constant(index) is None and (known is None or known[0] < 0)


def _not_negative(w: "Writer", index: Node, size: int, wraps: bool = True) -> str:
    """The index counted from the front. Of those that no constant gives, ``wraps`` says that their reader does it."""
    from .experts import EXACT

    value = w.constant(index)
    if value is not None and bool((value < 0).any()):
        return w.add_constant(torch.where(value < 0, value + size, value))
    if wraps or size >= EXACT or not _may_be_negative(w, index):
        return w.value(index)
    front = w.pointwise("add({0},mul(lt({0},0.0),{1}))", [index, float(size)], "front")
    return w.emit("Cast", [front], w.shape(index), {"dtype": "i64"}, dtype="i64")


@converts("embedding.default")
def embedding(w: "Writer", node: Node, a: Arguments):
    if a["scale_grad_by_freq"]:
        raise Refusal("scale_grad_by_freq")
    return w.emit("Embedding", [a["weight"], a["indices"]], w.shape(node), {"padding_index": a["padding_idx"]})


@converts("sort.default", "sort.stable")
def sort(w: "Writer", node: Node, a: Arguments):
    shape = w.shape(a["self"])
    attributes = {"axis": axis(a["dim"], len(shape)), "descending": int(a["descending"])}
    name = w.value(a["self"])
    y, indices = w.emit("Sort", [name], [shape, shape], attributes, outputs=("y", "indices"))
    w.dtype_of[y], w.dtype_of[indices] = w.dtype_of[name], "i64"
    return y, indices


@converts("topk.default")
def topk(w: "Writer", node: Node, a: Arguments):
    shape = [int(n) for n in node.meta["val"][0].shape]
    attributes = {"axis": axis(a["dim"], len(shape)), "k": a["k"], "largest": int(a["largest"])}
    y, indices = w.emit("TopK", [a["self"]], [shape, shape], attributes, outputs=("y", "indices"))
    w.dtype_of[indices] = "i64"
    return y, indices
