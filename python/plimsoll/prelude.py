"""What PyTorch computes of a batch before the network's step."""

from __future__ import annotations

from keyword import iskeyword
from typing import TYPE_CHECKING, Any, Mapping, Optional, Sequence

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from .divide import Place

if TYPE_CHECKING:
    from .capture import Captured


class Prelude:
    """What PyTorch computes for every batch before the step: an FX graph a batch size.

    ``prelude(tensors)`` takes the tensors of a batch (in the order of ``Captured.inputs``) and gives a dictionary: the
    network's computed inputs by name. Buffers that no parameter drives (a counter of batches) are advanced in place.
    """

    def __init__(self, captured: Captured):
        self._captured = captured
        self._modules: dict[int, GraphModule] = {}
        division = captured.division
        self.names = {i: f"prelude/{captured.first.nodes[i].name}" for i in division.prelude}

    @property
    def is_empty(self) -> bool:
        return not self.names and not self._captured.division.dynamic

    def __call__(self, tensors: Sequence[Tensor], batch: int) -> dict[str, Tensor]:
        if self.is_empty:
            return {}
        if batch not in self._modules:
            self._modules[batch] = self._build(batch)
        with torch.no_grad():
            results = self._modules[batch](*self._beside_constants(self._modules[batch], tensors))
            if self._captured.division.dynamic:  # results may be buffers, which change now
                results = tuple(value.clone() for value in results)
            for name, value in zip(self._captured.division.dynamic, results[len(self.names) :]):
                self._captured.buffers[name].copy_(value)
        return dict(zip(self.names.values(), results))

    @staticmethod
    def _beside_constants(module: GraphModule, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Those that it reads where its constants are; a batch may lie on a GPU."""
        device = next((buffer.device for buffer in module.buffers()), torch.device("cpu"))
        placeholders = module.graph.find_nodes(op="placeholder")
        return [tensor.to(device) if node.users else tensor for node, tensor in zip(placeholders, tensors, strict=True)]

    def module(self) -> GraphModule:
        """What it runs for the batch's size at which it was captured."""
        return self._build(self._captured.first.batch)

    def graph(self, batch: Optional[int] = None) -> Graph:
        """The graph itself, to look at."""
        return self._build(batch or self._captured.first.batch).graph

    def _build(self, batch: int) -> GraphModule:
        captured, program, division = self._captured, self._captured.first, self._captured.division
        roots, graph = nn.Module(), Graph()
        made: dict[int, Node] = {}
        leaves = {i: source.leaf for i, source in program.sources.items() if source.kind == "input"}
        for i in sorted(leaves, key=lambda i: leaves[i]):
            name = captured.inputs[leaves[i]].replace(".", "_")
            made[i] = graph.placeholder(name if name.isidentifier() and not iskeyword(name) else f"input_{leaves[i]}")
        targets = [*division.prelude, *division.dynamic.values()]
        for i in self._closure(targets):
            if i in made:
                continue
            if division.places[i] == Place.CONSTANT or i in program.sources:
                value = captured.constant(i)
                value = (
                    captured.buffers.get(program.sources[i].name) if i in program.sources and value is None else value
                )
                if isinstance(value, Tensor):
                    name = f"constant_{i}"
                    roots.register_buffer(name, value)
                    made[i] = graph.get_attr(name)
                    continue
            made[i] = self._copy(graph, made, i, batch)
        graph.output(tuple(made[i] for i in targets))
        return GraphModule(roots, graph)

    def _closure(self, targets: Sequence[int]) -> list[int]:
        """The targets and all that they need; of constants with a value, nothing further."""
        program, needed, waiting = self._captured.first, set(), list(targets)
        while waiting:
            i = waiting.pop()
            if i in needed:
                continue
            needed.add(i)
            if self._captured.division.places[i] == Place.CONSTANT and isinstance(self._captured.constant(i), Tensor):
                continue
            waiting.extend(program.index[n] for n in program.nodes[i].all_input_nodes)
        return sorted(needed)

    def _copy(self, graph: Graph, made: Mapping[int, Node], i: int, batch: int) -> Node:
        first, second = self._captured.first, self._captured.second
        node = first.nodes[i]
        other = second.nodes[i] if second is not None else node
        sizes = (first.batch, second.batch if second is not None else first.batch)

        def at(a: Any, b: Any) -> Any:
            if isinstance(a, Node):
                return made[first.index[a]]
            if isinstance(a, (list, tuple)):
                return type(a)(at(x, y) for x, y in zip(a, b))
            if isinstance(a, int) and not isinstance(a, bool) and a != b:
                return a + (b - a) * (batch - sizes[0]) // (sizes[1] - sizes[0])
            return a

        args = at(list(node.args), list(other.args))
        kwargs = {k: at(v, other.kwargs[k]) for k, v in node.kwargs.items()}
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        return graph.call_function(node.target, tuple(args), kwargs)  # type: ignore[arg-type]
