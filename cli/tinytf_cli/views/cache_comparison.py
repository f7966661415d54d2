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
    yield from _formulas(complete.config, complete.steps[-1].tokens, complete.source)
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
    size = f"{plural(len(table_of(config).attention_layers), 'layer')} · {plural(config.n_kv_heads, 'head')} · "
    size = f"{size}{widths}" if config.value_width != config.d_head else f"2 · {size}{config.d_head}"
    if cache_bytes_per_token(config, 1) != _of_a_key(config):
        size = f"{cache_bytes_per_token(config, 1):,}"
    beside = f", and as many for each of {report.source:,} tokens of the source" * (report.source > 0)
    yield note(f"{in_bytes(report.bytes_per_token)} a token: {size} numbers{beside}; timed in turns")


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


def _formulas(config: ModelConfig, t: int, source: int) -> Iterator[Block]:
    """The textbook formulas for the work after ``t`` tokens, each where it gives this model's figure."""
    c, layers = config.d_model, len(table_of(config).attention_layers)
    letters = {"L": layers, "C": c, "H": config.n_heads, "G": config.n_kv_heads, "D": config.d_head}
    words = ["layers", "d_model", "heads", "KV heads", "d_head"]
    if source:
        letters, words = {**letters, "S": source}, [*words, "source"]
    legend = ", ".join(
        f"{word} {letter} = {size:,}" for (letter, size), word in zip(letters.items(), words, strict=True)
    )
    cached, plain = (step_work(config, t, source, cached=cached) for cached in (True, False))
    yield Heading(f"the formulas at t = {t:,}", "", "k")
    yield note(legend)
    width = f"(D + {config.value_width})" if config.value_width != config.d_head else "2·D"
    of_key = _of_a_key(config)
    of_score = layers * config.n_heads * (config.d_head + config.value_width)
    seen, count_seen, squared = ("(t + S)", t + source, "t·(t + S)") if source else ("t", t, "t²")
    kept = cache_bytes_per_token(config, 1) * t + cache_bytes_per_token(config, 1, of_source=True) * source
    keys, scores = f"L·C·G·{width}", f"L·H·{width}"
    rows = ("keys and values", "scores and values", "whole step", "order of attention", "numbers kept")
    without = [
        (f"{seen}·{keys}", count_seen * c * of_key, plain.keys_values),
        (f"{squared}·{scores}", t * count_seen * of_score, plain.attention),
        ("", 0, plain.whole),
        (f"L·{squared}·C", layers * t * count_seen * c, layers * t * count_seen * c),
        ("", 0, 0),
    ]
    with_it = [
        (keys, c * of_key, cached.keys_values),
        (f"{seen}·{scores}", count_seen * of_score, cached.attention),
        ("", 0, cached.whole),
        (f"L·{seen}·C", layers * count_seen * c, layers * count_seen * c),
        (f"{seen}·L·G·{width}", count_seen * of_key, kept),
    ]
    columns = [Column("", list(rows), said="part")]
    for title, formulas in (("without the cache", without), ("with it", with_it)):
        parts = [(formula if gives == figure else "", f"{figure:,}") for formula, gives, figure in formulas]
        cells = [f"{formula} = {figure}" if formula else figure for formula, figure in parts]
        columns.append(Column(title, cells, narrow=[figure for _, figure in parts]))
    yield Table(columns)
    share = f"{100 * plain.attention / plain.whole:.1f} %"
    yield note(f"attention is {share} of the uncached step; the rest grows with t, not t²")


def _of_a_key(config: ModelConfig) -> int:
    """The numbers of the keys and values of a token, if all layers with attention are alike."""
    return len(table_of(config).attention_layers) * config.n_kv_heads * (config.d_head + config.value_width)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:,.1f} ms"
