"""The words that a line can begin with: verbs and their aliases, and the commands of the command line."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import click

from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf_cli.main import COMMANDS, cli
from tinytf_cli.repl.commands import TAKES

TOPICS = {
    "moving": "through the steps",
    "looking": "at numbers",
    "stopping": "where something happens",
    "session": "model, text, settings, and what was done",
    "lines": "what else a line can be",
}

KINDS = {
    "address": "an address, such as L3H5.weights",
    "cell": "an address with a cell, such as L0H0.scores[1,0]",
    "layer": "a layer, such as L3",
    "step": "a step or its number",
    "number": "a number",
    "text": "a text",
    "setting": "a setting, then one of its values",
    "model": "a model, as --model takes it",
    "file": "a file",
    "topic": "a verb, a command or a topic of help",
    "flag": "/shape, /stats, /values or /json",
    "condition": "measures and numbers, such as max > 0.9",
}
"""What the words of a verb can be; completion reads it."""


@dataclass(frozen=True)
class Verb:
    """One verb. ``takes`` are the kinds of its words, in order, the last one's for all that follow (``KINDS``).

    ``raw`` ones read the line as it was typed; a blank line repeats one that ``moves``. ``claims`` decides, where a
    command has the same name, whether these words are for the verb.
    """

    name: str
    topic: str
    command: click.Command
    aliases: tuple[str, ...] = ()
    usage: str = ""
    examples: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    raw: bool = False
    moves: bool = False
    claims: Callable[[tuple[str, ...]], bool] = lambda words: True

    @property
    def summary(self) -> str:
        """The first sentence that it says of itself."""
        return (self.command.help or "").strip().split("\n")[0]


class Lexicon:
    """``verbs`` by name, and ``names``: every word that a line can begin with, to the name it stands for."""

    def __init__(self, verbs: Mapping[str, Verb]) -> None:
        self.verbs = verbs
        self.names = {name: name for name in (*COMMANDS, *verbs)}
        for one in verbs.values():
            self.names.update(dict.fromkeys(one.aliases, one.name))

    def find(self, word: str) -> str:
        """What a word means: a name, an alias, or the only one that begins so.

        Raises UsageError for anything else, with what it could be.
        """
        if word in self.names:
            return self.names[word]
        found = sorted({name for known, name in self.names.items() if word and known == name and name.startswith(word)})
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(f"{word!r} can be {', '.join(found)}", "write a little more of it")
        near = did_you_mean(word, set(self.names.values())) or "help lists what there is"
        hint = f"{near}{'' if near.endswith('?') else ';'} a text is looked at with: run TEXT"
        raise UsageError(f"there is no verb or command {word[:60]!r}", hint)

    def meaning(self, word: str) -> str:
        """What a word means; empty for one that means nothing."""
        try:
            return self.find(word)
        except UsageError:
            return ""

    def command(self, name: str) -> click.Command | None:
        """A command of the command line by its name."""
        return cli.get_command(click.Context(cli), name)

    def verb_for(self, words: Sequence[str]) -> Verb | None:
        """The verb that takes a line of these words; None where a command does.

        Raises UsageError for a first word that is neither.
        """
        found = self.verbs.get(name := self.find(words[0]))
        if found is None or (not found.claims(tuple(words[1:])) and name in COMMANDS):
            return None
        return found

    def takes(self, word: str) -> tuple[str, ...]:
        """The kinds (``KINDS``) of the words behind a verb or command, the last one's for all that follow."""
        name = self.meaning(word)
        found = self.verbs.get(name)
        return found.takes if found is not None else TAKES.get(name, ("text",)) if name else ()

    def redirects(self, word: str) -> bool:
        """Whether ``|`` and ``>`` behind this first word are about the output; of a condition they are a part."""
        found = self.verbs.get(self.meaning(word))
        return found is None or not found.raw
