"""Build the site from the pages, the commands and the code: ``python samples/make_site.py [--pages]``.

Writes ``build/docs``, then ``site/``, which works from a folder; ``--pages`` writes the former alone. Needs the extra
``docs``.
"""

import importlib.util
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

import tinytf
from tinytf_cli.command import WITH_FORMS
from tinytf_cli.main import cli

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "build" / "docs"
CONFIGURATION = PAGES.parent / "mkdocs.yml"
STYLE = """
.md-grid { max-width: 76rem; }
.md-typeset img[src$=".svg"] { width: 100%; }
@media print { .md-header, .md-sidebar, .md-footer { display: none; } }
"""
WORKER = """
// The search runs in a worker, which browsers do not start for a page from a folder: there it runs in a frame.
if (location.protocol === "file:") window.Worker = class extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    this.inside = new Promise(ready => frame.addEventListener("load", () => {
      const inside = frame.contentWindow, script = inside.document.createElement("script");
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", {data}));
      script.addEventListener("load", () => ready(inside));
      script.src = url;
      inside.document.body.append(script);
    }));
    frame.hidden = true;
    frame.srcdoc = "<body>";
    document.body.append(frame);
  }
  postMessage(data) {
    this.inside.then(inside => inside.dispatchEvent(new inside.MessageEvent("message", {data})));
  }
};
"""
Pictures = Mapping[str, Sequence[tuple[str, Mapping[str, Path]]]]
"""By command: its lines, each with a picture by theme."""


def script(name: str) -> "object":
    """Another script of this folder, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "samples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def without_folders(text: str) -> str:
    """A page whose links lead to the pages of the site, where all are in one folder."""
    text = re.sub(r"\]\((?:\.\./)?samples/pictures/", "](pictures/", text)
    text = re.sub(r"\]\((?:\.\./)?(samples/)?(tour\.ipynb)", r"](\2", text)
    return re.sub(r"\]\((?:\.\./|docs/)([\w-]+\.md)", r"](\1", text)


def copied() -> Iterator[str]:
    """Copy the written pages; yield their names."""
    pages = {path.name: path for path in (ROOT / "docs").glob("*.md")}
    pages |= {"index.md": ROOT / "README.md"}
    pages |= {name: ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "SKILL.md")}
    for name, path in pages.items():
        (PAGES / name).write_text(without_folders(path.read_text("utf-8")), "utf-8")
        yield name
    shutil.copytree(ROOT / "samples" / "pictures", PAGES / "pictures")
    shutil.copy(ROOT / "samples" / "tour.ipynb", PAGES)
    shutil.copytree(ROOT / "docs" / "schemas", PAGES / "schemas")
    names = sorted(path.stem for path in (ROOT / "docs" / "schemas").glob("*.json"))
    listed = "\n".join(f"- [{name}](schemas/{name}.json)" for name in names)
    (PAGES / "schemas.md").write_text(f"# Schemas\n\nThe JSON Schema of every kind of answer.\n\n{listed}\n", "utf-8")


def drawn() -> Pictures:
    """Draw the lines of the gallery in both themes."""
    gallery = script("gallery")
    (PAGES / "gallery").mkdir()
    pictures: dict[str, list[tuple[str, Mapping[str, Path]]]] = defaultdict(list)
    for line, files in gallery.drawings((PAGES / "gallery").resolve(), gallery.LINES, widths=(100,)):  # type: ignore[attr-defined]
        pictures[gallery.name_of(line)].append((line, dict(zip(gallery.THEMES, files, strict=True))))  # type: ignore[attr-defined]
    shutil.rmtree(PAGES / "gallery" / "run", ignore_errors=True)
    return pictures


def shown(line: str, pictures: Mapping[str, Path], folder: str = "gallery/") -> str:
    """A command line and what it prints, for the theme of the reader."""
    line = line.replace(" --out FOLDER/run --overwrite", "").replace("FOLDER/", "")
    images = (
        f"![What tinytf {line.split()[0]} prints]({folder}{picture.name}#only-{theme})"
        for theme, picture in pictures.items()
    )
    return "\n".join([f"```sh\ntinytf {line}\n```", "", *images, ""])


def command_page(name: str, summary: str, pictures: Sequence[tuple[str, Mapping[str, Path]]], reason: str) -> str:
    """The page of one command: what it does, its options, and real examples."""
    with click.Context(cli, info_name="tinytf") as outer:
        command = cli.get_command(outer, name)
        assert command is not None
        context = click.Context(command, info_name=name, parent=outer)
        usage = " ".join(command.collect_usage_pieces(context))
        records = [
            (getattr(parameter, "shared", False), record)
            for parameter in command.get_params(context)
            if isinstance(parameter, click.Option) and (record := parameter.get_help_record(context))
        ]
    parts = [f"# tinytf {name}", summary, f"```text\ntinytf {name} {usage}\n```"]
    for paragraph in (command.help or "").split("\n\n")[1:]:
        kept = paragraph.lstrip().removeprefix("\b\n")
        parts.append(f"```text\n{kept}\n```" if kept != paragraph.lstrip() else " ".join(paragraph.split()))
    parts += [shown(line, files, "../gallery/") for line, files in pictures]
    if not pictures:
        parts.append(f"There is no picture: {reason}.")
    for shared, title in ((False, "Options"), (True, "Options that commands share")):
        rows = [
            f"| `{cell(option)}` | {cell(about)} |" for is_shared, (option, about) in records if is_shared == shared
        ]
        if rows:
            parts += [f"## {title}", "\n".join(["| option | what it does |", "|---|---|", *rows])]
    return "\n\n".join(parts) + "\n"


def page_of(name: str) -> str:
    """The page of a command or of a form of one."""
    return f"commands/{name.replace(' --', '-')}.md"


def cell(text: str) -> str:
    """Text in a cell of a table."""
    return re.sub(r"([|<])", r"\\\1", " ".join(text.split()))


def commands(pictures: Pictures) -> Iterator[str]:
    """Write a page for each command; yield their names."""
    reasons: Mapping[str, str] = script("gallery").NOT_DRAWN  # type: ignore[attr-defined]
    (PAGES / "commands").mkdir()
    for summaries in WITH_FORMS.values():
        for name, summary in summaries.items():
            text = command_page(name, summary, pictures.get(name, ()), reasons.get(name, "see its other pages"))
            (PAGES / page_of(name)).write_text(text, "utf-8")
            yield name


def gallery_page(pictures: Pictures) -> str:
    """What every command prints, by group."""
    parts = ["# Tour", "What every command prints, on the built-in model. The pictures are made by the commands."]
    for title, summaries in WITH_FORMS.items():
        parts.append(f"## {title}")
        for name, summary in summaries.items():
            if name in pictures:
                parts += [f"### [{name}]({page_of(name)})", summary, shown(*pictures[name][0])]
    return "\n\n".join(parts)


def api_page() -> str:
    """The Python interface, from its docstrings."""
    from tinytf.api import Model
    from tinytf.lazy_methods import LazyMethod

    lazy = sorted(name for name, value in vars(Model).items() if isinstance(value, LazyMethod))
    methods = [getattr(Model, name) for name in lazy]
    reports = [f"::: {tinytf._LAZY[name]}.{name}" for name in sorted(tinytf._LAZY) if name[0].isupper()]
    return "\n\n".join(
        [
            "# API",
            "`tinytf.load` opens a model; the functions below are its methods, with the model as their first argument.",
            "::: tinytf.loading.load",
            "## Methods of a model",
            *(f"::: {method.__module__}.{method.__name__}" for method in methods),
            "## Reports",
            *reports,
        ]
    )


def write_pages() -> None:
    """Write every page of the site."""
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir(parents=True)
    list(copied())
    pictures = drawn()
    list(commands(pictures))
    (PAGES / "gallery.md").write_text(gallery_page(pictures), "utf-8")
    (PAGES / "api.md").write_text(api_page(), "utf-8")
    (PAGES / "extra.css").write_text(STYLE, "utf-8")
    (PAGES / "iframe-worker.js").write_text(WORKER, "utf-8")


def write_configuration() -> None:
    """Write the configuration of mkdocs with the pages of the commands."""
    groups = [
        f"      - {title}:\n" + "\n".join(f"          - {name}: {page_of(name)}" for name in summaries)
        for title, summaries in WITH_FORMS.items()
    ]
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    CONFIGURATION.write_text(text.replace("- Commands: []", "\n".join(["- Commands:", *groups])), "utf-8")


def refuse_foreign() -> None:
    """Exit with 1 if a page of the site fetches something from elsewhere."""
    for page in (ROOT / "site").rglob("*.html"):
        fetched = re.search(r'<(?:script|link|img|iframe)\b[^>]* (?:src|href)="(https?:[^"]*)', page.read_text("utf-8"))
        if fetched:
            raise SystemExit(f"{page} fetches {fetched[1]}")


if __name__ == "__main__":
    write_pages()
    write_configuration()
    if "--pages" not in sys.argv:
        build = ["mkdocs", "build", "--strict", "--quiet", "--config-file", str(CONFIGURATION)]
        subprocess.run([sys.executable, "-m", *build], cwd=ROOT, check=True)
        refuse_foreign()
