"""What the KV cache saves: the time and work of every step, with it and without."""

from collections.abc import Iterator

from tinytf.config import ModelConfig
from tinytf.generate.cache_comparison import RUNS, CacheComparison, CachedStep
from tinytf.generate.underway import Underway
from tinytf.steps.table import table_of
from tinytf.steps.work import cache_bytes_per_token, step_work
from tinytf.text.tokenizer import Tokenizer
from tinytf_cli.numbers import count, in_bytes, plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.ablate import check_line
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Column, Heading, Span, Table
from tinytf_cli.views.continuation import sentence_after
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import note, spread

_STEPS, _BAR = 8, 14


@draws(CacheComparison)
def cache_comparison(
    report: CacheComparison | Underway[CacheComparison], terminal: Terminal, display: Display
) -> Iterator[Block]:
    """The total work, bytes and time, the formulas for the last step, then each step."""
    model = model_of(report)
    yield from banner(model, report.prompt)
    for _ in report.coming():
        pass
    complete = report.now
    if not complete.steps:
        return
    yield from sentence_after(report)
    yield from _totals(complete)
    yield from _formulas(complete.config, complete.steps[-1].tokens)
    yield from _steps(complete, model.tokenizer, bars=not terminal.plain)
    assert complete.check is not None, "there are steps"
    yield from check_line(complete.check)


def _totals(report: CacheComparison) -> Iterator[Block]:
    """The totals with the cache and without: counted work first, then measured time."""
    config = report.config
    cached, plain = report.spent
    yield Heading(
        "what the cache saves",
        f"{plural(len(report.steps), 'token')} after a prompt of {len(report.prompt.ids):,}",
        "k",
    )
    names = {
        "multiply-adds": "multiply_adds",
        "of these, for keys and values": "keys_values",
        "for attention": "attention",
    }
    works = [[getattr(work, name) for name in names.values()] for work in (plain, cached)]
    rows = [*names, "bytes kept", f"time, least of {RUNS} runs a token"]
    ratios = [without / with_it for without, with_it in zip(*works, strict=True)]
    yield Table(
        [
            Column("", rows, said=""),
            Column(
                "with the cache", [*map(count, works[1]), in_bytes(report.cache_bytes), _ms(cached.seconds)], "right"
            ),
            Column("without", [*map(count, works[0]), "0", _ms(plain.seconds)], "right"),
            Column(
                "ratio",
                [*(f"{ratio:.1f} ×" for ratio in ratios), "", f"{plain.seconds / cached.seconds:.1f} ×"],
                "right",
            ),
        ]
    )
    widths = f"({config.d_head} + {config.value_width})"
    size = f"{len(table_of(config).attention_layers)} layers · {config.n_kv_heads} heads · "
    size = f"{size}{widths}" if config.value_width != config.d_head else f"2 · {size}{config.d_head}"
    yield note(f"{in_bytes(report.bytes_per_token)} a token: {size} numbers; timed in turns")


def _steps(report: CacheComparison, tokenizer: Tokenizer, *, bars: bool) -> Iterator[Block]:
    rows = [report.steps[index] for index in spread(len(report.steps), _STEPS)]
    works = [report.works(step) for step in rows]
    shown, widest = "" if len(rows) == len(report.steps) else f"{len(rows)} of {len(report.steps)}; ", rows[-1].tokens
    yield Heading("step by step", f"{shown}multiply-adds (ops), milliseconds as the least of {RUNS} runs", "k")
    yield note(f"rows of K and V, in each layer and head: reused{' ▒' * bars} + appended{' █' * bars}")
    yield Table(
        [
            Column("step", [str(step.number) for step in rows], "right"),
            Column("token", [tokenizer.shown(step.id) for step in rows], shrink=5, drop=2),
            Column(
                "rows of K, V",
                [
                    [f"{step.reused:,} + {step.tokens - step.reused:,} ", *_rows(step, widest)[: bars * 2]]
                    for step in rows
                ],
                said="rows of keys and values reused plus new",
            ),
            Column("ops with", [count(cached.whole) for cached, _ in works], "right", said="multiply-adds with"),
            Column("without", [count(plain.whole) for _, plain in works], "right", said="multiply-adds without"),
            Column("ratio", [f"{plain.whole / cached.whole:.1f}" for cached, plain in works], "right", drop=1),
            Column("ms with", [f"{step.with_cache * 1e3:.2f}" for step in rows], "right"),
            Column("without", [f"{step.without_cache * 1e3:.2f}" for step in rows], "right"),
            Column("ratio", [f"{step.without_cache / step.with_cache:.1f}" for step in rows], "right"),
        ]
    )


def _rows(step: CachedStep, widest: int) -> list[Span]:
    """The rows of K and V as a bar, a character a row up to _BAR; at least one for what is new."""
    scale = max(1.0, widest / _BAR)
    new = max(1, round((step.tokens - step.reused) / scale))
    return [Span("▒" * (round(step.tokens / scale) - new), "dim"), Span("█" * new, "k")]


def _formulas(config: ModelConfig, t: int) -> Iterator[Block]:
    """The textbook formulas for the work, evaluated for this model after ``t`` tokens."""
    c, layers = config.d_model, len(table_of(config).attention_layers)
    letters = {"L": layers, "C": c, "H": config.n_heads, "G": config.n_kv_heads, "D": config.d_head}
    words = ("layers", "d_model", "heads", "KV heads", "d_head")
    legend = ", ".join(
        f"{word} {letter} = {size:,}" for (letter, size), word in zip(letters.items(), words, strict=True)
    )
    cached, plain = step_work(config, t, cached=True), step_work(config, t, cached=False)
    yield Heading(f"the formulas at t = {t:,}", legend, "k")
    is_wide = config.value_width != config.d_head
    width = f"(D + {config.value_width})" if is_wide else "2·D"
    keys, scores = "(their matrices)" if config.kv_rank else f"L·C·G·{width}", f"L·H·{width}"
    numbers = cache_bytes_per_token(config, 1) * t
    rows = [
        ("keys and values", f"t·{keys}", plain.keys_values, keys, cached.keys_values),
        ("scores and values", f"t²·{scores}", plain.attention, f"t·{scores}", cached.attention),
        ("whole step", "", plain.whole, "", cached.whole),
        ("order of attention", "L·t²·C", layers * t * t * c, "L·t·C", layers * t * c),
        ("numbers kept", "", 0, f"t·L·G·{width}", numbers),
    ]
    columns = [Column("", [row[0] for row in rows], said="part")]
    for title, index in (("without the cache", 1), ("with it", 3)):
        parts = [(row[index], f"{row[index + 1]:,}") for row in rows]
        cells = [f"{formula} = {figure}" if formula else figure for formula, figure in parts]
        columns.append(Column(title, cells, narrow=[figure for _, figure in parts]))
    yield Table(columns)
    share = f"{100 * plain.attention / plain.whole:.1f} %"
    yield note(f"attention is {share} of the uncached step; the rest grows with t, not t²")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"
