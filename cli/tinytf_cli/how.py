"""``how do I …``: the commands, options and verbs whose own words are those of the question."""

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from math import log
from shlex import quote

import click

from tinytf_cli.asking import COMMANDS_MEANT, NAMES_MEANT, OPTIONS_MEANT, WAYS_MEANT, answering, is_how
from tinytf_cli.command import GROUPS, WITH_FORMS, load

_SAID_IN_ANY = """
a able about all an and any are as at be by can did do does each every find for from get give go had has
have how i if in into is it its just like look make me my of on one only or own please possible see set
should show shown so some tell than that the their them there these they thing this to try two use used
using want was way what when where which with work would you your model text
"""
"""Words that say nothing of what is asked for, if there are others."""
_ENDINGS = re.compile(r"(?:(?:at)?(?:ions?|ing|es?|ed|ors?)|ings?|it(?:y|ies)|ers?|ies|ed|y|es|(?<!s)s|e)$")
_LEAST = 3
"""Letters that are left of a word without its ending."""
_KNOWN = 0.4
"""The least share of a question that an answer must cover, in the weight of its words."""
_UNKNOWN = 5
"""A word that no way has counts as one that this many have."""
_SHOWN = 3
_NEAR = 0.6
"""Answers with less than this share of the best one's weight are left out."""
_NAMED, _WORD, _SAID, _OPTION = 3.0, 2.0, 1.0, 0.7
"""What a stem counts in a name or what people type for it, as a word of the field, in a summary, and in an option."""


@dataclass(frozen=True)
class Way:
    """A line that does something, and what it does; ``words`` are its stems with their weights.

    Of the ways with one ``flag``, an option that several commands have, the nearest is shown.
    """

    line: str
    about: str
    words: Mapping[str, float]
    flag: str = ""
    of_session: bool = False

    def typed(self, *, in_session: bool) -> str:
        """The line as it is typed in a session, or in a shell."""
        if in_session or self.line.startswith("python "):
            return self.line
        return f"tinytf {in_shell(self.line) if self.of_session else self.line}"


def in_shell(line: str) -> str:
    """A line of a session as an argument of tinytf: a script of it, after one that runs a text."""
    return " ".join(["repl", *(f"-c {quote(each)}" for each in ("run The cat sat", line))])


def answered(question: str, known: Iterable[str]) -> str:
    """The line that answers a question, as ``answering`` has it; ``help`` on one for the way to do something."""
    bare = question.strip().rstrip("?!. ")
    return answering(question, known) or (f"help {bare}" if is_how(question) and ways(question) else "")


def ways(question: str) -> list[Way]:
    """The lines that do what is asked, the nearest first; none where most words of the question are in none."""
    asked = _stems(is_how(question) or question)
    known = _ways()
    heavy = _weights()
    whole = sum(heavy.get(stem, heavy[""]) for stem in asked) or 1.0
    scored: list[tuple[float, Way]] = []
    for way in known:
        met = [stem for stem in asked if stem in way.words]
        share = sum(heavy[stem] for stem in met) / whole
        if share >= _KNOWN and any(way.words[stem] >= _SAID for stem in met):
            scored.append((share * sum(heavy[stem] * way.words[stem] for stem in met), way))
    scored.sort(key=lambda pair: -pair[0])
    near: dict[str, Way] = {}
    for score, way in scored:
        if score >= _NEAR * scored[0][0]:
            near.setdefault(way.flag or way.line, way)
    return [*near.values()][:_SHOWN]


def _stems(words: str) -> list[str]:
    """The words without endings, once each, without those that are in any question unless there are no others."""
    plain = words.casefold().replace("'s", "").replace("z", "s").replace("our", "or")
    every = dict.fromkeys(re.findall(r"[a-z0-9_]+", plain))
    telling = [word for word in every if word not in _SAID_IN_ANY.split()] or [*every]
    return [*dict.fromkeys(map(_stem, telling))]


def _stem(word: str) -> str:
    shorter = _ENDINGS.sub("", word)
    return shorter if len(shorter) >= _LEAST else word


def _weighted(*parts: tuple[float, str]) -> Mapping[str, float]:
    """The stems of some words, each with the weight of the first part that has it."""
    return {stem: weight for weight, words in reversed(parts) for stem in _stems(words)}


@functools.cache
def _weights() -> Mapping[str, float]:
    """How telling each stem is: the rarer, the more; under the empty name, one that is in no way."""
    counted = Counter(stem for way in _ways() for stem in way.words)
    return {
        "": log(1 + len(_ways()) / _UNKNOWN),
        **{stem: log(1 + len(_ways()) / count) for stem, count in counted.items()},
    }


@functools.cache
def _ways() -> tuple[Way, ...]:
    return (*_of_table(), *_of_commands(), *_of_verbs(), *_of_words())


def _of_table() -> Iterator[Way]:
    for line, (about, words) in WAYS_MEANT.items():
        yield Way(line, about, _weighted((_NAMED, words), (_SAID, about)))


def _of_commands() -> Iterator[Way]:
    """A way for each command, each form of one, and each of their own options."""
    meant = {line.split()[0]: words for line, words in COMMANDS_MEANT.items() if "--" not in line}
    for name, about in {name: about for names in WITH_FORMS.values() for name, about in names.items()}.items():
        command, words = load(name), f"{name} {meant.get(name, '')} {NAMES_MEANT.get(name, '')}"
        context = click.Context(command)
        line = " ".join(piece for piece in (name, *command.collect_usage_pieces(context)) if piece != "[OPTIONS]")
        yield Way(line, about, _weighted((_NAMED, words), (_SAID, about)))
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden and not getattr(option, "shared", False):
                flag, said = max(option.opts, key=len), f"{(option.help or '').rstrip('.')}."
                takes = "" if option.is_flag else f" {option.make_metavar(context)}"
                whole = next(
                    (one for one in COMMANDS_MEANT if f"{one} ".startswith(f"{name} ") and f" {flag} " in one), ""
                )
                named = " ".join((flag, *(names.get(flag, "") for names in (OPTIONS_MEANT, NAMES_MEANT))))
                weighted = _weighted(
                    (_NAMED, f"{named} {COMMANDS_MEANT.get(whole, '')}"), (_SAID, name), (_OPTION, said)
                )
                yield Way(whole or f"{line} {flag}{takes}", said, weighted, flag)


def _of_verbs() -> Iterator[Way]:
    for verb in vars(import_module("tinytf_cli.repl.session_verbs"))["VERBS"].values():
        if not any(verb.name in names for names in GROUPS.values()):
            named = f"{verb.name} {NAMES_MEANT.get(verb.name, '')}"
            words = _weighted((_NAMED, named), (_SAID, verb.summary))
            yield Way(verb.examples[0], verb.summary, words, of_session=True)


def _of_words() -> Iterator[Way]:
    """What shows each word of the field."""
    from tinytf.glossary import field_words

    for word, spellings in field_words():
        words = _weighted((_WORD, " ".join(spellings)), (_OPTION, word.meaning))
        yield Way(word.read[0], f"{word.name}: {word.meaning}.", words)
