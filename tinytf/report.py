"""Reports: the answer to a question about a model as one object, as a stream of events and as tensors.

Whatever a command prints with ``--json`` is the ``to_dict`` of a report, and with ``--format ndjson`` its ``events``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from tinytf.errors import UsageError
from tinytf.parts.row import TEXT_AXES
from tinytf.short_repr import ShortRepr
from tinytf.tables import Array, ColumnStyle, Sheet, of_arrays, of_records, records_in

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from torch import Tensor

    from tinytf.text.tokenizer import Encoding, Token, Tokenizer

SCHEMA_VERSION = 3
DRAWN_BY = "tinytf_cli.notebook"
"""The module that draws a report on ``show``, imported by its name: the library knows nothing else of the terminal."""

_WORDS = frozenset({"shown", "at", "after"})
"""Members that already say in words which token a record is about."""

derived = cached_property
"""Declares a member of a report that is computed from its tensors when it is first read, and then kept.

Everything else that a report says is there when it is returned.
"""

Progress = Callable[[int, int], None]
"""Called with the amount done and the total."""


def ignore_progress(done: int, of: int) -> None:
    """Ignore progress."""


def plain(value: Any) -> Any:
    """A value as plain JSON data: an object by its ``to_dict`` or its fields, a tensor, array or iterator as lists."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "tolist"):
        return value.tolist()
    if is_dataclass(value):
        return {member.name: plain(getattr(value, member.name)) for member in fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(member) for name, member in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple | list | Iterator) else value


class Data(ShortRepr):
    """A frozen part of a report: its fields but those of ``LESS``, and the properties of ``ALSO``, as JSON data.

    ``COLUMNS`` says how its members are shown where it is a row of a table.
    """

    LESS: ClassVar[tuple[str, ...]] = ()
    ALSO: ClassVar[tuple[str, ...]] = ()
    COLUMNS: ClassVar[Mapping[str, ColumnStyle]] = {}

    def to_dict(self) -> dict[str, Any]:
        own = (member.name for member in fields(self) if member.name not in self.LESS)  # type: ignore[arg-type]
        names = (*own, *self.ALSO)
        return {name: plain(getattr(self, name)) for name in names}


@dataclass(frozen=True)
class Verified(Data):
    """Numbers that were computed in two ways: ``what`` they are, and their largest ``difference``."""

    ALSO: ClassVar = ("holds",)

    what: str
    difference: float
    allowed: float

    @property
    def holds(self) -> bool:
        return self.difference <= self.allowed  # false for a NaN


class Predicting(Protocol):
    """What reports ask of a configuration: classes, whether it reads earlier tokens alone, and its depth."""

    @property
    def labels(self) -> Sequence[str]: ...
    @property
    def causal(self) -> bool: ...
    @property
    def n_layers(self) -> int: ...


class Described(Protocol):
    """The part of a model that reports use."""

    @property
    def name(self) -> str: ...
    @property
    def tokenizer(self) -> "Tokenizer": ...
    @property
    def config(self) -> Predicting: ...
    def shown(self, outcome: int) -> str: ...
    def outlined(self) -> "Described": ...

    def to_dict(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class About:
    """The model that a report is about, and its text if it is about one."""

    model: Described
    text: "Encoding | None" = None

    def __getstate__(self) -> dict[str, Any]:
        """The state to pickle: a model that describes itself, without its weights."""
        return {"model": self.model.outlined(), "text": self.text}

    def to_dict(self) -> dict[str, Any]:
        return {"model": self.model.to_dict(), **({} if self.text is None else text_data(self.text))}


@dataclass(frozen=True, kw_only=True)
class Report(ShortRepr):
    """A frozen answer. ``about`` is the model and text, filled in by Model's methods; without it tokens have no names.

    ``EVENTS`` are the members of ``to_dict`` that are events of their own, in their order, each with its type.
    ``TABLE`` leads to the list whose items are the rows of its table: by default, the first of ``EVENTS`` but tokens.
    ``ROWS`` names the member with those rows, whose class has ``COLUMNS``; such a report needs no view.
    ``PAGE``: as Markdown it is all that its view draws, not its table alone.
    ``ALWAYS_SAID``: its sentence needs no model to name tokens, and a check that fails is what it says.
    """

    KIND: ClassVar[str]
    EVENTS: ClassVar[Mapping[str, str]] = {}
    TABLE: ClassVar[tuple[str, ...]] = ()
    ROWS: ClassVar[str] = ""
    PAGE: ClassVar[bool] = False
    ALWAYS_SAID: ClassVar[bool] = False

    about: About | None = field(default=None, repr=False, compare=False)

    @property
    def holds(self) -> bool:
        """Whether its ``check``, or each of its ``checks``, holds; true where there is none."""
        checks = getattr(self, "checks", None) or (getattr(self, "check", None),)
        return all(check is None or check.holds for check in checks)

    @property
    def sentence(self) -> str:
        """Its answer in one sentence, with which every format begins; if not ``ALWAYS_SAID``, empty without a model and
        if a check fails.
        """
        return self.in_a_sentence() if self.ALWAYS_SAID or (self.about is not None and self.holds) else ""

    def in_a_sentence(self) -> str:
        """What ``sentence`` says; empty for a report without one."""
        return ""

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C ended it, so that it holds only the results until then: its ``stopped``, if it has that."""
        return bool(getattr(self, "stopped", False))

    @property
    def drawn_as(self) -> "type[Report]":
        """The type whose view draws it."""
        return type(self)

    @property
    def encoding(self) -> "Encoding":
        """The text that the report is about."""
        assert self.about is not None
        assert self.about.text is not None
        return self.about.text

    def repr_members(self) -> dict[str, Any]:
        """The model and the text, which its ``repr`` begins with."""
        of = self.about
        return {} if of is None else {"model": of.model.name, "text": of.text and of.text.text}

    def shown(self, token_id: int) -> str | None:
        """The printable form of a predicted token, or of a class."""
        return None if self.about is None else self.about.model.shown(token_id)

    def word(self, token_id: int) -> str | None:
        """The printable form of a token of the vocabulary."""
        return None if self.about is None else self.about.model.tokenizer.shown(token_id)

    def named(self, token_id: int) -> dict[str, Any]:
        return {"id": token_id, self.outcome: self.shown(token_id)}

    @property
    def outcome(self) -> str:
        """What the model predicts: a ``token``, or a ``class``."""
        return "class" if self.about is not None and self.about.model.config.labels else "token"

    def fields(self) -> dict[str, Any]:
        """The results, as plain JSON data."""
        raise NotImplementedError

    def members(self, *names: str) -> dict[str, Any]:
        """Some of its fields and properties, as plain JSON data."""
        return {name: plain(getattr(self, name)) for name in names}

    def to_dict(self) -> dict[str, Any]:
        """The kind of report, its model and text, and its results."""
        of = {} if self.about is None else self.about.to_dict()
        said = {"sentence": sentence} if (sentence := self.sentence) else {}
        return {"schema_version": SCHEMA_VERSION, "kind": self.KIND, **said, **of, **self.with_tokens(self.fields())}

    def streamed(self) -> dict[str, Any]:
        """``to_dict``, in which long lists may be iterators for a writer that takes an item at a time."""
        return self.to_dict()

    def with_tokens(self, data: dict[str, Any]) -> dict[str, Any]:
        """Add how the token is ``shown`` to each record that has a position of the text and no word for it."""
        tokens = self.about.text.tokens if self.about is not None and self.about.text is not None else ()
        return _with_words(data, tokens) if tokens else data

    def itemised(self) -> dict[str, Any]:
        """``to_dict`` with every one of ``EVENTS`` as a list of objects, one object, or None."""
        return self.to_dict()

    def events(self) -> Iterator[dict[str, Any]]:
        """The report's data as events: first all that is not in ``EVENTS``, then those members, a list item by item.

        An interrupted report says so at the end.
        """
        data = self.with_tokens(self.itemised())
        parts = {name: data.pop(name, None) for name in self.EVENTS}
        yield {"type": data.pop("kind"), **data}
        for name, part in parts.items():
            for record in part if isinstance(part, list) else () if part is None else (part,):
                yield {"type": self.EVENTS[name], **record}
        if self.interrupted:
            yield {"type": "interrupted"}

    def stored(self) -> list[Array]:
        """The tensors to write to a file; empty if there are none."""
        return []

    def tensors(self) -> "dict[str, Tensor]":
        """The tensors of ``stored`` by name."""
        return {array.name: array.read() for array in self.stored()}

    def arrays(self) -> list[Array]:
        """The tensors that the report gives in full; if there are any, they are its table."""
        return []

    def label(self, axis: str, index: int) -> str:
        """The label of an index on an axis in a table: its number, and for a token or class its text too."""
        of: str | None = None
        if axis in TEXT_AXES[:3] and self.about is not None and self.about.text is not None:
            of = self.about.text.tokens[index].shown
        elif axis in ("vocab", "label"):
            of = self.word(index) if axis == "vocab" else self.shown(index)
        return str(index) if of is None else f"{index} {of}"

    def sheet(self, *, long: bool = False) -> Sheet | None:
        """The table of the report, ``long`` with a row for each number of a map; None if it has no table."""
        if arrays := self.arrays():
            return of_arrays(arrays, self.label, long=long)
        first = [name for name in self.EVENTS if name != "tokens"] or list(self.EVENTS)
        path = self.TABLE or tuple(first[:1])
        return of_records(records_in(self.with_tokens(self.itemised()), path)) if path else None

    def to_numpy(self) -> "dict[str, np.ndarray[Any, Any]]":
        """Its tensors as numpy arrays by name, narrow floats as float32; if it has none, the columns of its table.

        Raises UsageError for a report with neither.
        """
        if stored := self.stored():
            return {array.name: array.numbers() for array in stored}
        import numpy as np

        table = self._table()
        columns = dict(zip(table.columns, zip(*table.rows, strict=True), strict=True))
        nested = {name for name, column in columns.items() if any(isinstance(value, list | tuple) for value in column)}
        return {name: np.array(column, object if name in nested else None) for name, column in columns.items()}

    def to_pandas(self) -> "pd.DataFrame":
        """Its table, which ``--format csv`` writes, as a DataFrame.

        Raises UsageError for a report without a table, and where pandas is not installed.
        """
        table = self._table()
        try:
            import pandas as pd
        except ImportError:
            raise UsageError("to_pandas needs pandas, which is not installed", "pip install pandas") from None
        return pd.DataFrame(list(table.rows), columns=list(table.columns))

    def _table(self) -> Sheet:
        if (table := self.sheet()) is None:
            raise UsageError(f"a report of kind {self.KIND} has no table", "to_dict() is its data")
        return table

    def as_table(self, extension: str) -> str | None:
        """The text of a file with this extension, for a report that another command reads; None for no such file."""
        return None

    def show(self) -> None:
        """Print the report as its command prints it. Raises UsageError for a report without a view."""
        import_module(DRAWN_BY).show(self)

    def _repr_html_(self) -> str | None:
        """The report as HTML for a notebook; None for a report without a view."""
        html: str | None = import_module(DRAWN_BY).html(self)
        return html

    def metadata(self) -> dict[str, Any]:
        """The metadata of a file of tensors, as plain JSON data: model and text, and the axes of each tensor.

        ``places`` are the indices that a tensor holds of an axis, for those that do not count from 0.
        """
        stored, of = self.stored(), self.about.to_dict() if self.about else {}
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": self.KIND,
            **of,
            "axes": {array.name: list(array.axes) for array in stored},
            "places": {array.name: array.partial for array in stored if array.partial},
        }


def text_data(encoding: "Encoding") -> dict[str, Any]:
    """A text and its tokens as data; offsets count characters, ``bytes`` are hexadecimal.

    In a conversation each token has the ``role`` of its speaker, null for the chat template; in a pair its ``type``.
    """
    roles, is_pair = encoding.roles, any(encoding.types)
    return {
        "text": encoding.text,
        "added": encoding.added,
        "tokens": [
            {
                "index": index,
                "id": token.id,
                "shown": token.shown,
                "start": token.start,
                "end": token.end,
                "bytes": token.data.hex(),
                "special": token.special,
                **({} if roles is None else {"role": roles[index]}),
                **({"type": token.type} if is_pair else {}),
            }
            for index, token in enumerate(encoding.tokens)
        ],
    }


def _with_words(value: Any, tokens: "Sequence[Token]", *, is_record: bool = False) -> Any:
    """``Report.with_tokens`` of a part of its data. A function of the module: one that held itself would be a cycle."""
    if isinstance(value, list):
        has_records = bool(value) and isinstance(value[0], dict)
        return [_with_words(record, tokens, is_record=True) for record in value] if has_records else value
    if not isinstance(value, dict):
        return value
    members = {name: _with_words(member, tokens) for name, member in value.items()}
    position = value.get("position", value.get("query"))
    if is_record and isinstance(position, int) and position < len(tokens) and not _WORDS & value.keys():
        members["shown"] = tokens[position].shown
    return members
