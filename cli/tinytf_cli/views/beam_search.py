"""Beam search: the hypotheses of every step, and the best finished texts."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from tinytf.generate.beam import BeamStep, Hypothesis
from tinytf.generate.report import INTERRUPTED, BeamSearch
from tinytf.generate.underway import Underway
from tinytf.text.tokenizer import Tokenizer
from tinytf_cli.numbers import plural
from tinytf_cli.terminal import Terminal
from tinytf_cli.views.banner import banner
from tinytf_cli.views.blocks import Block, Cell, Column, Heading, Line, Running, Span, Table
from tinytf_cli.views.continuation import continuation, safe_piece, sentence_after
from tinytf_cli.views.draw import Display, draws, model_of
from tinytf_cli.views.parts import note

_SHOWN = 6
_DROPPED = 12
"""The branches that a tree shows of those that were dropped, the latest."""
_BESIDE = 32
"""The columns beside the tokens of a tree; where a tree is too wide, each branch is shown by its last tokens."""


@dataclass(frozen=True)
class BeamDisplay(Display):
    """``watch`` shows the hypotheses of every step; otherwise ``running`` shows only the best texts."""

    watch: bool = False
    running: bool = False


@draws(BeamSearch, BeamDisplay)
def beam_search(report: BeamSearch | Underway[BeamSearch], terminal: Terminal, display: BeamDisplay) -> Iterator[Block]:
    """The best texts, known only once the search is over."""
    if display.running and not display.watch and not terminal.picture:
        return _running(report, terminal)
    return _in_full(report, display.watch, terminal)


def _running(report: BeamSearch | Underway[BeamSearch], terminal: Terminal) -> Iterator[Block]:
    """The best texts only; on a screen, after the banner and with the prompt."""
    prompt = report.prompt
    if terminal.cuts:
        yield from banner(model_of(report), prompt)
    for _ in report.coming():
        pass
    complete = report.now
    for rank, hypothesis in enumerate(complete.best):
        yield Running("\n" if rank or terminal.cuts else "")
        if terminal.cuts:
            yield Running(safe_piece("", prompt.text), "dim")
        text = safe_piece(prompt.text, complete.text_of(hypothesis))
        yield Running(text, "output" if terminal.cuts else "")
        yield Running("\n")
        if terminal.cuts:
            yield Line(Span(_in_words(hypothesis), "dim"))
    if terminal.cuts:
        yield Running("\n")
        yield from sentence_after(report)
        yield Line(Span(_ending(complete), "dim"))


def _in_full(report: BeamSearch | Underway[BeamSearch], watch: bool, terminal: Terminal) -> Iterator[Block]:
    """The best texts; with ``watch``, the hypotheses of every step before them."""
    model = model_of(report)
    yield from banner(model, report.prompt)
    for step in report.coming():
        if watch:
            count = sum(hypothesis.ended for hypothesis in step.finished)
            yield Heading(f"step {step.number}", f"{count} ended" if count else "", "output")
            yield _table(step, model.tokenizer)
    complete = report.now
    yield from sentence_after(report)
    if watch and len(complete.steps) > 1:
        yield from _tree(complete, model.tokenizer, terminal)
    for hypothesis in complete.best:
        yield Heading("text", _in_words(hypothesis), "output")
        yield from continuation(report.prompt.text, complete.text_of(hypothesis))
    yield Line("")
    yield Line(Span(_ending(complete), "dim"))


def _table(step: BeamStep, tokenizer: Tokenizer) -> Table:
    rows = [("goes on", hypothesis) for hypothesis in step.running]
    rows += [("ended" if hypothesis.ended else "cut off", hypothesis) for hypothesis in step.finished]
    return Table(
        [
            Column("", [Span(state, "dim" if state == "goes on" else "output") for state, _ in rows], said="state"),
            Column("log p", [f"{hypothesis.log_probability:.3f}" for _, hypothesis in rows], "right"),
            Column("score", [f"{hypothesis.score:.3f}" for _, hypothesis in rows], "right"),
            Column("tokens", [_last_tokens(hypothesis.ids, tokenizer) for _, hypothesis in rows]),
        ]
    )


def _tree(report: BeamSearch, tokenizer: Tokenizer, terminal: Terminal) -> Iterator[Block]:
    """Every end of a branch, best first: the kept ones with their score, the dropped ones with what they lost to."""
    last = report.steps[-1]
    ends: dict[tuple[int, ...], tuple[float, str]] = {}
    for word, hypotheses in {"outscored": last.finished, "not ended": last.running, "best": report.best}.items():
        ends |= {hypothesis.ids: (hypothesis.score, word) for hypothesis in hypotheses}
    dropped = [(step, hypothesis) for step in reversed(report.steps) for hypothesis in step.pruned]
    for step, hypothesis in dropped[:_DROPPED]:
        kept = [each.score for each in (*step.running, *step.finished) if len(each.ids) == step.number]
        piece, least = tokenizer.shown(hypothesis.ids[-1]), f", the last kept {min(kept):.3f}" if kept else ""
        ends[hypothesis.ids[:-1]] = hypothesis.score, f"dropped in step {step.number}: with {piece}{least}"
    shared = _in_common(min(ends), max(ends))
    rank: dict[tuple[int, ...], int] = {}
    for place, ids in enumerate(ends):
        for length in range(shared, len(ids) + 1):
            rank.setdefault(ids[:length], place)
    branches: list[Cell] = []
    paths = sorted(ends, key=lambda ids: [rank[ids[:length]] for length in range(shared, len(ids) + 1)])
    for before, ids in zip([(), *paths], paths, strict=False):
        fork = shared if terminal.plain else max(shared, _in_common(before, ids))
        stem = " ".join(map(tokenizer.shown, ids[shared:fork]))
        rail = " " * cell_len(stem) + "└" if fork > shared else ""
        branches.append([Span(rail, "dim"), " ".join(map(tokenizer.shown, ids[fork:]))])
    before_all = f"after {_last_tokens(paths[0][:shared], tokenizer)}; " if shared else ""
    yield Heading("tree", f"{before_all}a dropped branch has the score of its best continuation", "output")
    endings = [_last_tokens(ids, tokenizer) for ids in paths]
    width = _BESIDE + max(cell_len(" ".join(map(tokenizer.shown, ids[shared:]))) for ids in paths)
    ends_in_words = [Span(word := ends[ids][1], "output" if word == "best" else "dim") for ids in paths]
    yield Table(
        [
            Column("tokens", branches, narrow=branches if width <= terminal.width else endings, shrink=20),
            Column("score", [f"{ends[ids][0]:.3f}" for ids in paths], "right"),
            Column(
                "",
                ends_in_words,
                narrow=[Span(end.text.partition(":")[0], end.role) for end in ends_in_words],
                said="state",
            ),
        ]
    )
    if len(dropped) > _DROPPED:
        yield note(f"{len(dropped) - _DROPPED} more were dropped before")


def _in_common(a: Sequence[int], b: Sequence[int]) -> int:
    """The length of the beginning that two texts share."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


def _last_tokens(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    """The last few tokens of a hypothesis; hypotheses differ at the end."""
    shown = " ".join(tokenizer.shown(token_id) for token_id in ids[-_SHOWN:])
    return ("… " if len(ids) > _SHOWN else "") + shown


def _ending(report: BeamSearch) -> str:
    """The length of the search, why it ended, and its settings."""
    reason = INTERRUPTED if report.interrupted else f"ended by {report.ended}"
    words = f"{plural(report.beams, 'beam')}, length penalty {report.length_penalty:g}"
    return f"{plural(len(report.steps), 'token')} · {reason} · {words}"


def _in_words(hypothesis: Hypothesis) -> str:
    end = ", its end token among them" if hypothesis.ended else ""
    tokens = plural(len(hypothesis.ids), "token")
    return f"score {hypothesis.score:.4f} · log p {hypothesis.log_probability:.3f} of {tokens}{end}"
