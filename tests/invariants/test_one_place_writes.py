"""Only ``tinytf/outputs.py`` opens a file for writing, makes a folder, renames or removes anything."""

import ast
import functools
import re
from pathlib import Path

import pytest

import tinytf
import tinytf_cli

WRITING = {
    "write_text", "write_bytes", "mkdir", "makedirs", "unlink", "rmdir", "rename", "replace", "rmtree", "touch",
    "symlink_to", "hardlink_to", "link", "symlink", "copyfile", "copy", "copytree", "move", "truncate", "mkstemp",
    "mkfifo", "NamedTemporaryFile", "chmod", "fchmod", "removedirs",
}  # fmt: skip
MODULES = {"os", "shutil", "tempfile"}
PATHS = {"write_text", "write_bytes", "mkdir", "unlink", "rmdir", "rename", "touch", "symlink_to", "hardlink_to"}
"""Names of methods that only a path has."""
MODE = re.compile(r"[rwaxbt+]*[wax+][rwaxbt+]*")
FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC"}
ELSEWHERE = {
    "command.py": "a paragraph of a help page, to click",
    "checkpoints/huggingface/export.py": "a tokenizer that transformers rebuilds, in a temporary folder",
}


def writes(tree: ast.AST) -> list[str]:
    """The calls of a module that write, by name and line."""
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name, of = "", ""
        if isinstance(node.func, ast.Attribute):
            name = node.func.attr
            of = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
        elif isinstance(node.func, ast.Name):
            name = node.func.id
        words = [*node.args, *(keyword.value for keyword in node.keywords)]
        texts = [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]
        flags = {part.attr for word in words for part in ast.walk(word) if isinstance(part, ast.Attribute)}
        opens = (
            name == "open" and (any(MODE.fullmatch(text) for text in texts) or flags & FLAGS) and "devnull" not in flags
        )
        if opens or name in PATHS or (of in MODULES and name in WRITING):
            found.append(f"{name} in line {node.lineno}")
    return found


@functools.cache
def modules() -> dict[str, list[str]]:
    roots = [Path(tinytf.__file__).parent, Path(tinytf_cli.__file__).parent]
    return {
        str(path.relative_to(root)): writes(ast.parse(path.read_text("utf-8")))
        for root in roots
        for path in root.rglob("*.py")
    }


@pytest.mark.slow
def test_no_other_module_writes() -> None:
    found = {name: calls for name, calls in modules().items() if calls and name not in ELSEWHERE}
    assert found.pop("outputs.py")
    assert found == {}


def test_every_exception_is_one() -> None:
    assert all(modules()[name] for name in ELSEWHERE)
