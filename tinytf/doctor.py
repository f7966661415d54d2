"""The state of the installation: versions, devices, threads, models, and which features need an extra package."""

import os
import platform
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

import torch

from tinytf.checkpoints.stores import HUB_CACHE, LM_STUDIO, OLLAMA
from tinytf.loading import load
from tinytf.memory import free_bytes
from tinytf.models import catalogue
from tinytf.report import Data, Report, Verified
from tinytf.trace.check import check as check_trace
from tinytf.version import __version__

_PACKAGES = ("torch", "numpy", "tokenizers", "safetensors", "gguf", "jinja2", "click", "rich", "prompt_toolkit")
_EXTRAS = (
    ("huggingface_hub", "hub:ORG/NAME, models of the hub", 'pip install "tinytf[hub]"'),
    ("transformers", "architectures without a table, certify, models in memory", 'pip install "tinytf[hf]"'),
    ("sentencepiece", "tokenizers of Marian and M2M-100", 'pip install "tinytf[sentencepiece]"'),
    ("tensorboard", "train --tensorboard", 'pip install "tinytf[tensorboard]"'),
)
_COMPILERS = ("c++", "g++", "clang++")
_TEXT = "The cat sat on the mat."
_VARIABLES = ("TINYTF_MODEL", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_CACHE", "OLLAMA_MODELS")


@dataclass(frozen=True)
class Device(Data):
    """A device; ``name`` is what --device takes. Memory is in bytes; ``total`` is None if it is unknown.

    ``check`` is the check of a trace of the built-in model on it; ``problem`` says why there is none.
    """

    name: str
    what: str
    free: int | None
    total: int | None
    check: Verified | None = None
    problem: str = ""


@dataclass(frozen=True)
class Extra(Data):
    """An optional package or program: its ``version`` if installed, what it is ``needed_for``, how to ``get`` it."""

    name: str
    needed_for: str
    version: str | None
    get: str


@dataclass(frozen=True)
class Place(Data):
    """A place with models: their number, and the number of those that do not open."""

    name: str
    folder: str
    models: int
    closed: int


@dataclass(frozen=True, kw_only=True)
class Checkup(Report):
    """The whole report; ``threads`` are torch's, ``cores`` those that this process may use.

    ``terminal`` holds what a command knows about the screen that it writes to.
    """

    KIND = "doctor"
    EVENTS: ClassVar = {"devices": "device", "places": "place", "extras": "extra", "terminal": "terminal"}

    system: str
    versions: dict[str, str]
    threads: int
    cores: int
    variables: dict[str, str]
    devices: tuple[Device, ...]
    places: tuple[Place, ...]
    extras: tuple[Extra, ...]
    terminal: dict[str, Any] | None = None

    @property
    def holds(self) -> bool:
        """Whether the trace on every device passes its check."""
        return all(device.check is not None and device.check.holds for device in self.devices)

    def fields(self) -> dict[str, Any]:
        names = ("system", "versions", "threads", "cores", "variables", "devices", "places", "extras", "holds")
        return self.members(*names, *(("terminal",) if self.terminal is not None else ()))


def checkup(folder: Path = Path()) -> Checkup:
    """Collect all of it, and trace the built-in model on every device. Nothing is downloaded or written."""
    return Checkup(
        system=f"{platform.system()} {platform.release()}, {platform.machine()}",
        versions={"tinytf": __version__, "python": platform.python_version(), **_versions()},
        threads=torch.get_num_threads(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        variables={name: os.environ[name] for name in _VARIABLES if name in os.environ},
        devices=tuple(_devices()),
        places=tuple(_places(folder)),
        extras=(*(Extra(name, what, _version(name), get) for name, what, get in _EXTRAS), _compiler()),
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _versions() -> dict[str, str]:
    return {name: number for name in _PACKAGES if (number := _version(name)) is not None}


def _compiler() -> Extra:
    chosen = os.environ.get("CXX")
    compiler = next((path for name in ([chosen] if chosen else _COMPILERS) if (path := shutil.which(name))), None)
    return Extra("C++ compiler", "generate --compile", compiler, "install g++ or clang++, or name one in CXX")


def _devices() -> Iterator[Device]:
    import psutil

    memory = psutil.virtual_memory()
    yield _checked("cpu", platform.processor() or platform.machine(), memory.available, memory.total)
    if torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        more = f", the first of {torch.cuda.device_count()}" if torch.cuda.device_count() > 1 else ""
        yield _checked("cuda", properties.name + more, free_bytes(torch.device("cuda")), properties.total_memory)
    if torch.backends.mps.is_available():
        yield _checked("mps", "Apple GPU", None, None)


def _checked(name: str, what: str, free: int | None, total: int | None) -> Device:
    """A device, with the check of a trace made on it."""
    try:
        check = check_trace(load("tiny", device=name).trace(_TEXT))
    except Exception as error:  # a failing device is to be reported, not raised
        return Device(name, what, free, total, problem=str(error).partition("\n")[0])
    return Device(
        name, what, free, total, Verified(f"{len(check.items)} steps", check.telling.difference, check.telling.allowed)
    )


def _places(folder: Path) -> Iterator[Place]:
    entries = catalogue(folder).entries
    counts, closed = (
        Counter(entry.place for entry in entries),
        Counter(entry.place for entry in entries if not entry.opens),
    )
    folders = {
        "built in": "", "preset": "", "folder": str(folder.absolute()), HUB_CACHE.place: str(HUB_CACHE.folder),
        OLLAMA.place: str(OLLAMA.folders[0]), LM_STUDIO.place: str(next(LM_STUDIO.folders)),
    }  # fmt: skip
    return (Place(name, path, counts[name], closed[name]) for name, path in folders.items())
