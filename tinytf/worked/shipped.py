"""The worked examples that come with tinytf."""

from pathlib import Path

from tinytf.nearest import did_you_mean
from tinytf.worked.example import Example, ExampleError, parse

FOLDER = Path(__file__).parents[1] / "assets" / "worked"


def shipped() -> tuple[str, ...]:
    """Their names, sorted."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def open_example(name: str) -> Example:
    """An example by the name of one that is shipped, or by its file. Raises ExampleError."""
    if name in shipped():
        return parse(FOLDER / f"{name}.toml")
    path = Path(name)
    if not path.exists() and not path.suffix:
        raise ExampleError(f"there is no worked example {name!r}, and no such file", did_you_mean(name, shipped()))
    if path.is_dir():
        raise ExampleError(f"{path} is a folder", "name a .toml file in it")
    return parse(path)
