"""Options that commands share, each declared once."""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from tinytf.errors import AddressError, UsageError
from tinytf.nearest import did_you_mean
from tinytf_cli.host import given, host
from tinytf_cli.output import Output, require_writable
from tinytf_cli.paint.terminal import detect

Command = TypeVar("Command", bound=Callable[..., Any])

# Below this many parameters a second thread costs more in waiting than it saves in work.
SMALL = 10_000_000
FORMATS = ("text", "json", "ndjson")
DEVICES = ("auto", "cpu", "cuda", "mps")
DTYPES = ("float32", "bfloat16", "float16", "float64")


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from tinytf.presets import PRESETS

    names = ["tiny", "tiny-encoder", *(f"preset:{name}" for name in PRESETS)]
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="dir")]


def output_options(command: Command) -> Command:
    """--format, --json, -o, --color, --width, --ascii, --plain: the command gets one ``output`` instead."""

    @click.option("--format", "form", type=click.Choice(FORMATS), default=None, help="Form of the output.")
    @click.option("--json", "as_json", is_flag=True, help="Short for --format json.")
    @click.option(
        "-o",
        "--output",
        "file",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Write to FILE: .txt .json .ndjson .html .svg .safetensors.",
    )
    @click.option("--color", type=click.Choice(["auto", "always", "never"]), default="auto", show_default=True)
    @click.option("--width", type=click.IntRange(20, 1000), help="Columns to draw in.")
    @click.option("--ascii", is_flag=True, help="7-bit signs only.")
    @click.option("--plain", is_flag=True, help="Sentences instead of tables and maps, for screen readers.")
    @click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
    @functools.wraps(command)
    def wrapped(
        *args: Any,
        form: str | None,
        as_json: bool,
        file: Path | None,
        color: str,
        width: int | None,
        ascii: bool,
        plain: bool,
        **kwargs: Any,
    ) -> Any:
        if as_json and form not in (None, "json"):
            raise UsageError(f"--json and --format {form} ask for two forms at once")
        form = "json" if as_json else form
        if file is not None:
            require_writable(file)
            wanted = {".json": "json", ".ndjson": "ndjson"}.get(file.suffix.lower(), "text")
            if form not in (None, wanted):
                raise UsageError(f"{file.name!r} says {wanted} and --format says {form}", "leave one of them out")
        terminal = detect(sys.stdout, color=color, width=width, ascii=ascii, plain=plain)
        lender = host()
        output = lender.output(terminal, form or "text", file) if lender else Output(terminal, form or "text", file)
        return command(*args, output=output, **kwargs)

    return wrapped  # type: ignore[return-value]  # fmt: skip


def model_options(command: Command) -> Command:
    """--model, --device, --dtype, --seed: the command gets ``open_model``, a function that opens it."""

    @click.option(
        "--model",
        "-m",
        default="tiny",
        show_default=True,
        metavar="MODEL",
        shell_complete=complete_model,
        help="tiny, tiny-encoder, a folder, a .gguf file, preset:NAME or hub:ORG/NAME; tinytf models lists them.",
    )
    @click.option("--device", type=click.Choice(DEVICES), default="auto", show_default=True)
    @click.option(
        "--dtype",
        type=click.Choice(DTYPES),
        default="float32",
        show_default=True,
    )
    @click.option(
        "--seed",
        type=click.IntRange(0, 2**63 - 1),
        default=0,
        show_default=True,
        help="Makes what is random: the weights of a preset, what generate draws, what grad --check measures.",
    )
    @functools.wraps(command)
    def wrapped(*args: Any, model: str, device: str, dtype: str, seed: int, **kwargs: Any) -> Any:
        lender = host()
        lent = lender is not None and not given("model", "device", "dtype")

        def open_model() -> Any:
            if lender is not None and lent:
                return lender.model
            from tinytf.loading import load

            opened = load(model, device=device, dtype=dtype, seed=seed)
            if opened.n_parameters < SMALL:
                import torch

                torch.set_num_threads(1)
            return opened

        return command(*args, open_model=open_model, **kwargs)

    return wrapped  # type: ignore[return-value]  # fmt: skip


def decoding_options(command: Command) -> Command:
    """--no-cache, --prefill-chunk, --compile, --quantize: the command gets ``use_cache``, ``chunk`` and ``kind``."""

    @click.option("--no-cache", is_flag=True, help="Compute every token again for each new one.")
    @click.option("--prefill-chunk", "chunk", type=click.IntRange(1), help="Tokens of the prompt in one pass, at most.")
    @click.option("--compile", is_flag=True, help="Let torch write the kernels first; it takes a C++ compiler.")
    @click.option("--quantize", type=click.Choice(["int8"]), help="Decode with 8-bit weights; says what that costs.")
    @functools.wraps(command)
    def wrapped(
        *args: Any, no_cache: bool, chunk: int | None, compile: bool, quantize: str | None, **kwargs: Any
    ) -> Any:
        from tinytf.generate.decoder import Kind

        kind = Kind(compile=compile, quantize=quantize is not None)
        return command(*args, use_cache=not no_cache, chunk=chunk or 0, kind=kind, **kwargs)

    return wrapped  # type: ignore[return-value]


def recording_options(command: Command) -> Command:
    """--force: the command gets ``force``."""
    force = click.option("--force", is_flag=True, help="Record even what is larger than the free memory.")
    return force(command)


def block_options(command: Command) -> Command:
    """--layer, --head, --full, --no-detail, --dims, --rows: which block is shown in full, and how much of it."""

    @click.option("--layer", type=int, default=0, show_default=True, help="Layer of the block that is shown in full.")
    @click.option("--head", type=int, default=0, show_default=True, help="Head of that block.")
    @click.option("--full", is_flag=True, help="Show the block of every layer.")
    @click.option("--no-detail", is_flag=True, help="The pipeline alone, without the block.")
    @click.option("--dims", type=click.IntRange(1), default=8, show_default=True, help="Dimensions shown as numbers.")
    @click.option("--rows", type=click.IntRange(0), help="Tokens shown in a table (0: all; on a screen 16).")
    @functools.wraps(command)
    def wrapped(*args: Any, layer: int, head: int, **kwargs: Any) -> Any:
        for what, number in (("layer", layer), ("head", head)):
            if number < 0:
                raise AddressError(f"there is no {what} {number}", "they count from 0")
        return command(*args, layer=layer, head=head, **kwargs)

    return wrapped  # type: ignore[return-value]


def fault_options(command: Command) -> Command:
    """--fail-on: the command gets ``fail_on``, the kinds of faults to look for."""

    @click.option(
        "--fail-on",
        "kinds",
        metavar="KINDS",
        help="Name the first step with nan, inf, saturated, dead or mismatch (several: nan,inf), and exit 1.",
    )
    @functools.wraps(command)
    def wrapped(*args: Any, kinds: str | None, **kwargs: Any) -> Any:
        return command(*args, fail_on=() if kinds is None else _fault_kinds(kinds), **kwargs)

    return wrapped  # type: ignore[return-value]


def _fault_kinds(words: str) -> tuple[str, ...]:
    from tinytf.gradients.faults import KINDS

    chosen = tuple(word.strip() for word in words.split(","))
    for word in chosen:
        if word not in KINDS:
            raise UsageError(f"--fail-on knows no {word!r}", did_you_mean(word, KINDS))
    return chosen


def text_options(command: Command) -> Command:
    """TEXT, --lines and --truncate: the command gets ``texts``, ``lines`` and ``truncate``."""

    @click.argument("words", nargs=-1, metavar="TEXT")
    @click.option("--lines", is_flag=True, help="Every line of the text is a text of its own.")
    @click.option("--truncate", is_flag=True, help="Cut a text that is longer than the model's context.")
    @functools.wraps(command)
    def wrapped(*args: Any, words: tuple[str, ...], lines: bool, truncate: bool, **kwargs: Any) -> Any:
        from tinytf_cli.inputs import read_texts

        lender = host()
        if lender is not None and not words:
            words = (lender.require_text(),)
        return command(*args, texts=read_texts(words, lines=lines), lines=lines, truncate=truncate, **kwargs)

    return wrapped  # type: ignore[return-value]
