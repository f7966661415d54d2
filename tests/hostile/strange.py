"""Files that are no files, for every parameter of every command: pipes, devices, folders, links, names."""

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import click

from hostile import surface
from hostile.case import Case, Made
from hostile.strings import argument, word


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _broken(path: Path) -> None:
    path.symlink_to("nowhere")


def _to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path.name)  # a short name: the folder is the one that we are in


def _huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**36)


def _closed(path: Path) -> None:
    path.write_bytes(b"x")
    path.chmod(0)


MADE: dict[str, Made] = {
    "a pipe": os.mkfifo,
    "a loop of links": _loop,
    "a link to nothing": _broken,
    "a link to zeros": _to("/dev/zero"),
    "a link to random bytes": _to("/dev/urandom"),
    "a link to its folder": _to("."),
    "a link to memory": _to("/proc/self/mem"),
    "a socket": _socket,
    "64 GiB of nothing": _huge,
    "a closed file": _closed,
    "a folder": Path.mkdir,
    "an empty file": b"",
    "one byte": b"\0",
    "noise": bytes(range(256)) * 16,
    "a deep list": b"[" * 100_000,
    "one long line": b"a" * 300_000,
    "an object": b"{}",
    "half a number": b'{"a": 1e',
    "a zip that is none": b"PK\x03\x04" + b"\0" * 100,
    "a GGUF that is none": b"GGUF\x03\0\0\0" + b"\xff" * 16,
    "UTF-16": "the cat".encode("utf-16"),
}
_NAMES = ("/dev/zero", "/dev/urandom", "/dev/full", "/dev/null", "/dev/stdin", "/", ".", "..", "", " ", "a" * 300,
          "x/" * 3_000, "\0", "a\0b", "/proc/self/mem", "/proc/self/environ", "/proc/kmsg", "~", "missing/x",
          "corpus.txt/x", "model", "corpus.txt", "//", "/dev/fd/0", "CON", "x:y", "file:///etc/passwd",
          "http://localhost/x")  # fmt: skip
_ENDS = ("", "", ".toml", ".json", ".npz", ".safetensors", ".gguf", ".ndjson", ".jsonl", ".csv", ".parquet", ".txt",
         ".py", ".svg", ".html", ".bin")  # fmt: skip
_IN_A_MODEL = ("config.json", "tokenizer.json", "model.safetensors", "generation_config.json", "tokenizer_config.json",
               "special_tokens_map.json", "chat_template.jinja", "metrics.jsonl", "recipe.json", "training.json",
               "model.safetensors.index.json", "adapter_config.json", "vocab.json", "merges.txt")  # fmt: skip


def _is_path(parameter: click.Parameter) -> bool:
    """Whether a parameter is a path, or a word that may be one."""
    return isinstance(parameter.type, (click.Path, click.File)) or parameter.type in (click.STRING, click.UNPROCESSED)


def cases(count: int, seed: int) -> Iterator[Case]:
    rng = Random(f"strange {seed}")
    paths = [(name, one) for name, one in surface.parameters() if _is_path(one)]
    paths += [(name, one) for name, one in paths if isinstance(one.type, (click.Path, click.File))] * 3
    for _ in range(count):
        name, parameter = rng.choice(paths)
        about, files = f"{name}: {parameter.name}", dict(surface.files())
        match rng.randrange(5):
            case 0:
                given = argument(rng, rng.choice((*_NAMES, word(rng))))
                words = surface.with_word(name, parameter, given)
            case 1:
                kind, inside = rng.choice(list(MADE)), rng.choice(_IN_A_MODEL)
                given, words = f"{kind} as model/{inside}", (name, *surface.SOUND[name])
                files[f"model/{inside}"] = MADE[kind]
            case _:
                given, path = rng.choice(list(MADE)), "x" + rng.choice(_ENDS)
                files[path] = MADE[given]
                words = surface.with_word(name, parameter, path)
        yield Case(f"{about} = {given[:80]!a}", words, files)
