"""Parameters that are variables, and no module's: the weights of several losses, a temperature, what a prompt is made of.

    weights = nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.Adam([*model.parameters(), weights])
    plimsoll.compile(model, optimizer, loss=lambda output, batch: (losses(output, batch) * weights.exp()).sum(), ...)

They are found by the names that lead to them, and are a module's for the capture: while the network is exported, that module's stand in their places.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import Callable, Iterable, Iterator, Optional

from torch import Tensor, nn

from .moving import Number, in_place
from .settings import modules_beside, places_of


class Loose(nn.Module):
    """Those of what is trained, by their names, with the places where they stand."""

    def __init__(self, trained: Iterable[Tensor], model: nn.Module, *functions: Optional[Callable]):
        super().__init__()
        self._places: list[tuple[str, Number]] = []
        own = {id(p) for module in (model, *modules_beside(model, *functions).values()) for p in module.parameters()}
        wanted = {id(parameter) for parameter in trained} - own
        names: dict[int, str] = {}
        for name, parameter, place in places_of(wanted, model, *functions) if wanted else ():
            if id(parameter) not in names:
                while hasattr(self, name):
                    name += "_"
                names[id(parameter)] = name
                self.register_parameter(name, parameter)
            self._places.append((names[id(parameter)], place))

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """This module's parameters are what the names stand for, meanwhile."""
        with in_place([place for _, place in self._places], [self._parameters[name] for name, _ in self._places]):
            yield
