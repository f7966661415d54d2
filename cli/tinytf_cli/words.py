"""``tinytf help WORD``: the glossary, and what one word means. No command of the group: ``help`` leads here."""

from dataclasses import dataclass

from tinytf_cli.command import GROUPS, argument, command
from tinytf_cli.output import Output

ALL_WORDS = "words"


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    word: str = argument()


@command("help", "Show what a word means.")
def help_command(options: Options, output: Output) -> None:
    """WORD is a word of the screens, such as logit or induction; words shows them all."""
    from tinytf.glossary import glossary, meanings_of
    from tinytf_cli.views import glossary as _views  # noqa: F401 - registers its views

    if options.word == ALL_WORDS:
        output.draw(glossary())
        return
    commands = (name for summaries in GROUPS.values() for name in summaries)
    output.draw(meanings_of(options.word, [*commands, ALL_WORDS]))
