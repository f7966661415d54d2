"""A port with one fault: how it runs, what it writes down, and what a comparison says of it."""

import copy
import re
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import transformers
from torch import Tensor, nn

import tinytf
from broken.models import both
from tinytf.compare.diff import Difference
from tinytf.compare.dumps.passes import open_any
from tinytf.compare.dumps.read import open_dump

Patch = Callable[[Any, str, Any], None]
"""Sets an attribute of an object until the port has run."""
Broken = Callable[[Any, Patch], Any]
"""Changes a model; returns another to run in its place, or arguments of its forward pass, if any."""
_LATER = 5
"""The passes of a generation after that over the prompt."""
TEXT = "When the old bridge was closed, the ferry carried everybody across the river, and nobody was late."


@dataclass(frozen=True)
class Port:
    """One fault: ``broken`` changes the model, ``first`` is the step that is wrong first, ``cause`` what is wrong.

    ``cause`` is a regular expression; empty where the numbers cannot tell, so that only a step is to be named.
    ``first`` may name several steps, where a dump of modules cannot tell them apart. A ``generated`` text is read in
    several passes with a cache; other arguments of the later ones are of the position of their token.
    """

    model: str
    broken: Broken
    first: str
    cause: str = ""
    text: str = TEXT
    dumped: Callable[[dict[str, Any]], dict[str, Any]] = field(default=lambda found: found)
    generated: bool = False
    versus: bool = False
    dtype: torch.dtype = torch.float32
    floor: str | None = None
    rows: int = 1
    beside: tuple[str, ...] = ()


@torch.no_grad()
def dumped(model: nn.Module, ids: list[list[int]], **given: Any) -> dict[str, Any]:
    """What every module returns for rows of ids, under its path."""
    found: dict[str, Any] = {}

    def hook(name: str) -> Callable[..., None]:
        def keep(module: nn.Module, args: Any, out: Any) -> None:
            out = out[0] if isinstance(out, tuple) else out
            if isinstance(out, Tensor) and not out.is_complex():
                found[name] = out.float().numpy()

        return keep

    handles = [module.register_forward_hook(hook(name)) for name, module in model.named_modules() if name]
    answer = model(torch.tensor(ids), **given)
    if "logits" in answer:
        found["logits"] = answer.logits.float().numpy()
    for handle in handles:
        handle.remove()
    return {**found, "input_ids": np.array(ids)}


@torch.no_grad()
def compared(port: Port, dtype: torch.dtype | None = None, **settings: Any) -> Difference:
    """Our comparison with what a port writes down, computed in a dtype."""
    pair = both(port.model)
    theirs = copy.deepcopy(pair.theirs)
    ids = list(pair.ids or pair.ours.encode(port.text).ids)
    dtype = port.dtype if dtype is None else dtype
    settings = {"floor": port.floor, **settings}
    with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:

        def patch(owner: Any, name: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, name, value))

        made = port.broken(theirs, patch)
        theirs = (made if isinstance(made, nn.Module) else theirs).to(*([dtype] if dtype != torch.float32 else []))
        of = made if isinstance(made, dict) else {}
        if port.versus:
            text = port.text if not pair.ids else " ".join(map(str, ids))
            return pair.ours.diff(text, tinytf.load(theirs, pair.ours.tokenizer), **settings)
        if port.generated:
            _written_in_passes(theirs, ids, of, Path(folder))
            return pair.ours.diff(None, open_any(folder), **settings)
        count, filler = of.pop("left_padding", (0, 0))
        given = {name: make(len(ids)) for name, make in of.items()}
        rows = [[filler] * count + ids, *(ids[row:] + ids[:row] for row in range(1, port.rows))]
        found = dumped(theirs, rows, **given)
        path = Path(folder) / "port.npz"
        np.savez(path, **port.dumped({**found, **{name: given[name].numpy() for name in port.beside}}))
        return pair.ours.diff(None, open_dump(path), **settings)


def _written_in_passes(model: Any, ids: list[int], of: dict[str, Callable[[int], Any]], folder: Path) -> None:
    """A file for the prompt and for each later token, with a cache between them."""
    cache, prompt = transformers.DynamicCache(config=model.config), len(ids) - _LATER
    for number, (start, end) in enumerate([(0, prompt), *((at, at + 1) for at in range(prompt, len(ids)))]):
        given = {name: make(start) for name, make in of.items()} if number else {}
        found = dumped(model, [ids[start:end]], past_key_values=cache, use_cache=True, **given)
        np.savez(folder / f"step{number}.npz", **found)


def cause_of(found: Difference) -> str:
    """Why, in the words of the verdict; empty where it names no cause."""
    if found.leak:
        return found.leak
    if found.cause is not None and found.cause.found:
        return found.cause.in_words
    if found.first is None and (wrong := [one for one in found.beside if not one.agrees]):
        return next((one for one in wrong if one.kind == "loss"), wrong[0]).in_words
    return found.parameters.in_words() if found.parameters is not None and found.parameters.faults else ""


def verdict(port: Port, found: Difference) -> tuple[bool, str]:
    """Whether the first step is right, and whether its cause is right, wrong, or not named."""
    wrong = [found.first.name] if found.first is not None else [one.name for one in found.beside if not one.agrees]
    first, words = any(name in port.first.split() for name in wrong), cause_of(found)
    return first, ("right" if port.cause and re.search(port.cause, words) else "wrong") if words else "none"


def accused(found: Difference) -> bool:
    """Whether a sound port is said to be wrong."""
    if found.floor is not None:
        return found.floor.bug is not None
    return (found.first is not None and not found.follows and not found.rewritten) or not all(
        one.agrees for one in found.beside
    )
