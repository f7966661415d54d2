"""A model's architecture, parameters, memory and compute."""

import math
from collections.abc import Iterator, Mapping

from tinytf.config import ModelConfig
from tinytf.look.info import Info
from tinytf.steps.table import table_of
from tinytf.text.printable import printable
from tinytf_cli.numbers import in_bytes, plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import notes
from tinytf_cli.views.blocks import Block, Cell, Column, Heading, Line, Span, Table
from tinytf_cli.views.draw import Display, draws
from tinytf_cli.views.parts import note, verdict


def _flops(number: int) -> str:
    for unit, size in (("GFLOP", 10**9), ("MFLOP", 10**6), ("kFLOP", 10**3)):
        if number >= size:
            return f"{number / size:,.2f} {unit}"
    return f"{number} FLOP"


def _both_widths(config: ModelConfig) -> str:
    """The width of a key plus that of a value, as a formula."""
    return "2·d_head" if config.value_width == config.d_head else f"({config.d_head} + {config.value_width})"


def _distance_term(config: ModelConfig) -> str:
    """The term of attention's compute formula for the products with distance embeddings."""
    times = "2 · " if config.distance_keys and config.distance_queries else ""
    return f" + L · 2 · {times}H·d_head · {2 * config.distances:,} distances" if config.distances else ""


def _feed_forward_formula(config: ModelConfig) -> str:
    """The compute formula of the feed-forward; of experts, only those that a token is routed to count."""
    times = f"2 · {3 if config.gated else 2} · d_model"
    if not config.experts:
        return f"L · {times} · d_ff"
    shared = " + d_shared" if config.d_shared else ""
    return f"{times} · ({config.experts_per_token}·d_expert{shared}) + the router, in layers with experts"


def _in_words(value: object) -> str:
    """A value of a model card; the items of a mapping or a list, separated by commas."""
    if isinstance(value, Mapping):
        items = ((name.replace("_", " "), _in_words(item), isinstance(item, Mapping)) for name, item in value.items())
        return ", ".join(f"{name} ({words})" if nested else f"{name} {words}" for name, words, nested in items)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_in_words, value))
    return f"{value:,}" if isinstance(value, int) else str(value)


@draws(Info)
def info(report: Info, terminal: Terminal, display: Display) -> Iterator[Block]:
    """Architecture, parameter table, memory and compute."""
    config, name = report.config, printable(report.name, spaces=False)
    yield Line([Span(name, "strong"), Span(f" · {config.kind} · {report.total:,} parameters")])
    yield from notes(report)
    if report.batch is not None:
        yield from _shapes(report)
        return
    yield Heading("architecture")
    facts = [
        ("family", report.family),
        *((row, printable(words, spaces=False)) for row, words in config.described().items()),
    ]
    yield Table([Column("", [k for k, _ in facts]), Column("", [v for _, v in facts], shrink=20)], header=False)
    yield Heading("parameters")
    yield _parameters(report)
    if report.counted is not None:
        yield verdict(report.holds, f"the opened model holds {report.counted:,}", indent=2)
    yield Heading("memory and compute")
    rows = _figures(report)
    yield Table(
        [
            Column("", [row[0] for row in rows]),
            Column("", [row[1] for row in rows], "right"),
            Column("", [Span(row[2], "dim") for row in rows], shrink=20),
        ],
        header=False,
    )
    if report.card:
        yield Heading("model card")
        for key, value in report.card.items():
            name = printable(f"{key.replace('_', ' ')}: ", spaces=False)
            yield Line([Span(name, "dim"), Span(printable(_in_words(value), spaces=False))], 2)


def _shapes(report: Info) -> Iterator[Block]:
    """The tensor of every step for the whole batch, with the memory that it takes."""
    assert report.batch is not None
    texts, tokens = report.batch
    shapes, layers = report.shapes, report.config.n_layers
    yield Heading("a batch", f"{plural(texts, 'text')} of {plural(tokens, 'token')} each, computed side by side")
    first = f"; of {layers} layers the first" if layers > 1 else ""
    yield note(f"what depends on a text has a batch axis; no step mixes texts; shorter ones are padded{first}")
    yield Table(
        [
            Column("step", [Span(row.step, row.role) for row in shapes]),
            Column("shape", [f"({', '.join(map(str, row.shape))})" for row in shapes], shrink=20),
            Column("axes", [Span(" × ".join(row.axes), "dim") for row in shapes], drop=1),
            Column("fp32", [in_bytes(4 * math.prod(row.shape)) for row in shapes], "right"),
        ]
    )


def _parameters(report: Info) -> Table:
    parts = report.parts
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
            Column("total", [*(f"{p.total:,}" for p in parts), Span(f"{report.total:,}", "strong")], "right"),
            Column("share", [*(f"{100 * p.total / report.total:.1f} %" for p in parts), ""], "right"),
            Column("formula", formulas, narrow=symbols, shrink=12),
        ],
        rule_after=frozenset({len(parts) - 1}),
    )


def _figures(report: Info) -> list[tuple[str, str, str]]:
    c, work, memory = report.config, report.work, report.memory_bytes
    attending = len(table_of(c).attention_layers)
    is_mixed, layers = attending < c.n_layers, str(attending) if attending < c.n_layers else "L"
    mixing = f"{layers} · 2 · H·{_both_widths(c)} · visible tokens{_distance_term(c)}"
    mixing += ", and as much for a source as long" * (c.d_source > 0)
    rows = [
        ("weights, fp32", in_bytes(memory["fp32"]), "4 bytes per parameter"),
        ("weights, bf16", in_bytes(memory["bf16"]), "2 bytes per parameter"),
        ("compute per token", _flops(work.total), f"at {c.context:,} tokens; multiply-add = 2 FLOP"),
        (
            "  projections",
            _flops(work.projections),
            "L · 2 · (their matrices)"
            if c.kv_rank or is_mixed or c.d_source
            else "L · 2 · d_model · (2·H + 2·G)·d_head",
        ),
        ("  attention", _flops(work.attention), mixing + ", and states" * is_mixed),
        ("  feed-forward", _flops(work.feed_forward), _feed_forward_formula(c)),
        ("  head", _flops(work.head), "2 · d_model · V"),
    ]
    if c.d_source:
        rows.append(("  a token of the source", _flops(work.encoder + work.source), "the encoder, W_XK and W_XV; once"))
    if c.causal:
        cache, beside = report.cache_bytes["fp32"], "; as much for a source as long" * (c.d_source > 0)
        rows.append(("KV cache per token, fp32", in_bytes(cache), f"{layers} · G · {_both_widths(c)} · 4 bytes"))
        rows.append(("KV cache, full context", in_bytes(cache * c.context), f"× {c.context:,} tokens{beside}"))
    trace = report.trace_bytes
    rows.append((f"trace of {trace['tokens']:,} tokens, fp32", in_bytes(trace["fp32"]), "what recording keeps"))
    return rows
