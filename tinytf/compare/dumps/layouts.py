"""The names of tensors in the files and graphs of other programs, by the tables of the families.

The path of a module is the name of its weight without ``.weight``; its output is the step computed with that weight. A
module around others outputs the last step that follows from their steps and its input alone. Two short tables here list
the outputs without parameters in GGML's graphs and in what transformers returns.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from tinytf.checkpoints.gguf.architecture import ARCHITECTURES
from tinytf.checkpoints.huggingface.load import TABLES
from tinytf.checkpoints.huggingface.table import Family
from tinytf.checkpoints.table import FamilyTable, Stored, fused
from tinytf.model.transformer import ENCODER
from tinytf.parts.row import ROUTES
from tinytf.steps.operations import (
    Add,
    HeadNorm,
    Linear,
    Lookup,
    MixStreams,
    Multiply,
    Norm,
    Pooled,
    Positions,
    Profile,
    SumExperts,
)
from tinytf.steps.table import StepKey, StepTable

Spellings = tuple[tuple[str, str], ...]
"""Patterns of names, whose group is the layer, with the steps that the names mean."""


@dataclass(frozen=True)
class Meaning:
    """The step at ``place`` that a name means; ``heads`` if it holds only some of them.

    ``how`` describes the layout of a module's output, if the step is a part of it or in another order. ``pick`` is the
    index along a leading axis of layers. ``certain`` is false for each of several steps that a name may mean; the last
    of them is the likeliest. ``note`` is for the reader.
    """

    place: StepKey
    heads: tuple[int, ...] | None = None
    how: Stored | None = None
    pick: int | None = None
    certain: bool = True
    note: str = ""


_WRAPPERS = re.compile(r"^(?:(?:module|_orig_mod|base_model|_fsdp_wrapped_module)\.)+")
_OUTPUT = re.compile(r"(\.outputs?|\.out|\[0\]|\.0)+$")
_INPUT = re.compile(r"(\.inputs?|\.in)(\[0\]|\.0)*$")
_NUMBER = re.compile(r"(?<=\.)\d{1,6}(?=\.|$)")

# Steps without parameters. Where a name has several steps, the file holds the last, unless its numbers are those of an
# earlier one: llama.cpp calls queries Qcur before RoPE and after it.
_IN_GGML: Spellings = (
    (r"inp_embd", "embed.tokens"),
    (r"Qcur-(\d+)", "q q_norm q_rot"),
    (r"Kcur-(\d+)", "k k_norm k_rot"),
    (r"Vcur-(\d+)", "v"),
    (r"Qcur_normed-(\d+)", "q_norm"),
    (r"Kcur_normed-(\d+)", "k_norm"),
    (r"Qcur_rope-(\d+)", "q_rot"),
    (r"Kcur_rope-(\d+)", "k_rot"),
    (r"kq-(\d+)", "scaled scores"),  # Gemma's queries are scaled before
    (r"kq_scaled-(\d+)", "scaled"),
    (r"kq_masked-(\d+)", "masked"),
    (r"kq_soft_max(?:_ext)?-(\d+)", "weights"),
    (r"kqv-(\d+)", "head_out"),
    (r"kqv_merged(?:_cont)?-(\d+)", "concat"),
    (r"kqv_out-(\d+)", "concat attn"),  # with the output matrix in older versions
    (r"attn_out-(\d+)", "attn"),
    (r"attn_norm-(\d+)", "norm1"),
    (r"attn_post_norm-(\d+)", "attn_norm"),
    (r"ffn_inp-(\d+)", "mid"),
    (r"ffn_norm-(\d+)", "norm2"),
    (r"ffn_up-(\d+)", "ffn.hidden"),
    (r"ffn_gate-(\d+)", "ffn.gate"),
    (r"ffn_(?:gate_par|swiglu|geglu|gelu|relu)-(\d+)", "ffn.act"),
    (r"ffn_(?:out|down)-(\d+)", "ffn"),
    (r"ffn_post_norm-(\d+)", "ffn_norm"),
    (r"l_out-(\d+)", "out"),
    (r"result_norm", "final"),
    (r"result_output", "logits"),
)  # fmt: skip
_IN_TRANSFORMERS: Spellings = (
    (r"hidden_states?[._\[](\d+)\]?", "in"),
    (r"attentions?[._\[](\d+)\]?", "weights"),
    (r"(?:.*\.)?last_hidden_state", "final"),
    (r"(?:.*\.)?[a-z_]*\.(\d+)\.mlp\.(?:act|act_fn|activation_fn)", "ffn.act"),
    (r"transformer\.drop", "embed.out"),
)
_CACHED: Spellings = tuple(
    (pattern, steps)
    for word, place, steps in (("keys?|k", 0, "k k_norm k_rot"), ("values?|v", 1, "v"))
    for pattern in (
        rf"(?:.*[._])?(?:past_key_values?|presents?|past|kv_cache|cache)[._](?:layers[._])?(\d+)[._](?:{word}|{place})",
        rf"(?:.*[._])?(?:(?:past|present)_(?:{word})|(?:{word})_cache)[._](\d+)",
        rf"(?:.*[._])?layers?[._](\d+)[._](?:.*[._])?(?:{word})_cache",
    )
)
"""The keys and values of a cache, as transformers, its exports to ONNX, and other programs call them."""
_ROUTED: Spellings = ((r"(?:.*[._])?router_logits[._](\d+)", "ffn.router"),)


class _Owner(NamedTuple):
    """One of our modules in a stored one; ``number`` is that of our layer, where several are stored as one."""

    ours: str
    how: Stored
    number: int | None

    @property
    def serves_all(self) -> bool:
        """Whether each layer of ours has its own of what is stored once."""
        return "{n}" in self.ours and "{n}" not in self.how.module


@dataclass(frozen=True)
class Layout:
    """The names of one family for one model."""

    table: FamilyTable
    steps: StepTable

    @property
    def spelling(self) -> str:
        """Whose names they are, in words."""
        return f"{'Hugging Face' if isinstance(self.table, Family) else 'GGML'} ({self.table.name})"

    @property
    def parameterless(self) -> Spellings:
        return (*(_IN_TRANSFORMERS if isinstance(self.table, Family) else _IN_GGML), *_CACHED, *_ROUTED)

    @cached_property
    def leaves(self) -> dict[str, list[_Owner]]:
        """Our modules by the pattern of the stored module."""
        by_module: dict[str, list[_Owner]] = {}
        for ours, layout in self.table.stored.items():
            for number in range(self.table.split) if "{s}" in layout.module else (None,):
                how = layout if number is None else layout.within(number)
                rows = how.by_row and how.module.endswith("{e}")  # a list of modules, one a head, inside of another
                *outer, _, _ = how.module.rsplit(".", 2) if rows else (how.module, "", "")
                for module in outer:  # none for a list that is in no other module
                    by_module.setdefault(module, []).append(_Owner(ours, how, number))
        return by_module

    @cached_property
    def inside(self) -> dict[str, list[_Owner]]:
        """Our modules inside each stored module without parameters of its own, by its pattern."""
        by_path: dict[str, list[_Owner]] = {}
        for module, owners in self.leaves.items():
            for end in (match.start() for match in re.finditer(r"\.", module)):
                by_path.setdefault(module[:end], []).extend(owners)
        return by_path

    @cached_property
    def covered(self) -> int:
        """A score: 100 for each of the model's modules in the table, less 1 for each module that the model lacks."""
        ours = {
            f"blocks.{{n}}.{step.module}" if step.in_layer else step.module
            for step, _ in self.steps.rows
            if step.module
        }
        return len(ours & set(self.table.stored)) * 100 - len(set(self.table.stored) - ours)

    def readings(self, name: str) -> Iterator[tuple[str, int | None, bool]]:
        """Yield readings of a name: pattern, layer, and whether it is the module's input."""
        bare = _WRAPPERS.sub("", name)
        for suffix, is_input in ((None, False), (_OUTPUT, False), (_INPUT, True)):
            if suffix is not None and not suffix.search(bare):
                continue
            path = self.table.pattern(bare if suffix is None else suffix.sub("", bare)).removesuffix(".")
            numbers = _NUMBER.search(f".{path}")
            if numbers is None:
                yield path, None, is_input
            else:
                start, end = numbers.start() - 1, numbers.end() - 1
                yield f"{path[:start]}{{n}}{path[end:]}", int(numbers[0]), is_input

    def knows(self, name: str) -> bool:
        """Whether the table has a module of that name, or modules inside it."""
        return any(
            (pattern in self.leaves or pattern in self.inside) and (layer is None or layer < self.steps.config.n_layers)
            for pattern, layer, _ in self.readings(name)
        ) or any(re.fullmatch(pattern, _WRAPPERS.sub("", name)) for pattern, _ in self.parameterless)

    def meanings(self, name: str) -> tuple[Meaning, ...]:
        """The steps that a name means in this model."""
        for pattern, number, is_input in self.readings(name):
            owners = self.leaves.get(pattern, ())
            layers = self._layers(number)
            if owners and not is_input:
                return tuple(meaning for owner in owners for meaning in self._outputs(owner, layers))
            modules = self.inside.get(pattern) or owners
            if number is None and modules and all(one.serves_all for one in modules):
                return ()  # it gives the numbers of all layers at once
            groups = [made for n in layers if (made := [place for one in modules for place in self._produced(one, n)])]
            if len(groups) == self.table.split > 1 and not is_input:  # all that is stored as one layer
                return (Meaning((self.steps.output, groups[-1][0][1])),)
            places = [
                place
                for made in groups
                for place in ([self._input_of(made)] if is_input else self._outputs_of_group(made))
                if not self._is_turned(place[0])
            ]
            if places:
                return tuple(Meaning(place, certain=len(places) == 1) for place in places)
        return self._parameterless(_WRAPPERS.sub("", name))

    def _layers(self, number: int | None) -> Sequence[int | None]:
        """The layers stored under a number: several if layers share their weights."""
        config = self.steps.config
        return (
            [None]
            if number is None
            else [n for n in range(config.n_layers) if self.table.stored_layer(n, config) == number]
        )

    def _produced(self, owner: _Owner, layer: int | None) -> list[StepKey]:
        """The steps computed with one of our modules, in one layer or, for a stack of layers, in all."""
        ours = owner.ours
        if owner.number is not None and layer is not None and layer % self.table.split != owner.number:
            return []
        short = ours.removeprefix("blocks.{n}.")
        produced = self._by_module.get(short, ())
        return [place for place in produced if (place[1] is None) == (short == ours) and layer in (None, place[1])]

    @cached_property
    def _by_module(self) -> dict[str, list[StepKey]]:
        places: dict[str, list[StepKey]] = {}
        for step, layer in self.steps.rows:
            if step.module:
                places.setdefault(step.module, []).append((step.name, layer))
        return places

    def _outputs(self, owner: _Owner, layers: Sequence[int | None]) -> list[Meaning]:
        """The steps that one of our modules outputs itself; of several, a step over tokens comes last."""
        how = owner.how
        if how.gives:
            return [Meaning((how.gives, layer)) for layer in layers if self.steps.has(how.gives, layer)]
        if how.apart:
            return []  # it gives the numbers of the chosen experts of each token
        if how.bias and not how.bare:
            return []  # its bias lies outside of the module, which gives its numbers without it
        kinds = Linear | Norm | HeadNorm | Lookup | Positions
        steps = [(self.steps.at(*place), place) for layer in layers for place in self._produced(owner, layer)]
        steps = [
            step for step in steps if isinstance(step[0].operation, kinds) and not isinstance(step[0].operation, Pooled)
        ]
        steps.sort(key=lambda step: "token" in step[0].axes)
        return [Meaning(place, how=how, certain=len(steps) == 1) for _, place in steps]

    @cached_property
    def _order(self) -> dict[StepKey, int]:
        return {(step.name, layer): number for number, (step, layer) in enumerate(self.steps.rows)}

    def _input_of(self, places: list[StepKey]) -> StepKey:
        """The input of the first of some steps."""
        first = min(places, key=self._order.__getitem__)
        sources = self.steps.sources(self.steps.at(*first), first[1])
        return sources[0] if sources else first

    def _outputs_of_group(self, places: list[StepKey]) -> list[StepKey]:
        """The output of the modules around these steps: the last step that follows from them and their input alone.

        Some modules also add it to the stream, so the sum comes first and the usual output last.
        """
        config, steps = self.steps.config, [self.steps.at(*place) for place in places]
        beside_mixer = config.stream_rank and not any(step.name == "attn" for step in steps)
        if config.hyper and all("stream" in step.axes[-1] for step in steps):
            return []  # hyper-connections give weights and a sum of streams
        if beside_mixer and any(step.axes[-1] == "stream" for step in steps):
            return []  # such modules give weights and a sum of streams
        if all(isinstance(step.operation, Profile) for step in steps):
            return []  # it gives what is added to the scores
        ends = sorted(places, key=self._order.__getitem__)
        start, source = self._order[ends[0]], self._input_of(places)
        computed, layers, last = {*places, source}, {layer for _, layer in places}, source
        if isinstance(self.steps.at(*source).operation, MixStreams):  # a stream of those that the module takes
            computed |= {*self.steps.sources(self.steps.at(*source), source[1])}
        carried = {source}  # the stream, which a module may scale before it adds to it
        for step, layer in self.steps.rows[start:]:
            place, sources = (step.name, layer), self.steps.sources(step, layer)
            if place not in places:
                is_share = step.is_vocabulary and not step.to_loss
                if (
                    (step.module and step.to_loss)
                    or is_share
                    or layer not in layers
                    or not sources
                    or not computed.issuperset(sources)
                    or {*sources} == {source}  # it reads what they read, beside them
                ):
                    continue
                computed.add(place)
                joins = isinstance(step.operation, Add) and len(sources) == 2 and step not in self.steps.added
                joins = joins and not carried.isdisjoint(sources)
                if joins and {*sources} == {source, last} and last == ends[-1]:
                    return [place, last]
                if isinstance(step.operation, Multiply) and carried.issuperset(sources):
                    carried.add(place)
                if joins or isinstance(step.operation, Multiply) or step.axes == ("token", "expert"):
                    continue
            last = place
        step = self.steps.at(*last)
        scaled_after = isinstance(self.table, Family) and self.table.routes_scaled_after
        if step.of_experts and (config.always_experts or (scaled_after and all(one.of_experts for one in steps))):
            return []  # a module sums those that are chosen alone, or is scaled outside
        if step.of_experts:  # one module weights and sums them
            sums = (row for row in self.steps.in_layer(last[1] or 0) if isinstance(row.operation, SumExperts))
            return [(row.name, last[1]) for row in sums]
        if step.axes == ROUTES:
            return []  # a router around its parts gives several tensors
        if last == ("logits", None) and self.steps.has("head.logits", None):
            return [("head.logits", None)]  # the model caps or scales them outside of the head
        if last[1] is None or step.name not in {added.name for added in self.steps.added_in(last[1])}:
            return [last]
        return [(self.steps.to_stream(step, last[1])[-1].name, last[1]), last]

    def _parameterless(self, name: str) -> tuple[Meaning, ...]:
        config, steps = self.steps.config, self.steps
        if f"{name}." == self.table.prefix:
            name = "last_hidden_state"
        for pattern, words in self.parameterless:
            match = re.fullmatch(pattern, name)
            if match is None:
                continue
            layer = int(match[1]) if match.re.groups else None
            if words == "ffn.act" and config.gated and isinstance(self.table, Family):
                return ()  # the activated gate alone, before it meets the hidden units
            if words == "final" or (words, layer) == ("in", config.n_layers):  # transformers norms the last one
                step = steps.by_name[steps.normed]
                return (Meaning((step.name, config.n_layers - 1 if step.in_layer else None)),)
            names = [word for word in (steps.synonym(w) or w for w in words.split()) if steps.has(word, layer)]
            return tuple(Meaning((step, layer), how=self._row_order(step), certain=len(names) == 1) for step in names)
        return ()

    def _is_turned(self, step: str) -> bool:
        """Whether a step of queries or keys that are projected already has its rotated dimensions in another place."""
        role = self.steps.by_name[step].role
        how = self.table.stored.get(f"blocks.{{n}}.attention.{role}")
        return role in ("q", "k") and how is not None and how.rotary_last != ""

    def _row_order(self, step: str) -> Stored | None:
        """The order of the rows of queries and keys, which GGML's graphs share with its files."""
        role = self.steps.by_name[step].role
        how = self.table.stored.get(f"blocks.{{n}}.attention.{role}")
        return Stored(how.module, paired=how.paired) if how is not None and how.paired and role in ("q", "k") else None


@lru_cache(maxsize=1)
def _tables() -> tuple[FamilyTable, ...]:
    """Every family's table, also with each classification head, and GGUF's also with joint queries, keys and values."""
    heads = [replace(t, stored={**t.stored, **head.stored}) for t in TABLES for head in t.heads.values()]
    joint = [
        replace(table, stored={**table.stored, **fused("blk.{n}.attn_qkv")})
        for table in ARCHITECTURES.values()
        if "blk.{n}.attn_q" in {how.module for how in table.stored.values()}
    ]
    return (*TABLES, *heads, *ARCHITECTURES.values(), *joint)


@lru_cache(maxsize=1)
def _encoders() -> tuple[FamilyTable, ...]:
    """The encoder of every table of two stacks, as a table of one."""
    found = (
        (table, {name.removeprefix(ENCODER): how for name, how in table.stored.items() if name.startswith(ENCODER)})
        for table in (*TABLES, *ARCHITECTURES.values())
    )
    return tuple(replace(table, stored=own) for table, own in found if own)


def best_layout(names: list[str], steps: StepTable, own: FamilyTable | None) -> Layout | None:
    """The family that knows most of the names; of equals the model's ``own``, then the one most like the model."""
    counts = Counter(_NUMBER.sub("0", name) for name in names)
    best: tuple[tuple[int, bool, bool, int], Layout] | None = None
    encoders = _encoders() if any(f".{ENCODER}" in f".{name}" for name in counts) else ()
    for table in (*(() if own is None else (own,)), *_tables(), *encoders):
        unturned = table.fixed.get("positions", "rotary") == "none" and table is not own
        if not table.pairs_as(steps.config) or (unturned and steps.config.positions == "rotary"):
            continue  # it has other rows, or no order of those that RoPE turns
        layout = Layout(table, steps)
        n_known = sum(count for name, count in counts.items() if layout.knows(name))
        fits = all(steps.config.setting(name) == value for name, value in table.fixed.items())
        rank = n_known, table is own, fits, layout.covered
        if best is None or rank > best[0]:
            best = rank, layout
    return None if best is None else best[1]
