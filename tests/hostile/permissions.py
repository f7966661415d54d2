"""Folders and files that the user may not read, write or enter: their own by the mode, and those of another user."""

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import click

from hostile import surface
from hostile.case import Case, Made

ANOTHER = 65534
"""The number of a user that is nobody else's, on every Linux."""
_MODES_OF_FILES = (0o000, 0o200, 0o400, 0o444, 0o600, 0o644)
_MODES_OF_FOLDERS = (0o000, 0o111, 0o444, 0o555, 0o700, 0o755, 0o1777)
_ENDS = (".json", ".txt", ".safetensors", ".html", ".csv", ".npz", ".toml")


def _file(data: bytes, mode: int, *, of_another: bool) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        path.write_bytes(data)
        _give(path, mode, of_another=of_another)

    return make


def _folder(inside: dict[str, Made], mode: int, *, of_another: bool) -> Callable[[Path], None]:
    """A folder of files that are whole, and the other user's too."""

    def make(path: Path) -> None:
        path.mkdir()
        for name, data in inside.items():
            (path / name).write_bytes(data if isinstance(data, bytes) else b"")
            _give(path / name, 0o644, of_another=of_another)
        _give(path, mode, of_another=of_another)

    return make


def _give(path: Path, mode: int, *, of_another: bool) -> None:
    path.chmod(mode)
    if of_another:
        with suppress(PermissionError):  # where nobody may give files away, modes alone are tried
            os.chown(path, ANOTHER, ANOTHER)


def cases(count: int, seed: int) -> Iterator[Case]:
    rng = Random(f"permissions {seed}")
    outputs = [(name, one) for name, one in surface.parameters() if one.name in ("file", "out", "folder", "resume")]
    inputs = [(name, one) for name, one in surface.parameters() if isinstance(one.type, (click.Path, click.File))]
    for _ in range(count):
        name, parameter = rng.choice(rng.choice((outputs, inputs)))
        files, of_another = dict(surface.files()), bool(rng.randrange(2))
        model = {path.removeprefix("model/"): data for path, data in files.items() if path.startswith("model/")}
        end = rng.choice(_ENDS)
        match rng.randrange(4):
            case 0:
                mode, path = rng.choice(_MODES_OF_FILES), f"x{end}"
                files[path], kept = _file(b"what stood before", mode, of_another=of_another), path
            case 1:
                mode, kept = rng.choice(_MODES_OF_FOLDERS), "place"
                files["place"] = _folder({f"x{end}": b"what stood before"}, mode, of_another=of_another)
                path = rng.choice(("place", f"place/x{end}", f"place/new{end}", "place/new/folder"))
            case 2:
                mode, path, kept = rng.choice(_MODES_OF_FOLDERS), "other", "other"
                files["other"] = _folder(model, mode, of_another=of_another)
            case _:
                mode, inside = rng.choice(_MODES_OF_FILES), rng.choice(sorted(model))
                path, kept = "model", f"model/{inside}"
                files[kept] = _file(model[inside], mode, of_another=of_another)
        whose = "another's" if of_another else "one's own"
        words = surface.with_word(name, parameter, path)
        protected = of_another or not mode & 0o200
        yield Case(f"{name}: {parameter.name} = {path}, {kept} is {whose} {mode:o}", words, files,
                   unchanged=(kept,) if protected else ())  # fmt: skip
