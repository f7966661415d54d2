"""One name a thing: a command, the kind of its report, its module, its view, its method and its row of the docs.

The table is read from the code and from docs/json.md, whose rows say which command prints a kind of another name.
"""

import inspect
import pkgutil
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import tinytf
import tinytf_cli
from tinytf.api import OLD_METHODS, Model
from tinytf.report import Report
from tinytf_cli.command import FORMS, OLD_NAMES, load
from tinytf_cli.main import COMMANDS
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.state import Spec
from tinytf_cli.views.draw import import_views

NAMES = {name.replace("-", "_") for name in COMMANDS}
ROOT = Path(tinytf.__file__).parent.parent
WITHOUT_REPORT = {
    "explore": "a screen",
    "repl": "a session",
    "mcp": "a server",
    "sweep": "its answer is the comparison of its runs, of the kind runs",
}
"""Commands that print no report of their own, and what they do."""
SEVERAL = {
    "joined": "several reports of any command",
    "over_pairs": "one question of many pairs, of several commands; its methods are named after them",
    "over_pairs_versus": "one question of two files of pairs, of the same commands",
    "values": "the verb print of a session",
    "changed": "a model of transformers changed, of ablate and patch",
}
"""Kinds that no one command prints, and what does."""
METHODS = {
    "trace": "traced: Model.trace gives the trace itself, whose tensors Python reads",
    "grad": "backward: Model.grad gives the gradients themselves",
    "cache_comparison": "compare_cache, as a question",
    "ranked": "most_similar, as a question",
    "tuned_lens": "train_lens, as what it does",
    "without": "compare_without: Model.without gives the changed model",
}
"""Methods of Model that are named otherwise than the kind that they answer with, and why."""


@cache
def kinds() -> Mapping[str, type[Report]]:
    """Every report of ours but those of verbs of a session, by its kind."""
    for module in pkgutil.walk_packages(tinytf.__path__, "tinytf."):
        if not module.name.endswith("__main__"):
            import_module(module.name)

    def below(kind: type[Report]) -> Iterator[type[Report]]:
        for each in kind.__subclasses__():
            yield from (each, *below(each))

    import_views()
    import_module("tinytf_cli.config")
    ours = (each for each in below(Report) if "KIND" in vars(each) and each.__module__.startswith("tinytf"))
    return {each.KIND: each for each in ours if ".repl." not in each.__module__}


@cache
def rows() -> Mapping[str, tuple[str, str]]:
    """Every kind: the command with options that prints it, as docs/json.md says, and the first kind of its row."""
    found = {}
    for line in (ROOT / "docs" / "json.md").read_text("utf-8").partition("Verbs of a session")[0].splitlines():
        if cell := re.match(r"\| (`[a-z_]+`(?:, `[a-z_]+`)*)(?: \(`([^`]+)`.*?\))? \|", line):
            names = re.findall(r"[a-z_]+", cell[1])
            found |= {name: (name if name in NAMES else cell[2] or names[0], names[0]) for name in names}
    return found


def alike(kind: str) -> set[str]:
    """What a file about a kind may be called: as it, its command or its row, or as what follows the command in it."""
    line, first = rows()[kind]
    command = line.split()[0].replace("-", "_")
    return {kind, f"{kind}s", kind.removesuffix("s"), kind.removeprefix(f"{command}_"), command, first}


ONE = sorted(set(kinds()) - SEVERAL.keys())


def test_every_command_has_a_kind_of_its_name() -> None:
    assert NAMES - kinds().keys() == WITHOUT_REPORT.keys()


def test_every_kind_has_a_row_with_the_command_that_prints_it() -> None:
    assert kinds().keys() - rows().keys() == {"joined", "values"}
    for kind, (line, _) in rows().items():
        name, *options = line.split()
        known = set() if name == "help" else {one for form in forms(name) for one in options_of(form)}
        assert {option for option in options if option.startswith("--")} <= known, f"{kind}: {line}"


def forms(name: str) -> list[str]:
    return [name.replace("_", "-"), *(form for form in FORMS if form.startswith(f"{name} "))]


def options_of(command: str) -> set[str]:
    return {option for parameter in load(command).params for option in parameter.opts}


@pytest.mark.parametrize("kind", ONE)
def test_the_module_of_a_report_or_its_room_is_named_after_it(kind: str) -> None:
    module = kinds()[kind].__module__
    assert alike(kind) & {*module.split(".")[1:]}, module


@pytest.mark.parametrize("kind", ONE)
def test_the_view_of_a_report_is_in_a_file_of_its_name(kind: str) -> None:
    report = kinds()[kind].__dict__.get("drawn_as", kinds()[kind])
    if kind == "page" or report not in import_views():
        assert kind == "page" or report.ROWS, "it is drawn by no view"  # a page is a file of HTML
        return
    module = import_views()[report][0].__module__
    assert module.rpartition(".")[2] in alike(kind) or kind == "card", module


def test_a_method_that_answers_with_a_report_has_the_name_of_its_kind() -> None:
    other = {}
    for kind in ONE:
        answers = re.compile(rf"\b{kinds()[kind].__name__}\b")
        methods = {
            name
            for name, method in inspect.getmembers(Model, inspect.isfunction)
            if answers.search(str(inspect.signature(method).return_annotation)) and not name.startswith("_")
        }
        if methods and kind not in methods:
            other[kind] = methods
    assert other == {kind: {METHODS[kind].partition(":")[0].partition(",")[0]} for kind in METHODS}


@pytest.mark.parametrize("old", sorted(OLD_METHODS))
def test_an_old_method_works_and_says_the_new_name(old: str) -> None:
    model = tinytf.load("tiny")
    with pytest.warns(FutureWarning, match=f"model.{old} is model.{OLD_METHODS[old]} now"):
        method = getattr(model, old)
    assert method == getattr(model, OLD_METHODS[old])


def test_every_other_name_is_refused_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(AttributeError, match="'Model' object has no attribute 'nothing'"):
            _ = tinytf.load("tiny").nothing  # type: ignore[attr-defined]


def test_every_command_and_form_has_a_file_of_its_name_and_an_old_name_leads_to_one() -> None:
    files = {path.stem for path in (ROOT / "cli" / "tinytf_cli" / "commands").glob("[a-z]*.py")}
    assert files == NAMES | {form.replace(" --", "_") for form in FORMS}
    assert set(OLD_NAMES.values()) <= FORMS.keys()
    assert not OLD_NAMES.keys() & {*COMMANDS}
    from tinytf_cli.repl.session_verbs import VERBS

    lexicon = Session(VERBS, Spec("tiny")).lexicon
    assert not [old for old in OLD_NAMES if lexicon.is_sentence([old, "the", "cat"])], "no text to run in a session"


def test_a_command_is_typed_in_a_session_under_its_own_name() -> None:
    from tinytf_cli.repl.session_verbs import VERBS

    assert not {alias for verb in VERBS.values() for alias in verb.aliases} & {*COMMANDS}


def test_no_two_rooms_have_one_name() -> None:
    rooms = [
        module.name.rpartition(".")[2]
        for package in (tinytf, tinytf_cli)
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if module.ispkg
    ]
    assert [room for room, count in Counter(rooms).items() if count > 1] == []
