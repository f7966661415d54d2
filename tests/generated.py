"""Files that ``samples/make_all.py`` writes, and what a test says of those that are not what the code makes."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

SAMPLES = Path(__file__).parent.parent / "samples"


def sample_script(name: str) -> ModuleType:
    """A script of ``samples`` as a module."""
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, SAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def make_again(name: str) -> str:
    """The command that writes what is generated under a name, as the message of a failing test."""
    generated = sample_script("make_all").GENERATED[name]
    by_hand = generated.command if generated.make is None else f"python samples/make_all.py --only {name}"
    return f"{generated.what}: not what the code makes; run: {by_hand}"
