"""Patching: how much of the clean run's metric, such as a logit difference, each activation recovers."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len, set_cell_size
from torch import Tensor

from tinytf.cause.interventions import EstimatedSweep, Patched, PatchSweep, PathPatched, PathSweep
from tinytf.cause.interventions.grid import COLUMNS, PROJECTED
from tinytf.cause.interventions.hooks import HookPoint, not_yet_added, point_names
from tinytf.cause.interventions.patch import PatchedRun
from tinytf.cause.interventions.patch_estimate import Agreement
from tinytf.cause.interventions.patch_paths import site_names
from tinytf.sentences import first_of
from tinytf.steps.table import table_of
from tinytf.text.tokenizer import Encoding
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.ablate import SITES, SweepDisplay, check_line, choice_table, control_line, where_predicted
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Array, Block, Cell, Column, Figure, Heading, Heat, Line, Piece, Span, Table
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import LONG_STACK, head_map, map_digits, note, numbered, signed_bars, stopped
from tinytf_cli.views.steps import as_array, largest

_ACTIVATIONS = {
    "residual": ("the stream into each block, at each position", "in"),
    "attn": ("what attention adds, at each position", "attn.added"),
    "ffn": ("what the feed-forward adds, at each position", "ffn.added"),
    "heads": ("the output of each head", ""),
    **{over: (f"the {over} of each head", "") for over in PROJECTED},
    "neurons": ("each unit of the feed-forwards", ""),
}
_HELD = {
    False: "every other attention and feed-forward keeps its corrupt output up to there",
    True: "every other attention keeps its corrupt output up to there; feed-forwards recompute",
}
"""What happens between the ends of a path, by whether feed-forwards recompute."""
_SHOWN_DIFFERENCES = 8
_POSITIONS = 8
"""The most patched positions that a heading names."""
_TOKENS = 12
"""The most tokens of a map, unless all are asked for."""


@draws(Patched)
def patched(report: Patched, terminal: Terminal, display: Display) -> Iterator[Block]:
    """Both texts, the most probable tokens before and after the patch, and how much of the clean run it recovers."""
    yield from _comparison(report)
    names = first_of(point_names(report.sites), SITES)
    yield Heading("patched", f"{names} {_where(report, report.sites)}".rstrip(), "attention")
    yield from map(note, filter(None, [not_yet_added(report.sites, table_of(model_of(report).config))]))
    yield from _recovered(report)


@draws(PatchSweep, SweepDisplay)
def patch_sweep(report: PatchSweep, terminal: Terminal, display: SweepDisplay) -> Iterator[Block]:
    """Both texts, a table of the strongest patches, then the map of all."""
    yield from _comparison(report)
    yield Heading("strongest", "share recovered: 1 is the clean run, 0 the corrupt one")
    yield from stopped(report.interrupted, report.measured, report.patches, "patches")
    yield _strongest(report, display.top)
    yield from control_line(report.control, "shares")
    yield from _map(report, display.all)
    yield from check_line(*report.checks)


@draws(EstimatedSweep, SweepDisplay)
def patch_estimate(report: EstimatedSweep, terminal: Terminal, display: SweepDisplay) -> Iterator[Block]:
    """Both texts, the largest estimates, how they agree with exact patching if it ran, then the map of all."""
    yield from _comparison(report)
    share = "estimated share moved, up or down" if report.estimating.gives_sizes else "estimated share recovered"
    yield Heading("strongest", f"{share}: {report.estimating.words}")
    beside = report.beside
    yield _strongest(report, display.top, None if beside is None else beside.recovered)
    yield from control_line(report.control, "shares")
    added: list[Piece] = ["the estimates for the embeddings add up to ", Figure(report.added_up, "%.3f")]
    if report.uncorrected:
        layers = first_of([f"L{layer}" for layer in report.uncorrected], _POSITIONS)
        yield note(f"not corrected, as they act beside attention weights too: {report.what} of {layers}")
    if not report.estimating.gives_sizes:
        lead = "the lead" if report.contrast.metric.is_lead else report.lead
        yield note([*added, f" of {lead}; an exact integral gives 1"])
    if beside is not None:
        yield from agreement(beside)
        yield from stopped(report.interrupted, beside.sites, report.exact_sites, "exact patches")
        yield note(f"{beside.seconds:.2f} s estimated, {beside.exact_seconds:.2f} s exact, beyond recording the texts")
    yield from _map(report, display.all)
    if report.checks:
        yield from check_line(*report.checks)


@draws(PathPatched)
def patch_path(report: PathPatched, terminal: Terminal, display: Display) -> Iterator[Block]:
    """Both texts, the path, the most probable tokens before and after, and how much of the clean run it recovers."""
    yield from _comparison(report)
    sender = f"{site_names(report.senders)} {_where(report, report.senders)}".rstrip()
    yield Heading("path", f"{sender} → {site_names(report.receivers)}", "attention")
    yield note(_HELD[report.recomputes_ffn])
    yield from _recovered(report)


@draws(PathSweep, SweepDisplay)
def patch_paths(report: PathSweep, terminal: Terminal, display: SweepDisplay) -> Iterator[Block]:
    """Both texts, the strongest paths, then maps of those that end at heads."""
    fixed = site_names(report.fixed)
    yield from _comparison(report)
    title = f"from {fixed}" if report.over == "to" else f"to {fixed}, from each part"
    where = _where(report, report.fixed if report.over == "to" else ())
    yield Heading("direct paths", f"{title} {where}".rstrip(), "attention")
    yield note(_HELD[report.recomputes_ffn])
    done = sum(end.recovered is not None for end in report.ends)
    yield from stopped(report.interrupted, done, len(report.ends), "paths")
    strongest = report.strongest(display.top)
    yield Table(
        [
            Column(report.over, [Span(end.name, "strong") for end in strongest]),
            signed_bars("recovered", [end.recovered or 0.0 for end in strongest], "%+.4f"),
            _metric_column(report, [end.value or 0.0 for end in strongest]),
        ]
    )
    yield from control_line(report.control, "shares")
    steps = dict.fromkeys(end.site.step for end in strongest if end.site is not None and end.site.head is not None)
    every = dict.fromkeys(end.site.step for end in report.ends if end.site is not None and end.site.head is not None)
    for step in every if display.all else list(steps)[:1]:
        values = as_array(report.head_map(step))
        most = largest(values)
        yield Heading(step if report.over == "to" else "heads", "the path of each head", "attention")
        yield from head_map(values, "signed", most, map_digits(most), whole=display.all)
        if len(every) > 1 and not display.all:
            yield note(f"folded: the maps of {', '.join(name for name in every if name != step)}", "--all shows them")
    yield from check_line(*report.checks)


def _recovered(report: Patched | PathPatched) -> Iterator[Block]:
    """The most probable tokens before and after, and how much of the clean run the patch recovers."""
    metric = report.contrast.metric
    yield choice_table(report.choices, model_of(report).shown, metric.answer, ("p corrupt", "p patched"))
    recovered, value = Figure(report.recovered, "%.4f", "strong"), Figure(report.value, _form(report))
    unit = "" if metric.unit == "logits" else metric.in_unit
    yield Line([recovered, f" of the clean run recovered: the {metric.noun} is ", value, unit], indent=2)
    if isinstance(report, Patched):
        yield from control_line(report.control, "shares")
    yield from check_line(*report.checks)


def agreement(beside: Agreement) -> Iterator[Block]:
    """How estimates agree with exact patching."""
    ranks = "undefined" if beside.rank_correlation is None else f"{beside.rank_correlation:.3f}"
    yield Heading("beside exact patching", f"{beside.sites:,} sites")
    yield Line(["rank correlation ", Span(ranks, "strong")], indent=2)
    both = Figure(beside.worst_estimated, "%+.4f"), ", exact ", Figure(beside.worst_exact, "%+.4f")
    yield Line([f"largest disagreement: {beside.worst}, estimated ", *both], indent=2)


def _map(report: PatchSweep, every: bool) -> Iterator[Block]:
    """The map of all sites; units are too many for one."""
    values = as_array(report.recovered)
    where = " of the encoder" * bool(report.stack) + (f", {_where(report)}" if report.what in COLUMNS else "")
    if report.what == "neurons":
        yield note(f"{values.size:,} units{where}", "--top N lists more, -o FILE.safetensors keeps all")
        return
    yield Heading(report.what, f"{_ACTIVATIONS[report.what][0]}{where}", "attention")
    if report.what == "heads" or report.what in PROJECTED:
        most = largest(values)
        yield from head_map(values, "signed", most, map_digits(most), whole=every)
    else:
        yield from _positions(report, [token.shown for token in report.swept[1].tokens], values, every)
    if report.stack and report.differing != report.texts:
        yield note("the sources differ, so the encoder is swept", "--stack decoder sweeps the other stack")


def _where(report: Patched | PatchSweep | PathPatched | PathSweep, sites: Sequence[HookPoint] = ()) -> str:
    """The patched positions in words; empty where ``sites`` name tokens of their own."""
    if report.positions is None:
        return "" if any(site.rows for site in sites) else "at all positions"
    texts = report.swept if isinstance(report, PatchSweep) else report.texts
    if any(site.stack for site in sites):
        texts = report.differing
    tokens = [token.shown for token in texts[1].tokens]
    return f"at {first_of([' '.join((f'{at}', *tokens[at : at + 1])) for at in report.positions], _POSITIONS)}"


def _comparison(report: PatchedRun) -> Iterator[Block]:
    """The two texts, their metric, and their different tokens."""
    model, contrast, (clean, _) = model_of(report), report.contrast, report.texts
    metric = contrast.metric
    yield from banner(model, clean)
    values = [Figure(value, _form(report)) for value in (contrast.clean, contrast.corrupt)]
    yield Heading("patching", "the corrupt text, run with activations of the clean one")
    if not metric.is_lead:
        yield note(f"measured by {metric.words}{metric.in_unit and f', in{metric.in_unit}'}")
    yield Table(
        [
            Column("", ["clean", "corrupt"], said=""),
            Column("", [where_predicted(model, text, contrast.position) for text in report.texts], shrink=20, said=""),
            Column(metric.label if metric.is_lead else metric.noun, values, "right"),
        ]
    )
    of = "different tokens" if report.differing == report.texts else "different tokens of the sources"
    before, after = report.differing
    different, spoken = (f"{of}: {_different_tokens(before, after, sign)}" for sign in ("│", "against"))
    yield Line(Span(different, "dim"), indent=2, said=spoken)


def _metric_column(report: PatchedRun, values: Sequence[float]) -> Column:
    """The metric of some patched runs, in its unit."""
    title = f"{report.contrast.metric.noun}{_unit(report)}"
    return Column(title, [Figure(value, _form(report)) for value in values], "right", drop=1)


def _unit(report: PatchedRun) -> str:
    """The unit of the metric after its name, which says itself that it is in logits."""
    metric = report.contrast.metric
    return f",{metric.in_unit}" if metric.in_unit and metric.unit != "logits" else ""


def _form(report: PatchedRun) -> str:
    """A format of the metric's values: with a sign where they may be on either side of 0."""
    return (
        "%+.4f"
        if report.contrast.metric.unit == "logits"
        else "%.4g"
        if report.contrast.metric.unit == "rank"
        else "%.4f"
    )


def _positions(report: PatchSweep, names: Sequence[str], values: Array, every: bool) -> Iterator[Block]:
    """A map with layers across, and tokens down because their text is longer than a layer's name."""
    keep = [position for position in report.telling(len(names) if every else _TOKENS) if position >= report.first]
    shown, layers, most = values[:, keep].T, numbered(f"{report.stack}L", len(values)), largest(values)
    asked = every or len(layers) <= LONG_STACK
    yield Heat(shown, [names[i] for i in keep], layers, "signed", None, most, asked, map_digits(most))
    axes = f"tokens down, layers 0 to {len(values) - 1} across"
    omitted = len(names) - report.first - len(keep)
    folded = f"{axes}; folded: {omitted} tokens that recover less"
    yield note(folded, "--all shows them") if omitted else note(axes)
    if report.first:
        same = "token 0 is" if report.first == 1 else f"tokens 0 to {report.first - 1} are"
        yield note(f"{same} the same in both texts, so patching there changes nothing")


def _strongest(report: PatchSweep, top: int, exact: Tensor | None = None) -> Table:
    """The sites that move the difference most, beside their ``exact`` shares if these are known."""
    strongest, step = report.strongest(top), _ACTIVATIONS[report.what][1]
    step = table_of(model_of(report).config.stacks[report.stack]).synonym(step) or step
    names, by_position = [token.shown for token in report.swept[1].tokens], report.what not in COLUMNS
    tokens = [f"{column} {names[column]}" for _, column, _ in strongest] if by_position else []
    sites = [
        f"{report.stack}L{layer}.{step}" if by_position else report.site(layer, column)
        for layer, column, _ in strongest
    ]
    values = [float(report.values[layer, column]) for layer, column, _ in strongest]
    places = [(layer, column) for layer, column, _ in strongest]
    return Table(
        [
            Column("", [Span(site, "strong") for site in sites], said=""),
            *([Column("at", tokens, shrink=10)] if by_position else []),
            signed_bars(
                "estimated" if isinstance(report, EstimatedSweep) else "recovered",
                [value for *_, value in strongest],
                "%+.4f",
            ),
            *([] if exact is None else [Column("exact", _shares(exact, places), "right")]),
            _metric_column(report, values),
        ]
    )


def _shares(shares: Tensor, places: Sequence[tuple[int, int]]) -> list[Cell]:
    """The shares of some sites; – where none was measured."""
    return ["–" if shares[place].isnan() else Figure(float(shares[place]), "%+.4f") for place in places]


def _different_tokens(clean: Encoding, corrupt: Encoding, sign: str) -> str:
    """The different tokens of the two texts, with ``sign`` between each pair."""
    pairs = list(zip(clean.tokens, corrupt.tokens, strict=True))
    different = [
        f"{position} {before.shown} {sign} {after.shown}"
        for position, (before, after) in enumerate(pairs)
        if before.id != after.id
    ]
    omitted, same = len(different) - _SHOWN_DIFFERENCES, len(pairs) - len(different)
    more = f" and {omitted} more" if omitted > 0 else ""
    rest = f"; the other {same} are the same" if same > 1 else ("; the other is the same" if same else "")
    return f"{', '.join(different[:_SHOWN_DIFFERENCES])}{more}{rest}"


def aligned_lines(pairs: Sequence[tuple[str | None, str | None]], width: int, around: int = 3) -> list[str]:
    """The different tokens of two texts, token above token, and ``around`` tokens beside; ``–`` is no token."""
    different = [index for index, (before, after) in enumerate(pairs) if before != after]
    first, last = max(0, different[0] - around), different[-1] + around + 1
    shown = [
        ("–" if before is None else before, "–" if after is None else after) for before, after in pairs[first:last]
    ]
    room = width - len("tinytf: corrupt  … ")
    cells: list[tuple[str, str]] = []
    for pair in shown:
        size = max(map(cell_len, pair))
        if room < size + 2 and cells:
            last = 0
            break
        room -= size + 2
        cells.append((set_cell_size(pair[0], size), set_cell_size(pair[1], size)))
    lines = []
    for name, row in zip(("clean  ", "corrupt"), zip(*cells, strict=True), strict=True):
        text = "  ".join(row).rstrip()
        lines.append(f"{name}  {'… ' if first else ''}{text}{' …' if last < len(pairs) else ''}")
    return lines
