"""``tinytf help WORD``: the glossary, and what one word means. No command of the group: ``help`` leads here."""

from dataclasses import dataclass

from tinytf_cli.command import argument, command
from tinytf_cli.main import COMMANDS
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

    if options.word == ALL_WORDS:
        output.draw(glossary())
        return
    output.draw(meanings_of(options.word, [*COMMANDS, ALL_WORDS]))
