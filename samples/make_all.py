"""Write everything that is generated: ``python samples/make_all.py [--list] [--check] [--only NAME …]``

Without ``--only`` it makes all that takes seconds, and says which files changed; ``--list`` also names the rest, which
takes minutes. ``--check`` writes nothing, and exits 1 if a file is not what the code makes.
"""

import argparse
import asyncio
import importlib
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DOCS, PICTURES = ROOT / "docs", ROOT / "samples" / "pictures"
Files = dict[Path, str]


@dataclass(frozen=True)
class Generated:
    """Some files that are written from the code: what they are, and how to make them, or the command that does."""

    what: str
    make: Callable[[], Files] | None = None
    command: str = ""
    words: Callable[[str], object] = str
    """What a change is told by: for what a processor computes, the text with its numbers rounded."""


def script(name: str) -> Any:
    """A module of ``samples``."""
    if str(ROOT / "samples") not in sys.path:
        sys.path.insert(0, str(ROOT / "samples"))
    return importlib.import_module(name)


def parts(page: Path, made: dict[str, str]) -> Files:
    """A page with its parts of some names replaced: what stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``."""
    text = page.read_text("utf-8")
    for name, part in made.items():
        block = re.compile(rf"(<!-- {name} -->\n).*?(\n<!-- /{name} -->)", re.DOTALL)
        if not block.search(text):
            raise SystemExit(f"{page.relative_to(ROOT)} has no part {name}")
        text = block.sub(lambda found, part=part: f"{found[1]}{part}{found[2]}", text)
    return {page: text}


def steps() -> Files:
    table = script("step_table")
    return parts(DOCS / "steps.md", {"steps": table.markdown(), "lens names": table.lens_markdown()})


def keys() -> Files:
    from tinytf_cli.explore.keys import KEYS

    rows = "\n".join(f"| `{key.shown}` | {key.words} |" for key in KEYS)
    return parts(DOCS / "explore.md", {"keys": f"| key | what it does |\n|---|---|\n{rows}"})


def gguf() -> Files:
    from tinytf.checkpoints.gguf.architecture import ARCHITECTURES

    return parts(DOCS / "families.md", {"gguf": ", ".join(sorted(ARCHITECTURES))})


def families() -> Files:
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "parity")]
    return parts(DOCS / "families.md", {"families": "\n".join(importlib.import_module("differences").rows())})


def benchmarks() -> Files:
    data = json.loads((DOCS / "benchmarks.json").read_text("utf-8"))
    return {DOCS / "benchmarks.md": script("benchmarks_page").markdown(data)}


def schemas() -> Files:
    return script("make_schemas").files()


def examples() -> Files:
    make = script("make_readme")
    pages = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
    return {page: make.again(page.read_text("utf-8")) for page in pages}


def pictures() -> Files:
    make, cast, session = script("make_readme"), script("make_cast"), script("make_session")
    with tempfile.TemporaryDirectory() as folder:
        drawn = {PICTURES / f"{name}.svg": make.draw(name, Path(folder)).read_text("utf-8") for name in make.PICTURES}
        asyncio.run(cast.write_frame(Path(folder) / "explore.svg"))
        drawn[PICTURES / "session.svg"] = session.film()
        return drawn | {PICTURES / "explore.svg": (Path(folder) / "explore.svg").read_text("utf-8")}


GENERATED = {
    "steps": Generated("the tables of docs/steps.md: steps, and TransformerLens' names", steps),
    "operations": Generated(
        "the table of operations of worked examples",
        lambda: parts(ROOT / "samples" / "worked" / "README.md", {"operations": script("operation_table").markdown()}),
    ),
    "keys": Generated("the keys of the explorer in docs/explore.md", keys),
    "gguf": Generated("the architectures of GGUF files in docs/families.md", gguf),
    "figures": Generated(
        "the figures of the built-in models in docs/models.md",
        lambda: parts(DOCS / "models.md", {"models": script("model_table").markdown()}),
    ),
    "benchmarks": Generated("docs/benchmarks.md, from docs/benchmarks.json", benchmarks),
    "man": Generated("the man page", lambda: {DOCS / "tinytf.1": script("make_man").man_page()}),
    "notebook": Generated(
        "the notebook of the tour", lambda: {ROOT / "samples" / "tour.ipynb": script("make_notebook").notebook()}
    ),
    "schemas": Generated("docs/schemas: what the JSON of each kind of report looks like", schemas),
    "examples": Generated(
        "what the examples of README.md and docs/ print",
        examples,
        words=lambda text: script("make_readme").rounded(text),
    ),
    "pictures": Generated(
        "the pictures of docs/ that a command draws", pictures, words=lambda text: script("make_readme").words(text)
    ),
    "families": Generated(
        "the table of docs/families.md: every family compared with transformers", families, "minutes"
    ),
    "cast": Generated(
        "the recording of the explorer",
        command="python samples/make_cast.py samples/pictures/explore.cast samples/pictures/explore.svg",
    ),
    "methods": Generated("the table of docs/methods.md", command="python tests/parity/methods.py --write"),
    "case-study": Generated("the figures of docs/case-study.md", command="python tests/parity/case_study.py --write"),
    "agreement": Generated(
        "the figures of docs/agreement.md", command="python tests/parity/agreement_study.py --write"
    ),
    "models": Generated("the built-in models, trained", command="python samples/make_models.py --work FOLDER"),
    "vectors": Generated(
        "the steering vector and autoencoder of samples", command="python samples/make_vectors.py --work FOLDER"
    ),
}
"""Everything generated, by name, in the order in which it is made."""
QUICK = tuple(name for name, generated in GENERATED.items() if generated.make and not generated.command)


def changes(name: str) -> Iterator[tuple[Path, str]]:
    """The files that are not what the code makes, with what it makes."""
    make, words = GENERATED[name].make, GENERATED[name].words
    assert make is not None
    for file, text in make().items():
        if not file.is_file() or words(file.read_text("utf-8")) != words(text):
            yield file, text


def main(names: Sequence[str], *, check: bool) -> int:
    """Make some of what is generated. Returns 1 if ``check`` finds a file that has to change."""
    stale = 0
    for name in names:
        if GENERATED[name].make is None:
            raise SystemExit(f"{name} takes minutes: {GENERATED[name].command}")
        for file, text in changes(name):
            stale += 1
            print(f"{name}: {file.relative_to(ROOT)} {'has to change' if check else 'changed'}", flush=True)
            if not check:
                file.parent.mkdir(exist_ok=True)
                file.write_text(text, "utf-8")
    print(f"{stale or 'no'} file{'s' * (stale != 1)} {'to change' if check else 'changed'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--list", action="store_true", help="name what is generated")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file has to change")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=GENERATED, default=QUICK, help="make only these")
    given = parser.parse_args()
    if given.list:
        for name, one in GENERATED.items():
            only = "" if name in QUICK else one.command if one.make is None else "minutes; only by --only"
            print(f"{name:12} {one.what}{f' ({only})' if only else ''}")
        sys.exit()
    sys.exit(main(given.only, check=given.check))
