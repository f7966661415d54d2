"""A report as Python has it, drawn as the command of its kind draws it without options."""

import shlex
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from tinytf.errors import UsageError
from tinytf.report import Report
from tinytf_cli.output import Output, Result, View
from tinytf_cli.terminal import Terminal, detect

_QUOTED = 60
"""Characters of a text that a line to type has in full."""

# By the name of a report: the module of its view, its class, and what it is made with after the report: of a model, or
# of none.
_OF_A_MODEL: dict[str, tuple[Any, ...]] = {
    "Activations": ("activations", "ActivationsView", None),
    "Attended": ("attention", "AttentionView", "entropy"),
    "Attribution": ("attribute", "AttributionView", 15),
    "Budget": ("budget", "BudgetView"),
    "Census": ("heads", "HeadsView"),
    "Code": ("code", "CodeView"),
    "Experts": ("experts", "ExpertsView"),
    "Explained": ("explain", "ExplainView"),
    "LeftOut": ("without", "WithoutView"),
    "Neighbours": ("neighbours", "NeighboursView", None),
    "Parameters": ("parameters", "ParametersView"),
    "Positions": ("positions", "PositionsView"),
    "Rollout": ("rollout", "RolloutView"),
    "Score": ("score", "ScoreView"),
}
_ALONE: dict[str, tuple[Any, ...]] = {
    "Catalogue": ("models", "ModelsView"),
    "Certificate": ("certify", "CertifyView", None),
    "Checked": ("check", "CheckView"),
    "Course": ("learn", "CourseView"),
    "Difference": ("difference", "DifferenceView", None, False, False, 5),
    "ExampleScores": ("verify", "ScoresView"),
    "Film": ("film", "FilmView"),
    "Films": ("film", "FilmView"),
    "Info": ("info", "InfoView"),
    "LessonList": ("learn", "ListView"),
    "RunReport": ("run", "RunView"),
    "RunsReport": ("runs", "RunsView"),
    "Splits": ("splits", "SplitsView"),
    "Tokenized": ("tokens", "TokensView"),
    "Training": ("train", "TrainView"),
    "TrainingPlan": ("plan", "PlanView"),
    "Verification": ("verify", "VerifyView"),
}


def _view(module: str, name: str) -> Callable[..., View]:
    found: Callable[..., View] = getattr(import_module(f"tinytf_cli.views.{module}"), name)
    return found


def _again(found: Report) -> Callable[..., str]:
    """Makes the line that asks another command about the same text, as it is typed in a terminal."""
    text, name = found.encoding.text, found.about.model.name if found.about else "tiny"
    said = text if text.isprintable() and 0 < len(text) <= _QUOTED and not text.startswith("-") else "TEXT"
    more = () if name == "tiny" else ("-m", name)
    return lambda *command, options=(): shlex.join(["tinytf", *command, said, *options, *more])


def _traced(module: str, name: str, *more: Any) -> Callable[[Any, Any], View]:
    """A view that needs the trace of the text too, which is recorded again."""
    return lambda model, found: _view(module, name)(model, model.trace_of(found.encoding), found, *more)


def _patched(name: str, *more: Any) -> Callable[[Any, Any], View]:
    return lambda model, found: _view("patch", name)(model, *map(model.trace_of, found.texts), found, *more)


def _continued(module: str, name: str, start: Callable[[Any], Any]) -> Callable[[Any, Any], View]:
    """What was made already comes again."""
    return lambda model, found: _view(module, name)(model, found, lambda: start(iter(found.steps)))


_OTHERWISE: dict[str, Callable[[Any, Any], View]] = {
    "Ablation": _traced("ablate", "AblationView"),
    "AblationSweep": _traced("ablate", "AblationSweepView", 8),
    "Backward": lambda model, found: _view("grad", "GradView")(
        model, found, 8, None, frozenset({"summary"}), _again(found)
    ),
    "BeamSearch": _continued("beams", "BeamView", lambda steps: steps),
    "Blame": lambda model, found: _view("blame", "BlameView")(model, found.versus.model, found),
    "CacheComparison": _continued("cached", "CachedView", lambda steps: steps),
    "Checkup": lambda _, found: _view("doctor", "DoctorView")(found, detect(sys.stdout), None),
    "Generation": _continued("generate", "GenerateView", lambda steps: (steps, None)),
    "Neurons": _traced("neurons", "NeuronsView", False, None),
    "PatchSweep": _patched("PatchSweepView", 8),
    "Patched": _patched("PatchedView"),
    "Traced": lambda model, found: _view("trace", "TraceView")(model, found, 8, None, again=_again(found)),
}


def result_of(found: Report) -> Result:
    """A report in every form. Raises UsageError for one that has no view, or that is of no model."""
    return Result.of(view_of(found) if type(found).__name__ in {*_ALONE, *_OF_A_MODEL, *_OTHERWISE} else found)


def view_of(found: Report) -> View:
    """The view of a report. Raises UsageError for one that has none, or that is of no model."""
    name, model = type(found).__name__, None if found.about is None else found.about.model
    if name in _ALONE:
        module, view, *more = _ALONE[name]
        return _view(module, view)(found, *more)
    if name == "Checkup":
        return _OTHERWISE[name](model, found)
    if name not in _OF_A_MODEL and name not in _OTHERWISE:
        raise UsageError(f"a {name} is not drawn", "to_dict() has all of it")
    if model is None:
        raise UsageError(
            f"this {name} is of no model, whose tokens it would name", "a method of Model gives one that is"
        )
    if name in _OTHERWISE:
        return _OTHERWISE[name](model, found)
    module, view, *more = _OF_A_MODEL[name]
    return _view(module, view)(model, found, *more)


def show(found: Report) -> None:
    """Print what the command of the report prints. Raises as ``result_of`` does."""
    Output(detect(sys.stdout), stdout=sys.stdout).show(result_of(found))


def html(found: Report) -> str | None:
    """A report as a part of an HTML page, in true colour; None for a report without a view."""
    from tinytf_cli.paint.painter import paint
    from tinytf_cli.picture import fragment

    screen = Terminal(depth="truecolor", cuts=True)
    try:
        lines: Iterator[str] = iter(paint(result_of(found).blocks(screen), screen))
    except UsageError:
        return None
    return fragment(lines, screen)
