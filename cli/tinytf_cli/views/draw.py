"""Views: functions from a report to blocks, registered by the type of the report that they draw."""

import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

from tinytf.errors import UsageError
from tinytf.report import Report
from tinytf_cli.terminal import Terminal

if TYPE_CHECKING:
    from tinytf.loading import Model
    from tinytf_cli.views.blocks import Block, Drawing


@dataclass(frozen=True)
class Display:
    """The options of a view. A view with options declares them, with defaults, in a subclass."""

    @property
    def conceals(self) -> bool:
        """Whether the answer is left to the reader, so that no sentence gives it away."""
        return False

    def frames(self, report: Any, terminal: Terminal) -> "Frames | None":
        """The frames of a report that moves; None for one that does not."""
        return None

    def drawing(self, report: Any) -> "Drawing | None":
        """The graph that an .svg file shows; None for a report that is shown as on the screen."""
        return None


Frames = Iterable["Iterable[Iterable[Block]]"]
"""The frames of a film, each in several layouts, the largest first."""
View = Callable[[Any, Terminal, Any], "Iterable[Block]"]
"""A view takes a report, the terminal and the view's options."""
V = TypeVar("V", bound=View)
_VIEWS: dict[type[Report], tuple[View, type[Display]]] = {}


@dataclass(frozen=True)
class Shown:
    """A report and how to display it; without ``display``, by the defaults of its view."""

    report: Report
    display: Display | None = None

    def blocks(self, terminal: Terminal) -> "Iterable[Block]":
        blocks = blocks_of(self.report, terminal, self.display)
        if not terminal.figure:
            return blocks
        from tinytf_cli.views.blocks import as_figure

        return as_figure(blocks)

    def frames(self, terminal: Terminal) -> Frames | None:
        """The frames of a report that moves; None for one that does not."""
        return self._display.frames(self.report, terminal)

    def drawing(self) -> "Drawing | None":
        """The graph that an .svg file shows; None for a report that is shown as on the screen."""
        return self._display.drawing(self.report)

    @property
    def sentence(self) -> str:
        """The answer in one sentence, with which the view begins; empty where there is none, or it is concealed."""
        return "" if self._display.conceals else self.report.sentence

    @property
    def _display(self) -> Display:
        return _view_of(self.report)[1]() if self.display is None else self.display


def draws(report: type[Report], display: type[Display] = Display) -> Callable[[V], V]:
    """Register a function as the view of a type of report, with the type of its options."""

    def register(view: V) -> V:
        _VIEWS[report] = view, display
        return view

    return register


def blocks_of(report: Report, terminal: Terminal, display: Display | None = None) -> "Iterator[Block]":
    """A report as blocks: its sentence, and what its view makes. Raises UsageError for a type without a view."""
    from tinytf_cli.views.blocks import Line, Span

    view, options = _view_of(report)
    if sentence := Shown(report, display).sentence:
        yield Line(Span(sentence, "strong"), hanging=0, first=True)
    yield from view(report, terminal, options() if display is None else display)


def _view_of(report: Report) -> tuple[View, type[Display]]:
    """The view of a report's type; a report with ROWS and no view of its own has that of any Report."""
    drawn_as = report.drawn_as
    views = __name__.rpartition(".")[0]
    # Most views are in a file named after the report's kind.
    for name in (drawn_as.KIND, *(["records"] if drawn_as.ROWS else [])):
        if drawn_as not in _VIEWS and find_spec(f"{views}.{name}"):
            import_module(f"{views}.{name}")
    if drawn_as in _VIEWS:
        return _VIEWS[drawn_as]
    if drawn_as.ROWS:
        return _VIEWS[Report]
    import_views()
    if drawn_as not in _VIEWS:
        raise UsageError(f"a {drawn_as.__name__} is not drawn", "to_dict() has all of it")
    return _VIEWS[drawn_as]


def import_views() -> "dict[type[Report], tuple[View, type[Display]]]":
    """Import every view. Returns the views by type of report."""
    views = import_module("tinytf_cli.views")

    for module in pkgutil.iter_modules(views.__path__):
        import_module(f"{views.__name__}.{module.name}")
    return _VIEWS


def model_of(report: Report) -> "Model":
    """The model that a report is about. Raises UsageError if there is none."""
    if report.about is None:
        name = type(report).__name__
        raise UsageError(f"this {name} has no model, which it needs to name tokens", "make it with a method of Model")
    model: Any = report.about.model
    return model
