"""A model's architecture, parameters, memory and compute."""

from collections.abc import Iterator, Mapping

from tinytf.config import ModelConfig
from tinytf.look.size import Info
from tinytf.steps.table import table_of
from tinytf.text.printable import printable
from tinytf_cli.numbers import in_bytes
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import notes
from tinytf_cli.views.blocks import Block, Cell, Column, Heading, Line, Span, Table
from tinytf_cli.views.parts import verdict


def _flops(number: int) -> str:
    for unit, size in (("GFLOP", 10**9), ("MFLOP", 10**6), ("kFLOP", 10**3)):
        if number >= size:
            return f"{number / size:,.2f} {unit}"
    return f"{number} FLOP"


def _both_widths(config: ModelConfig) -> str:
    """The widths of a key and of a value, in letters."""
    return "2·d_head" if config.value_width == config.d_head else f"({config.d_head} + {config.value_width})"


def _scored(config: ModelConfig) -> str:
    """The products with the embeddings of distances, beside those with tokens."""
    times = "2 · " if config.distance_keys and config.distance_queries else ""
    return f" + L · 2 · {times}H·d_head · {2 * config.distances:,} distances" if config.distances else ""


def _units(config: ModelConfig) -> str:
    """The formula of the feed-forward's work, of experts those that a token goes to."""
    times = f"2 · {3 if config.gated else 2} · d_model"
    if not config.experts:
        return f"L · {times} · d_ff"
    shared = " + d_shared" if config.d_shared else ""
    return f"{times} · ({config.experts_per_token}·d_expert{shared}) + the router, in layers with experts"


def _in_words(value: object) -> str:
    """A value of a model card; what it has by name, or several of, one after the other."""
    if isinstance(value, Mapping):
        each = ((name.replace("_", " "), _in_words(one), isinstance(one, Mapping)) for name, one in value.items())
        return ", ".join(f"{name} ({said})" if nested else f"{name} {said}" for name, said, nested in each)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_in_words, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


class InfoView:
    """The facts and figures of a configuration, drawn."""

    def __init__(self, found: Info) -> None:
        self.found = found

    def blocks(self, terminal: Terminal) -> Iterator[Block]:
        """Architecture, parameter table, memory and compute."""
        c = self.found.config
        name = printable(self.found.name, spaces=False)
        yield Line([Span(name, "strong"), Span(f" · {c.kind} · {self.found.total:,} parameters")])
        yield from notes(self.found)
        yield Heading("architecture")
        facts = [
            ("family", self.found.family),
            *((row, printable(words, spaces=False)) for row, words in c.described().items()),
        ]
        yield Table([Column("", [k for k, _ in facts]), Column("", [v for _, v in facts], shrink=20)], header=False)
        yield Heading("parameters")
        yield self._parameters()
        if self.found.counted is not None:
            yield verdict(self.found.holds, f"the opened model holds {self.found.counted:,}", indent=2)
        yield Heading("memory and compute")
        rows = self._figures()
        yield Table(
            [
                Column("", [row[0] for row in rows]),
                Column("", [row[1] for row in rows], "right"),
                Column("", [Span(row[2], "dim") for row in rows], shrink=20),
            ],
            header=False,
        )
        if self.found.card:
            yield Heading("model card")
            for key, value in self.found.card.items():
                name = printable(f"{key.replace('_', ' ')}: ", spaces=False)
                yield Line([Span(name, "dim"), Span(printable(_in_words(value), spaces=False))], 2)

    def _parameters(self) -> Table:
        parts = self.found.parts
        names = [*(p.name for p in parts), "total"]
        formulas: list[Cell] = [*(Span(p.formula, "dim") for p in parts), ""]
        symbols: list[Cell] = [
            *(Span(p.formula.partition(" = ")[0] if p.each else p.formula, "dim") for p in parts),
            "",
        ]
        return Table(
            [
                Column("component", [*names[:-1], Span("total", "strong")]),
                Column("each", [*(f"{p.each:,}" for p in parts), ""], "right"),
                Column("copies", [*(f"× {p.copies}" if p.copies > 1 else "" for p in parts), ""], "right", drop=2),
                Column("total", [*(f"{p.total:,}" for p in parts), Span(f"{self.found.total:,}", "strong")], "right"),
                Column("share", [*(f"{100 * p.total / self.found.total:.1f} %" for p in parts), ""], "right"),
                Column("formula", formulas, narrow=symbols, shrink=12),
            ],
            rule_after=frozenset({len(parts) - 1}),
        )

    def _figures(self) -> list[tuple[str, str, str]]:
        c, work, memory = self.found.config, self.found.work, self.found.memory_bytes
        attending = len(table_of(c).attending)
        some, layers = attending < c.n_layers, str(attending) if attending < c.n_layers else "L"
        mixed = f"{layers} · 2 · H·{_both_widths(c)} · visible tokens{_scored(c)}"
        rows = [
            ("weights, fp32", in_bytes(memory["fp32"]), "4 bytes per parameter"),
            ("weights, bf16", in_bytes(memory["bf16"]), "2 bytes per parameter"),
            ("compute per token", _flops(work.total), f"at {c.context:,} tokens; multiply-add = 2 FLOP"),
            (
                "  projections",
                _flops(work.projections),
                "L · 2 · (their matrices)" if c.kv_rank or some else "L · 2 · d_model · (2·H + 2·G)·d_head",
            ),
            ("  attention", _flops(work.attention), mixed + ", and states" * some),
            ("  feed-forward", _flops(work.feed_forward), _units(c)),
            ("  head", _flops(work.head), "2 · d_model · V"),
        ]
        if c.causal:
            cache = self.found.cache_bytes["fp32"]
            rows.append(("KV cache per token, fp32", in_bytes(cache), f"{layers} · G · {_both_widths(c)} · 4 bytes"))
            rows.append(("KV cache, full context", in_bytes(cache * c.context), f"× {c.context:,} tokens"))
        return rows
