"""The view of a difference: where it begins, how it goes on step by step, and what it changes in the end."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from tinytf.analysis.compared import Compared
from tinytf.analysis.difference import Attention, Difference
from tinytf.loading import Model
from tinytf_cli.numbers import number
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.backward import figure
from tinytf_cli.views.banner import banner, model_words, notes, tokenizer_words
from tinytf_cli.views.blocks import Block, Cell, Column, Heading, Heat, Line, Meter, Span, Table
from tinytf_cli.views.steps import as_array, largest, left_out, shown_rows

_MOVED = 10
_FIRST, _SECOND = "q", "k"  # blue and orange, the ends of every diverging map


class DifferenceView:
    """Two runs side by side, A and B, drawn."""

    def __init__(self, models: tuple[Model, Model], found: Difference, rows: int | None, full: bool = False) -> None:
        self.models, self.found = models, found
        self.texts = texts = tuple(side.text for side in found.sides if side.text is not None)
        self.rows, self.full = rows, full
        self.names = [
            a.shown if a.id == b.id else f"{a.shown} / {b.shown}"
            for a, b in zip(texts[0].tokens, texts[1].tokens, strict=False)
        ][: found.alignment.positions]

    @property
    def two_models(self) -> bool:
        return self.models[0] is not self.models[1]

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """What is compared, where it begins to differ, every step, and what comes of it."""
        limit = self.rows if self.rows is not None else (16 if terminal.cuts else None)
        rows = limit or None
        yield from self._banner()
        if self.found.equal:
            yield Line("")
            yield Line([Span("nothing differs", "good"), Span(f": all {len(self.found.steps)} steps are the same")])
            yield from self._limit()
            return
        yield from self._first()
        yield from self._map()
        yield from self._steps()
        if self.found.attention is not None:
            yield from self._attention(self.found.attention)
        yield from self._positions(rows)
        yield from self._predictions()
        yield from self._moved()
        yield from self._incomparable()
        if outcome := [*self._outcome(), *self._limit()]:
            yield Line("")
            yield from outcome

    def _banner(self) -> Iterator[Block]:
        if self.two_models:
            for letter, model, role in (("A", self.models[0], _FIRST), ("B", self.models[1], _SECOND)):
                yield Line([Span(f"{letter} ", role), *model_words(model)])
                yield from notes(model)
            yield Line(tokenizer_words(self.models[0].tokenizer, self.models[0].tokenizer_note, self.texts[0]))
        else:
            yield from banner(self.models[0], self.texts[0])
        changed = set(self.found.alignment.changed)
        one = self.texts[0].ids == self.texts[1].ids
        letters = (("A and B ", self.texts[0], ""),) if one else (
            ("A ", self.texts[0], _FIRST), ("B ", self.texts[1], _SECOND)
        )  # fmt: skip
        for letter, text, role in letters:
            spans = [Span(letter, role or "strong")]
            for i, token in enumerate(text.tokens):
                spans += [Span(f" {token.shown}", role if i in changed and role else "dim" if token.special else "")]
            plural = "" if len(text.tokens) == 1 else "s"
            yield Line([*spans, Span(f"   {len(text.tokens):,} token{plural}", "dim")])
        if self.found.alignment.note:
            yield Line([Span("note", "strong"), Span(f": {self.found.alignment.note}")])

    def _first(self) -> Iterator[Block]:
        found, yet = self.found, f"{self.found.tolerance:.0e}"
        yield Line("")
        if not found.steps:
            yield Line([Span("no step", "bad"), Span(" of the two models can be compared")])
            return
        if found.first is None:
            said = f": no step by more than {yet} of a token's largest number"
            yield Line([Span("within the tolerance", "good"), Span(said)])
        else:
            one = found.first
            said = f", beyond {yet} of a token's largest number: {self._cell(one)} is {_two(one)}"
            yield Line([Span("first difference", "strong"), Span(f" at {one.name}{said}")])
        if (worst := found.worst) is not None and worst is not found.first and worst.largest:
            said = f" at {worst.name}: {figure(worst.relative)} of the largest number"
            said += f" at {self._token(worst)}" if worst.token is not None else ""
            yield Line([Span("largest difference", "strong"), Span(said)])

    def _outcome(self) -> Iterator[Block]:
        found = self.found
        divergence = next((one.kl for one in found.steps if one.name == "logits"), None)
        if divergence is not None:
            said = f" {number(divergence, '%.4g')} nats, the mean over the positions"
            if found.predictions:
                where = "next token" if self.models[0].config.causal else "first mask"
                said += f"; {number(found.predictions[0].kl, '%.4g')} at the {where}"
            yield Line([Span("KL(A‖B)", "strong"), Span(said)])
        if found.losses is not None:
            a, b = found.losses
            said = f" of the text {a:.4f} nats a token in A, {b:.4f} in B ({b - a:+.4f})"
            yield Line([Span("loss", "strong"), Span(said)])

    def _token(self, one: Compared) -> str:
        """The token whose numbers differ most for their size."""
        if one.token is None or not one.relative:
            return ""
        name = self.names[one.token]
        return name if " / " in name else f"{one.token} {name}"

    def _cell(self, one: Compared) -> str:
        parts = []
        for axis, place in zip(one.step.axes, one.at, strict=True):
            if axis in ("token", "query", "key"):
                parts.append(self.names[place] if " / " in self.names[place] else f"{place} {self.names[place]}")
            elif axis == "vocab":
                parts.append(self.models[0].tokenizer.shown(place))
            elif axis not in ("head", "kv head"):
                parts.append(f"d{place}")
            else:
                parts.append(f"H{place}")
        return ", ".join(parts)

    def _map(self) -> Iterator[Block]:
        """Relative differences of the steps of all layers."""
        inside = [one for one in self.found.steps if one.layer is not None]
        layers = sorted({one.layer for one in inside if one.layer is not None})
        if len(layers) < 2:
            return
        names = list(dict.fromkeys(one.step.name for one in inside))
        values = np.full((len(names), len(layers)), np.nan, dtype=np.float32)
        for one in inside:
            # no finite one is above 2
            values[names.index(one.step.name), layers.index(one.layer or 0)] = min(2.0, one.relative)
        note = f"within a token, in units of its largest number; layers {layers[0]} to {layers[-1]} across"
        yield Heading("relative difference", note)
        seen = ~np.isnan(values)
        columns = [f"L{layer}" for layer in layers]
        most = float(values[seen].max()) or 1.0
        shown = None if seen.all() else seen
        yield Heat(np.nan_to_num(values), names, columns, "unit", shown, most, digits=_digits(most))

    def _telling(self) -> list[Compared]:
        """The first difference, of each layer the step that differs most for its size, and what is around the layers.

        A step in which nothing differs is not among them.
        """
        steps = [one for one in self.found.steps if one.largest]
        by_layer: dict[int, list[Compared]] = {}
        for one in steps:
            if one.layer is not None:
                by_layer.setdefault(one.layer, []).append(one)
        most = {max(some, key=lambda one: one.relative).name for some in by_layer.values()}
        return [one for one in steps if one.layer is None or one is self.found.first or one.name in most]

    def _steps(self) -> Iterator[Block]:
        limit = self.found.tolerance
        steps = self.found.steps if self.full else self._telling()
        missing = len(self.found.steps) - len(steps)
        if not steps:
            return
        yield Heading("steps", f"relative: in units of the largest number of that token; tolerance {limit:.0e}")
        layers = [one.layer for one in steps]
        relative: list[Cell] = [
            Meter(min(1.0, one.relative) if one.relative > limit else 0.0, figure(one.relative).rjust(7), _SECOND)
            for one in steps
        ]
        divergence = [Column("KL", ["" if one.kl is None else number(one.kl, "%.4g") for one in steps], "right")]
        yield Table(
            [
                Column("step", [Span(one.name, one.step.role) for one in steps], said=""),
                Column("largest", [figure(one.largest) for one in steps], "right", said="largest difference"),
                Column("relative", relative, narrow=[figure(one.relative).rjust(7) for one in steps]),
                Column(
                    "token",
                    [self._token(one) for one in steps],
                    shrink=8,
                    drop=1,
                    narrow=["" if one.token is None or not one.relative else str(one.token) for one in steps],
                ),
                Column("cosine", [number(one.cosine, "%.6f") for one in steps], "right"),
                *(divergence if any(one.kl is not None for one in steps) else ()),
                Column(
                    "largest at",
                    [self._cell(one) if one.largest else "" for one in steps],
                    narrow=[_place(one) if one.largest else "" for one in steps],
                    shrink=10,
                    drop=2,
                ),
                Column("A", [number(one.values[0]) if one.largest else "" for one in steps], "right", drop=3),
                Column("B", [number(one.values[1]) if one.largest else "" for one in steps], "right", drop=3),
            ],
            rule_after=frozenset(i for i in range(len(steps) - 1) if _parted(layers[i], layers[i + 1], self.full)),
        )
        if missing:
            said = f"  of each layer the one that differs most; --full shows {missing} more"
            yield Line(Span(said, "dim"))

    def _attention(self, found: Attention) -> Iterator[Block]:
        if any(heads is not None for heads in found.apart):
            n_heads = max(len(heads) for heads in found.apart if heads is not None)
            rows = [heads or (float("nan"),) * n_heads for heads in found.apart]
            values = np.nan_to_num(np.array(rows, dtype=np.float32))
            note = "0: the same weights, 1: weights on other keys; the mean over the queries"
            yield Heading("heads apart", note, "attention")
            labels = [f"L{i}" for i in range(len(rows))], [f"H{i}" for i in range(n_heads)]
            most = float(values.max()) or 1.0
            yield Heat(values, *labels, "unit", None, most, asked=True, digits=_digits(most))
        change = as_array(found.second - found.first)
        seen = None if found.seen is None else found.seen.cpu().numpy()
        note = "B − A, query down, key across; --head chooses another"
        yield Heading(f"L{found.layer}H{found.head}.weights", note, "attention")
        limit = largest(change, seen)
        yield Heat(change, self.names, self.names, "signed", seen, limit or 1.0)

    def _positions(self, rows: int | None) -> Iterator[Block]:
        found = self.found.positions
        if not found:
            return
        keep = shown_rows(len(found), rows)
        kept = [found[i] for i in keep]
        full = max((one.kl for one in found), default=0.0) or 1.0
        shown = self.models[0].tokenizer.shown
        yield Heading("positions", "KL(A‖B) in nats, and what is most probable there", "output")
        yield Table(
            [
                Column("#", [str(one.index) for one in kept], "right", said="position"),
                Column("token", [self.names[one.index] for one in kept], shrink=10, said=""),
                Column("KL", [Meter(one.kl / full, number(one.kl, "%.4f").rjust(8), "output") for one in kept],
                       narrow=[number(one.kl, "%.4f") for one in kept]),
                Column("A", [f"{shown(one.first[0])} {one.first[1]:.3f}" for one in kept], shrink=10),
                Column("B", [f"{shown(one.second[0])} {one.second[1]:.3f}" for one in kept], shrink=10),
            ]
        )  # fmt: skip
        yield from left_out(len(found), keep)

    def _predictions(self) -> Iterator[Block]:
        for one in self.found.predictions:
            text = "the text" if self.texts[0].ids == self.texts[1].ids else "either text"
            where = f"after {text}" if self.models[0].config.causal else f"at the mask, position {one.position}"
            note = f"{where}, KL(A‖B) {number(one.kl, '%.4g')} nats"
            yield Heading("next" if self.models[0].config.causal else "fill", note, "output")
            yield Table(
                [
                    Column("token", [self.models[0].tokenizer.shown(i) for i in one.ids], shrink=10, said=""),
                    Column("A", [Meter(p, f"{p:.4f}", _FIRST) for p in one.first], narrow=_four(one.first)),
                    Column("B", [Meter(p, f"{p:.4f}", _SECOND) for p in one.second], narrow=_four(one.second)),
                    Column("B − A", [f"{b - a:+.4f}" for a, b in zip(one.first, one.second, strict=True)], "right"),
                ]
            )

    def _moved(self) -> Iterator[Block]:
        moved = [one for one in self.found.moved if one.change]
        if not self.two_models:
            return
        if not moved:
            yield Heading("weights", "those that both have in one shape are the same" if self.found.moved else
                          "no parameter is in both models in one shape")  # fmt: skip
            return
        kept, full = moved[:_MOVED], moved[0].ratio if np.isfinite(moved[0].ratio) else 1.0
        yield Heading("weights", f"the {len(kept)} that moved most for their size, of {len(moved)} that did")
        yield Table(
            [
                Column("parameter", [one.name for one in kept], shrink=14, said=""),
                Column("shape", [" × ".join(map(str, one.shape)) for one in kept], drop=1),
                Column("‖Δ‖", [figure(one.change) for one in kept], "right", said="norm of the change"),
                Column("‖W‖", [figure(one.norm) for one in kept], "right", said="norm in A"),
                Column("‖Δ‖ ÷ ‖W‖", [Meter(one.ratio / full, figure(one.ratio).rjust(7), "ffn") for one in kept],
                       narrow=[figure(one.ratio).rjust(7) for one in kept], said="change over norm"),
            ]
        )  # fmt: skip

    def _incomparable(self) -> Iterator[Block]:
        found = self.found.incomparable
        if not found:
            return
        by_reason: dict[tuple[str, str], list[str]] = {}
        for one in found:
            short = one.name.partition(".")[2] if one.name.startswith("L") and "." in one.name else ""
            by_reason.setdefault((one.why, short), []).append(one.name)
        yield Heading("not comparable", f"{len(found)} steps")
        names = [
            f"{names[0]} … {names[-1]}" if short and len(names) > 1 else ", ".join(names)
            for (_, short), names in by_reason.items()
        ]
        yield Table([Column("", names, shrink=20), Column("", [why for why, _ in by_reason], shrink=20)], header=False)

    def _limit(self) -> Iterator[Block]:
        limit, worst = self.found.fail_over, self.found.worst
        if limit is None:
            return
        if worst is None:
            yield Line([Span("check failed", "bad"), Span(": no step can be compared")])
            return
        if self.found.holds:
            said = f": no step differs by more than {limit:g} of a token's largest number"
            yield Line([Span("checked", "good"), Span(said)])
            return
        over = [one for one in self.found.steps if one.relative > limit]
        said = f": {len(over)} of {len(self.found.steps)} steps differ by more than {limit:g}, first {over[0].name}"
        yield Line([Span("check failed", "bad"), Span(said)])


def _parted(layer: int | None, other: int | None, full: bool) -> bool:
    """Whether a gap is between two rows: with all steps between layers, else around them."""
    return layer != other if full else (layer is None) != (other is None)


def _digits(most: float) -> int:
    """Digits after the point that leave two of the largest number."""
    return max(2, min(7, 1 - math.floor(math.log10(most)))) if most < 1 else 2


def _place(one: Compared) -> str:
    """The cell as an address has it, ``H2[1,23]``."""
    head = f"H{one.at[0]}" if one.step.has_heads else ""
    return f"{head}[{','.join(map(str, one.at[bool(head) :]))}]"


def _two(one: Compared) -> str:
    return f"{number(one.values[0], '%.4g')} in A and {number(one.values[1], '%.4g')} in B"


def _four(values: Sequence[float]) -> list[str]:
    return [f"{value:.4f}" for value in values]
