"""``tinytf tokens``: how a text is cut into tokens."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinytf_cli.command import command, option
from tinytf_cli.host import host, is_typed
from tinytf_cli.inputs import corpus_files
from tinytf_cli.options import DEFAULT_MODEL, complete_model, default_model, tokenizer_option
from tinytf_cli.output import Output
from tinytf_cli.ranges import Whole
from tinytf_cli.text_options import OptionalTextOptions

if TYPE_CHECKING:
    from tinytf.text.chat import Written


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    model: str = option(
        "-m", "--model", metavar="MODEL", default=default_model, show_default=DEFAULT_MODEL,
        shell_complete=complete_model, help="Use the tokenizer of this model.",
    )  # fmt: skip
    tokenizer: str | None = tokenizer_option()
    versus: str | None = option(
        metavar="MODEL", shell_complete=complete_model,
        help="Show the first text that the tokenizer of this model splits differently, and exit 1.",
    )  # fmt: skip
    corpus: tuple[Path, ...] = option(
        "--corpus", multiple=True, type=click.Path(path_type=Path), metavar="FILE",
        help="With --versus: compare on these text files or folders, or on - (a pipe). Repeatable.",
    )  # fmt: skip
    characters: bool = option(is_flag=True, help="Split TEXT into characters instead, numbered in their order.")
    windows: int | None = option(
        metavar="N", type=Whole(1),
        help="Show the windows of N tokens that training would read: the input x and the target y.",
    )  # fmt: skip
    limit: int | None = option(
        metavar="N",
        type=Whole(0),
        help="Tokens shown, at most; 0 for all.  [default: as many as fit a screen]",
    )


@command("tokens")
def tokens(options: Options, texts: OptionalTextOptions, output: Output) -> int:
    """Marks the tokens that the tokenizer adds by itself. With --versus, shows where another tokenizer splits
    differently, and with --corpus how often.
    """
    from tinytf.compare.tokenizers import splits
    from tinytf.errors import UsageError
    from tinytf.look.tokens import Tokenized
    from tinytf.sources import Source, find_source, open_tokenizer, vocabulary_of
    from tinytf.text.pair import encode_written
    from tinytf.text.train import train_characters
    from tinytf_cli.progress_line import progress_line
    from tinytf_cli.views import tokenizers as _  # noqa: F401 - registers its view
    from tinytf_cli.views.tokens import TokensDisplay

    if options.versus is not None and (options.characters or options.windows):
        raise UsageError("--versus compares two tokenizers as they are", "leave out --characters and --windows")
    if options.corpus and (options.versus is None or texts.words):
        raise UsageError(
            "--corpus compares two tokenizers, and replaces TEXT", "use it with --versus, such as --versus gpt2"
        )
    if texts.target_text is not None:
        raise UsageError("tokens splits TEXT and asks no model, so it has no target", "give the target as TEXT")
    if not options.corpus:
        texts.items  # noqa: B018 - report a missing text before opening a tokenizer
    session = host()
    if session is not None and not is_typed("model", "tokenizer"):
        source: Any = session.opened
        name = session.opened.name
        tokenizer, note = session.opened.tokenizer, session.opened.tokenizer_note
        pairs = session.opened.pair_template
    else:
        source = find_source(options.model)
        name = source.name
        vocabulary = vocabulary_of(source, options.tokenizer)
        tokenizer, note, pairs = vocabulary.tokenizer, vocabulary.note, source.pair_template()
    if options.versus is not None:
        pair, files = (
            (tokenizer, open_tokenizer(options.versus)),
            corpus_files(options.corpus, ()) if options.corpus else None,
        )
        source_texts = files.documents().texts() if files else texts
        total = files.characters if files else 0
        with progress_line(output.stderr, "reading the corpus: character") as on_progress:
            report = splits(
                (name, options.versus), pair, source_texts, lambda done: on_progress(min(done, total), total)
            )
        return output.draw_checked(report)

    def question(text: "Written") -> Tokenized:
        if text == "":
            raise UsageError("the text is empty", "give a few characters, such as: The cat sat")
        if options.characters and not isinstance(text, str):
            raise UsageError("--characters splits one text", "leave out --chat and --pair")
        splitter = train_characters([text]) if options.characters and isinstance(text, str) else tokenizer
        encoding = encode_written(splitter, text, pairs=pairs)
        if texts.truncate:
            config = source.config() if isinstance(source, Source) else source.config
            encoding = encoding.truncated(config.context)
        if options.windows is not None and options.windows >= len(encoding.tokens):
            count = len(encoding.tokens)
            raise UsageError(
                f"a window of {options.windows:,} tokens and its target do not fit a text of {count:,}",
                f"--windows {count - 1:,} is the most" if count > 1 else "give a longer text",
            )
        named = "the characters of the text" if splitter is not tokenizer else name
        return Tokenized(named, splitter, note if splitter is tokenizer else "", encoding, options.windows or 0)

    display = TokensDisplay(options.limit)
    return texts.answer(lambda some: map(question, some), output, "texts", display, of=tokenizer.library.to_str())
