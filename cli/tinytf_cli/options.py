"""Options of models and of what is shown, that commands share, each declared once.

A command gets each group as one frozen object.
"""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import click
from click.shell_completion import CompletionItem

from tinytf.errors import UsageError
from tinytf.nearest import did_you_mean
from tinytf_cli.command import option, parameters_of
from tinytf_cli.host import host, is_typed
from tinytf_cli.output import Output, require_place
from tinytf_cli.ranges import SEEDS, Whole

if TYPE_CHECKING:
    from tinytf.generate.decoder import Kind
    from tinytf.loading import Model
    from tinytf.through.model import ThroughModel

# Below this many parameters, synchronising a second thread costs more than it saves.
SMALL = 10_000_000

DEFAULT_MODEL = "TINYTF_MODEL, or tiny"
WITH_THROUGH = "trace, score, generate, lens, ablate, patch and diff"
"""The commands that work on a model that runs through transformers."""
DEVICES = ("auto", "cpu", "cuda", "mps")
FLOORS = ("bf16", "fp16", "q8_0")
"""Those of ``tinytf.compare.floor``, repeated here because that imports torch."""
DTYPES = ("float32", "bfloat16", "float16", "float64")


def default_model() -> str:
    """The model that TINYTF_MODEL names, or tiny."""
    return os.environ.get("TINYTF_MODEL") or "tiny"


def available_names() -> Iterator[tuple[str, str]]:
    """The names that --model accepts besides paths, each with its location. Imports no torch and reads no model."""
    from tinytf.checkpoints.stores import STORES
    from tinytf.presets import BUILT_IN, PRESETS

    yield from ((name, "built in") for name in BUILT_IN)
    yield from ((f"preset:{name}", "random weights of this shape") for name in PRESETS)
    yield from ((name, store.place) for store in STORES for name in store.names() if name.isprintable())


def complete_model(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    items = [CompletionItem(name, help=about) for name, about in available_names() if name.startswith(incomplete)]
    return items or [CompletionItem(incomplete, type="dir")]


def complete_address(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the steps and parameters of every architecture, after the typed layer and head. Imports no torch."""
    from tinytf.steps.table import STEPS

    prefix, dot, _ = incomplete.partition(".") if re.match(r"L[0-9*-]", incomplete) else ("", "", "")
    part = next((letter for letter in "HE" if letter in prefix), "")
    rows = [row for row in STEPS if row.in_layer == bool(dot) and (not part or (row.is_split and row.letter == part))]
    common = {"w_up": "W_up", "w_down": "W_down", "matrix": "W_U"}  # also valid in a model without a gate
    names = [row.name for row in rows] + [row.parameter.format_map(common) for row in rows if row.module and row.matrix]
    return [
        CompletionItem(completion)
        for name in dict.fromkeys(names)
        if (completion := prefix + dot + name).startswith(incomplete)
    ]


def _names_a_model() -> bool:
    """Whether an option of a command in a session names another model than the session's."""
    return is_typed(
        "model", "device", "dtype", "through", "trust_remote_code", "adapter", "tokenizer", "keep_quantized"
    )


def tokenizer_option() -> Any:
    """The option that names or sets the tokenizer of a model."""
    return option(
        "--tokenizer",
        metavar="PLACE,KEY=VALUE",
        help="Another place to read the tokenizer from, or settings of it, such as do_lower_case=false.",
    )


def stack_option(words: str) -> Any:
    return option(type=click.Choice(["encoder", "decoder"]), help=f"Of a model of two stacks: {words}")


def require_stacks(opened: "Model", stack: str | None) -> None:
    """Raise UsageError for a ``stack`` of a model of one."""
    if stack is not None and len(opened.config.stacks) < 2:
        raise UsageError(f"--stack {stack} goes with a model of two stacks, and this one has one")


def of_stack(opened: "Model", stack: str | None) -> "Model":
    """The model, or its encoder as one of its own. Raises UsageError for a model of one stack, and for a target."""
    require_stacks(opened, stack)
    if stack != "encoder":
        return opened
    if is_typed("target_text"):
        raise UsageError(
            "--target-text is what the decoder is given, and this asks about the encoder",
            "leave it out, or ask about the decoder",
        )
    return opened.encoder


@dataclass(frozen=True)
class ModelOptions:
    """Which model to open, and how. ``seed`` also seeds everything else that is random."""

    GROUP: ClassVar = "Model"
    SHARED: ClassVar = True

    model: str = option(
        "-m", "--model", metavar="MODEL", default=default_model, show_default=DEFAULT_MODEL,
        shell_complete=complete_model,
        help="A name that tinytf models lists, a folder, a .gguf file, preset:NAME or hub:ORG/NAME.",
    )  # fmt: skip
    device: str = option(type=click.Choice(DEVICES), shown="auto", help="Where to compute.")
    dtype: str = option(type=click.Choice(DTYPES), shown="float32", help="Number format of weights and activations.")
    seed: int = option(type=Whole(0, SEEDS), shown=0, help="Random seed.")
    through: str | None = option(
        type=click.Choice(["transformers"]),
        help="Run a directory through transformers, with hooks on its modules; by default where tinytf has no table.",
    )  # fmt: skip
    trust_remote_code: bool = option(is_flag=True, help="With --through: run the Python code in the directory.")
    adapter: Path | None = option(
        type=click.Path(path_type=Path), metavar="DIR", help="Merge this PEFT LoRA adapter into the weights."
    )
    tokenizer: str | None = tokenizer_option()
    keep_quantized: bool = option(
        is_flag=True,
        help="Leave the weights in their file as it stores them, and convert each at every use: slower, little memory.",
    )

    stack: str | None = stack_option("the encoder as a model of its own, which reads TEXT; enc.L0H3 asks for it too.")

    def typed_again(self) -> tuple[str, ...]:
        """The typed options by which another command opens the model in the same way."""
        flags: list[str] = []
        for setting in parameters_of(ModelOptions):
            name, value = str(setting.name), getattr(self, str(setting.name))
            if is_typed(name):
                word = str(value) if str(value).isprintable() else str(setting.human_readable_name).upper()
                flags += [setting.opts[0]] if value is True else [setting.opts[0], word]
        return tuple(flags)

    def through_model(self, output: Output) -> "ThroughModel | None":
        """The model through transformers, if --through asks for it or tinytf has no table for it; else None.

        In a session it is the session's, unless an option names another.
        """
        session = host()
        if session is None:
            return self.opened_through(output.note)
        if self.trust_remote_code:
            raise UsageError("code in the directory of a model does not run in a session", "use the command line")
        return (
            replace(self, through=self._asks_for).opened_through(output.note) if _names_a_model() else session.through
        )

    def opened_through(self, note: Callable[[str], None]) -> "ThroughModel | None":
        """As ``through_model``, whatever the session has; ``note`` says what was not asked for."""
        if self.through is None:
            if self.trust_remote_code:
                return None
            from tinytf.through.opening import has_no_table

            if not has_no_table(self.model):
                return None
            note("there is no table for this architecture, so it runs through transformers")
        from tinytf.through.model import open_through
        from tinytf_cli.many import claim_gpu

        claim_gpu()
        for name in ("adapter", "tokenizer", "keep-quantized"):
            if getattr(self, name.replace("-", "_")):
                raise UsageError(f"--{name} goes with a model that tinytf computes itself", "leave it out")
        return open_through(
            self.model, device=self.device, dtype=self.dtype, trust_remote_code=self.trust_remote_code
        )  # fmt: skip

    @property
    def _asks_for(self) -> str | None:
        """What --through asks for; a session's does not concern another model."""
        is_other = host() is not None and is_typed("model") and not is_typed("through")
        return None if is_other else self.through

    def open(self, *, two_stacks: bool = False, because: str = "") -> "Model":
        """Open the model. In a session, use the session's model unless an option names another.

        Raises UsageError for a model of two stacks where the command has no use for ``two_stacks``, ``because`` of
        what it asks, and for --through, which only some commands take; those ask ``through_model`` first.
        """
        opened = of_stack(self._opened(), self.stack)
        if opened.config.d_source and not two_stacks:
            why = f": {because}" if because else ""
            raise UsageError(
                f"this model has two stacks, and {click.get_current_context().info_name} asks about one{why}",
                "--stack encoder asks about that one",
            )
        return opened

    def _opened(self) -> "Model":
        session = host()
        if session is not None and not _names_a_model():
            return session.model
        if self.trust_remote_code and self._asks_for is None:
            raise UsageError("--trust-remote-code goes with --through", "add --through transformers")
        if self._asks_for is not None:
            raise UsageError(
                "this needs a model that tinytf computes itself, not one that runs through transformers",
                f"{WITH_THROUGH} take --through transformers",
            )
        from tinytf.checkpoints.huggingface.load import UnknownArchitecture
        from tinytf.loading import load
        from tinytf_cli.many import claim_gpu

        claim_gpu()
        try:
            opened = load(
                self.model, self.tokenizer, device=self.device, dtype=self.dtype, seed=self.seed, adapter=self.adapter,
                keep_quantized=self.keep_quantized,
            )  # fmt: skip
        except UnknownArchitecture as error:
            raise UnknownArchitecture(error.message, f"{WITH_THROUGH} run it with --through transformers") from None
        if opened.n_parameters < SMALL:
            import torch

            torch.set_num_threads(1)
        return opened


@dataclass(frozen=True)
class DecodingOptions:
    """How tokens are decoded."""

    GROUP: ClassVar = "Decoding"

    no_cache: bool = option(is_flag=True, help="Recompute every token for each new one.")
    chunk: int | None = option("--prefill-chunk", type=Whole(1), help="Prompt tokens per forward pass, at most.")
    compile: bool = option(is_flag=True, help="Compile the kernels first; needs a C++ compiler.")
    quantize: str | None = option(type=click.Choice(["int8"]), help="Decode with 8-bit weights, and report the cost.")

    @property
    def use_cache(self) -> bool:
        return not self.no_cache

    @property
    def kind(self) -> "Kind":
        """The kind of decoder that these options select."""
        from tinytf.generate.decoder import Kind

        return Kind(compile=self.compile, quantize=self.quantize is not None)


@dataclass(frozen=True)
class BlockOptions:
    """Which block to show in full, and how much of it."""

    GROUP: ClassVar = "Block"

    layer: str = option(metavar="N", shown="0", help="Layer to show in full; -1 is the last, 0,2 shows two.")
    head: str = option(metavar="N", shown="0", help="Head to show in that layer; -1 is the last.")
    full: bool = option(is_flag=True, help="Show every layer in full, with every number.")
    dims: int | None = option(
        type=Whole(0), help="Numbers of a row; 0 for all.  [default: 8, all of up to 1,000 at an address]"
    )
    rows: int | None = option(type=Whole(0), help="Tokens in a table; 0 for all.  [default: 16 on a screen]")

    def layers(self, model: "Model") -> tuple[int, ...]:
        """The layers to show in full. Raises AddressError for a layer or head that the model does not have."""
        from tinytf.trace.address import parse_numbers

        self.head_of(model)
        layers = parse_numbers(self.layer, model.config.n_layers, "layer") or ()
        return tuple(range(model.config.n_layers)) if self.full else layers

    def dims_and_rows(self, everything: bool) -> tuple[int | None, int | None]:
        """``dims`` and ``rows``: unless they were set, 0 for all with ``full`` or where ``everything`` is shown."""
        usual = 0 if everything or self.full else None
        return usual if self.dims is None else self.dims, usual if self.rows is None else self.rows

    def head_of(self, model: "Model") -> int:
        """The head to show. Raises AddressError for one that the model does not have."""
        from tinytf.trace.address import parse_single_number

        return parse_single_number(self.head, model.config.n_heads, "head")


@dataclass(frozen=True)
class ControlOptions:
    """Random interventions beside the one that was asked for."""

    GROUP: ClassVar = "Controls"

    controls: int = option(
        type=Whole(0, 1000), shown=10,
        help="With --at, or of steer: random heads, units, vectors or directions to set the effect beside; 0 for none.",
    )  # fmt: skip

    def require(self, needs: str, fits: bool, example: str = "--at L0H1") -> None:
        """Raise UsageError if the option is given where there is no such effect."""
        if is_typed("controls") and not fits:
            raise UsageError(f"--controls goes with {needs}", f"such as {example} --controls 20")

    def of(self, seed: int) -> dict[str, Any]:
        """The settings in the library."""
        return {"controls": self.controls, "seed": seed}

    def of_pairs(self, seed: int, versus: str | None) -> dict[str, Any]:
        """The settings over pairs; none are run where two files are compared."""
        return {"controls": 0 if versus else self.controls, "seed": seed}


@dataclass(frozen=True)
class FoldOptions:
    """Whether a view is folded to one screen."""

    GROUP: ClassVar = "Output"

    all: bool = option(is_flag=True, help="Show every row and number; long tables are folded to a screen otherwise.")

    def rows(self, limit: int | None = None) -> int | None:
        """The most rows of a table: ``limit`` if it is set; 0 for all rows, None for as many as suit a screen."""
        return 0 if self.all and limit is None else limit


@dataclass(frozen=True)
class ResumeOptions:
    """The file that saves measurements, so that an interrupted run can continue."""

    GROUP: ClassVar = "Output"

    resume: Path | None = option(
        type=click.Path(path_type=Path), metavar="FILE",
        help="Save each measurement as a line of FILE, and continue from those it has.",
    )  # fmt: skip

    def checked_file(self, needs: str) -> Path | None:
        """The file to write. Raises UsageError if it cannot be written, or if ``needs`` names a missing option."""
        if self.resume is not None:
            if needs:
                raise UsageError(f"--resume goes with {needs}", "nothing else takes long enough to resume")
            require_place(self.resume)
        return self.resume


@dataclass(frozen=True)
class SectionOptions:
    """What to show besides the answer."""

    GROUP: ClassVar = "Block"

    every: bool = option("--all", is_flag=True, help="Show every layer, the pipeline, a block, every head and number.")
    pipeline: bool = option(is_flag=True, help="Show the pipeline alone: one line a step.")
    blocks: tuple[str, ...] = option(
        "--block", multiple=True, metavar="ADDRESS",
        help="Show this layer and head in full, such as L1H2 or L0-3H1. Repeatable.",
    )  # fmt: skip

    def chosen(self) -> frozenset[str]:
        """The requested sections, out of ``summary``, ``pipeline`` and ``block``."""
        block = self.every or is_typed("layer", "head", "full")
        requested = {"summary": self.every, "pipeline": self.every or self.pipeline, "block": block}
        return frozenset(name for name, is_requested in requested.items() if is_requested)


@dataclass(frozen=True)
class FaultOptions:
    """Which numeric faults to look for."""

    fail_on: str | None = option(
        metavar="KINDS", help="Find the first step with this fault, and exit 1: nan, inf, saturated, dead or mismatch. "
        "Several, as nan,inf.",
    )  # fmt: skip

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of faults named. Raises UsageError for an unknown kind."""
        if self.fail_on is None:
            return ()
        from tinytf.gradients.faults import KINDS

        chosen = tuple(word.strip() for word in self.fail_on.split(","))
        for word in chosen:
            if word not in KINDS:
                raise UsageError(f"--fail-on knows no {word!r}", did_you_mean(word, KINDS))
        return chosen


def require_only(names: tuple[str, ...], groups: tuple[type, ...], beside: str = "") -> None:
    """Raise UsageError for a typed option of ``groups`` that does not go ``beside`` another.

    Without one, that a model through transformers does not take.
    """
    for setting in (setting for group in groups for setting in parameters_of(group)):
        if setting.name and setting.name not in names and is_typed(setting.name):
            name = setting.opts[0] if isinstance(setting, click.Option) else setting.human_readable_name
            if beside:
                raise UsageError(f"{name} does not go with {beside}", "leave one of them out")
            raise UsageError(
                f"{name} needs a model that tinytf computes itself, and this one runs through transformers",
                "leave it out",
            )
