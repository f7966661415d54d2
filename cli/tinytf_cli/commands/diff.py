"""``tinytf diff``: two texts, two models, or two dtypes of one model, step by step."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinytf.errors import UsageError
from tinytf_cli.command import FloatRange, argument, command, option
from tinytf_cli.host import given
from tinytf_cli.inputs import with_session_text
from tinytf_cli.options import DTYPES, ChatOptions, FoldOptions, ModelOptions
from tinytf_cli.output import Output

if TYPE_CHECKING:
    from tinytf.compare.difference import Difference
    from tinytf.loading import Model
    from tinytf.text.chat import Written

_SETTINGS = ("tolerance", "head", "top", "fail_over", "truncate", "force")
_HOW = 'tinytf diff "The cat sat" "The dog sat", or tinytf diff --model A --versus B "The cat sat"'


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    chat: ChatOptions
    texts: tuple[str, ...] = argument(nargs=-1, metavar="TEXT [TEXT]")
    versus: str | None = option(
        metavar="MODEL|FILE",
        help="Compare with this model or checkpoint on one text, or with what another program wrote: "
        ".safetensors, .npz, .json, .ndjson.",
    )
    names: Path | None = option(
        type=click.Path(path_type=Path), metavar="TABLE.toml",
        help='What names in that FILE mean, such as "enc.{n}.query" = "L{n}.q".',
    )  # fmt: skip
    versus_dtype: str | None = option(type=click.Choice(DTYPES), help="Compare with the model in this dtype.")
    truncate: bool = option(is_flag=True, help="Cut a text that is longer than the model's context.")
    tolerance: float | None = option(
        type=FloatRange(0),
        help="Relative difference up to which steps count as equal.  [default: the rounding error of the dtype]",
    )  # fmt: skip
    head: str | None = option(
        metavar="ADDRESS", help="Show the weights of this head, such as L3H5.  [default: the head that differs most]"
    )
    top: int = option(type=click.IntRange(1), shown=5, help="Most probable tokens of each side.")
    rows: int | None = option(type=click.IntRange(0), help="Positions shown; 0 for all.  [default: 3]")
    fail_over: float | None = option(
        type=FloatRange(0), metavar="TOL",
        help="Exit 1 if a step differs by more than TOL of a token's largest number.",
    )  # fmt: skip
    full: bool = option(is_flag=True, help="Show every step, not only the one that differs most in each layer.")
    force: bool = option(is_flag=True, help="Record even what is larger than the free memory.")


@command("diff")
def diff(options: Options, extent: FoldOptions, opening: ModelOptions, output: Output) -> int:
    """\b
    Two texts, one model   tinytf diff "The cat sat" "The dog sat"
    Two models, one text   tinytf diff --model A --versus B "The cat sat"
    Two steps of a run     tinytf diff -m RUN/checkpoints/step-000250 --versus RUN
    Two dtypes             tinytf diff --versus-dtype bfloat16 "The cat sat"
    Another program        tinytf diff -m DIR --versus port.npz "The cat sat"
    What an adapter does   tinytf diff -m MODEL --adapter DIR "The cat sat"
    Two recordings         tinytf diff a.safetensors b.safetensors

    One of the texts may be -, which is read from a pipe.
    """
    from tinytf_cli.views.difference import DifferenceDisplay

    report = _compared(options, opening)
    output.draw(
        report, DifferenceDisplay(extent.rows(options.rows), options.full, options.head is not None, options.top)
    )
    return 0 if report.holds else 1


def _compared(options: Options, opening: ModelOptions) -> "Difference":
    """The difference that is asked for: of texts, of models, or from a file of activations."""
    from tinytf.compare.dumps.names import read_names
    from tinytf.compare.dumps.read import SUFFIXES, is_dump, open_dump

    settings: dict[str, Any] = {name: getattr(options, name) for name in _SETTINGS}
    named = [word.lower().endswith(SUFFIXES) and not any(letter.isspace() for letter in word) for word in options.texts]
    files = list(options.texts) if len(named) == 2 and all(named) else [word for word in options.texts if is_dump(word)]
    names = read_names(options.names)
    if len(files) == 2 == len(options.texts) and options.versus is None:
        from tinytf.compare.difference import diff_dumps

        model = opening.open() if given("model") else None
        some = {name: settings[name] for name in ("tolerance", "head", "top", "fail_over")}
        return diff_dumps(open_dump(files[0]), open_dump(files[1]), model, names=names, **some)
    if files:
        raise UsageError(f"{files[0]} is a file of activations, not a text", f"tinytf diff TEXT --versus {files[0]}")
    if options.versus is not None and (options.versus.lower().endswith(SUFFIXES) or _is_foreign(options.versus)):
        dump = open_dump(options.versus)
        text = _texts(options, True)[0] if options.texts else None
        return opening.open().diff(text, dump, names=names, **settings)
    if options.names is not None:
        raise UsageError("--names says what the names in a file mean, and there is none", "--versus names it")
    another = options.versus is not None or options.versus_dtype is not None
    if given("adapter"):
        if another:
            raise UsageError("--adapter compares a model without and with it", "leave out --versus and --versus-dtype")
        first, _ = _texts(options, True)
        return replace(opening, adapter=None).open().diff(first, opening.open(), **settings)
    first, second = _texts(options, another)
    model = opening.open()
    return model.diff(first, second if second is not None else _other(opening, options), **settings)


def _is_foreign(name: str) -> bool:
    """Whether a word names a file that is no model: reading it as a dump says what dumps there are."""
    path = Path(name)
    return path.is_file() and path.suffix not in ("", ".gguf", ".toml")


def _texts(options: Options, versus: bool) -> "tuple[Written, Written | None]":
    """The text, or without another model the two texts."""
    words = with_session_text(options.texts, 1 if versus else 2)
    if versus and len(words) > 1:
        raise UsageError(
            f"{len(words)} texts and another model are two comparisons at once",
            "compare two texts on one model, or two models on one text (in quotes)",
        )
    if not versus and len(words) != 2:
        said = "there is nothing to compare with" if len(words) < 2 else f"these are {len(words)} texts"
        raise UsageError(said, f"{_HOW}; quote a text of several words")
    if words.count("-") > 1:
        raise UsageError("a pipe holds one text, and both are -", "give one of them in quotes")
    read = options.chat.each(words or ("-",))
    return read[0], read[1] if len(read) > 1 else None


def _other(opening: ModelOptions, options: Options) -> "Model":
    """The other model: --versus or the same, on the same device, in its dtype or another."""
    from tinytf.loading import load

    name = opening.model if options.versus is None else options.versus
    return load(name, device=opening.device, dtype=options.versus_dtype or opening.dtype, seed=opening.seed)
