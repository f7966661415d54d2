"""``tinytf diff``: two texts, two models, or two dtypes of one model, step by step."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tinytf.errors import UsageError
from tinytf_cli.command import argument, command, option
from tinytf_cli.host import host, is_typed
from tinytf_cli.inputs import with_session_text
from tinytf_cli.options import DTYPES, FLOORS, FoldOptions, ModelOptions, require_only
from tinytf_cli.output import Output
from tinytf_cli.ranges import Real, Whole
from tinytf_cli.text_options import ChatOptions, asked_of, bound_to, target_option

if TYPE_CHECKING:
    from tinytf.compare.diff import Difference
    from tinytf.loading import Model
    from tinytf.text.chat import Written
    from tinytf.through.diff import ModuleDifferences
    from tinytf.through.model import ThroughModel

_SETTINGS = ("tolerance", "head", "top", "fail_over", "floor", "truncate", "force")
_EXAMPLES = 'tinytf diff "The cat sat" "The dog sat", or tinytf diff --model A --versus B "The cat sat"'


@dataclass(frozen=True)
class Options:
    """The options of this command alone."""

    chat: ChatOptions
    texts: tuple[str, ...] = argument(nargs=-1, metavar="TEXT [TEXT]")
    target_text: str | None = target_option()
    versus: str | None = option(
        metavar="MODEL|FILE",
        help="Compare with this model or checkpoint on one text, or with activations from another program: "
        ".safetensors, .npz, .json, .ndjson, a .txt or .log of llama-eval-callback, or a folder of files, one for each "
        "pass of a generation.",
    )
    names: Path | None = option(
        type=click.Path(path_type=Path), metavar="TABLE.toml",
        help='Map the names in that FILE to steps, such as "enc.{n}.query" = "L{n}.q".',
    )  # fmt: skip
    numbers: tuple[str, ...] = option(
        "--set", multiple=True, metavar="ADDRESS=NUMBER",
        help="Compare with the same model in which this number is set: 'L1H2.weights[sat,cat]=0', 'L0.W_Q[0,3]=0', "
        "'√d=1'. Repeatable.",
    )  # fmt: skip
    versus_dtype: str | None = option(type=click.Choice(DTYPES), help="Compare with the same model in this dtype.")
    truncate: bool = option(is_flag=True, help="Cut a text that is longer than the model's context.")
    tolerance: float | None = option(
        type=Real(0),
        help="Relative difference up to which steps count as equal.  [default: the rounding error of the dtype]",
    )  # fmt: skip
    head: str | None = option(
        metavar="ADDRESS", help="Show the weights of this head, such as L3H5.  [default: the head that differs most]"
    )
    top: int = option(type=Whole(1), shown=5, help="Most probable tokens shown for each side.")
    rows: int | None = option(type=Whole(0), help="Positions shown; 0 for all.  [default: 3]")
    fail_over: float | None = option(
        type=Real(0), metavar="TOL",
        help="Exit 1 if a step differs by more than TOL of a token's largest number.",
    )  # fmt: skip
    floor: str | None = option(
        type=click.Choice(FLOORS),
        help="Say whether it is rounding or a bug: compare the error of each step with the model's own in these "
        "numbers. Exit 1 for a bug.",
    )  # fmt: skip
    reports: tuple[Path, ...] = option(
        "--report", type=click.Path(path_type=Path), multiple=True, metavar="FILE",
        help="Write the comparison to FILE too: .md with versions and this command, .html, .json, .xml for JUnit. "
        "Repeatable.",
    )  # fmt: skip
    fix: bool = option(is_flag=True, help="Show only what to mend: each mistake, where, and how much it explains.")
    full: bool = option(is_flag=True, help="Show every step, not only the most different one in each layer.")
    force: bool = option(is_flag=True, help="Record even if it needs more than the free memory.")


@command("diff")
def diff(options: Options, fold: FoldOptions, model_options: ModelOptions, output: Output) -> int:
    """\b
    Two texts, one model   tinytf diff "The cat sat" "The dog sat"
    Two models, one text   tinytf diff --model A --versus B "The cat sat"
    Two training runs      tinytf runs RUN OTHER
    Two steps of a run     tinytf diff -m RUN/checkpoints/step-000250 --versus RUN
    Two dtypes             tinytf diff --versus-dtype bfloat16 "The cat sat"
    Another program        tinytf diff -m DIR --versus port.npz "The cat sat"
    A generation of it     tinytf diff -m DIR --versus PASSES/
    What an adapter does   tinytf diff -m MODEL --adapter DIR "The cat sat"
    An adapter, merged     tinytf diff -m MODEL --adapter DIR --versus OTHER TEXT
    What a number does     tinytf diff --set √d=1 "The cat sat"
    Two recordings         tinytf diff a.safetensors b.safetensors
    Two logs of logprobs   tinytf diff --logprobs trainer.jsonl rollout.jsonl
    Two ways of sampling   tinytf diff --sampling transformers vllm "The cat sat"

    One of the texts may be -, which reads a pipe.
    """
    from tinytf.compare.dumps.printed import LOGS
    from tinytf_cli.reported import expect_reports, write_reports
    from tinytf_cli.views.diff import DifferenceDisplay

    context = click.get_current_context()
    if host() is None and not any(map(is_typed, context.params)):
        click.echo(context.get_help())
        return 2
    names_none = host() is None and model_options.through is None and not is_typed("model")
    through = None if names_none else model_options.through_model(output)
    if through is not None:
        from tinytf_cli.views.diff_modules import ModuleDifferencesDisplay

        modules = _through(through, options, model_options)
        return output.draw_checked(modules, ModuleDifferencesDisplay(fold.all or options.full))
    if options.versus is not None and options.versus.lower().endswith(LOGS):
        return _printed(options, options.versus, fold, model_options, output)
    expect_reports(options.reports)
    report = _compared(options, model_options, output)
    display = DifferenceDisplay(
        fold.rows(options.rows), options.full or fold.all, options.head is not None, options.top, fix=options.fix
    )
    output.draw(report, display)
    write_reports(options.reports, report, display, output)
    return 0 if report.holds else 1


def _printed(options: Options, log: str, fold: FoldOptions, model_options: ModelOptions, output: Output) -> int:
    """The difference of a model and a log of llama-eval-callback."""
    from tinytf.compare.dumps.names import read_names
    from tinytf.compare.dumps.printed import read_log
    from tinytf.compare.printed import diff_printed
    from tinytf_cli.views.diff_printed import PrintedDisplay

    kept = ("tolerance", "fail_over", "truncate", "force")
    require_only(
        (*kept, "texts", "versus", "names", "rows", "full", "chat", "system", "rendered"), (Options,), f"the log {log}"
    )
    printed, names = read_log(log), read_names(options.names)
    settings: dict[str, Any] = {name: getattr(options, name) for name in kept}
    report = diff_printed(*_reading(model_options, options, output), printed, names=names, **settings)
    return output.draw_checked(report, PrintedDisplay(0 if options.full else fold.rows(options.rows)))


def _through(model: "ThroughModel", options: Options, model_options: ModelOptions) -> "ModuleDifferences":
    """The difference of two runs through transformers, or of one and a file of activations."""
    from tinytf.compare.dumps.read import SUFFIXES, open_dump
    from tinytf.through.diff import diff_through
    from tinytf.through.model import open_through

    taken = (
        "texts",
        "versus",
        "versus_dtype",
        "truncate",
        "tolerance",
        "fail_over",
        "full",
        "chat",
        "system",
        "rendered",
    )
    require_only(taken, (Options,))
    settings: dict[str, Any] = {name: getattr(options, name) for name in ("tolerance", "fail_over", "truncate")}
    if options.versus is not None and options.versus.lower().endswith(SUFFIXES):
        text = _texts(options, True)[0] if options.texts else None
        return diff_through(model, text, open_dump(options.versus), **settings)
    first, second = _texts(options, options.versus is not None or options.versus_dtype is not None)
    if second is not None:
        return diff_through(model, first, second, **settings)
    dtype = options.versus_dtype or model_options.dtype
    other = open_through(
        options.versus or model_options.model, device=model_options.device, dtype=dtype,
        trust_remote_code=model_options.trust_remote_code,
    )  # fmt: skip
    return diff_through(model, first, other, **settings)


def _compared(options: Options, model_options: ModelOptions, output: Output) -> "Difference":
    """The requested difference: of two texts, two models, or a file of activations."""
    from tinytf.cause.interventions import assignment
    from tinytf.compare.dumps.names import read_names
    from tinytf.compare.dumps.passes import is_passes, open_any
    from tinytf.compare.dumps.read import SUFFIXES, is_dump, open_dump
    from tinytf.text_model import TextModel

    settings: dict[str, Any] = {name: getattr(options, name) for name in _SETTINGS}
    named = [word.lower().endswith(SUFFIXES) and not any(letter.isspace() for letter in word) for word in options.texts]
    files = list(options.texts) if len(named) == 2 and all(named) else [word for word in options.texts if is_dump(word)]
    names = read_names(options.names)
    if len(files) == 2 == len(options.texts) and options.versus is None:
        from tinytf.compare.diff import diff_dumps

        model = model_options.open() if is_typed("model") else None
        dump_settings = {name: settings[name] for name in ("tolerance", "head", "top", "fail_over")}
        return diff_dumps(open_dump(files[0]), open_dump(files[1]), model, names=names, **dump_settings)
    if files:
        raise UsageError(f"{files[0]} is a file of activations, not a text", f"tinytf diff TEXT --versus {files[0]}")
    if options.versus is not None and (
        options.versus.lower().endswith(SUFFIXES) or _is_foreign(options.versus) or is_passes(options.versus)
    ):
        dump = open_any(options.versus)
        model, text = _reading(model_options, options, output)
        return model.diff(text, dump, names=names, **settings)
    if options.names is not None:
        raise UsageError("--names maps the names in a file, and there is no file", "name it with --versus")
    has_other = options.versus is not None or options.versus_dtype is not None
    if options.numbers:
        if has_other:
            raise UsageError("--set compares a model without and with it", "leave out --versus and --versus-dtype")
        _texts(options, True)
        numbers = dict(assignment(text) for text in options.numbers)
        model, text = _reading(model_options, options, output)
        return model.diff(text, model.with_numbers(numbers, text=text), **settings)
    merges = is_typed("adapter") and not has_other
    first, second = _texts(options, has_other or merges)
    model = (replace(model_options, adapter=None) if merges else model_options).open(two_stacks=True)
    compared: Written | Model
    if second is not None:
        compared = second
    else:
        compared = model_options.open(two_stacks=True) if merges else _other(model_options, options)
    texts = [text for text in (first, second) if text is not None]
    (bound, *others), asked = asked_of(model, texts, options.target_text, output, truncate=options.truncate)
    if isinstance(compared, TextModel):  # asked about the text, or the target, of the first
        others.append(bound_to(compared, first, options.truncate))
    return bound.diff(asked[0], (others[0], asked[-1]), **settings)


def _reading(model_options: ModelOptions, options: Options, output: Output) -> "tuple[Model, Written | None]":
    """The model and the one text, None where a file has its own; a model of two stacks bound to it, and the target."""
    text = _texts(options, True)[0] if options.texts or options.numbers else None
    model = model_options.open(two_stacks=True)
    if text is not None:
        (bound,), (asked,) = asked_of(model, [text], options.target_text, output, truncate=options.truncate)
        return bound, asked
    if model.config.encoder is not None or options.target_text is not None:
        raise UsageError("a model of two stacks needs a TEXT to read", "the file has the tokens of one text")
    return model, None


def _is_foreign(name: str) -> bool:
    """Whether a word names a file that is no model. Reading it as a dump then lists the known formats."""
    path = Path(name)
    return path.is_file() and path.suffix not in ("", ".gguf", ".toml")


def _texts(options: Options, versus: bool) -> "tuple[Written, Written | None]":
    """The one text to compare ``versus`` another model, otherwise two texts."""
    words = with_session_text(options.texts, 1 if versus else 2)
    if versus and len(words) > 1:
        raise UsageError(
            f"{len(words)} texts and another model are two comparisons at once",
            "compare two texts on one model, or two models on one text (in quotes)",
        )
    if not versus and len(words) != 2:
        message = "there is nothing to compare with" if len(words) < 2 else f"these are {len(words)} texts"
        raise UsageError(message, f"{_EXAMPLES}; quote a text of several words")
    if words.count("-") > 1:
        raise UsageError("a pipe holds one text, and both are -", "give one of them in quotes")
    texts = options.chat.read_each(words or ("-",))
    return texts[0], texts[1] if len(texts) > 1 else None


def _other(model_options: ModelOptions, options: Options) -> "Model":
    """Open the other model: --versus or the same one, on the same device, in --versus-dtype or the same dtype."""
    from tinytf.loading import load

    name = model_options.model if options.versus is None else options.versus
    dtype, adapter = options.versus_dtype or model_options.dtype, None
    if options.versus is None:  # the same model in another dtype, with all that it was opened with
        adapter = model_options.adapter
    return load(name, device=model_options.device, dtype=dtype, seed=model_options.seed, adapter=adapter)
