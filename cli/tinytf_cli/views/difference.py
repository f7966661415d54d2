"""The view of a difference: where it begins, how it goes on step by step, and what it changes in the end."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

import numpy as np

from tinytf.compare.compared import Compared
from tinytf.compare.difference import Difference
from tinytf.compare.dumps.dumped import Dumped
from tinytf.compare.in_step import Attention
from tinytf.loading import Model
from tinytf.report import About
from tinytf.text.printable import printable
from tinytf.text.tokenizer import Encoding
from tinytf_cli.numbers import SHARE, plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner, model_words, notes, tokenizer_words
from tinytf_cli.views.blocks import Block, Column, Figure, Heading, Heat, Line, Piece, Span, Table
from tinytf_cli.views.parts import (
    NO_NUMBER,
    bar_column,
    figures,
    first_of,
    folded,
    head_map,
    map_digits,
    middle_out,
    most_rows,
    note,
    one_form,
    share_column,
    signed_bars,
    size_column,
    titled,
    verdict,
)
from tinytf_cli.views.steps import as_array, largest

_STEPS, _ROWS, _MOVED, _TEXT, _VALUE = 6, 3, 5, 20, 40
"""How many steps, rows, parameters and tokens of the texts are shown, unless more are asked for; a value's letters."""
_FIRST, _SECOND = "q", "k"  # blue and orange, the ends of every diverging map


class DifferenceView:
    """Two runs side by side, A and B, drawn; ``full`` shows every step, ``head`` the weights of the compared head."""

    def __init__(
        self, found: Difference, rows: int | None, full: bool = False, head: bool = False, top: int = 0
    ) -> None:
        self.found, self.rows, self.full, self.head, self.top = found, rows, full, head, top
        self.whole = rows == 0
        self.models = tuple(cast("Model", side.model) for side in found.sides if isinstance(side, About))
        self.dumps = tuple(side for side in found.sides if isinstance(side, Dumped))
        self.config = self.models[0].config if self.models else self.dumps[0].config
        self.texts = texts = tuple(side.text for side in found.sides if side.text is not None)
        self.shown: Callable[[int], str] = self.models[0].shown if self.models else partial(_known, texts[0])
        self.causal = self.config.causal
        self.one_text = texts[0].ids == texts[1].ids
        self.names = [
            a.shown if a.id == b.id else f"{a.shown} / {b.shown}"
            for a, b in zip(texts[0].tokens, texts[1].tokens, strict=False)
        ][: found.alignment.positions]

    @property
    def two_models(self) -> bool:
        return len(self.models) > 1 and self.models[0] is not self.models[1]

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """What is compared, where it begins to differ, every step, and what comes of it."""
        yield from self._banner()
        yield Line("")
        if self.found.equal:
            yield titled("nothing differs", f": all {len(self.found.steps)} steps are the same", "good")
            yield from self._limit()
            return
        yield from self._settings()
        yield from self._first()
        yield from self._outcome()
        yield from self._predictions()
        if self.whole:
            yield from self._map()
        yield from self._steps()
        if self.found.attention is not None:
            if self.whole:
                yield from self._apart(self.found.attention)
            if self.whole or self.head:
                yield from self._weights(self.found.attention)
        if self.whole or not self.dumps:
            yield from self._positions()
        if self.two_models:
            yield from self._moved()
        yield from self._incomparable()
        for dump in self.dumps:
            yield from self._read(dump)
        if not self.whole and self.found.steps:
            yield Line("")
            yield note("--all shows the map of every step and layer, every head and every row; --full every step")
        if outcome := list(self._limit()):
            yield Line("")
            yield from outcome

    def _banner(self) -> Iterator[Block]:
        if self.two_models or self.dumps:
            for letter, side, role in zip("AB", self.found.sides, (_FIRST, _SECOND), strict=True):
                if isinstance(side, Dumped):
                    yield from self._dump(letter, side, role)
                    continue
                model = cast("Model", side.model)
                yield Line([Span(f"{letter} ", role), *model_words(model)])
                yield from notes(model)
            for model in () if self.dumps else self.models[:1]:
                yield Line(tokenizer_words(model.tokenizer, model.tokenizer_note, self.texts[0]))
        else:
            yield from banner(self.models[0], self.texts[0])
        changed = set(self.found.alignment.changed)
        both, each = [("A and B ", self.texts[0], "")], zip(("A ", "B "), self.texts, (_FIRST, _SECOND), strict=True)
        for letter, text, role in both if self.one_text else each:
            keep = set(middle_out(len(text.tokens), None if self.whole else _TEXT))
            keep |= set(sorted(changed)[:_TEXT])
            spans = [Span(letter, role or "strong")]
            for i, token in enumerate(text.tokens):
                if i in keep:
                    spans += [
                        Span(f" {token.shown}", role if i in changed and role else "dim" if token.special else "")
                    ]
                elif i - 1 in keep:
                    spans.append(Span(" …", "dim"))
            yield Line([*spans, Span(f"   {plural(len(text.tokens), 'token')}", "dim")])
        if self.found.alignment.note:
            yield titled("note", f": {self.found.alignment.note}")

    def _dump(self, letter: str, side: Dumped, role: str) -> Iterator[Block]:
        """What a dump holds, and what of it is compared."""
        count, unmatched = len(side.dump.shapes), side.named.unmatched
        used = (
            f"{plural(len(side.named.found), 'tensor')} of {count:,} are steps"
            if unmatched
            else plural(count, "tensor")
        )
        words = [
            Span(f"{letter} ", role),
            Span(side.dump.name, "strong"),
            Span(f" · {used} · names of {side.named.spelling}"),
        ]
        yield Line(words)

    def _read(self, side: Dumped) -> Iterator[Block]:
        """How the tensors of a dump were read, and which were not."""
        unmatched = side.named.unmatched
        done = Counter(words for said in side.said.values() for words in said)
        said = [f"{words} in {plural(times, 'step')}" for words, times in done.most_common(4)]
        if unmatched:
            alike = Counter(printable(re.sub(r"\d+", "N", one), spaces=False) for one in unmatched)
            names = [f"{name} ({plural(times, 'tensor')})" for name, times in alike.items()]
            said.append(f"not compared, since no step is called so: {first_of(names, 3)}")
        if said:
            yield note("; ".join(said))

    def _settings(self) -> Iterator[Block]:
        """The settings that are not the same, before what comes of them."""
        found = self.found.settings
        if found:
            words = [f"{one.name} {_value(one.first)} in A and {_value(one.second)} in B" for one in found]
            yield titled("settings", f": {first_of(words, len(words) if self.whole else 4)}")

    def _first(self) -> Iterator[Block]:
        """The first difference beyond the tolerance, and the largest."""
        found, limit = self.found, f"{self.found.tolerance:.0e} of a token's largest number"
        if not found.steps:
            yield titled("no step", " of the two can be compared", "bad")
            return
        if found.first is None:
            yield titled("within the tolerance", f": no step by more than {limit}", "good")
        else:
            one = found.first
            a, b = (Figure(value, "%.4g") for value in one.values)
            said = f" at {one.name}, beyond {limit}: {self._cell(one)} is "
            yield titled("first difference", [said, a, " in A and ", b, " in B"])
            if one.unlike:
                whole = math.prod(one.shape)
                yield titled("not finite", f": {one.unlike:,} of its {whole:,} numbers are NaN or ∞ on one side alone")
            yield from self._cause()
        if (worst := found.worst) is not None and worst is not found.first and worst.largest:
            at = f" at {self._token(worst)}" if worst.token is not None else ""
            size = Figure(worst.relative, "%.3g")
            yield titled("largest difference", [f" at {worst.name}: ", size, f" of the largest number{at}"])
        if (heads := found.attention) is not None and (apart := heads.apart[heads.layer]) is not None:
            name, share = Span(f"L{heads.layer}H{heads.head}", "attention"), Figure(apart[heads.head], "%.3f")
            which = "" if self.head else ", more than in any other head"
            yield titled("attention", [": in ", name, " ", share, f" of the weights are on other keys{which}"])

    def _cause(self) -> Iterator[Block]:
        """Why it begins there, or where else it may begin."""
        cause, rescaled = self.found.cause, self.found.rescaled
        if rescaled is not None:
            said = f": {rescaled.step} of B is that of A only when multiplied by {rescaled.factor:.4g}, as done here"
            yield titled(
                "rescaled", f"{said}; a program that lacks this factor would differ next, so no cause is named"
            )
        if cause is None:
            return
        if cause.found:
            yield titled("cause", f" at {cause.step}: {cause.words}; with that, A gives the numbers of B", "good")
            return
        if cause.words:
            yield titled("likely", f": {cause.words}")
        if cause.unseen:
            names = f"{cause.unseen[0]} … {cause.unseen[-1]}" if len(cause.unseen) > 2 else " and ".join(cause.unseen)
            lacks = plural(len(cause.unseen), "step")
            yield titled("or before", f": {names}, {lacks} that could not be compared; with them the place is certain")

    def _outcome(self) -> Iterator[Block]:
        found = self.found
        divergence = next((one.kl for one in found.steps if one.name == "logits"), None)
        if divergence is not None:
            words: list[Piece] = [Figure(divergence, "%.4g"), " nats, the mean over the positions"]
            if found.predictions:
                words += [
                    "; ",
                    Figure(found.predictions[0].kl, "%.4g"),
                    f" at the {'next token' if self.causal else 'first mask'}",
                ]
            yield titled("KL(A‖B)", [" ", *words])
        if found.losses is not None:
            a, b = (Figure(loss, "%.4f") for loss in found.losses)
            change = Figure(found.losses[1] - found.losses[0], "%+.4f")
            yield titled("loss", [" of the text ", a, " nats per token in A, ", b, " in B (", change, ")"])

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
                parts.append(f"{'H' if axis in ('head', 'kv head') else 'E' if axis == 'expert' else 'd'}{place}")
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
        said = f"within a token, in units of its largest number; layers {layers[0]} to {layers[-1]} across"
        yield Heading("relative difference", said)
        seen, columns = ~np.isnan(values), [f"L{layer}" for layer in layers]
        most = float(values[seen].max()) or 1.0
        shown = None if seen.all() else seen
        digits = map_digits(most)
        yield Heat(np.nan_to_num(values), names, columns, "unit", shown, most, digits=digits, hidden=NO_NUMBER)

    def _telling(self) -> list[Compared]:
        """The first difference, the step of each layer that differs most for its size, and those outside the layers.

        A step in which nothing differs is not among them, nor one before the first difference.
        """
        steps = [one for one in self.found.steps if one.largest]
        if self.found.first is not None:
            steps = steps[steps.index(self.found.first) :]
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
        form = one_form(one.relative for one in steps)
        divergence = Column("KL", figures([one.kl for one in steps]), "right")
        numbers = [str(one.token) if self._token(one) else "" for one in steps]
        a, b = (figures([one.values[side] if one.largest else None for one in steps]) for side in (0, 1))
        table = Table(
            [
                Column("step", [Span(one.name, one.step.role) for one in steps], said=""),
                Column("largest", figures([one.largest for one in steps]), "right", said="largest difference"),
                bar_column("relative", shares, [Figure(one.relative, form) for one in steps], _SECOND),
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
                Column("A", a, "right", drop=3),
                Column("B", b, "right", drop=3),
            ],
            rule_after=frozenset(
                i for i in range(len(steps) - 1) if self.full and steps[i].layer != steps[i + 1].layer
            ),
        )
        yield from folded(table, [one.name for one in steps], None if self.whole or self.full else _STEPS, "steps")
        if missing:
            yield note(f"the step that differs most in each layer; --full shows {missing} more")

    def _apart(self, found: Attention) -> Iterator[Block]:
        """How far the weights of each head are apart."""
        if any(heads is not None for heads in found.apart):
            n_heads = max(len(heads) for heads in found.apart if heads is not None)
            values = np.nan_to_num(np.array([heads or (np.nan,) * n_heads for heads in found.apart], dtype=np.float32))
            said = "0: the same weights, 1: weights on other keys; the mean over the queries"
            yield Heading("heads apart", said, "attention")
            most = float(values.max()) or 1.0
            yield from head_map(values, "unit", most, map_digits(most), whole=True)

    def _weights(self, found: Attention) -> Iterator[Block]:
        """What one head looks at more, or less, in B."""
        change = as_array(found.second - found.first)
        seen = None if found.seen is None else found.seen.cpu().numpy()
        said = "B − A, query down, key across; --head chooses another"
        yield Heading(f"L{found.layer}H{found.head}.weights", said, "attention")
        yield Heat(change, self.names, self.names, "signed", seen, largest(change, seen) or 1.0)

    def _positions(self) -> Iterator[Block]:
        found = self.found.positions
        if not found:
            return
        yield Heading("positions", "KL(A‖B) in nats, and what is most probable there", "output")
        table = Table(
            [
                Column("#", [str(one.index) for one in found], "right", said="position"),
                Column("token", [self.names[one.index] for one in found], shrink=10, said=""),
                size_column("KL", [one.kl for one in found], "output"),
                Column("A", [[self.shown(one.first[0]), " ", Figure(one.first[1], SHARE)] for one in found], shrink=10),
                Column(
                    "B", [[self.shown(one.second[0]), " ", Figure(one.second[1], SHARE)] for one in found], shrink=10
                ),
            ]
        )
        keep = self.found.telling(most_rows(self.rows, _ROWS))
        yield table.only(keep)
        if len(keep) < len(found):
            yield note(f"the {len(keep)} of {len(found)} positions that differ most; --all shows the others")

    def _predictions(self) -> Iterator[Block]:
        for one in self.found.predictions:
            text = "the text" if self.one_text else "either text"
            where = f"after {text}" if self.causal else f"at the mask, position {one.position}"
            if self.config.labels:
                yield Heading("class", "of the text", "output")
            else:
                yield Heading("next" if self.causal else "fill", where, "output")
            table = Table(
                [
                    Column("token", [self.shown(i) for i in one.ids], shrink=10, said=""),
                    share_column("A", one.first, _FIRST, like=one.second),
                    share_column("B", one.second, _SECOND, like=one.first),
                    signed_bars("B − A", one.change, one_form(one.change, sign=True)),
                ]
            )
            keep = range(len(one.ids) if self.whole else min(len(one.ids), max(_ROWS, self.top)))
            yield table.only(keep)
            if len(keep) < len(one.ids):
                yield note(f"the first {len(keep)} of {len(one.ids)} tokens; --all shows the others")

    def _moved(self) -> Iterator[Block]:
        moved = [one for one in self.found.moved if one.change]
        if not moved:
            same = "all parameters that both have in one shape are the same"
            yield Heading("weights", same if self.found.moved else "no parameter is in both models in one shape")
            return
        kept = moved[: None if self.whole else _MOVED]
        yield Heading("weights", f"the {len(kept)} that moved most for their size, of {len(moved)} that did")
        yield Table(
            [
                Column("parameter", [one.name for one in kept], shrink=14, said=""),
                Column("shape", [" × ".join(map(str, one.shape)) for one in kept], drop=1),
                Column("‖Δ‖", figures([one.change for one in kept]), "right", said="norm of the change"),
                Column("‖W‖", figures([one.norm for one in kept]), "right", said="norm in A"),
                size_column("‖Δ‖ ÷ ‖W‖", [one.ratio for one in kept], "ffn", said="change over norm"),
            ]
        )

    def _incomparable(self) -> Iterator[Block]:
        missing = self.found.missing
        if missing:
            these = f": {', '.join(missing)}" if self.whole else ", such as " + missing[-1] + "; --all names them"
            files = " or ".join(one.dump.name for one in self.dumps)
            yield note(f"{plural(len(missing), 'step')} of the model not in {files}{these}")
        found = self.found.incomparable
        if not found:
            return
        by_reason: dict[tuple[str, str], list[str]] = {}
        for one in found:
            short = one.name.partition(".")[2] if one.name.startswith("L") and "." in one.name else ""
            by_reason.setdefault((one.why, short), []).append(one.name)
        if not self.whole and self.found.steps:
            yield note(f"{plural(len(found), 'step')} cannot be compared; --all shows why")
            return
        yield Heading("not comparable", plural(len(found), "step"))
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


def _value(value: object) -> str:
    """A setting's value; a long one is cut."""
    said = f"{value:,g}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
    return printable(said if len(said) <= _VALUE else said[: _VALUE - 1] + "…", spaces=False)


def _known(text: Encoding, number: int) -> str:
    """A token by its name where it is in the text, else by its number."""
    return next((token.shown for token in text.tokens if token.id == number), f"#{number}")


def _place(one: Compared) -> str:
    """The cell as an address has it, ``H2[1,23]``."""
    head = f"{one.step.letter}{one.at[0]}" if one.step.is_split else ""
    return f"{head}[{','.join(map(str, one.at[bool(head) :]))}]"
