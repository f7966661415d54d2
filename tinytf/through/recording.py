"""Record a pass by forward hooks on every module: what each returned, and whether it can be computed again."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tinytf.through.formulas import Proof, as_combination, as_mixture, compared, must_hold, recompute


@dataclass
class Call:
    """One call of a module: its output, the attention ``weights`` (H, T, T) it returned, and its proof.

    ``passes`` is the path of the module inside whose output it returns unchanged, or "its input". ``source`` is the
    path of the call whose output is its input, or how the input is made of several; ``unseen`` is an input that is made
    of no recorded output. ``alone`` says whether a token's output depends on that token alone;
    None where that was not tried.
    """

    path: str
    module: nn.Module = field(repr=False)
    output: Tensor = field(repr=False)
    weights: Tensor | None = field(default=None, repr=False)
    proof: Proof | None = None
    passes: str = ""
    source: str = ""
    alone: bool | None = None
    unseen: Tensor | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The path of the module without the number of the call."""
        return self.path.partition("#")[0]


@dataclass(frozen=True)
class Recording:
    """The calls of a pass in the order in which they ended, and the ``logits`` of the model; None if it gives none."""

    calls: tuple[Call, ...]
    logits: Tensor | None

    def failed(self) -> tuple[Call, ...]:
        """The calls whose recomputation does not hold, though their class is torch's or follows it in half its calls.

        What counts as a class has parameters of the same shapes: others of its settings may change what it computes.
        """
        tried = [(call, call.proof, _kind(call.module)) for call in self.calls if call.proof is not None]
        verdicts = Counter((kind, proof.formula, proof.holds) for _, proof, kind in tried)
        return tuple(
            call
            for call, proof, kind in tried
            if not proof.holds
            and (must_hold(call.module) or verdicts[kind, proof.formula, True] >= verdicts[kind, proof.formula, False])
        )

    def proved(self) -> tuple[Call, ...]:
        """The calls whose output was computed again."""
        return tuple(c for c in self.calls if c.proof is not None and c.proof.holds and not c.passes)

    def unseen(self) -> tuple[Call, ...]:
        """The calls with an input that code outside modules made, which hooks do not see."""
        return tuple(c for c in self.calls if c.unseen is not None and not c.passes)

    def made(self) -> tuple[Call, ...]:
        """The calls whose output is new: not that of a module inside, and not their input."""
        return tuple(c for c in self.calls if not c.passes)


def _kind(module: nn.Module) -> tuple[Any, ...]:
    """The class of a module and the shapes of its own parameters."""
    return (type(module), *(parameter.shape for parameter in module.parameters(recurse=False)))


_RECENT = 24
"""The latest calls among whose outputs the source of an input is looked for."""


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of an output or of arguments, in their order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for member in value.values():
            yield from tensors_in(member)
    elif isinstance(value, list | tuple):
        for member in value:
            yield from tensors_in(member)


class _Recorder:
    """What hooks have seen so far; ``parts`` are the paths of parts of layers, tried with one token alone."""

    def __init__(self, parts: Collection[str]) -> None:
        self.calls: list[Call] = []
        self.counts: dict[str, int] = {}
        self.begun: list[tuple[int, list[tuple[Tensor, int]]]] = []
        self.paused = False
        self.parts = parts

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self.paused:
            inputs = list(tensors_in((args, kwargs)))
            self.begun.append((len(self.calls), [(tensor, tensor._version) for tensor in inputs]))

    def after(self, path: str, module: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        if self.paused:
            return
        first, given = self.begun.pop()
        outputs = [tensor for tensor in tensors_in(result) if tensor.is_floating_point() and tensor.numel()]
        if not outputs:
            return
        self.counts[path] = number = self.counts.get(path, 0) + 1
        y = outputs[0].detach()
        call = Call(f"{path}#{number}" if number > 1 else path, module, y.clone())
        call.weights = next((w[0].detach().clone() for w in outputs[1:] if _is_map(w)), None)
        inside = self.calls[first:]
        same = next((c for c in reversed(inside) if _equal(c.output, y)), None)
        unchanged = [tensor.detach() for tensor, version in given if tensor._version == version]
        floats = [x for x in unchanged if x.is_floating_point()]
        one = len(given) == len(unchanged) == 1
        if same is not None:
            call.passes = same.path
        elif one or (unchanged and must_hold(module)):
            call.proof = recompute(module, unchanged[0], y)
        is_identity = call.proof is not None and call.proof.holds and call.proof.formula == "identity"
        if not call.passes and (is_identity or (call.proof is None and any(_equal(x, y) for x in floats))):
            call.passes = "its input"
        if not call.passes and call.proof is None and inside:
            parts = [("its input", x) for x in floats if x.numel() == y.numel()]
            distinct: list[tuple[str, Tensor]] = []
            for name, tensor in (*parts, *((_short(c.path, path), c.output) for c in inside)):
                if tensor.numel() == y.numel() and not any(_equal(other, tensor) for _, other in distinct):
                    distinct.append((name, tensor))
            call.proof = as_combination(y, distinct)
        if floats:
            call.source, call.unseen = self._source(floats[0], first)
        if call.weights is not None:
            self._explain_mixed(call.weights, call, inside)
        if path in self.parts and len(floats) == 1 and call.weights is None:
            self.paused = True
            call.alone = _works_alone(module, floats[0], y)
            self.paused = False
        self.calls.append(call)

    def _source(self, x: Tensor, before: int) -> tuple[str, Tensor | None]:
        """The earlier outputs that an input is made of; a copy of the input if it is made of none."""
        earlier = [(c.path, c.output) for c in self.calls[max(0, before - _RECENT) : before] if not c.passes]
        same = next((path for path, output in reversed(earlier) if _equal(output, x)), "")
        if same:
            return same, None
        made = as_combination(x, [(path, output) for path, output in earlier if output.numel() == x.numel()])
        return (made.formula, None) if made is not None else ("", x.clone())

    def _explain_mixed(self, weights: Tensor, call: Call, inside: list[Call]) -> None:
        """Find what attention and the modules inside it read: its weights times the output of one of them."""

        def mixture(x: Tensor) -> Proof | None:
            found = (as_mixture(x, weights, c.output, _short(c.path, call.path)) for c in inside)
            return next((proof for proof in found if proof is not None), None)

        if not call.passes and call.proof is None:
            call.proof = mixture(call.output)
        for reader in inside:
            if reader.unseen is not None and (proof := mixture(reader.unseen)) is not None:
                reader.source, reader.unseen = proof.formula, None


def _short(path: str, inside: str) -> str:
    return path.removeprefix(inside).lstrip(".")


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same numbers in the same order, whatever their leading axes of size 1."""
    return a.numel() == b.numel() and a.shape[-1:] == b.shape[-1:] and torch.equal(a.reshape(-1), b.reshape(-1))


def _is_map(w: Tensor) -> bool:
    """Whether a tensor (1, H, Q, K) holds attention weights: shares whose rows sum to 1."""
    if w.dim() != 4 or len(w) != 1 or not bool((w >= 0).all()):
        return False
    sums = w.float().sum(-1)
    return bool(((sums - 1).abs() < 1e-2).all())


@contextmanager
def _hooked(module: nn.Module, recorder: _Recorder) -> Iterator[None]:
    handles: list[Any] = []
    try:
        for path, submodule in module.named_modules(remove_duplicate=True):
            handles.append(submodule.register_forward_pre_hook(recorder.before, with_kwargs=True))
            handles.append(
                submodule.register_forward_hook(
                    lambda m, args, kwargs, result, path=path: recorder.after(path, m, args, kwargs, result),
                    with_kwargs=True,
                )
            )
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def record(module: Any, inputs: Mapping[str, Any], parts: Collection[str] = ()) -> Recording:
    """Run a model of transformers on ``inputs`` and record every call of its modules; the hooks are then removed.

    ``parts`` are the paths of modules that are also run on one token alone.
    """
    recorder = _Recorder(parts)
    torch.manual_seed(0)  # reformer draws its hashes
    with _hooked(module, recorder):
        result = module(**inputs)
    return Recording(tuple(recorder.calls), logits_of(result))


def logits_of(result: Any) -> Tensor | None:
    """The logits of a result, without the axis of the batch; None if it has none."""
    logits = getattr(result, "logits", None)
    return logits[0].detach() if isinstance(logits, Tensor) else None


def unbatched(x: Tensor) -> Tensor:
    """A tensor without the axis of the batch, which is the first, or the second (XLNet)."""
    return x[0] if x.shape[:1] == (1,) else x[:, 0] if x.dim() > 2 and x.shape[1] == 1 else x


def _works_alone(module: nn.Module, x: Tensor, y: Tensor) -> bool | None:
    """Whether a module gives the last token the same numbers without the others; None where it cannot be run so."""
    axis = 1 if len(x) == 1 else 0
    if x.dim() != 3 or x.shape != y.shape or x.shape[axis] == 1:
        return None
    last = x.shape[axis] - 1
    with suppress(Exception), torch.no_grad():
        alone = next(tensors_in(module(x.narrow(axis, last, 1))))
        return compared("", alone, y.narrow(axis, last, 1).double()).holds
    return None
