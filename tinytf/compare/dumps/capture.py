"""Record what the modules of any PyTorch model return, by forward hooks, and write it to a file."""

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from threading import get_ident
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
"""The name of the captured module's own output: it has no path."""
_IDS = "input_ids"


@dataclass
class Captured(Mapping[str, Tensor]):
    """Tensors on the CPU by the paths of the modules that returned them, in the order of the calls.

    A tuple gives its first tensor; members of a dict or a ModelOutput are PATH.MEMBER. The second call of a module is
    PATH#2. ``ids`` are the token ids of the first call; set ``text`` yourself.
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
        """Write a ``.safetensors`` or ``.npz`` file, with the model, text and ids as metadata.

        A ``.npz`` stores bfloat16 as float32. Raises UsageError for another suffix, and for a path that must not be
        overwritten.
        """
        path = Path(path)
        if path.suffix not in (".safetensors", ".npz"):
            raise UsageError(f"{path} ends in neither .safetensors nor .npz", "such as dump.safetensors")
        require_place(path)
        metadata = self._about()
        data = (
            save_safetensors(self.tensors, metadata=metadata)
            if path.suffix == ".safetensors"
            else self._as_npz(metadata)
        )
        with writing(path):
            write_output(path, data)

    def _as_npz(self, metadata: dict[str, str]) -> bytes:
        arrays = {name: np.array(text) for name, text in metadata.items()}
        arrays |= {} if self.ids is None else {"ids": np.array(self.ids)}
        arrays |= {
            name: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
            for name, tensor in self.items()
        }
        stream = io.BytesIO()
        np.savez(stream, allow_pickle=False, **arrays)
        return stream.getvalue()

    def _about(self) -> dict[str, str]:
        """The metadata: what is known of the model, the text and the ids."""
        weight, config = next(self.module.parameters(), None), getattr(self.module, "config", None)
        metadata = {"tinytf": __version__, "model": type(self.module).__name__}
        metadata |= {} if weight is None else {"dtype": str(weight.dtype).removeprefix("torch.")}
        metadata |= {"config": config.to_json_string()} if isinstance(config, _Described) else {}
        metadata |= {"text": self.text} if self.text else {}
        return metadata if self.ids is None else {**metadata, "ids": json.dumps(self.ids)}


@runtime_checkable
class _Described(Protocol):
    """A configuration of transformers."""

    def to_json_string(self) -> str: ...


@contextmanager
def capture(module: nn.Module, names: str | Iterable[str] | None = None) -> Iterator[Captured]:
    """Record what every module inside ``module`` returns while the ``with`` block runs it; then remove all hooks.

    ``names`` are paths of ``named_modules``, or patterns such as ``model.layers.*.self_attn``; "" is the module itself.
    Nothing is changed: each tensor is a copy. Raises UsageError for a name that matches no module, for compiled
    modules, which never call their hooks, and at the end of the block if several threads ran the modules, whose calls
    are then mixed.
    """
    if not isinstance(module, nn.Module):
        raise UsageError(f"a {type(module).__name__} is no PyTorch module", "pass the model itself")
    modules = dict(module.named_modules())
    for path, submodule in modules.items():
        if hasattr(submodule, "_orig_mod") or getattr(submodule, "_compiled_call_impl", None) is not None:
            raise UsageError(
                f"{path or 'the model'} is compiled, and calls no hooks", "capture it before torch.compile"
            )
    chosen = modules if names is None else _chosen(modules, [names] if isinstance(names, str) else list(names))
    caught, calls, threads = Captured(module), dict[str, int](), set[int]()
    with ExitStack() as stack:
        stack.callback(module.register_forward_pre_hook(partial(_note_ids, caught), with_kwargs=True).remove)
        for path in chosen:
            keep = partial(_keep, caught.tensors, calls, threads, path)
            stack.callback(modules[path].register_forward_hook(keep).remove)
        yield caught
    if len(threads) > 1:
        raise UsageError(f"{len(threads)} threads ran the modules that are captured", "run them in one thread")


def _chosen(modules: Mapping[str, nn.Module], names: list[str]) -> list[str]:
    """The paths that match any of the names, in the order of the model."""
    for name in names:
        if not any(fnmatchcase(path, name) for path in modules):
            raise UsageError(f"no module is called {name!r}", did_you_mean(name, modules))
    return [path for path in modules if any(fnmatchcase(path, name) for name in names)]


def _note_ids(caught: Captured, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Keep the ids of the first call: of one text, or a list of several; of two stacks, those of the decoder."""
    ids = kwargs.get(f"decoder_{_IDS}")
    ids = kwargs.get(_IDS, args[0] if args else None) if ids is None else ids
    if caught.ids is None and isinstance(ids, Tensor) and not (ids.is_floating_point() or ids.is_complex()):
        caught.ids = (ids[0] if ids.dim() == 2 and len(ids) == 1 else ids).tolist()


def _keep(
    tensors: dict[str, Tensor],
    calls: dict[str, int],
    threads: set[int],
    path: str,
    module: nn.Module,
    args: Any,
    result: Any,
) -> None:
    """Copy the tensors of one call of a module."""
    threads.add(get_ident())
    calls[path] = calls.get(path, 0) + 1
    suffix = f"#{calls[path]}" if calls[path] > 1 else ""
    if isinstance(result, Mapping):
        members = {f"{path}.{name}".removeprefix("."): tensor for name, tensor in result.items()}
    else:
        first = (
            next((tensor for tensor in result if isinstance(tensor, Tensor)), None)
            if isinstance(result, tuple | list)
            else result
        )
        members = {path or _WHOLE: first}
    for name, tensor in members.items():
        if isinstance(tensor, Tensor) and tensor.layout == torch.strided:
            if tensor.is_meta:
                raise UsageError(
                    f"{name} has no numbers: the model is on the meta device", "move it to one with memory"
                )
            # Copy it: many models add to such a tensor in place.
            tensors[name + suffix] = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
