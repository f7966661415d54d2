"""Two programs' settings of sampling: which differ, the first token at which they choose otherwise, and why.

Two programs never draw the same random numbers, so the distributions that they draw from are compared, of the same
logits and the same text: the one that the first program continues. Why they differ is found by experiment: the first
program's settings are changed to the second's, one at a time, then two together, until the difference is gone.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from tinytf.errors import UsageError
from tinytf.generate.loop import require_prompt
from tinytf.generate.programs import Place, Settings, differing, end_ids_of, ends_of, processed
from tinytf.generate.runner import Runner
from tinytf.report import About, Data, Report
from tinytf.sentences import listed, percent
from tinytf.text.chat import Written
from tinytf.text_model import TextModel

TOKENS, TOLERANCE = 50, 0.01
CHOICE, END, SET, DISTANCE = "choice", "end", "set", "distance"
GREEDY = (CHOICE, END)
"""The ways in which two programs can differ that both take the most probable token."""


@dataclass(frozen=True)
class SettingDifference(Data):
    """A setting in which the two differ; ``said`` are both values in words, with where they come from."""

    name: str
    first: Any
    second: Any
    said: tuple[str, str]


@dataclass(frozen=True)
class Token(Data):
    """A token of the first program's text, with what either would do in its place.

    ``first`` and ``second`` are the most probable ids, ``counts`` how many tokens may be drawn, and ``distance`` is the
    total-variation distance of the two distributions, ½ Σ |p − q|. ``ends`` says whose text ends with the token.
    """

    number: int
    id: int
    first: int
    second: int
    counts: tuple[int, int]
    distance: float
    ends: tuple[bool, bool]


@dataclass(frozen=True)
class Parting(Data):
    """The first new token, from 1, at which the two differ in one ``way``.

    The ways are ``choice`` (another token is the most probable), ``end`` (the token ends the text for one of them),
    ``set`` (the tokens that may be drawn) and ``distance`` (beyond the tolerance). Each of ``causes`` is a smallest set
    of settings that, taken from the second program, removes this difference there.
    """

    way: str
    number: int
    causes: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class SamplingDifference(Report):
    """The settings of two programs: ``settings`` differ, ``unknown`` says what was given and is not compared.

    With a model: ``steps`` are the tokens of the first program's text, drawn with ``seed``, and ``partings`` the first
    ones, in the order of the ways. Distances up to ``tolerance`` are none.
    """

    KIND = "diff_sampling"
    EVENTS: ClassVar = {"settings": "setting", "partings": "parting", "steps": "step"}
    ALWAYS_SAID = True

    first: Settings
    second: Settings
    settings: tuple[SettingDifference, ...]
    unknown: tuple[str, ...] = ()
    steps: tuple[Token, ...] = ()
    partings: tuple[Parting, ...] = ()
    seed: int = 0
    tolerance: float = TOLERANCE

    def in_a_sentence(self) -> str:
        """Which settings differ; with a model, where that first shows in its text, how, and which settings do it."""
        count = len(self.settings)
        if not count:
            return f"No setting differs{' that is compared' if self.unknown else ''}."
        differ = f"{count} settings differ" if count > 1 else "One setting differs"
        if not self.steps:
            return f"{differ}: {self._listed([one.name for one in self.settings])}."
        if not self.partings:
            shows = "it does not show" if count == 1 else "none shows"
            return f"{differ}, and {shows} in {len(self.steps):,} new token{'s' * (len(self.steps) > 1)}."
        earliest = min(self.partings, key=lambda parting: (parting.number, len(parting.causes[0])))
        words = f"{differ}. At new token {earliest.number:,} {self.what(earliest)}: {self.why(earliest)}"
        choice = next((one for one in self.partings if one.way == CHOICE and one is not earliest), None)
        if choice is None:
            return f"{words}."
        return f"{words}. At new token {choice.number:,} {self.what(choice)}: {self.why(choice)}."

    def what(self, parting: Parting) -> str:
        """What differs at a parting, in words."""
        token = self.steps[parting.number - 1]
        a, b = self.names
        if parting.way == CHOICE:
            return f"{self._said(token.first)} is the most probable for {a} and {self._said(token.second)} for {b}"
        if parting.way == END:
            return (
                f"{a if token.ends[0] else b} ends with {self._said(token.id)} and {b if token.ends[0] else a} goes on"
            )
        if parting.way == SET:
            few, many = token.counts
            if few == many > 1:
                return f"{a} and {b} draw from {few:,} tokens each, and not from the same"
            return f"{self._draws(a, self.first, few)} and {self._draws(b, self.second, many)}"
        return f"the probabilities differ by {percent(token.distance)}"

    def _draws(self, name: str, settings: Settings, count: int) -> str:
        if not settings.how.temperature:
            return f"{name} takes the most probable token"
        return f"{name} draws from {count:,} token{'s' * (count > 1)}"

    def why(self, parting: Parting) -> str:
        """The settings that make it, in words."""
        ways = (self._listed(names) + (" together" if len(names) > 1 else "") for names in parting.causes)
        return ", or ".join(ways)

    def _listed(self, names: Sequence[str]) -> str:
        """Settings by name; of one or two, with both values."""
        if len(names) > 2:
            return listed(names)
        said = {one.name: one.said for one in self.settings}
        return listed([
            f"{name} ({'; '.join(f'{side}: {value}' for side, value in zip(self.names, said[name], strict=True))})"
            for name in names
        ])  # fmt: skip

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways in which the two can differ."""
        return _all_ways(self.first, self.second)

    @property
    def names(self) -> tuple[str, str]:
        """The two programs, or A and B if it is one."""
        both = self.first.program, self.second.program
        return ("A", "B") if both[0] == both[1] else both

    def _said(self, token: int) -> str:
        return self.shown(token) or f"#{token}"

    def fields(self) -> dict[str, Any]:
        steps = [
            {"number": one.number, **self.named(one.id), "first": self.named(one.first),
             "second": self.named(one.second), "counts": list(one.counts), "distance": one.distance,
             "ends": list(one.ends)}
            for one in self.steps
        ]  # fmt: skip
        return {**self.members("first", "second", "settings", "unknown", "seed", "tolerance", "partings"),
                "steps": steps}  # fmt: skip


@torch.no_grad()
def diff_sampling(
    first: Settings,
    second: Settings,
    model: TextModel | None = None,
    text: Written | None = None,
    *,
    max_tokens: int = TOKENS,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    truncate: bool = False,
) -> SamplingDifference:
    """Compare two programs' settings; with a ``model``, also what they choose after ``text``.

    ``text`` is continued by at most ``max_tokens``, as the first program would with random numbers of ``seed``.
    Raises UsageError for a model that cannot continue a text, and for a text that is too long.
    """
    if (model is None) != (text is None):
        raise UsageError("a model and a text belong together", "give both, or neither")
    names = differing(first, second)
    if model is not None and len({end_ids_of(one.how, model.tokenizer.end_ids) for one in (first, second)}) == 1:
        names = [name for name in names if name != "end_ids"]  # one of them names those that the model has
    settings = tuple(
        SettingDifference(name, first.value(name), second.value(name), (_said(first, name), _said(second, name)))
        for name in names
    )
    unknown = (*first.unknown, *second.unknown)
    if model is None or text is None:
        return SamplingDifference(first, second, settings, unknown, seed=seed, tolerance=tolerance)
    prompt = model.prompt(text, truncate=truncate)
    tokens, partings = [], dict[str, Parting]()
    for one in _tokens(model, prompt.ids, first, second, max_tokens, seed):
        tokens.append(one.token)
        for way in _ways(one.token, one.rows, tolerance):
            if way in _all_ways(first, second) and way not in partings:
                removed = _removing(one, way, first, second, names, tolerance)
                partings[way] = Parting(way, one.token.number, tuple(removed))
    ordered = tuple(partings[way] for way in _all_ways(first, second) if way in partings)
    return SamplingDifference(
        first, second, settings, unknown, tuple(tokens), ordered, seed, tolerance, about=About(model, prompt)
    )


@dataclass(frozen=True)
class _Chosen:
    """A token with the logits of its place, and the processed logits (V,) of both programs."""

    token: Token
    logits: Tensor
    place: Place
    rows: tuple[Tensor, Tensor]


def _tokens(
    model: TextModel, prompt: Sequence[int], first: Settings, second: Settings, max_tokens: int, seed: int
) -> Iterator[_Chosen]:
    """The tokens that the first program chooses, one after the other."""
    transformer = model.transformer
    require_prompt(transformer, prompt, max_tokens)
    cache = None
    if not (transformer.edited or transformer.recomputes):
        cache = transformer.cache(min(model.config.context, len(prompt) + max_tokens))
    runner, ids, usual = Runner(transformer, prompt, cache), list(prompt), model.tokenizer.end_ids
    generator = torch.Generator().manual_seed(seed % 2**63)
    logits = runner.first()[0]
    for number in range(1, max_tokens + 1):
        place = Place(tuple(ids), len(prompt), usual)
        rows = processed(logits, first.how, place), processed(logits, second.how, place)
        chosen = int(torch.multinomial(rows[0].double().softmax(-1), 1, generator=generator))
        token = _token(number, chosen, rows, _ends(chosen, first, second, usual))
        yield _Chosen(token, logits, place, rows)
        if token.ends[0] or runner.full or number == max_tokens:
            return
        ids.append(chosen)
        logits = runner.go_on([0], [chosen])[0]


def _ends(token: int, first: Settings, second: Settings, usual: Sequence[int]) -> tuple[bool, bool]:
    return token in ends_of(first.how, usual), token in ends_of(second.how, usual)


def _token(number: int, chosen: int, rows: tuple[Tensor, Tensor], ends: tuple[bool, bool]) -> Token:
    p, q = (row.double().softmax(-1) for row in rows)
    return Token(
        number, chosen, int(rows[0].argmax()), int(rows[1].argmax()),
        (int(rows[0].isfinite().sum()), int(rows[1].isfinite().sum())), float((p - q).abs().sum() / 2), ends,
    )  # fmt: skip


def _all_ways(first: Settings, second: Settings) -> tuple[str, ...]:
    return (CHOICE, END, SET, DISTANCE) if first.how.temperature or second.how.temperature else GREEDY


def _ways(token: Token, rows: tuple[Tensor, Tensor], tolerance: float) -> list[str]:
    """The ways in which two programs differ at a token."""
    differs: Mapping[str, bool] = {
        CHOICE: token.first != token.second,
        END: token.ends[0] != token.ends[1],
        SET: not torch.equal(rows[0].isfinite(), rows[1].isfinite()),
        DISTANCE: token.distance > tolerance,
    }
    return [way for way, is_one in differs.items() if is_one]


def _removing(
    at: _Chosen, way: str, first: Settings, second: Settings, names: Sequence[str], tolerance: float
) -> Iterator[tuple[str, ...]]:
    """The smallest sets of settings that, taken from the second program, remove a difference."""

    def removes(chosen: Sequence[str]) -> bool:
        how = replace(first.how, **{name: getattr(second.how, name) for name in chosen})
        rows = processed(at.logits, how, at.place), at.rows[1]
        ends = _ends(at.token.id, replace(first, how=how), second, at.place.usual)
        return way not in _ways(_token(at.token.number, at.token.id, rows, ends), rows, tolerance)

    for size in range(1, len(names) + 1):
        found = [chosen for chosen in itertools.combinations(names, size) if removes(chosen)]
        if found:
            yield from found
            return


def _said(settings: Settings, name: str) -> str:
    """A value in words, and where it comes from if it was not given."""
    value = settings.value(name)
    forms: Mapping[str, Callable[[Any], str]] = {
        "order": lambda names: ", ".join(names) or "nothing to do",
        "end_ids": lambda ids: "the model's" if ids is None else ", ".join(map(str, ids)) or "none",
        "stop_token_ids": lambda ids: ", ".join(map(str, ids)) or "none",
        "ignore_eos": lambda does: does or "ends with it",
        "repeat_last_n": lambda n: "all tokens" if n == -1 else f"{n:,} tokens",
        "counted_tokens": str,
    }
    words = forms[name](value) if name in forms else f"{value:g}"
    if name in settings.why:
        return f"{words}, as {settings.why[name]}"
    return words if name in settings.given or name in ("order", "counted_tokens") else f"{words} by default"
