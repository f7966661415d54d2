"""Options that commands share, each declared once; a command gets those that belong together as one frozen object."""

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from tinytf.errors import AddressError, UsageError
from tinytf.nearest import did_you_mean
from tinytf_cli.host import given, host
from tinytf_cli.inputs import read_texts
from tinytf_cli.output import Output, require_writable
from tinytf_cli.terminal import COLORMAPS, THEMES, Terminal, detect

if TYPE_CHECKING:
    from tinytf.generate.decoder import Kind
    from tinytf.loading import Model

Command = TypeVar("Command", bound=Callable[..., Any])
Decorator = Callable[[Command], Command]

# Below this many parameters a second thread costs more in waiting than it saves in work.
SMALL = 10_000_000
FORMATS = ("text", "json", "ndjson")
DEVICES = ("auto", "cpu", "cuda", "mps")
DTYPES = ("float32", "bfloat16", "float16", "float64")


def gathered(keyword: str, make: Callable[..., Any], parameters: Iterable[Any]) -> Decorator[Any]:
    """Declare parameters of click; the command gets one ``keyword``, which ``make`` makes of all their values."""

    def decorate(command: Command) -> Command:
        names: list[str] = []

        @functools.wraps(command)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            values = {name: kwargs.pop(name) for name in names}
            return command(*args, **{keyword: make(**values)}, **kwargs)

        before = len(getattr(command, "__click_params__", ()))
        for parameter in reversed(list(parameters)):
            parameter(wrapped)
        declared: list[click.Parameter] = wrapped.__click_params__  # type: ignore[attr-defined]
        names += [one.name for one in declared[before:] if one.name and one.expose_value]
        return wrapped  # type: ignore[return-value]

    return decorate


def option(*names: str, shown: Any = None, **attributes: Any) -> Any:
    """A field of a dataclass that is an option of click: of these names, or of the field's own.

    ``shown`` is a default that its help shows.
    """
    if shown is not None:
        attributes |= {"default": shown, "show_default": True}
    return dataclasses.field(metadata={"option": (names, attributes)})


def fields_of(made: type) -> list[Any]:
    """The options that the fields of a dataclass declare."""
    found = []
    for field in dataclasses.fields(made):
        names, attributes = field.metadata["option"]
        found.append(click.option(*(names or (f"--{field.name.replace('_', '-')}",)), field.name, **attributes))
    return found


def asks(made: type, keyword: str = "asked") -> Decorator[Any]:
    """The options of one command alone, as the fields of a dataclass: the command gets one of them."""
    return gathered(keyword, made, fields_of(made))


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from tinytf.presets import PRESETS

    names = ["tiny", "tiny-encoder", *(f"preset:{name}" for name in PRESETS)]
    found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return found or [CompletionItem(incomplete, type="dir")]


@dataclass(frozen=True)
class Drawing:
    """How to draw: --color, --theme, --colormap, --precision, --width, --ascii, --plain."""

    color: str = option(type=click.Choice(["auto", "always", "never"]), shown="auto")
    theme: str = option(type=click.Choice(THEMES), shown="auto", help="Background to draw for; auto asks the terminal.")
    colormap: str = option(type=click.Choice(COLORMAPS), shown="viridis", help="Colours of values in 0…1.")
    precision: int | None = option(type=click.IntRange(0, 9), help="Digits after the point.")
    width: int | None = option(type=click.IntRange(20, 1000), help="Columns to draw in.")
    ascii: bool = option(is_flag=True, help="7-bit signs only.")
    plain: bool = option(is_flag=True, help="Sentences instead of tables and maps, for screen readers.")

    def terminal(self) -> Terminal:
        """What stdout can show."""
        return detect(sys.stdout, **vars(self))


drawing_options = gathered("drawing", Drawing, fields_of(Drawing))
"""The options of Drawing: the command gets one of it."""


@dataclass(frozen=True)
class _Form:
    """In which form, and where to: --format, --json, -o."""

    form: str | None = option("--format", type=click.Choice(FORMATS), default=None, help="Form of the output.")
    as_json: bool = option("--json", is_flag=True, help="Short for --format json.")
    file: Path | None = option(
        "-o", "--output", type=click.Path(path_type=Path), metavar="FILE",
        help="Write to FILE: .txt .json .ndjson .html .svg .safetensors.",
    )  # fmt: skip

    def resolved(self) -> str:
        """The form; UsageError where two are asked for, or the file cannot be written."""
        if self.as_json and self.form not in (None, "json"):
            raise UsageError(f"--json and --format {self.form} ask for two forms at once")
        form = "json" if self.as_json else self.form
        if self.file is not None:
            require_writable(self.file)
            wanted = {".json": "json", ".ndjson": "ndjson"}.get(self.file.suffix.lower(), "text")
            if form not in (None, wanted):
                raise UsageError(f"{self.file.name!r} says {wanted} and --format says {form}", "leave one of them out")
        return form or "text"


def _output(form: str | None, as_json: bool, file: Path | None, **drawing: Any) -> Output:
    resolved, terminal, lender = _Form(form, as_json, file).resolved(), Drawing(**drawing).terminal(), host()
    return lender.output(terminal, resolved, file) if lender else Output(terminal, resolved, file)


_DEBUG = click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")

output_options = gathered("output", _output, [*fields_of(_Form), *fields_of(Drawing), _DEBUG])
"""--format, --json, -o and the options of Drawing: the command gets an Output."""


@dataclass(frozen=True)
class Opening:
    """Which model to open, and how; ``seed`` is that of whatever else is random."""

    model: str
    device: str
    dtype: str
    seed: int

    def open(self) -> "Model":
        """The model; inside a session, where none was typed, the session's."""
        lender = host()
        if lender is not None and not given("model", "device", "dtype"):
            return lender.model
        from tinytf.loading import load

        opened = load(self.model, device=self.device, dtype=self.dtype, seed=self.seed)
        if opened.n_parameters < SMALL:
            import torch

            torch.set_num_threads(1)
        return opened


def opening_options(model: str, seed: str) -> Decorator[Any]:
    """--model, --device, --dtype, --seed, with help on the first and last: the command gets an ``opening``."""
    shown: dict[str, Any] = {"show_default": True}
    declared = [
        click.option(
            "--model", "-m", default="tiny", metavar="MODEL", shell_complete=complete_model, help=model, **shown
        ),
        click.option("--device", type=click.Choice(DEVICES), default="auto", **shown),
        click.option("--dtype", type=click.Choice(DTYPES), default="float32", **shown),
        click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, help=seed, **shown),
    ]
    return gathered("opening", Opening, declared)


model_options = opening_options(
    "tiny, tiny-encoder, a folder, a .gguf file, preset:NAME or hub:ORG/NAME; tinytf models lists them.",
    "Makes what is random: the weights of a preset, what generate draws, what grad --check measures.",
)
"""--model, --device, --dtype, --seed: the command gets an Opening."""


@dataclass(frozen=True)
class Decoding:
    """How tokens are decoded: --no-cache, --prefill-chunk, --compile, --quantize."""

    no_cache: bool = option(is_flag=True, help="Compute every token again for each new one.")
    chunk: int | None = option(
        "--prefill-chunk", type=click.IntRange(1), help="Tokens of the prompt in one pass, at most."
    )
    compile: bool = option(is_flag=True, help="Let torch write the kernels first; it takes a C++ compiler.")
    quantize: str | None = option(type=click.Choice(["int8"]), help="Decode with 8-bit weights; says what that costs.")

    @property
    def use_cache(self) -> bool:
        return not self.no_cache

    @property
    def kind(self) -> "Kind":
        """The decoder that is asked for."""
        from tinytf.generate.decoder import Kind

        return Kind(compile=self.compile, quantize=self.quantize is not None)


decoding_options = gathered("decoding", Decoding, fields_of(Decoding))
"""--no-cache, --prefill-chunk, --compile, --quantize: the command gets a Decoding."""

recording_options = click.option("--force", is_flag=True, help="Record even what is larger than the free memory.")
"""--force: the command gets ``force``."""


@dataclass(frozen=True)
class Detail:
    """Which block is shown in full, and how much of it: --layer, --head, --full, --no-detail, --dims, --rows."""

    layer: int = option(type=int, shown=0, help="Layer of the block that is shown in full.")
    head: int = option(type=int, shown=0, help="Head of that block.")
    full: bool = option(is_flag=True, help="Show the block of every layer.")
    no_detail: bool = option(is_flag=True, help="The pipeline alone, without the block.")
    dims: int = option(type=click.IntRange(1), shown=8, help="Dimensions shown as numbers.")
    rows: int | None = option(type=click.IntRange(0), help="Tokens shown in a table (0: all; on a screen 16).")

    def __post_init__(self) -> None:
        for what, number in (("layer", self.layer), ("head", self.head)):
            if number < 0:
                raise AddressError(f"there is no {what} {number}", "they count from 0")

    def layers(self, model: "Model") -> tuple[int, ...]:
        """The layers whose blocks are shown; AddressError for a layer or head that the model does not have."""
        from tinytf.steps.table import StepTable
        from tinytf.trace.address import parse_address

        parse_address(f"L{self.layer}H{self.head}", StepTable(model.config))
        return tuple(range(model.config.n_layers)) if self.full else (self.layer,)


block_options = gathered("detail", Detail, fields_of(Detail))
"""--layer, --head, --full, --no-detail, --dims, --rows: the command gets a Detail."""


def _fault_kinds(kinds: str | None) -> tuple[str, ...]:
    if kinds is None:
        return ()
    from tinytf.gradients.faults import KINDS

    chosen = tuple(word.strip() for word in kinds.split(","))
    for word in chosen:
        if word not in KINDS:
            raise UsageError(f"--fail-on knows no {word!r}", did_you_mean(word, KINDS))
    return chosen


_FAIL_ON = click.option(
    "--fail-on", "kinds", metavar="KINDS",
    help="Name the first step with nan, inf, saturated, dead or mismatch (several: nan,inf), and exit 1.",
)  # fmt: skip
fault_options = gathered("fail_on", _fault_kinds, [_FAIL_ON])
"""--fail-on: the command gets ``fail_on``, the kinds of faults to look for."""


@dataclass(frozen=True)
class Texts:
    """The texts that were given; ``lines`` is whether each line is one, ``truncate`` whether long ones are cut."""

    given: tuple[str, ...]
    lines: bool
    truncate: bool

    def __iter__(self) -> Iterator[str]:
        return iter(self.given)


def _texts(words: tuple[str, ...], lines: bool, truncate: bool) -> Texts:
    lender = host()
    if lender is not None and not words:
        words = (lender.require_text(),)
    return Texts(tuple(read_texts(words, lines=lines)), lines, truncate)


TRUNCATE = click.option("--truncate", is_flag=True, help="Cut a text that is longer than the model's context.")

text_options = gathered(
    "texts",
    _texts,
    [
        click.argument("words", nargs=-1, metavar="TEXT"),
        click.option("--lines", is_flag=True, help="Every line of the text is a text of its own."),
        TRUNCATE,
    ],
)
"""TEXT, --lines and --truncate: the command gets Texts."""


def traced_texts(command: Command) -> Command:
    """Texts to record on a model: the command gets ``texts``, ``opening`` and ``force``."""
    return text_options(model_options(recording_options(command)))
