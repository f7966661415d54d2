"""A fixture for the tests of a port, in any repository: ``tinytf_port`` compares what it computes with a model.

    def test_port(tinytf_port):
        tinytf_port("path/to/model").compare(ids, my_port(ids))     # names of steps and their arrays, or a file

A test fails with the first wrong step and its cause. pytest finds the fixture by itself where tinytf is installed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tinytf.compare.diff import Difference
    from tinytf.compare.dumps.read import Dump
    from tinytf.loading import Model


@dataclass(frozen=True)
class Port:
    """A model that a port is held to."""

    model: "Model"

    def compare(
        self,
        ids: Sequence[int] | None,
        steps: Mapping[str, Any] | str | Path,
        *,
        floor: str | None = None,
        tolerance: float | None = None,
        names: Mapping[str, str] | None = None,
    ) -> "Difference":
        """The comparison with a port's ``steps`` on these token ids: arrays by name, or a file that may have the ids.

        Fails the test where a step is wrong: one is not finite, differs beyond the ``tolerance`` and does not only add
        up rounding, or beyond the ``floor``, as in ``Model.diff``. Raises the errors of ``Model.diff``.
        """
        from tinytf.compare.dumps.passes import open_any

        dump = open_any(Path(steps)) if isinstance(steps, str | Path) else _in_memory(ids, steps)
        found = self.model.diff(None, dump, floor=floor, tolerance=tolerance, names=names)
        if found.not_finite is not None:
            is_wrong = True
        elif found.floor is not None:
            is_wrong = found.floor.bug is not None
        else:
            is_wrong = found.worst is None or (found.first is not None and not found.follows)
        if is_wrong:
            pytest.fail(_told(found), pytrace=False)
        return found


def _in_memory(ids: Sequence[int] | None, steps: Mapping[str, Any]) -> "Dump":
    import torch

    from tinytf.compare.dumps.read import Dump

    tensors = {name: torch.as_tensor(array) for name, array in steps.items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    return Dump(Path("port"), shapes, tensors.__getitem__, {} if ids is None else {"ids": [int(i) for i in ids]})


def _told(found: "Difference") -> str:
    """What is wrong: the sentence, then each cause."""
    causes = [f"{one.step}: {one.in_words}" for one in found.causes if one.found]
    return "\n".join([found.sentence or "no step of the port can be compared", *causes])


@pytest.fixture(scope="session")
def tinytf_port() -> Callable[..., Port]:
    """Opens the model that a port is held to, once for each name; further arguments are those of ``tinytf.load``."""
    opened: dict[tuple[Any, ...], Port] = {}

    def port(model: "str | Path | Model", **settings: Any) -> Port:
        from tinytf.loading import load

        if not isinstance(model, str | Path):
            return Port(model)
        key = (str(model), *sorted(settings.items()))
        if key not in opened:
            opened[key] = Port(load(str(model), **settings))
        return opened[key]

    return port
