"""What the modules of any PyTorch model return, caught by forward hooks and written to a file."""

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from safetensors.torch import save as save_safetensors
from torch import Tensor, nn

from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf.outputs import require_place, write_output, writing
from tinytf.version import __version__

_WHOLE = "output"
"""The name of what the captured module itself returns, which has no path."""
_IDS = "input_ids"


@dataclass
class Captured(Mapping[str, Tensor]):
    """Tensors on the CPU by the paths of the modules that returned them, in the order of the calls.

    Of a tuple it is the first tensor; members of a dict or a ModelOutput are PATH.MEMBER. A module that was called
    again has PATH#2. ``ids`` are the token ids of the first call, ``text`` is yours to fill in.
    """

    module: nn.Module = field(repr=False)
    text: str = ""
    ids: list[Any] | None = None
    tensors: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def save(self, path: str | Path) -> None:
        """Write a ``.safetensors`` or ``.npz`` file, with what the tensors are of as metadata.

        A ``.npz`` has bfloat16 as float32. Raises UsageError for another ending, and for a path that must not be
        overwritten.
        """
        path = Path(path)
        if path.suffix not in (".safetensors", ".npz"):
            raise UsageError(f"{path} ends in neither .safetensors nor .npz", "such as dump.safetensors")
        require_place(path)
        words = self._about()
        data = save_safetensors(self.tensors, metadata=words) if path.suffix == ".safetensors" else self._as_npz(words)
        with writing(path):
            write_output(path, data)

    def _as_npz(self, words: dict[str, str]) -> bytes:
        arrays = {name: np.array(said) for name, said in words.items()}
        arrays |= {} if self.ids is None else {"ids": np.array(self.ids)}
        arrays |= {name: (one.float() if one.dtype == torch.bfloat16 else one).numpy() for name, one in self.items()}
        stream = io.BytesIO()
        np.savez(stream, allow_pickle=False, **arrays)
        return stream.getvalue()

    def _about(self) -> dict[str, str]:
        """What the tensors are of, as far as it is known."""
        weight, config = next(self.module.parameters(), None), getattr(self.module, "config", None)
        found = {"tinytf": __version__, "model": type(self.module).__name__}
        found |= {} if weight is None else {"dtype": str(weight.dtype).removeprefix("torch.")}
        found |= {"config": config.to_json_string()} if isinstance(config, _Described) else {}
        found |= {"text": self.text} if self.text else {}
        return found if self.ids is None else {**found, "ids": json.dumps(self.ids)}


@runtime_checkable
class _Described(Protocol):
    """A configuration of transformers."""

    def to_json_string(self) -> str: ...


@contextmanager
def capture(module: nn.Module, names: str | Iterable[str] | None = None) -> Iterator[Captured]:
    """Catch what every module inside ``module`` returns while the ``with`` block runs it, and then take all hooks off.

    ``names`` are paths as ``named_modules`` has them, or patterns such as ``model.layers.*.self_attn``; "" is the
    module itself. Nothing is changed: each tensor is a copy. Raises UsageError for a name that fits no module, and for
    compiled modules, whose hooks are never called.
    """
    if not isinstance(module, nn.Module):
        raise UsageError(f"a {type(module).__name__} is no PyTorch module", "give the model itself")
    modules = dict(module.named_modules())
    for path, one in modules.items():
        if hasattr(one, "_orig_mod") or getattr(one, "_compiled_call_impl", None) is not None:
            raise UsageError(
                f"{path or 'the model'} is compiled, and calls no hooks", "capture it before torch.compile"
            )
    chosen = modules if names is None else _chosen(modules, [names] if isinstance(names, str) else list(names))
    caught, calls = Captured(module), dict[str, int]()
    with ExitStack() as stack:
        stack.callback(module.register_forward_pre_hook(partial(_note_ids, caught), with_kwargs=True).remove)
        for path in chosen:
            stack.callback(modules[path].register_forward_hook(partial(_keep, caught.tensors, calls, path)).remove)
        yield caught


def _chosen(modules: Mapping[str, nn.Module], names: list[str]) -> list[str]:
    """The paths that fit any of the names, in the order of the model."""
    for name in names:
        if not any(fnmatchcase(path, name) for path in modules):
            raise UsageError(f"no module is called {name!r}", did_you_mean(name, modules))
    return [path for path in modules if any(fnmatchcase(path, name) for name in names)]


def _note_ids(caught: Captured, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Remember the ids of the first call: one text, or a list of several."""
    given = kwargs.get(_IDS, args[0] if args else None)
    if caught.ids is None and isinstance(given, Tensor) and not (given.is_floating_point() or given.is_complex()):
        caught.ids = (given[0] if given.dim() == 2 and len(given) == 1 else given).tolist()


def _keep(
    tensors: dict[str, Tensor], calls: dict[str, int], path: str, module: nn.Module, args: Any, result: Any
) -> None:
    """Copy the tensors of one call of a module."""
    calls[path] = calls.get(path, 0) + 1
    again = f"#{calls[path]}" if calls[path] > 1 else ""
    if isinstance(result, Mapping):
        members = {f"{path}.{name}".removeprefix("."): one for name, one in result.items()}
    else:
        first = (
            next((one for one in result if isinstance(one, Tensor)), None)
            if isinstance(result, tuple | list)
            else result
        )
        members = {path or _WHOLE: first}
    for name, one in members.items():
        if isinstance(one, Tensor) and one.layout == torch.strided:
            if one.is_meta:
                raise UsageError(
                    f"{name} has no numbers: the model is on the meta device", "move it to one with memory"
                )
            # a copy, since many models add to such a tensor in place
            tensors[name + again] = torch.empty(one.shape, dtype=one.dtype).copy_(one.detach())
