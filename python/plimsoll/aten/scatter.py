"""Writing at indices. What is added at indices is the gradient of reading there, so the ops are those of that gradient."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Optional, Union

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from .experts import EXACT
from .registry import Arguments, Expanded, Refusal, axis, converts, is_floating

if TYPE_CHECKING:
    from ..writer import Writer


# --- an index for every element ---


@converts("scatter_add.default")
def scatter_add(w: "Writer", node: Node, a: Arguments):
    added = _added(w, node, a, a["src"])
    return added if w.number(a["self"]) == 0 else w.pointwise("add({0},{1})", [a["self"], added])


@converts("scatter.src", "scatter.value")
def scatter(w: "Writer", node: Node, a: Arguments):
    """Of a place that is written twice PyTorch leaves either; this leaves the mean of the two."""
    if "src" in a and (y := _whole_written(w, node, a)) is not None:
        return y
    counts = _added(w, node, a, 1.0)
    if "value" in a:
        return w.pointwise("where(gt({0},0.5),{1},{2})", [counts, a["value"], a["self"]])
    return _mean_where_written(w, _added(w, node, a, a["src"]), counts, a["self"])


def _whole_written(w: "Writer", node: Node, a: Arguments) -> Optional[str]:
    """Whole numbers of any size, as words that a generator has drawn are written among those of a text: picked of both, side by side. Of a place that is written twice, the last."""
    dim, shape = axis(a["dim"], len(w.shape(node))), w.shape(node)
    size = w.shape(a["index"])
    if w.dtype(node) != torch.int64 or not shape or [n for d, n in enumerate(size) if d != dim] != [n for d, n in enumerate(shape) if d != dim] or shape[dim] + size[dim] >= EXACT:
        return None
    source = w.value(a["src"])
    for d, n in enumerate(size):
        source = w.slice(source, d, 0, n)
    both = w.concat([_whole(w, w.value(a["self"]), "own"), _whole(w, source, "written")], dim, "both")

    def along(count: int) -> str:
        return w.add_constant(torch.arange(count, dtype=torch.float32).reshape([-1 if d == dim else 1 for d in range(len(shape))]))

    places, order = w.emit("Sort", [w.value(a["index"])], [size, size], {"axis": dim, "descending": 0}, "in_order", outputs=("y", "indices"))
    w.dtype_of[places], w.dtype_of[order] = w.dtype_of[w.value(a["index"])], "i64"
    numbers = w.value(w.pointwise("where({0},add({1},1.0),0.0)", [_ends(w, places, dim), order], "numbers"))  # from 1
    number = w.emit("GatherBackward", [numbers, places], shape, {"axis": dim, "shape": shape}, "number")
    place = w.pointwise(f"where(gt({{0}},0.5),add({{0}},{float(shape[dim] - 1)!r}),{{1}})", [number, along(shape[dim])], "from")
    place = w.emit("Cast", [w.value(place)], shape, {"dtype": "i64"}, "place", dtype="i64")
    return w.emit("Gather", [both, place], shape, {"axis": dim}, "y", dtype="i64")


def _whole(w: "Writer", name: str, part: str) -> str:
    """Labels that come from outside may be i32 in the end."""
    if w.dtype_of[name] == "i64" and w.root(name) not in w.tensors:
        return name
    return w.emit("Cast", [name], w.shape_of[name], {"dtype": "i64"}, part + "_whole", dtype="i64")


@converts("scatter_reduce.two")
def scatter_reduce(w: "Writer", node: Node, a: Arguments):
    if a["reduce"] in ("amax", "amin"):
        return _extreme_written(w, node, a, a["reduce"] == "amax")
    if a["reduce"] not in ("sum", "mean"):
        raise Refusal(f"scatter_reduce with '{a['reduce']}'; 'sum', 'mean', 'amax' and 'amin' are possible")
    total, counts = _added(w, node, a, a["src"]), None
    if a["reduce"] == "mean" or not a["include_self"]:
        counts = _added(w, node, a, 1.0)
    own = 1.0 if a["include_self"] else 0.0
    if a["reduce"] == "sum":
        if counts is None:
            return w.pointwise("add({0},{1})", [a["self"], total])
        return w.pointwise("where(gt({2},0.5),{1},{0})", [a["self"], total, counts])
    form = f"where(gt({{2}},0.5),div(add(mul({{0}},{own}),{{1}}),max(add({{2}},{own}),1.0)),{{0}})"
    return w.pointwise(form, [a["self"], total, counts])  # type: ignore[list-item]


def _extreme_written(w: "Writer", node: Node, a: Arguments, is_max: bool):
    """Sorted by value, and then by place with the order kept, the last of each place is its extreme. Its gradient is divided
    among those that are equal to it, as PyTorch does."""
    dim, shape, index, source = axis(a["dim"], len(w.shape(node))), w.shape(node), w.value(a["index"]), w.value(a["src"])
    if not shape:
        raise Refusal(f"scatter_reduce with '{a['reduce']}' into a single number")
    _expect_floats(w, node)
    size = w.shape_of[index]
    for d, n in enumerate(size):
        source = w.slice(source, d, 0, n)

    def in_order(x: str, part: str, descending: bool = False) -> tuple[str, str]:
        attributes = {"axis": dim, "descending": int(descending)}
        y, order = w.emit("Sort", [x], [size, size], attributes, part, outputs=("y", "indices"))
        w.dtype_of[y], w.dtype_of[order] = w.dtype_of[x], "i64"
        return y, order

    def picked(x: str, by: str, part: str, into: list[int] = size) -> str:
        return w.emit("Gather", [x, by], into, {"axis": dim}, part, dtype=w.dtype_of[x])

    def added(x: str, at: str, part: str) -> str:
        return w.emit("GatherBackward", [x, at], shape, {"axis": dim, "shape": shape}, part)

    fixed = w.emit("StopGradient", [source], size, part="values")
    values, by_value = in_order(fixed, "by_value", descending=not is_max)
    places, by_place = in_order(picked(index, by_value, "places"), "by_place")
    values = picked(values, by_place, "ordered")
    last = _ends(w, places, dim)
    found = added(w.value(w.pointwise("where({0},{1},0.0)", [last, values], "extremes")), places, "found")
    written = added(last, places, "written")
    own: Any = a["self"]
    if a["include_self"]:
        order = "max" if is_max else "min"
        top = w.pointwise(f"where(gt({{1}},0.5),{order}({{0}},{{2}}),{{2}})", [found, written, own], "top")
    else:
        top = w.pointwise("where(gt({1},0.5),{0},{2})", [found, written, own], "top")
    top = w.emit("StopGradient", [w.value(top)], shape, part="extreme")
    equal = w.value(w.pointwise("eq({0},{1})", [source, picked(top, index, "of_each")], "equal"))
    chosen = added(w.value(w.pointwise("where({0},{1},0.0)", [equal, source], "chosen")), index, "sum")
    number = added(equal, index, "number")
    if not a["include_self"]:
        return w.pointwise("where(gt({1},0.5),div({0},max({1},1.0)),{2})", [chosen, number, own])
    form = "div(add({0},where(eq({2},{3}),{2},0.0)),add({1},eq({2},{3})))"
    return w.pointwise(form, [chosen, number, own, top])


def _ends(w: "Writer", places: str, dim: int) -> str:
    """Where the last of several equal ones stands, of what is sorted."""
    size = w.shape_of[places]
    last = w.fill([n if d != dim else 1 for d, n in enumerate(size)], 1.0, "end")
    if size[dim] == 1:
        return last
    halves = [w.slice(places, dim, begin, size[dim] - 1) for begin in (0, 1)]
    return w.concat([w.value(w.pointwise("ne({0},{1})", halves, "is_last")), last], dim)


def _mean_where_written(w: "Writer", total: str, counts: str, otherwise: Node):
    return w.pointwise("where(gt({1},0.5),div({0},max({1},1.0)),{2})", [total, counts, otherwise])


def _added(w: "Writer", node: Node, a: Arguments, source: Union[Node, float]) -> str:
    """The sum of what is written at each place of the result."""
    dim, shape, index = axis(a["dim"], len(w.shape(node))), w.shape(node), w.value(a["index"])
    if not shape:
        shape, index, dim = [1], w.reshape(index, [1]), 0
    size = w.shape_of[index]
    if isinstance(source, Node):
        _expect_floats(w, source)
        name = w.value(source)
        for d, n in enumerate(size):
            name = w.slice(name, d, 0, n)
        name = w.reshape(name, size)
    else:
        name = w.fill(size, source, "ones")
    added = w.emit("GatherBackward", [name, index], shape, {"axis": dim, "shape": shape}, "added")
    return w.reshape(added, w.shape(node))


# --- rows ---


@converts("index_put.default", "_unsafe_index_put.default")
def index_put(w: "Writer", node: Node, a: Arguments):
    """x[i, j, ...] = values, or += values."""
    indices, values = list(a["indices"]), a["values"]
    if any(i is not None and w.dtype(i) in (torch.bool, torch.uint8) for i in indices):
        return _masked_put(w, node, a, indices, values)
    if any(i is not None and 0 in w.shape(i) for i in indices):
        return _nothing_put(w, node, a["self"], values)
    if _is_permutation_backwards(w, node, indices, a):
        return _permutation_backwards(w, node, indices[0])
    number = w.number(values)
    if w.dtype(node) != torch.bool or number is None or a["accumulate"]:
        _expect_floats(w, node)
    at = [d for d, index in enumerate(indices) if index is not None]
    shape, rank, k = w.shape(node), len(w.shape(node)), len(at)
    first = at[0] if at == list(range(at[0], at[0] + k)) else 0  # with a slice between them, theirs are the first dimensions
    order = at + [d for d in range(rank) if d not in at]
    front = [shape[d] for d in order]
    back = sorted(range(rank), key=lambda d: order[d])
    names = [w.value(indices[d]) for d in at]
    chosen = _broadcast_shape([w.shape_of[n] for n in names])
    # As PyTorch has them, the indices' dimensions stand where the first of the indexed ones did.
    rest = [shape[d] for d in range(rank) if d not in at]
    full = rest[:first] + chosen + rest[first:]

    def added(source: str) -> str:
        moved = [*range(first, first + len(chosen)), *range(first), *range(first + len(chosen), len(full))]
        y = w.emit("IndexBackward", [w.permute(source, moved), *names], front, {"shape": front}, "added")
        return w.permute(y, back, "back")

    if a["accumulate"]:
        total = added(w.fill(full, number, "values") if number is not None else _expanded(w, values, full))
        return total if w.number(a["self"]) == 0 else w.pointwise("add({0},{1})", [a["self"], total])
    counts = added(w.fill(full, 1.0, "ones"))
    if number is not None:
        return w.pointwise("where(gt({0},0.5),{1},{2})", [counts, number, a["self"]])
    return _mean_where_written(w, added(_expanded(w, values, full)), counts, a["self"])


def _nothing_put(w: "Writer", node: Node, x: Node, values: Node):
    """What it was."""
    note_idle(w, node, values)
    number = w.number(x)
    return w.value(x) if number is None else Expanded(w.fill([], number), w.shape(x))


def note_idle(w: "Writer", node: Node, empty: Node) -> None:
    """Of what a tensor without elements is made of. PyTorch gives parameters that this comes from a gradient of zeros, by which optimizers change them (decay, moments)."""
    waiting, seen = [empty], {empty}
    while waiting:
        reader = waiting.pop()
        for source in reader.all_input_nodes if str(reader.target) != "aten.detach.default" else ():
            if source in seen:
                continue
            seen.add(source)
            if is_empty(source):
                waiting.append(source)
            elif is_floating(source.meta.get("val")) and w.is_trained(source):
                w.idle.setdefault(source, []).append(node)


def is_empty(node: Node) -> bool:
    tensors = [value for value in pytree.tree_leaves(node.meta.get("val")) if isinstance(value, torch.Tensor)]
    return bool(tensors) and all(any(isinstance(size, int) and size == 0 for size in value.shape) for value in tensors)


def _expanded(w: "Writer", x: Node, shape: list[int]) -> str:
    name = w.value(x)
    if w.shape_of[name] == shape:
        return name
    return w.emit("Expand", [name], shape, {"shape": shape}, "expand")


def _broadcast_shape(shapes: list[list[int]]) -> list[int]:
    return list(torch.broadcast_shapes(*shapes))


def _expect_floats(w: "Writer", node: Node) -> None:
    if w.dtype(node) != torch.float32:
        raise Refusal(f"writing {w.dtype(node)} at indices that depends on parameters")


def _masked_put(w: "Writer", node: Node, a: Arguments, indices: list, values: Node):
    """x[mask] = value, where the values do not tell apart what the mask chooses."""
    mask = indices[0]
    missing = len(w.shape(node)) - len(w.shape(mask)) if mask is not None else 0
    is_one = math.prod(w.shape(values)) == 1
    if len(indices) != 1 or not (is_one or len(w.shape(values)) <= missing) or a["accumulate"]:
        raise Refusal("writing several values at a mask, whose number depends on the mask's values")
    aligned = w.reshape(mask, w.shape(mask) + [1] * missing)
    value: Any = w.number(values)
    if value is None:
        value = w.reshape(values, []) if is_one else values
    return w.pointwise("where({0},{1},{2})", [aligned, value, a["self"]])


@converts("masked_scatter.default")
def masked_scatter(w: "Writer", node: Node, a: Arguments):
    """The source's numbers, one after the other, where the mask holds: at each place the one whose number is how many were before it. Of a mask that
    holds for whole rows, as that of the places for images in a text does, these are the source's rows."""
    _expect_floats(w, node)
    x, shape, count = a["self"], w.shape(node), math.prod(w.shape(a["source"]))
    mask = w.base(a["mask"])
    own = [1] * (len(shape) - len(w.shape_of[mask])) + w.shape_of[mask]
    rank = len(shape)
    while rank > 1 and own[rank - 1] == 1 and count % math.prod(shape[rank - 1 :]) == 0:
        rank -= 1
    rows, width = math.prod(shape[:rank]), math.prod(shape[rank:])
    if rows >= EXACT:
        raise Refusal(f"writing at a mask of {rows} elements; one for whole rows, mask[..., None].expand_as(x), is possible")
    if own[:rank] != shape[:rank]:
        mask = w.emit("Expand", [w.reshape(mask, own[:rank])], shape[:rank], {"shape": shape[:rank]}, "mask", dtype=w.dtype_of[mask])
    mask = w.reshape(mask, [rows], "mask")
    holds = w.value(w.pointwise("ne({0},0.0)", [mask], "holds"))
    counted = w.emit("CumulativeSum", [holds], [rows], {"axis": 0}, "counted")
    given = w.reduce(w.fill([count // width], 1.0, "ones"), "sum", [0], part="given")  # a number that may be the batch's
    number = w.pointwise("sub(min(max({0},1.0),{1}),1.0)", [counted, given], "number")
    number = w.emit("Cast", [number], [rows], {"dtype": "i64"}, "place", dtype="i64")
    taken = w.emit("IndexSelect", [w.reshape(a["source"], [count // width, width]), number], [rows, width], {"axis": 0}, "taken")
    y = w.pointwise("where({0},{1},{2})", [w.reshape(holds, [rows, 1]), taken, w.reshape(x, [rows, width])])
    return w.reshape(y, shape)


# --- permutations ---


def _is_permutation_backwards(w: "Writer", node: Node, indices: list, a: Arguments) -> bool:
    """Whether 0, 1, 2, ... are written at the places of a permutation."""
    values, order = a["values"], _origin(indices[0]) if len(indices) == 1 and isinstance(indices[0], Node) else None
    is_counting = isinstance(values, Node) and str(values.target).startswith("aten.arange.") and not a["accumulate"]
    is_whole = order is not None and w.shape(node) == w.shape(indices[0]) and len(w.shape(node)) == 1
    return is_counting and is_whole and _from_zero(values)


def _permutation_backwards(w: "Writer", node: Node, order: Node) -> str:
    """Sorting a permutation gives it backwards."""
    shape = w.shape(node)
    places = w.value(order)
    y, backwards = w.emit("Sort", [places], [shape, shape], {"axis": 0, "descending": 0}, outputs=("y", "indices"))
    w.dtype_of[y], w.dtype_of[backwards] = w.dtype_of[places], "i64"
    return backwards


def _from_zero(node: Node) -> bool:
    """Whether an arange counts 0, 1, 2, ..."""
    name = str(node.target).removeprefix("aten.arange.")
    return name == "default" or (node.args[0] == 0 and (name == "start" or len(node.args) < 3 or node.args[2] == 1))


def _origin(node: Node) -> Optional[Node]:
    """The sort that a tensor of indices comes from."""
    is_item = node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem" and node.args[1] == 1
    source: Any = node.args[0] if is_item else None
    return source if source is not None and str(source.target).startswith("aten.sort.") else None


# --- sums of an embedding's rows ---


@converts("_embedding_bag.default", "_embedding_bag_forward_only.default")
def embedding_bag(w: "Writer", node: Node, a: Arguments):
    """Bags are rows of one length, or begin at offsets. Gives (y, None, None, None)."""
    weight, indices, offsets = a["weight"], a["indices"], a["offsets"]
    mode = ("sum", "mean", "max")[a["mode"]]
    if a["scale_grad_by_freq"]:
        raise Refusal("scale_grad_by_freq")
    (bags, width), count, padding = [int(n) for n in node.meta["val"][0].shape], w.shape(indices)[0], a["padding_idx"]
    if padding >= 0 and mode == "max":
        raise Refusal("the largest of bags with padding_idx")
    rows = w.emit("Embedding", [weight, indices], [count, width], {"padding_index": padding}, "rows")
    kept = None
    if padding >= 0:
        kept = w.value(w.pointwise(f"ne({{0}},{float(padding)!r})", [w.reshape(indices, [count, 1])], "kept"))
        rows = w.value(w.pointwise("mul({0},{1})", [rows, kept], "without_padding"))
    if a["per_sample_weights"] is not None:
        rows = w.value(w.pointwise("mul({0},{1})", [rows, w.reshape(a["per_sample_weights"], [count, 1])], "weighted"))
    if _is_even(offsets, count, bags):
        function = mode if kept is None else "sum"
        y = w.reduce(w.reshape(rows, [bags, count // bags, width]), function, [1], False, "")
        if mode == "mean" and kept is not None:
            sizes = w.reduce(w.reshape(kept, [bags, count // bags, 1]), "sum", [1], False, "sizes")
            y = w.pointwise("div({0},max({1},1.0))", [y, sizes])
        return y, None, None, None
    if mode == "max":
        raise Refusal("the largest of bags of different lengths")
    from .experts import _row_numbers

    begins = w.reshape(w.slice(offsets, 0, 0, bags), [1, bags], "begins")
    places = w.reshape(_row_numbers(w, count), [count, 1], "place")
    if a["include_last_offset"]:
        inside = w.value(w.pointwise("lt({0},{1})", [places, w.slice(offsets, 0, bags, 1, part="end")], "inside"))
        rows = w.value(w.pointwise("mul({0},{1})", [rows, inside], "before_end"))
        kept = inside if kept is None else w.value(w.pointwise("mul({0},{1})", [kept, inside], "counted"))
    begun = w.pointwise("ge({0},{1})", [places, begins], "begun")
    number = w.pointwise("sub({0},1.0)", [w.reduce(begun, "sum", [1], False, "bags_begun")], "bag_number")
    bag = w.emit("Cast", [number], [count], {"dtype": "i64"}, "bag", dtype="i64")
    y = w.emit("IndexBackward", [rows, bag], [bags, width], {"shape": [bags, width]}, "sums")
    if mode == "mean":
        counted = w.fill([count, 1], 1.0, "ones") if kept is None else kept
        sizes = w.emit("IndexBackward", [counted, bag], [bags, 1], {"shape": [bags, 1]}, "sizes")
        return w.pointwise("div({0},max({1},1.0))", [y, sizes]), None, None, None
    return y, None, None, None


def _is_even(offsets: Node, count: int, bags: int) -> bool:
    """Whether bags begin at 0, n, 2 n, ... as those of two-dimensional indices do."""
    is_range = offsets.op == "call_function" and str(offsets.target) == "aten.arange.start_step"
    return is_range and bags > 0 and count % bags == 0 and list(offsets.args[:3]) == [0, count, count // bags]
