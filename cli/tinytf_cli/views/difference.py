"""The view of a difference: where it begins, how it goes on step by step, and what it changes in the end."""

import math
from collections.abc import Iterator, Sequence

import numpy as np

from tinytf.analysis.compared import Compared
from tinytf.analysis.difference import Attention, Difference
from tinytf.loading import Model
from tinytf_cli.numbers import number, plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.backward import figure
from tinytf_cli.views.banner import banner, model_words, notes, tokenizer_words
from tinytf_cli.views.blocks import Block, Column, Figure, Heading, Heat, Line, Span, Table
from tinytf_cli.views.parts import bar_column, full_scale, head_map, row_limit, titled, verdict
from tinytf_cli.views.steps import as_array, largest, left_out, shown_rows

_MOVED = 10
_FIRST, _SECOND = "q", "k"  # blue and orange, the ends of every diverging map


class DifferenceView:
    """Two runs side by side, A and B, drawn."""

    def __init__(self, models: tuple[Model, Model], found: Difference, rows: int | None, full: bool = False) -> None:
        self.models, self.found, self.rows, self.full = models, found, rows, full
        self.texts = texts = tuple(side.text for side in found.sides if side.text is not None)
        self.shown, self.causal = models[0].tokenizer.shown, models[0].config.causal
        self.one_text = texts[0].ids == texts[1].ids
        self.names = [
            a.shown if a.id == b.id else f"{a.shown} / {b.shown}"
            for a, b in zip(texts[0].tokens, texts[1].tokens, strict=False)
        ][: found.alignment.positions]

    @property
    def two_models(self) -> bool:
        return self.models[0] is not self.models[1]

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """What is compared, where it begins to differ, every step, and what comes of it."""
        yield from self._banner()
        yield Line("")
        if self.found.equal:
            yield titled("nothing differs", f": all {len(self.found.steps)} steps are the same", "good")
            yield from self._limit()
            return
        yield from self._first()
        yield from self._map()
        yield from self._steps()
        if self.found.attention is not None:
            yield from self._attention(self.found.attention)
        yield from self._positions(row_limit(terminal, self.rows))
        yield from self._predictions()
        if self.two_models:
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
        both, each = [("A and B ", self.texts[0], "")], zip(("A ", "B "), self.texts, (_FIRST, _SECOND), strict=True)
        for letter, text, role in both if self.one_text else each:
            spans = [Span(letter, role or "strong")]
            for i, token in enumerate(text.tokens):
                spans += [Span(f" {token.shown}", role if i in changed and role else "dim" if token.special else "")]
            yield Line([*spans, Span(f"   {plural(len(text.tokens), 'token')}", "dim")])
        if self.found.alignment.note:
            yield titled("note", f": {self.found.alignment.note}")

    def _first(self) -> Iterator[Block]:
        """The first difference beyond the tolerance, and the largest."""
        found, limit = self.found, f"{self.found.tolerance:.0e} of a token's largest number"
        if not found.steps:
            yield titled("no step", " of the two models can be compared", "bad")
            return
        if found.first is None:
            yield titled("within the tolerance", f": no step by more than {limit}", "good")
        else:
            one = found.first
            a, b = (number(value, "%.4g") for value in one.values)
            said = f" at {one.name}, beyond {limit}: {self._cell(one)} is {a} in A and {b} in B"
            yield titled("first difference", said)
        if (worst := found.worst) is not None and worst is not found.first and worst.largest:
            at = f" at {self._token(worst)}" if worst.token is not None else ""
            yield titled("largest difference", f" at {worst.name}: {figure(worst.relative)} of the largest number{at}")

    def _outcome(self) -> Iterator[Block]:
        found = self.found
        divergence = next((one.kl for one in found.steps if one.name == "logits"), None)
        if divergence is not None:
            said = f" {number(divergence, '%.4g')} nats, the mean over the positions"
            if found.predictions:
                where = "next token" if self.causal else "first mask"
                said += f"; {number(found.predictions[0].kl, '%.4g')} at the {where}"
            yield titled("KL(A‖B)", said)
        if found.losses is not None:
            a, b = found.losses
            yield titled("loss", f" of the text {a:.4f} nats per token in A, {b:.4f} in B ({b - a:+.4f})")

    def _position(self, place: int) -> str:
        """``1 ·cat``, or the tokens of both texts where they differ."""
        name = self.names[place]
        return name if " / " in name else f"{place} {name}"

    def _token(self, one: Compared) -> str:
        """The token whose numbers differ most for their size."""
        return "" if one.token is None or not one.relative else self._position(one.token)

    def _cell(self, one: Compared) -> str:
        """The cell that differs most, in words."""
        parts = []
        for axis, place in zip(one.step.axes, one.at, strict=True):
            if axis in ("token", "query", "key"):
                parts.append(self._position(place))
            elif axis == "vocab":
                parts.append(self.shown(place))
            else:
                parts.append(f"{'H' if axis in ('head', 'kv head') else 'd'}{place}")
        return ", ".join(parts)

    def _map(self) -> Iterator[Block]:
        """Relative differences of the steps of all layers."""
        inside = [one for one in self.found.steps if one.layer is not None]
        layers = sorted({one.layer for one in inside if one.layer is not None})
        if len(layers) < 2:
            return
        names = list(dict.fromkeys(one.step.name for one in inside))
        values = np.full((len(names), len(layers)), np.nan, dtype=np.float32)
        for one in inside:  # no finite one is above 2
            values[names.index(one.step.name), layers.index(one.layer or 0)] = min(2.0, one.relative)
        note = f"within a token, in units of its largest number; layers {layers[0]} to {layers[-1]} across"
        yield Heading("relative difference", note)
        seen, columns = ~np.isnan(values), [f"L{layer}" for layer in layers]
        most = float(values[seen].max()) or 1.0
        shown = None if seen.all() else seen
        yield Heat(np.nan_to_num(values), names, columns, "unit", shown, most, digits=_digits(most))

    def _telling(self) -> list[Compared]:
        """The first difference, the step of each layer that differs most for its size, and those outside the layers.

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
        shares = [min(1.0, one.relative) if one.relative > limit else 0.0 for one in steps]
        divergence = Column("KL", ["" if one.kl is None else Figure(one.kl, "%.4g") for one in steps], "right")
        numbers = [str(one.token) if self._token(one) else "" for one in steps]
        yield Table(
            [
                Column("step", [Span(one.name, one.step.role) for one in steps], said=""),
                Column("largest", [figure(one.largest) for one in steps], "right", said="largest difference"),
                bar_column("relative", shares, [figure(one.relative) for one in steps], _SECOND),
                Column("token", [self._token(one) for one in steps], narrow=numbers, shrink=8, drop=1),
                Column("cosine", [Figure(one.cosine, "%.6f") for one in steps], "right"),
                *([divergence] if any(divergence.cells) else []),
                Column(
                    "largest at",
                    [self._cell(one) if one.largest else "" for one in steps],
                    narrow=[_place(one) if one.largest else "" for one in steps],
                    shrink=10,
                    drop=2,
                ),
                Column("A", [Figure(one.values[0]) if one.largest else "" for one in steps], "right", drop=3),
                Column("B", [Figure(one.values[1]) if one.largest else "" for one in steps], "right", drop=3),
            ],
            rule_after=frozenset(
                i for i in range(len(steps) - 1) if _parted(steps[i].layer, steps[i + 1].layer, self.full)
            ),
        )
        if missing:
            yield Line(Span(f"  the step that differs most in each layer; --full shows {missing} more", "dim"))

    def _attention(self, found: Attention) -> Iterator[Block]:
        if any(heads is not None for heads in found.apart):
            n_heads = max(len(heads) for heads in found.apart if heads is not None)
            values = np.nan_to_num(np.array([heads or (np.nan,) * n_heads for heads in found.apart], dtype=np.float32))
            note = "0: the same weights, 1: weights on other keys; the mean over the queries"
            yield Heading("heads apart", note, "attention")
            most = float(values.max()) or 1.0
            yield head_map(values, "unit", most, _digits(most))
        change = as_array(found.second - found.first)
        seen = None if found.seen is None else found.seen.cpu().numpy()
        note = "B − A, query down, key across; --head chooses another"
        yield Heading(f"L{found.layer}H{found.head}.weights", note, "attention")
        yield Heat(change, self.names, self.names, "signed", seen, largest(change, seen) or 1.0)

    def _positions(self, rows: int | None) -> Iterator[Block]:
        found = self.found.positions
        if not found:
            return
        keep = shown_rows(len(found), rows)
        kept = [found[i] for i in keep]
        full = full_scale(one.kl for one in found)
        yield Heading("positions", "KL(A‖B) in nats, and what is most probable there", "output")
        yield Table(
            [
                Column("#", [str(one.index) for one in kept], "right", said="position"),
                Column("token", [self.names[one.index] for one in kept], shrink=10, said=""),
                bar_column("KL", [one.kl / full for one in kept], [number(one.kl, "%.4f") for one in kept], "output"),
                Column("A", [f"{self.shown(one.first[0])} {one.first[1]:.3f}" for one in kept], shrink=10),
                Column("B", [f"{self.shown(one.second[0])} {one.second[1]:.3f}" for one in kept], shrink=10),
            ]
        )
        yield from left_out(len(found), keep)

    def _predictions(self) -> Iterator[Block]:
        for one in self.found.predictions:
            text = "the text" if self.one_text else "either text"
            where = f"after {text}" if self.causal else f"at the mask, position {one.position}"
            note = f"{where}, KL(A‖B) {number(one.kl, '%.4g')} nats"
            yield Heading("next" if self.causal else "fill", note, "output")
            yield Table(
                [
                    Column("token", [self.shown(i) for i in one.ids], shrink=10, said=""),
                    bar_column("A", one.first, _four(one.first), _FIRST),
                    bar_column("B", one.second, _four(one.second), _SECOND),
                    Column("B − A", [f"{b - a:+.4f}" for a, b in zip(one.first, one.second, strict=True)], "right"),
                ]
            )

    def _moved(self) -> Iterator[Block]:
        moved = [one for one in self.found.moved if one.change]
        if not moved:
            same = "all parameters that both have in one shape are the same"
            yield Heading("weights", same if self.found.moved else "no parameter is in both models in one shape")
            return
        kept, full = moved[:_MOVED], moved[0].ratio if np.isfinite(moved[0].ratio) else 1.0
        shares, ratios = [one.ratio / full for one in kept], [figure(one.ratio) for one in kept]
        yield Heading("weights", f"the {len(kept)} that moved most for their size, of {len(moved)} that did")
        yield Table(
            [
                Column("parameter", [one.name for one in kept], shrink=14, said=""),
                Column("shape", [" × ".join(map(str, one.shape)) for one in kept], drop=1),
                Column("‖Δ‖", [figure(one.change) for one in kept], "right", said="norm of the change"),
                Column("‖W‖", [figure(one.norm) for one in kept], "right", said="norm in A"),
                bar_column("‖Δ‖ ÷ ‖W‖", shares, ratios, "ffn", said="change over norm"),
            ]
        )

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
        """Whether --fail-over is kept."""
        limit, steps = self.found.fail_over, self.found.steps
        if limit is None:
            return
        over = [one for one in steps if one.relative > limit]
        said = f"no step differs by more than {limit:g} of a token's largest number"
        if self.found.worst is None:
            said = "no step can be compared"
        elif over:
            said = f"{len(over)} of {len(steps)} steps differ by more than {limit:g}, first {over[0].name}"
        yield verdict(self.found.holds, said)


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


def _four(values: Sequence[float]) -> list[str]:
    return [f"{value:.4f}" for value in values]
