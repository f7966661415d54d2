"""Two runs side by side: two texts on one model, or one text on two models or in two dtypes.

Both run in step, one layer at a time; only the steps of one layer of each are in memory.
Shapes: T tokens, H heads, Q queries, K keys, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from tinytf.compare.alignment import Alignment, AnySide, Side, align
from tinytf.compare.causes import Cause
from tinytf.compare.dumps.dumped import Dumped, of_ids, recorded_config, recorded_encoding
from tinytf.compare.dumps.read import Dump
from tinytf.compare.measures import BothPredict, Compared, Moved, Position, moved_weights
from tinytf.compare.walk import Attention, Incomparable, Rescaled, Walk
from tinytf.config import FIELDS, ModelConfig
from tinytf.errors import AddressError, DumpError, UsageError
from tinytf.report import About, Report, plain
from tinytf.steps.table import StepTable, table_of
from tinytf.tables import Array
from tinytf.text.chat import Conversation, Written
from tinytf.text.tokenizer import Encoding
from tinytf.text_model import TextModel
from tinytf.tolerance import RUN, allowed
from tinytf.trace.address import parse_address
from tinytf.trace.trace import Text, Trace


@dataclass(frozen=True)
class Setting:
    """A field of the two configurations that is not the same."""

    name: str
    first: Any
    second: Any


@dataclass(frozen=True)
class Difference(Report):
    """All that is different in two runs, in the order of the forward pass.

    ``steps`` are compared, ``incomparable`` are not; ``predictions`` belong to the ends of the two texts, or to the
    masks of an encoder. ``losses`` (nats a token) and ``moved`` are of two models. ``tolerance`` is relative, in units
    of the largest number of a token. ``sides`` are the two runs; ``fail_over`` is the
    relative difference that is too large. ``missing`` are the steps that a dump does not have,
    ``cause`` is why it differs first where it does; None where a step of the dump before it, ``rescaled``, was
    multiplied to fit. ``settings`` are those of the two configurations that differ.
    """

    KIND = "difference"
    REPR_FIRST = ("equal", "first", "worst")
    EVENTS: ClassVar = {
        "steps": "step",
        "incomparable": "incomparable",
        "positions": "position",
        "predictions": "prediction",
        "weights": "weights",
        "attention": "attention",
        "check": "check",
    }

    alignment: Alignment
    tolerance: float
    steps: tuple[Compared, ...]
    incomparable: tuple[Incomparable, ...]
    attention: Attention | None
    positions: tuple[Position, ...]
    predictions: tuple[BothPredict, ...]
    losses: tuple[float, float] | None
    moved: tuple[Moved, ...]
    sides: tuple[About | Dumped, ...] = field(default=(), repr=False, compare=False)
    fail_over: float | None = None
    missing: tuple[str, ...] = ()
    cause: Cause | None = None
    rescaled: Rescaled | None = None
    settings: tuple[Setting, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether steps were compared, and none differs by more than ``fail_over`` where that is not None."""
        limit, worst = self.fail_over, self.worst
        return worst is not None and (limit is None or worst.relative <= limit)

    def telling(self, count: int | None) -> list[int]:
        """Which of ``positions`` differ most (all for None), in their order."""
        order = sorted(range(len(self.positions)), key=lambda place: -self.positions[place].kl)
        return sorted(order[:count])

    def fields(self) -> dict[str, Any]:
        first, worst = self.first, self.worst
        shown = self.sides[0].model.shown if self.sides and isinstance(self.sides[0], About) else self.shown
        return {
            **{name: side.to_dict() for name, side in zip(("first", "second"), self.sides, strict=False)},
            "aligned": {name: plain(getattr(self.alignment, name)) for name in ("positions", "changed", "note")},
            **self.members("settings", "tolerance", "equal"),
            "first_difference": first and first.name,
            "largest_difference": worst and worst.name,
            **self.members("cause", "rescaled"),
            **self.members("steps", "incomparable", "missing", "attention"),
            "positions": [
                {"index": one.index, "kl": one.kl, "first": _top(one.first), "second": _top(one.second)}
                for one in self.positions
            ],
            "predictions": [
                {
                    "position": one.position,
                    "other_position": one.other_position,
                    "kl": one.kl,
                    "top": [
                        {"id": i, "token": shown(i), "first": a, "second": b}
                        for i, a, b in zip(one.ids, one.first, one.second, strict=True)
                    ],
                }
                for one in self.predictions
            ],
            **self.members("losses"),
            "weights": plain(self.moved),
            "check": self.members("fail_over", "holds"),
        }

    def stored(self) -> list[Array]:
        """The weights of the head that is shown, of both runs."""
        found, axes = self.attention, ["query", "key"]
        if found is None:
            return []
        name = f"L{found.layer}H{found.head}.weights"
        return [Array.of(f"first/{name}", axes, found.first), Array.of(f"second/{name}", axes, found.second)]

    @property
    def first(self) -> Compared | None:
        """The first step that differs beyond the tolerance."""
        return next((one for one in self.steps if one.relative > self.tolerance), None)

    @property
    def worst(self) -> Compared | None:
        """The step whose relative difference is the largest."""
        return max(self.steps, key=lambda one: one.relative, default=None)

    @property
    def equal(self) -> bool:
        """Whether every number of every step is the same, and all steps and positions were compared."""
        return not self.alignment.note and not self.incomparable and all(not one.largest for one in self.steps)


def _top(best: tuple[int, float]) -> dict[str, Any]:
    return {"id": best[0], "probability": best[1]}


def diff(
    model: TextModel,
    text: Text | None,
    other: Text | TextModel | tuple[TextModel, Text] | Dump,
    *,
    names: Mapping[str, str] | None = None,
    tolerance: float | None = None,
    head: str | None = None,
    top: int = 5,
    fail_over: float | None = None,
    truncate: bool = False,
    force: bool = False,
) -> Difference:
    """What is different, step by step, on another text, on another model (or dtype) with this text, or on both.

    Texts may be traces. A dump of another program is compared with the model on its text, or on its ids where ``text``
    is None; ``names`` says what names there mean, ``{n}`` standing for the layer: {"enc.{n}.query": "L{n}.q"}.
    ``head``, as ``L3H5``, is the one whose weights are kept; without it the head whose weights are
    furthest apart. ``tolerance`` is in units of a token's largest magnitude; without it that of the coarser dtype.
    Raises UsageError for runs that cannot be aligned (``align``) or recorded (``walk``), AddressError for a head that
    one of the models lacks, DumpError for a dump that is of something else.
    """
    settings = _Settings(tolerance, head, top, fail_over, force)
    if isinstance(other, Dump):
        encoding = text.encoding if isinstance(text, Trace) else _of_dump(model, text, other, truncate)
        dumped = Dumped.of(other, model.config, model.tokenizer, encoding, names, model.table)
        first = Side.of(model, text if isinstance(text, Trace) and not dumped.note else dumped.encoding, truncate)
        return _difference((first, dumped), (About(model, first.encoding), dumped), settings)
    assert text is not None, "only a dump has a text of its own"
    if isinstance(other, str | Conversation | Trace):
        other = model, other
    elif not isinstance(other, tuple):
        other = other, text.encoding.text if isinstance(text, Trace) else text
    first, second = Side.of(model, text, truncate), Side.of(*other, truncate)
    return _difference((first, second), (About(model, first.encoding), About(other[0], second.encoding)), settings)


def diff_dumps(
    first: Dump,
    second: Dump,
    model: TextModel | None = None,
    *,
    names: Mapping[str, str] | None = None,
    tolerance: float | None = None,
    head: str | None = None,
    top: int = 5,
    fail_over: float | None = None,
) -> Difference:
    """What is different in two files of activations, as ``diff``, without running a model.

    One of them says which model it is of, as what tinytf writes does, or ``model`` is that. Raises DumpError where
    neither is so, or where no text is told.
    """
    configs = [None if model is None else model.config for _ in range(2)]
    if model is None:
        configs = [recorded_config(dump) for dump in (first, second)]
    texts = [recorded_encoding(dump, None if model is None else model.tokenizer) for dump in (first, second)]
    config, text = configs[0] or configs[1], texts[0] or texts[1]
    if config is None:
        raise DumpError(f"neither {first.name} nor {second.name} says which model it is of", "--model names one")
    if text is None:
        raise DumpError(f"neither {first.name} nor {second.name} says which tokens it is of", "write them as input_ids")
    table, tokenizer = (None, None) if model is None else (model.table, model.tokenizer)
    one, other = (
        Dumped.of(dump, own or config, tokenizer, tokens or text, names, table)
        for dump, own, tokens in zip((first, second), configs, texts, strict=True)
    )
    return _difference((one, other), (one, other), _Settings(tolerance, head, top, fail_over, False))


@dataclass(frozen=True)
class _Settings:
    """What a comparison was asked for."""

    tolerance: float | None
    head: str | None
    top: int
    fail_over: float | None
    force: bool


@torch.no_grad()
def _difference(
    sides: tuple[AnySide, AnySide], about: tuple[About | Dumped, About | Dumped], asked: _Settings
) -> Difference:
    first, second = sides
    wanted = None if asked.head is None else parse_head(asked.head, table_of(first.config))
    alignment = align(first, second)
    for config in (first.config, second.config):
        if wanted is not None and wanted[0] < config.n_layers and wanted[0] not in table_of(config).attending:
            raise AddressError(f"layer {wanted[0]} of one of the models has no attention weights", "name another")
        if wanted is not None and (wanted[0] >= config.n_layers or wanted[1] >= config.n_heads):
            sizes = f"{config.n_layers} layers × {config.n_heads} heads"
            said = f"there is no head L{wanted[0]}H{wanted[1]}: one of the models has {sizes}"
            raise AddressError(said, "name one that both have")
    tolerance = max(allowed(RUN, side.dtype) for side in sides) if asked.tolerance is None else asked.tolerance
    run = Walk(first, second, alignment, wanted, tolerance)
    run.go(asked.force)
    models = [side.model for side in sides if isinstance(side, Side)]
    two = len(models) == 2 and models[0] is not models[1]
    return Difference(
        alignment,
        tolerance,
        tuple(run.steps),
        tuple(run.incomparable),
        run.attention(),
        run.positions,
        () if run.ends is None else tuple(run.ends.predictions(asked.top)),
        run.losses() if (two or len(models) < 2) and not alignment.note else None,
        moved_weights(*models) if two else (),
        about,
        asked.fail_over,
        tuple(run.missing),
        run.cause,
        run.rescaled,
        _settings(*(_said(side) for side in sides)),
    )


def _said(side: AnySide) -> ModelConfig | None:
    """The configuration of a side, of a dump as it says itself."""
    return recorded_config(side.dump) if isinstance(side, Dumped) else side.config


def _settings(first: ModelConfig | None, second: ModelConfig | None) -> tuple[Setting, ...]:
    if first is None or second is None:
        return ()
    ends = ((name, first.setting(name), second.setting(name)) for name in FIELDS)
    return tuple(Setting(*one) for one in ends if one[1] != one[2] and one[0] != "dropout")


def _of_dump(model: TextModel, text: Written | None, dump: Dump, truncate: bool) -> Encoding:
    """The tokens that a dump is of: those of ``text``, which its ids have to be, or its own."""
    ids, said = dump.ids, dump.text if text is None else text
    if said is None and ids is None:
        raise UsageError(
            f"{dump.name} does not say which text it is of", "give TEXT, or write the token ids into it, as input_ids"
        )
    if ids is not None and (beyond := [i for i in ids if i >= model.config.vocab_size]):
        said = f"{dump.path}: there is no token {beyond[0]:,}, {model.name} has {model.config.vocab_size:,}"
        raise DumpError(said, "name the model that it is of with --model")
    if ids is not None and len(ids) > model.config.context:
        said = f"{dump.path} is of {len(ids):,} tokens, and {model.name} takes at most {model.config.context:,}"
        raise DumpError(said, "write the first of them alone, and their tensors")
    found = None if said is None else model.encode(said, truncate=truncate)
    if ids is None or (found is not None and found.ids == ids):
        assert found is not None
        return found
    if text is not None and found is not None:
        place = next(
            (i for i, (a, b) in enumerate(zip(found.ids, ids, strict=False)) if a != b), min(len(found.ids), len(ids))
        )
        a, b = (model.tokenizer.shown(some[place]) if place < len(some) else "the end" for some in (found.ids, ids))
        raise UsageError(
            f"{dump.name} is of another text, or of another tokenizer: at token {place} it has {b}, and TEXT has {a} "
            f"({len(ids):,} and {len(found.ids):,} tokens in all)",
            "leave TEXT out, and the model is run on the ids of the dump",
        )
    return of_ids(ids, model.tokenizer.shown, "" if said is None or found is None else found.text)


def parse_head(text: str, table: StepTable) -> tuple[int, int]:
    """The layer and head that an address such as ``L3H5`` names; AddressError for anything else."""
    where = parse_address(text, table)
    if where.cell or where.layers is None or where.heads is None or len(where.layers) * len(where.heads) != 1:
        raise AddressError(f"{text!r} is not one head", "a head is L3H5")
    if where.step is not None and where.step.name != table.weights:
        raise AddressError(f"{text!r} is a step, and the maps are of weights", "a head is L3H5")
    return where.layers[0], where.heads[0]
