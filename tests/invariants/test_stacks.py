"""The code asks whether a model has a second stack only where CONTRIBUTING.md lists it, each time with its reason.

Everything else loops over ``stacks``. Parts and tables of families say what a stack is, and are free to ask.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FREE = ("tinytf/parts/", "tinytf/config.py", "tinytf/checkpoints/")
ASKED = {"encoder", "reads", "d_source", "source_mask", "source"}
"""Attributes that are about the stack that is read."""
NAMED = {"enc.", "dec.", "encoder.", "encoder", "source"}
OTHERS = {
    "source": {"file", "link", "paper", "example", "options", "translators", "call", "model", "part"},
    "reads": {"coder", "step"},
}
"""What else has a source or reads something: files, edges, autoencoders …"""
ELSEWHERE = ("tinytf/features/", "tinytf/cause/interventions/ablate.py", "cli/tinytf_cli/repl/log.py")
"""Where a source is only the place that a vector or a line comes from."""


def conditions(node: ast.AST) -> Iterator[ast.expr]:
    """Whatever decides between two ways at a node itself."""
    match node:
        case ast.If() | ast.While() | ast.IfExp():
            yield node.test
        case ast.comprehension():
            yield from node.ifs
        case ast.BoolOp() | ast.Compare() | ast.UnaryOp(op=ast.Not()):
            yield node


def about(expression: ast.expr) -> Iterator[str]:
    """The words of an expression that are about the stack that is read."""
    called = {id(node.func) for node in ast.walk(expression) if isinstance(node, ast.Call)}
    for node in ast.walk(expression):
        match node:
            case ast.Attribute(attr=name, value=of) if name in ASKED and id(node) not in called:
                owner = ast.unparse(of).rpartition(".")[2]
                if owner not in OTHERS.get(name, ()):
                    yield ast.unparse(node)
            case ast.Name(id="reads"):
                yield "reads"
            case ast.Constant(value=str(text)) if text in NAMED:
                yield repr(text)


def questions(tree: ast.AST, inside: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Each question: the function in which it is asked, and its words."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Assert):
            continue
        named = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        place = (*inside, node.name) if named else inside
        for condition in conditions(node):
            for word in about(condition):
                yield ".".join(place), word
        yield from questions(node, place)


def asked() -> dict[str, set[str]]:
    """By file, the functions that ask."""
    files = sorted(path for room in ("tinytf", "cli") for path in (ROOT / room).rglob("*.py"))
    named = {path.relative_to(ROOT).as_posix(): path for path in files}
    found = {
        name: {place for place, _ in questions(ast.parse(path.read_text("utf-8")))}
        for name, path in named.items()
        if not name.startswith(FREE + ELSEWHERE)
    }
    return {name: places for name, places in found.items() if places}


def listed() -> dict[str, set[str]]:
    """By file, the functions that CONTRIBUTING.md lists; each line ends with a reason."""
    lines = re.findall(r"^- `(\S+\.py)` (`[^:]+`): \S.+$", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)
    return {name: set(re.findall(r"`([^`]+)`", places)) for name, places in lines}


def test_only_the_listed_functions_ask_about_a_second_stack() -> None:
    assert asked() == listed()


def test_a_question_is_found_in_any_form() -> None:
    forms = (
        "if model.encoder: pass", "x = a if config.d_source else b", "y = [s for s in t if trace.source is not None]",
        "while not model.reads: pass", 'z = text.startswith("enc.") and text', "w = batch.source is None or v",
    )  # fmt: skip
    for form in forms:
        assert list(questions(ast.parse(form))), form
    assert not list(questions(ast.parse("for at, stack in model.stacks.items(): run(at, stack.encoder)")))
