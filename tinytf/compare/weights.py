"""How the weights of one model are made of another's: rows in another order, two names swapped, a type that rounds.

Every parameter of the second model B that is not A's is held against what conversions are known to do to A's. Shapes:
R rows (outputs), C columns (inputs), E experts.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from tinytf.compare.conversions import Found, Parameters, explained, floats
from tinytf.model.transformer import Transformer, stack_at
from tinytf.report import Data
from tinytf.sentences import first_of, listed, percent
from tinytf.trace.address import span

_FAILURES = 2
"""The parameters of one name of which nothing is found, until the others of that name are not searched."""


@dataclass(frozen=True)
class Relation(Data):
    """What B has in the place of A's parameters at ``addresses``: ``words``, up to an ``error`` ‖Δ‖ ÷ ‖W‖.

    ``sentence`` says it of all layers at once. What is ``harmless`` has fewer bits, or changes nothing.
    """

    ALSO: ClassVar = ("sentence",)

    names: tuple[str, ...]
    addresses: tuple[str, ...]
    words: str
    where: str
    error: float
    harmless: bool = False

    @property
    def sentence(self) -> str:
        if not self.names and len(self.addresses) == 1:
            return f"B's {self.addresses[0]} is {self.words}"
        if not self.names:
            return f"{len(self.addresses):,} of B's weights are {self.words}"
        one, names = len(self.names) == 1, listed(self.names) if len(self.names) < 5 else first_of(self.names, 4)
        words = self.words if one and not self.where else self.words.replace("its ", "their ")
        return f"B's {names} {'is' if one and not names.startswith('layers') else 'are'} {words}{self.where}"


@dataclass(frozen=True)
class WeightsCompared(Data):
    """The parameters of two models: how many are the ``same``, and what those are that ``differ``.

    ``relations`` say of ``explained`` of them how they are made of A's. ``near`` others are A's but for an error of at
    most ``nearest_error``; ``alone`` are the addresses that one of the models lacks. ``common`` is false where nothing
    was found of any. ``tried`` is the record of the search.
    """

    ALSO: ClassVar = ("common",)

    same: int
    differ: int
    explained: int
    near: int
    nearest_error: float
    relations: tuple[Relation, ...]
    alone: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()

    @property
    def common(self) -> bool:
        return self.same + self.explained + self.near > 0

    @property
    def faults(self) -> tuple[Relation, ...]:
        """The relations that change what B computes by more than rounding."""
        return tuple(one for one in self.relations if not one.harmless)

    def in_words(self, second: str = "B", first: str = "A") -> str:
        """The relations, the faults first; that nothing is in common; or that all is the same.

        ``second`` and ``first`` are what the models are called.
        """
        if not self.common:
            return "the weights have nothing in common"
        if not self.differ and not self.alone:
            return f"all {self.same:,} weights are the same"
        said = [one.sentence for one in self.faults or self.relations]
        if self.near and not self.faults:
            said.append(
                f"{self.near:,} of B's weights are A's but for an error of at most {percent(self.nearest_error)}"
            )
        if (left := self.differ - self.explained - self.near) > 0 and said:
            said.append(f"of {left:,} others nothing was found")
        said = [re.sub(r"\b([AB])(?='s\b)", lambda name: {"A": first, "B": second}[name[1]], one) for one in said]
        return "; ".join([*said[:4], *([f"and {len(said) - 4} more such relations"] if len(said) > 4 else [])])


@torch.no_grad()
def compare_weights(first: Transformer, second: Transformer) -> WeightsCompared:
    """Find how B's parameters are made of A's, one after the other; only samples of all of them are in memory.

    Models of other sizes are not searched: they have nothing in common.
    """
    ours, theirs = Parameters.of(first), Parameters.of(second)
    if (first.config.d_model, first.config.n_layers) != (second.config.d_model, second.config.n_layers):
        return WeightsCompared(0, len(theirs.tensors), 0, 0, 0.0, ())
    found: dict[str, Found] = {}
    failures: dict[str, int] = defaultdict(int)
    same, near, error = 0, 0, 0.0
    shared = [path for path in theirs.tensors if path in ours.tensors]
    for path in shared:
        a, b = ours.tensors[path], theirs.tensors[path]
        if a is b or (a.shape == b.shape and torch.equal(a, b.to(a))):
            same += 1
            continue
        if failures[ours.names[path]] >= _FAILURES:
            continue
        relation = _scaled_as_read(ours, theirs, path) or explained(ours, path, floats(b))
        if relation is not None and relation.words:
            found[path] = relation
        elif relation is not None:
            near, error = near + 1, max(error, relation.error)
        else:
            failures[ours.names[path]] += 1
    lone, tied = _alone(ours, theirs)
    relations = (*_grouped(found, ours), *tied)
    return WeightsCompared(same, len(shared) - same, len(found), near, error, relations, lone, tuple(ours.tried))


def _scaled_as_read(ours: Parameters, theirs: Parameters, path: str) -> Found | None:
    """Embeddings that hold what the other model multiplies them by, so that the stream is the same."""
    scales = ours.config.embed_scale, theirs.config.embed_scale
    if path != "embed.tokens.weight" or scales[0] == scales[1]:
        return None
    read, other = (floats(one.tensors[path]) * scale for one, scale in zip((ours, theirs), scales, strict=True))
    if read.shape != other.shape or not torch.allclose(read, other, rtol=1e-4, atol=0.0):
        return None
    return Found(f"A's, {scales[0] / scales[1]:.4g} times as large, by which {'A' if scales[0] > scales[1] else 'B'} "
                 "multiplies them", 0.0, rounds=True)  # fmt: skip


def _alone(ours: Parameters, theirs: Parameters) -> tuple[tuple[str, ...], list[Relation]]:
    """The parameters that one of the models lacks, and what is known of them."""
    lone, found = list[str](), list[Relation]()
    groups: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one, other, letter in ((ours, theirs, "B"), (theirs, ours, "A")):
        for path, tensor in one.tensors.items():
            if path in other.tensors:
                continue
            lone.append(one.address(path))
            words = f"missing in {letter}"
            if one.names[path] == "W_U" and (embedding := other.tensors.get("embed.tokens.weight")) is not None:
                alike = embedding.shape == tensor.shape and torch.equal(embedding, tensor)
                words += ", which is tied" + (" to the same numbers" if alike else " to others")
            elif not tensor.any():
                words += ", where it is 0 in the other"
            groups[one.names[path], words].append(one.address(path))
    for (name, words), addresses in groups.items():
        label = name if len(addresses) > 1 else addresses[0]
        where = f", in {len(addresses)} layers" if len(addresses) > 1 else ""
        harmless = words.endswith(("0 in the other", "to the same numbers"))
        found.append(Relation((label,), tuple(addresses), words, where, 0.0, harmless))
    return tuple(lone), found


def _grouped(found: Mapping[str, Found], ours: Parameters) -> list[Relation]:
    """One relation for what is the same of several names and layers; whole layers in another order first."""
    relations, rest = [], dict(found)
    own_name = {path: stack_at(path) + name for path, name in ours.names.items()}
    places: dict[tuple[str, int], set[int | None]] = defaultdict(set)
    for path, one in found.items():
        if (layer := ours.layers[path]) is not None:
            places[stack_at(path), layer].add(one.layer)
    moved = {layer: next(iter(others)) for layer, others in places.items() if len(others) == 1 and None not in others}
    at_place = {(own_name[path], layer): path for path, layer in ours.layers.items()}
    for path, layer in ours.layers.items():  # what stayed in its place is in no layer that moved as a whole
        place = stack_at(path), layer
        if place in moved and path not in found:
            there = at_place.get((own_name[path], moved[place]))
            if there is None or not torch.equal(ours.tensors[path], ours.tensors[there]):
                del moved[place]
    for at in dict.fromkeys(at for at, _ in moved):
        gone = [path for path in found if stack_at(path) == at and (at, ours.layers[path]) in moved]
        own = {layer: other for (stack, layer), other in moved.items() if stack == at}
        addresses = tuple(ours.address(path) for path in gone)
        error = max(found[path].error for path in gone)
        label = f"layer{'s' * (len(own) > 1)} {listed([str(layer) for layer in own])}" + " of the encoder" * bool(at)
        words = f"A's {listed([str(layer) for layer in own.values()])}"
        relations.append(Relation((label,), addresses, f"{words}: layers in another order", "", error))
        rest = {path: one for path, one in rest.items() if path not in gone}
    alike: dict[tuple[str, bool], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path, one in rest.items():
        alike["" if one.other else one.words, one.rounds][own_name[path]].append(path)
    merged: dict[tuple[str, bool, tuple[int | None, ...]], list[str]] = defaultdict(list)
    for (words, rounds), named in alike.items():
        for paths in named.values():
            layers = () if rounds else tuple(ours.layers[path] for path in paths)
            merged[words, rounds, layers] += paths
    for (words, rounds, layers), paths in merged.items():
        of_name = {own_name[path]: path for path in paths}
        words = words or f"A's {listed([rest[path].other for path in of_name.values()])}"
        names, numbers = () if rounds else tuple(of_name), [layer for layer in layers if layer is not None]
        every, where = {ours.layers[path] for path in ours.tensors if own_name[path] in names}, ""
        if len(numbers) == 1:
            names = tuple(ours.address(of_name[name]) for name in names)
        elif numbers:
            where = f", in all {len(numbers)} layers" if {*layers} == every else f", in layers {span(tuple(numbers))}"
        error, addresses = max(rest[path].error for path in paths), tuple(ours.address(path) for path in paths)
        relations.append(Relation(names, addresses, words, where, error, rounds))
    return sorted(relations, key=lambda one: one.harmless)
