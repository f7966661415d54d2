"""The names of tensors in the files and graphs of other programs, by the tables of the families.

The path of a module is the name of its weight without ``.weight``, and what it gives is the step that is made with that
weight. A module around others gives the last step that follows from theirs and from its input alone. What has no
parameters at all, in GGML's graphs or in what transformers returns, is in two short tables here.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from tinytf.checkpoints.gguf.architecture import ARCHITECTURES
from tinytf.checkpoints.huggingface.load import FAMILIES
from tinytf.checkpoints.huggingface.table import Family
from tinytf.checkpoints.table import FamilyTable, Stored, fused
from tinytf.steps.operations import Add, HeadNorm, Linear, Lookup, Multiply, Norm, Pooled, Positions, SumExperts
from tinytf.steps.table import Place, StepTable

Spellings = tuple[tuple[str, str], ...]
"""Patterns of names, whose group is the layer, with the steps that they mean."""


@dataclass(frozen=True)
class Meaning:
    """The step at ``place`` that a name means; ``heads`` where it is only some of them.

    ``how`` says how the numbers of a module's output lie where they are parts of it, or in another order. ``pick`` is
    the place along a leading axis of layers. ``certain`` is false for each of several steps that a name may mean, the
    last of them the likeliest. ``note`` is for the reader.
    """

    place: Place
    heads: tuple[int, ...] | None = None
    how: Stored | None = None
    pick: int | None = None
    certain: bool = True
    note: str = ""


_WRAPPERS = re.compile(r"^(?:(?:module|_orig_mod|base_model|_fsdp_wrapped_module)\.)+")
_OUTPUT = re.compile(r"(\.outputs?|\.out|\[0\]|\.0)+$")
_INPUT = re.compile(r"(\.inputs?|\.in)(\[0\]|\.0)*$")
_NUMBER = re.compile(r"(?<=\.)\d{1,6}(?=\.|$)")

# What has no parameters. Of several steps with one name the last is what a file holds, unless its numbers are those of
# one before: llama.cpp calls queries Qcur before RoPE and after it.
_IN_GGML: Spellings = (
    (r"inp_embd", "embed.tokens"),
    (r"Qcur-(\d+)", "q q_norm q_rot"),
    (r"Kcur-(\d+)", "k k_norm k_rot"),
    (r"Vcur-(\d+)", "v"),
    (r"Qcur_normed-(\d+)", "q_norm"),
    (r"Kcur_normed-(\d+)", "k_norm"),
    (r"Qcur_rope-(\d+)", "q_rot"),
    (r"Kcur_rope-(\d+)", "k_rot"),
    (r"kq-(\d+)", "scores"),
    (r"kq_scaled-(\d+)", "scaled"),
    (r"kq_masked-(\d+)", "masked"),
    (r"kq_soft_max(?:_ext)?-(\d+)", "weights"),
    (r"kqv-(\d+)", "head_out"),
    (r"kqv_merged(?:_cont)?-(\d+)", "concat"),
    (r"(?:kqv_out|attn_out)-(\d+)", "attn"),
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
    def without_parameters(self) -> Spellings:
        return _IN_TRANSFORMERS if isinstance(self.table, Family) else _IN_GGML

    @cached_property
    def leaves(self) -> dict[str, list[tuple[str, Stored]]]:
        """Our modules by the pattern of a stored one."""
        found: dict[str, list[tuple[str, Stored]]] = {}
        for ours, how in self.table.stored.items():
            found.setdefault(how.module, []).append((ours, how))
        return found

    @cached_property
    def inside(self) -> dict[str, list[str]]:
        """Our modules that are inside a stored one that has no parameters of its own, by its pattern."""
        found: dict[str, list[str]] = {}
        for module, owners in self.leaves.items():
            for end in (match.start() for match in re.finditer(r"\.", module)):
                found.setdefault(module[:end], []).extend(ours for ours, _ in owners)
        return found

    @cached_property
    def covered(self) -> int:
        """How many of the model's modules the table has, less those of the table that the model has not."""
        ours = {f"blocks.{{n}}.{s.module}" if s.in_layer else s.module for s, _ in self.steps.rows if s.module}
        return len(ours & set(self.table.stored)) * 100 - len(set(self.table.stored) - ours)

    def spelled(self, name: str) -> Iterator[tuple[str, int | None, bool]]:
        """Patterns that a name may be, with its layer, and whether what is meant is the module's input."""
        plain = _WRAPPERS.sub("", name)
        for ends, is_input in ((None, False), (_OUTPUT, False), (_INPUT, True)):
            if ends is not None and not ends.search(plain):
                continue
            path = self.table.plain(plain if ends is None else ends.sub("", plain)).removesuffix(".")
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
            for pattern, layer, _ in self.spelled(name)
        ) or any(re.fullmatch(pattern, _WRAPPERS.sub("", name)) for pattern, _ in self.without_parameters)

    def meanings(self, name: str) -> tuple[Meaning, ...]:
        """The steps that a name means in this model."""
        for pattern, number, is_input in self.spelled(name):
            own = self.leaves.get(pattern, ())
            layers = self._layers(number)
            if own and not is_input:
                return tuple(one for ours, how in own for one in self._given(ours, how, layers))
            modules = self.inside.get(pattern) or [ours for ours, _ in own]
            found = [made for layer in layers if (made := [one for ours in modules for one in self._made(ours, layer)])]
            places = [place for made in found for place in ([self._source(made)] if is_input else self._last(made))]
            if places:
                return tuple(Meaning(place, certain=len(places) == 1) for place in places)
        return self._without_parameters(_WRAPPERS.sub("", name))

    def _layers(self, number: int | None) -> Sequence[int | None]:
        """The layers that are stored under a number: several where layers share their weights."""
        config = self.steps.config
        return [None] if number is None else [n for n in range(config.n_layers) if config.group_of(n) == number]

    def _made(self, ours: str, layer: int | None) -> list[Place]:
        """The steps that are made with a module of ours, in one layer or, for a stack of them, in all."""
        short = ours.removeprefix("blocks.{n}.")
        places = self._by_module.get(short, ())
        return [place for place in places if (place[1] is None) == (short == ours) and layer in (None, place[1])]

    @cached_property
    def _by_module(self) -> dict[str, list[Place]]:
        found: dict[str, list[Place]] = {}
        for step, layer in self.steps.rows:
            if step.module:
                found.setdefault(step.module, []).append((step.name, layer))
        return found

    def _given(self, ours: str, how: Stored, layers: Sequence[int | None]) -> list[Meaning]:
        """The steps that a module of ours itself gives; of several, that of the tokens comes last."""
        if how.gives:
            return [Meaning((how.gives, layer)) for layer in layers if self.steps.has(how.gives, layer)]
        kinds = Linear | Norm | HeadNorm | Lookup | Positions
        steps = [(self.steps.at(*place), place) for layer in layers for place in self._made(ours, layer)]
        steps = [
            one for one in steps if isinstance(one[0].operation, kinds) and not isinstance(one[0].operation, Pooled)
        ]
        steps.sort(key=lambda one: "token" in one[0].axes)
        return [Meaning(place, how=how, certain=len(steps) == 1) for _, place in steps]

    @cached_property
    def _order(self) -> dict[Place, int]:
        return {(step.name, layer): number for number, (step, layer) in enumerate(self.steps.rows)}

    def _source(self, made: list[Place]) -> Place:
        """What the first of some steps is computed from."""
        first = min(made, key=self._order.__getitem__)
        sources = self.steps.sources(self.steps.at(*first), first[1])
        return sources[0] if sources else first

    def _last(self, made: list[Place]) -> list[Place]:
        """What modules that make these steps give together: the last step that follows from theirs and their input.

        Where it is added to the stream next, some modules do that too: so the sum first, and at last what is usual.
        """
        start, source = min(self._order[place] for place in made), self._source(made)
        known, layers, last = {*made, source}, {layer for _, layer in made}, source
        for step, layer in self.steps.rows[start:]:
            place, sources = (step.name, layer), self.steps.sources(step, layer)
            if place not in made:
                is_share = step.is_vocabulary and not step.to_loss
                if step.module or is_share or layer not in layers or not sources or not known.issuperset(sources):
                    continue
                known.add(place)
                joins = isinstance(step.operation, Add) and len(sources) == 2 and source in sources
                if joins or isinstance(step.operation, Multiply) or step.axes == ("token", "expert"):
                    continue
            last = place
        step = self.steps.at(*last)
        if step.of_experts:  # they are weighed and summed in one module
            sums = (one for one in self.steps.in_layer(last[1] or 0) if isinstance(one.operation, SumExperts))
            return [(one.name, last[1]) for one in sums]
        return [*([(self.steps.to_stream(step)[-1].name, last[1])] if step in self.steps.added else []), last]

    def _without_parameters(self, name: str) -> tuple[Meaning, ...]:
        config, steps = self.steps.config, self.steps
        if f"{name}." == self.table.prefix:
            name = "last_hidden_state"
        for pattern, words in self.without_parameters:
            match = re.fullmatch(pattern, name)
            if match is None:
                continue
            layer = int(match[1]) if match.re.groups else None
            if words == "ffn.act" and config.gated and isinstance(self.table, Family):
                return ()  # an activated gate alone
            if words == "final" or (words, layer) == ("in", config.n_layers):  # of transformers the last one is normed
                step = steps.by_name[steps.final]
                return (Meaning((step.name, config.n_layers - 1 if step.in_layer else None)),)
            there = [word for word in (steps.synonym(one) or one for one in words.split()) if steps.has(word, layer)]
            return tuple(Meaning((one, layer), how=self._rows_of(one), certain=len(there) == 1) for one in there)
        return ()

    def _rows_of(self, step: str) -> Stored | None:
        """The order of the rows of queries and keys, which GGML's graphs have too."""
        role = self.steps.by_name[step].role
        how = self.table.stored.get(f"blocks.{{n}}.attention.{role}")
        return Stored(how.module, paired=how.paired) if how is not None and how.paired and role in ("q", "k") else None


@lru_cache(maxsize=1)
def _tables() -> tuple[FamilyTable, ...]:
    """Every family's table, also with the heads of classes, and GGUF's with joint queries, keys and values."""
    heads = [replace(one, stored={**one.stored, **h.stored}) for one in FAMILIES.values() for h in one.heads.values()]
    joint = [
        replace(one, stored={**one.stored, **fused("blk.{n}.attn_qkv")})
        for one in ARCHITECTURES.values()
        if "blk.{n}.attn_q" in {how.module for how in one.stored.values()}
    ]
    return (*FAMILIES.values(), *heads, *ARCHITECTURES.values(), *joint)


def best_layout(names: list[str], steps: StepTable, own: FamilyTable | None) -> Layout | None:
    """The family whose names these are: it knows most of them; of several the model's ``own``, or that most like it."""
    kinds = Counter(_NUMBER.sub("0", name) for name in names)
    best: tuple[tuple[int, bool, bool, int], Layout] | None = None
    for table in (*(() if own is None else (own,)), *_tables()):
        layout = Layout(table, steps)
        known = sum(count for name, count in kinds.items() if layout.knows(name))
        fits = all(steps.config.setting(name) == value for name, value in table.fixed.items())
        rank = known, table is own, fits, layout.covered
        if best is None or rank > best[0]:
            best = rank, layout
    return None if best is None else best[1]
