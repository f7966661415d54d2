"""Reports: the answer to a question about a model as one object, as a stream of events and as tensors.

Whatever a command prints with ``--json`` is the ``to_dict`` of a report, and with ``--format ndjson`` its ``events``.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from tinytf.short_repr import ShortRepr
from tinytf.tables import Array, ColumnStyle, Sheet, of_arrays, of_records, records_in

if TYPE_CHECKING:
    from torch import Tensor

    from tinytf.config import ModelConfig
    from tinytf.text.tokenizer import Encoding, Tokenizer

SCHEMA_VERSION = 2
DRAWN_BY = "tinytf_cli.notebook"
"""What draws a report that is asked to show itself: imported by this name, since the library knows no more of it."""

_WORDS = frozenset({"shown", "at", "after"})
"""Members that say which token a record is of."""

derived = cached_property
"""Declares a member of a report that is computed from its tensors when it is first read, and then kept.

Everything else that a report says is there when it is returned.
"""

Progress = Callable[[int, int], None]
"""Called with how much is done, and of how much."""


def ignore_progress(done: int, of: int) -> None:
    """Ignore progress."""


def plain(value: Any) -> Any:
    """A value as plain JSON data: an object is its ``to_dict`` or its fields, a tensor or an array nested lists."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "tolist"):
        return value.tolist()
    if is_dataclass(value):
        return {one.name: plain(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, tuple | list) else value


class Data(ShortRepr):
    """A frozen part of a report: its fields but those of ``LESS``, and the properties of ``ALSO``, as JSON data.

    ``COLUMNS`` says how its members are shown where it is a row of a table.
    """

    LESS: ClassVar[tuple[str, ...]] = ()
    ALSO: ClassVar[tuple[str, ...]] = ()
    COLUMNS: ClassVar[Mapping[str, ColumnStyle]] = {}

    def to_dict(self) -> dict[str, Any]:
        names = (*(one.name for one in fields(self) if one.name not in self.LESS), *self.ALSO)  # type: ignore[arg-type]
        return {name: plain(getattr(self, name)) for name in names}


@dataclass(frozen=True)
class Verified(Data):
    """Some numbers, which ``what`` names, computed in two ways; ``difference`` is the largest."""

    ALSO: ClassVar = ("holds",)

    what: str
    difference: float
    allowed: float

    @property
    def holds(self) -> bool:
        return self.difference <= self.allowed  # false for a NaN


class Described(Protocol):
    """What reports need of a model."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> "Tokenizer": ...
    @property
    def config(self) -> "ModelConfig": ...
    def shown(self, outcome: int) -> str: ...

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class About:
    """The model that a report is of, and the text where it is of one."""

    model: Described
    text: "Encoding | None" = None

    def to_dict(self) -> dict[str, Any]:
        return {"model": self.model.to_dict(), **({} if self.text is None else text_data(self.text))}


@dataclass(frozen=True, kw_only=True)
class Report(ShortRepr):
    """A frozen answer. ``about`` is what it is of, as a Model's methods fill it in; without it tokens have no names.

    ``EVENTS`` are the members of ``to_dict`` that are events of their own, in their order, each with its type.
    ``TABLE`` leads to the list whose items are the rows of its table: by default, the first of ``EVENTS`` but tokens.
    ``ROWS`` names the member with those rows, whose class has ``COLUMNS``; such a report needs no view.
    """

    KIND: ClassVar[str]
    EVENTS: ClassVar[Mapping[str, str]] = {}
    TABLE: ClassVar[tuple[str, ...]] = ()
    ROWS: ClassVar[str] = ""

    about: About | None = field(default=None, repr=False, compare=False)

    @property
    def holds(self) -> bool:
        """Whether its ``check``, or each of its ``checks``, holds; true where there is none."""
        checks = getattr(self, "checks", None) or (getattr(self, "check", None),)
        return all(one is None or one.holds for one in checks)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it, and it is only what was found until then."""
        return False

    @property
    def drawn_as(self) -> "type[Report]":
        """The type whose view draws it."""
        return type(self)

    @property
    def encoding(self) -> "Encoding":
        """The text that this is of."""
        assert self.about is not None
        assert self.about.text is not None
        return self.about.text

    def repr_members(self) -> dict[str, Any]:
        """The model and the text, which its ``repr`` begins with."""
        of = self.about
        return {} if of is None else {"model": of.model.name, "text": of.text and of.text.text}

    def shown(self, token_id: int) -> str | None:
        """How a token of the vocabulary, or a class, is shown that the model predicts."""
        return None if self.about is None else self.about.model.shown(token_id)

    def word(self, token_id: int) -> str | None:
        """How a token of the vocabulary is shown."""
        return None if self.about is None else self.about.model.tokenizer.shown(token_id)

    def named(self, token_id: int) -> dict[str, Any]:
        return {"id": token_id, self.outcome: self.shown(token_id)}

    @property
    def outcome(self) -> str:
        """What the model predicts: a ``token``, or a ``class``."""
        return "class" if self.about is not None and self.about.model.config.labels else "token"

    def fields(self) -> dict[str, Any]:
        """What was found, as plain JSON data."""
        raise NotImplementedError

    def members(self, *names: str) -> dict[str, Any]:
        """Some of its fields and properties, as plain JSON data."""
        return {name: plain(getattr(self, name)) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """What it is, what it is of, what was found."""
        of = {} if self.about is None else self.about.to_dict()
        return {"schema_version": SCHEMA_VERSION, "kind": self.KIND, **of, **self.with_tokens(self.fields())}

    def with_tokens(self, data: dict[str, Any]) -> dict[str, Any]:
        """Data with how its token is ``shown`` in each record that has a position of the text and no word for it."""
        tokens = self.about.text.tokens if self.about is not None and self.about.text is not None else ()

        def told(value: Any, *, is_record: bool = False) -> Any:
            if isinstance(value, list):
                return [told(one, is_record=True) for one in value] if value and isinstance(value[0], dict) else value
            if not isinstance(value, dict):
                return value
            found = {name: told(one) for name, one in value.items()}
            place = value.get("position", value.get("query"))
            if is_record and isinstance(place, int) and place < len(tokens) and not _WORDS & value.keys():
                found["shown"] = tokens[place].shown
            return found

        return told(data) if tokens else data

    def itemised(self) -> dict[str, Any]:
        """``to_dict`` with every one of ``EVENTS`` as a list of objects, one object, or None."""
        return self.to_dict()

    def events(self) -> Iterator[dict[str, Any]]:
        """The report's data as events: first all that is not in ``EVENTS``, then those members, a list item by item.

        One that was ``interrupted`` says so at the end.
        """
        data = self.with_tokens(self.itemised())
        parts = {name: data.pop(name, None) for name in self.EVENTS}
        yield {"type": data.pop("kind"), **data}
        for name, part in parts.items():
            for one in part if isinstance(part, list) else () if part is None else (part,):
                yield {"type": self.EVENTS[name], **one}
        if self.interrupted:
            yield {"type": "interrupted"}

    def stored(self) -> list[Array]:
        """What a file of its tensors holds; empty where there is nothing to hold."""
        return []

    def tensors(self) -> "dict[str, Tensor]":
        """The tensors behind it by name; empty where there are none."""
        return {one.name: one.read() for one in self.stored()}

    def arrays(self) -> list[Array]:
        """The tensors that it gives in full, which are its table where there are any."""
        return []

    def label(self, axis: str, place: int) -> str:
        """How a place on an axis is named in a table: by its number, and a token or a class by its text too."""
        of: str | None = None
        if axis in ("token", "query", "key") and self.about is not None and self.about.text is not None:
            of = self.about.text.tokens[place].shown
        elif axis in ("vocab", "label"):
            of = self.word(place) if axis == "vocab" else self.shown(place)
        return str(place) if of is None else f"{place} {of}"

    def sheet(self, *, long: bool = False) -> Sheet | None:
        """Its table, ``long`` with a row for each number of a map; None where there is none."""
        if arrays := self.arrays():
            return of_arrays(arrays, self.label, long=long)
        first = [name for name in self.EVENTS if name != "tokens"] or list(self.EVENTS)
        path = self.TABLE or tuple(first[:1])
        return of_records(records_in(self.with_tokens(self.itemised()), path)) if path else None

    def show(self) -> None:
        """Print what the command that gives such a report prints. Raises UsageError for one that is not drawn."""
        import_module(DRAWN_BY).show(self)

    def _repr_html_(self) -> str | None:
        """The report as HTML for a notebook; None where it is not drawn."""
        html: str | None = import_module(DRAWN_BY).html(self)
        return html

    def metadata(self) -> dict[str, Any]:
        """What a file of its tensors says about itself, as plain JSON data: what it is of, and the axes of each tensor.

        ``places`` are those of the axes of which a tensor holds only some.
        """
        stored, of = self.stored(), self.about.to_dict() if self.about else {}
        some = {one.name: {axis: list(at) for axis, at in one.places.items() if list(at) != list(range(len(at)))}
                for one in stored}  # fmt: skip
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.KIND,
            **of,
            "axes": {one.name: list(one.axes) for one in stored},
            "places": {name: places for name, places in some.items() if places},
        }


def text_data(encoding: "Encoding") -> dict[str, Any]:
    """A text and its tokens as data; offsets count characters, ``bytes`` are hexadecimal.

    Of a conversation each token has the ``role`` of who says it, null for the chat template.
    """
    roles = encoding.roles
    return {
        "text": encoding.text,
        "added": encoding.added,
        "tokens": [
            {
                "index": place,
                "id": token.id,
                "shown": token.shown,
                "start": token.start,
                "end": token.end,
                "bytes": token.data.hex(),
                "special": token.special,
                **({} if roles is None else {"role": roles[place]}),
            }
            for place, token in enumerate(encoding.tokens)
        ],
    }
