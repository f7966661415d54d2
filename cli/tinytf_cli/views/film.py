"""The film of a run as a table: a line per frame, what was learned when, and which heads appeared."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tinytf.runs.film import FEWEST_TOKENS, LEARNED, Film, Films, Frame
from tinytf.runs.history import NAMES
from tinytf.text.printable import printable
from tinytf_cli.numbers import number, plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.blocks import Block, Column, Heading, Line, Span, Table
from tinytf_cli.views.draw import Display, Frames, draws
from tinytf_cli.views.frame import LAYOUTS, FrameView, Sight, learned_words
from tinytf_cli.views.parts import next_lines, note, row_limit, spread

_FRAMES, _HEADS = 20, 6
_DROPS = {"dead": 4, "RMS": 5, "update": 2, "gradient": 3}


@dataclass(frozen=True)
class FilmDisplay(Display):
    """A film moves: a frame each step, of the token in the middle of the first probe."""

    def frames(self, report: Film | Films, terminal: Terminal) -> Frames:
        films = report.films if isinstance(report, Films) else [report]
        token = max(0, len(films[0].probes[0].tokens) // 2)
        for step in sorted({frame.step for film in films for frame in film.frames}):
            sight = Sight(step, token=token)
            yield (FrameView(films, sight, layout).blocks(terminal) for layout in LAYOUTS)


@draws(Film, FilmDisplay)
def film(report: Film, terminal: Terminal, display: FilmDisplay) -> Iterator[Block]:
    """What was learned when and which heads appeared, then a line for each frame."""
    return _films((report,), terminal)


@draws(Films, FilmDisplay)
def films(report: Films, terminal: Terminal, display: FilmDisplay) -> Iterator[Block]:
    """What each of two runs has learned, side by side, then a line for each frame of each."""
    return _films(report.films, terminal)


def _films(films: Sequence[Film], terminal: Terminal) -> Iterator[Block]:
    for film in films:
        yield from _answer(film)
    yield from _kinds(films[0]) if len(films) == 1 else _beside(films)
    for film in films:
        yield from _frames(film, terminal, _where(film) if len(films) > 1 else "")
    yield Line("")
    versus = f" --versus {_where(films[1])}" if len(films) > 1 else ""
    played = f"tinytf runs --film {_where(films[0])}{versus}"
    saved = [frame for frame in films[0].frames if frame.model is not None]
    lines = [(played, "in a terminal: ← → and space play it, Enter opens a frame")]
    if saved:
        lines.append((f"tinytf explore -m {saved[-1].model}", f"the model of step {saved[-1].step:,}"))
    lines.append((f"{played} -o film.svg", "the film as an animated picture; .cast for a terminal"))
    yield from next_lines(terminal, *lines)


def _answer(film: Film) -> Iterator[Block]:
    frames = f" · {plural(len(film.frames), 'frame')} of {plural(len(film.probes), 'probe')}"
    steps = f" · step {film.frames[-1].step:,} of {film.history.steps:,}"
    yield Line([Span(_where(film), "strong"), Span(frames + steps)])
    yield Line([Span("learned  ", "output"), *learned_words(film)])
    if film.appeared:
        first = film.appeared[:_HEADS]
        more = f" and {len(film.appeared) - len(first)} more" if len(first) < len(film.appeared) else ""
        heads = "; ".join(f"{head.words} (now {head.last:.2f})" for head in first)
        yield Line([Span("appeared ", "attention"), Span(heads + more)])
    else:
        yield Line([Span("appeared ", "attention"), Span(f"no head ends at a score of 0.5{_most_risen(film)}")])


def _most_risen(film: Film) -> str:
    """The head whose score has risen most, with its first and last score; empty if none is measured."""
    first, last = film.frames[0].heads, film.frames[-1].heads
    risen = {kind: last[kind] - first[kind] for kind in NAMES if kind in first and kind in last}
    risen = {kind: np.nan_to_num(rise, nan=-np.inf) for kind, rise in risen.items() if np.isfinite(rise).any()}
    if not risen:
        return ""
    kind = max(risen, key=lambda kind: float(risen[kind].max()))
    layer, head = np.unravel_index(int(risen[kind].argmax()), risen[kind].shape)
    before, now = first[kind][layer, head], last[kind][layer, head]
    return f"; {kind} of L{layer}H{head} has risen most: {before:.2f} before, {now:.2f} now"


def _kinds(film: Film) -> Iterator[Block]:
    yield Heading("what was learned when", f"at least {LEARNED:.1f} nats gained per token, from then on", "output")
    first = "before" if film.frames[0].step == 0 else f"step {film.frames[0].step:,}"
    learned = film.learned
    if not learned:
        yield note("no probe measures this: the run held out no text, or an older version filmed it")
        return
    yield Table(
        [
            Column("tokens", [Span(row.kind, "strong") for row in learned]),
            Column("count", [f"{row.tokens:,}" for row in learned], "right"),
            Column(first, [f"{row.first:.2f}" for row in learned], "right"),
            Column(f"step {film.frames[-1].step:,}", [f"{row.last:.2f}" for row in learned], "right"),
            Column("gain", [f"{row.gain:.2f}" for row in learned], "right"),
            Column("learned by", ["" if row.by is None else f"step {row.by:,}" for row in learned], "right"),
        ]
    )
    few = [row.kind for row in learned if row.tokens < FEWEST_TOKENS]
    if few:
        yield note(f"not judged, for want of {FEWEST_TOKENS} tokens: {', '.join(few)}")
    yield note(
        "gain: of copying, how much better the second copy is predicted than the first; of others, how much better "
        "than by their frequency in the training text alone"
    )


def _beside(films: Sequence[Film]) -> Iterator[Block]:
    """What both runs have learned, by kind of token."""
    words = f"nats gained per token at the end, and the step from which on it is at least {LEARNED:.1f}"
    yield Heading("what was learned when", words, "output")
    kinds = list(dict.fromkeys(learned.kind for film in films for learned in film.learned))
    columns = [Column("tokens", [Span(kind, "strong") for kind in kinds])]
    for film in films:
        by_kind = {learned.kind: learned for learned in film.learned}
        rows = [by_kind.get(kind) for kind in kinds]
        name = printable(film.name, spaces=False)
        gains = ["" if row is None else f"{row.gain:.2f}" for row in rows]
        columns.append(Column(f"{name} gain", gains, "right"))
        by = ["" if row is None or row.by is None else f"step {row.by:,}" for row in rows]
        columns.append(Column(f"{name} by", by, "right"))
    yield Table(columns) if kinds else note("no probe measures this: neither run held out a text")


def _frames(film: Film, terminal: Terminal, named: str) -> Iterator[Block]:
    limit = row_limit(terminal, None, _FRAMES)
    keep = range(len(film.frames)) if limit is None else spread(len(film.frames), limit)
    frames = [film.frames[index] for index in keep]
    folded = "" if len(frames) == len(film.frames) else f"; {len(frames)} of {len(film.frames)}"
    sizes = ", ".join(f"{printable(probe.name, spaces=False)} {probe.predicted:,}" for probe in film.probes)
    subtitle = f"mean loss of the probes in nats, the strongest head of each kind{folded}"
    yield Heading(f"frames {named}".rstrip(), subtitle, "residual")
    columns = [Column("step", [f"{frame.step:,}" for frame in frames], "right")]
    for probe in film.probes:
        name = printable(probe.name, spaces=False)
        columns.append(Column(name, [f"{frame.mean(probe.name):.3f}" for frame in frames], "right"))
    for kind in ("previous", "induction"):
        cells = [_strongest(film, kind, frame) for frame in frames]
        if any(cells):
            columns.append(Column(kind, cells, "right"))
    entropy = [frame.heads["entropy"] for frame in frames if "entropy" in frame.heads]
    if len(entropy) == len(frames):
        means = [float(scores[np.isfinite(scores)].mean()) if np.isfinite(scores).any() else None for scores in entropy]
        cells = ["–" if mean is None else number(mean, "%.2f") for mean in means]
        columns.append(Column("entropy", cells, "right"))
    measured = {
        "gradient": [_total(frame) for frame in frames],
        "update": [
            number(float(frame.update_ratio.max()), "%.1e") if frame.update_ratio.size else "" for frame in frames
        ],
        "RMS": [number(float(frame.rms[-1]), "%.2f") for frame in frames],
        "dead": [number(100 * float(frame.dead.mean()), "%.0f %%") if frame.dead.size else "" for frame in frames],
    }
    columns += [Column(title, cells, "right", drop=_DROPS[title]) for title, cells in measured.items() if any(cells)]
    yield Table(columns)
    yield note(f"tokens of the probes: {sizes}")


def _strongest(film: Film, kind: str, frame: Frame) -> str:
    strongest = film.strongest(kind, frame)
    return "" if strongest is None else f"{strongest[0]} {strongest[1]:.2f}"


def _where(film: Film) -> str:
    return printable(str(film.run), spaces=False)


def _total(frame: Frame) -> str:
    """The norm of the whole gradient."""
    return number(math.hypot(*frame.gradient_norm.tolist()), "%.2f") if frame.gradient_norm.size else ""
