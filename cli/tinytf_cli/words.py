"""``tinytf help WORD``: the glossary, and what one word means. No command of the group: ``help`` leads here."""

from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import as_file, files
from typing import TYPE_CHECKING, Any

from tinytf.errors import TinytfError, UsageError
from tinytf_cli.asking import command_meant, is_how
from tinytf_cli.command import GROUPS, argument, command
from tinytf_cli.host import host
from tinytf_cli.how import in_shell, ways
from tinytf_cli.output import Output
from tinytf_cli.readers import lines_for

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tinytf.config import ModelConfig
    from tinytf.glossary import Meanings

ALL_WORDS = "words"
BUILT_IN = "tiny"


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    word: tuple[str, ...] = argument(nargs=-1, required=True)


@command("help", "Show what a word means.")
def help_command(options: Options, output: Output) -> None:
    """WORD is a word of the field or of the screens, such as logit or induction; words shows them all. Of a researcher,
    learner, porter or trainer it shows the commands.
    """
    from tinytf.glossary import WAY, Meanings, Word, glossary, meanings_of
    from tinytf_cli.options import default_model
    from tinytf_cli.views import glossary as _views  # noqa: F401 - registers its views

    word, config = " ".join(options.word), config_of(default_model())
    if word == ALL_WORDS:
        output.draw(glossary(config))
        return
    if lines := lines_for(word.casefold()):
        program = "" if host() is not None else "tinytf "
        output.draw(Meanings(tuple(Word(f"{program}{line}", WAY, about) for line, about in lines)))
        return
    commands = [*(name for summaries in GROUPS.values() for name in summaries), ALL_WORDS]
    try:
        output.draw(meanings_of(word, commands, config))
    except UsageError as unknown:
        if found := _verb(word) or doing(word):
            output.draw(found)
            return
        meant = command_meant(word)
        raise UsageError(unknown.message, f"tinytf {meant} does that" if meant else unknown.hint) from None


def config_of(name: str) -> "ModelConfig | None":
    """The configuration of a model, of the default one without torch; None if it cannot be read from disk."""
    with suppress(TinytfError, OSError):
        if name == BUILT_IN:
            from tinytf.checkpoints.run_config import read_config

            with as_file(files("tinytf") / "assets" / name) as folder:
                return read_config(folder)
        from tinytf.sources import find_source

        return None if name.startswith("hub:") else find_source(name).config()
    return None


def verbs() -> "Mapping[str, Any]":
    """The verbs of the session, which imports this module: found by name, as commands are."""
    found: Mapping[str, Any] = import_module("tinytf_cli.repl.session_verbs").VERBS
    return found


def doing(question: str) -> "Meanings | None":
    """The lines that do what a question or a word asks for; None where it asks how, and no line does that.

    Raises UsageError for such a question.
    """
    from tinytf.glossary import WAY, Meanings, Word

    found = tuple(Word(way.typed(in_session=host() is not None), WAY, way.about) for way in ways(question))
    if not found and is_how(question):
        raise UsageError("I don't know that",
            f"help lists what there is; to look at it as a text: run {question}" if host()
            else "tinytf --help lists what there is",
        )  # fmt: skip
    return Meanings(found) if found else None


def _verb(word: str) -> "Meanings | None":
    """What a verb of the session does; None for another word."""
    from tinytf.glossary import Meanings, Word, asked

    verb = next((verb for verb in verbs().values() if asked(word) in (verb.name, *verb.aliases)), None)
    if verb is None:
        return None
    said = " ".join((verb.command.help or "").split("\n\n")[0].split())
    examples = tuple(("such as", line) for line in verb.examples)
    return Meanings((Word(verb.name, "verb of the session", said, examples, (in_shell(verb.examples[0]), "repl")),))
