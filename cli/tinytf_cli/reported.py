"""Reports of a comparison for a pull request: files beside what is shown, and JUnit XML for what reads tests."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import torch

from tinytf import outputs
from tinytf.compare.diff import Difference
from tinytf.version import __version__
from tinytf_cli.encodings import markdown_lines
from tinytf_cli.output import Output, require_place, require_writable, write_file
from tinytf_cli.views.draw import Display, Shown

JUNIT = ".xml"


def expect_reports(paths: Sequence[Path]) -> None:
    """Refuse, before anything is computed, a file that cannot be written or whose extension names no format."""
    for path in paths:
        (require_place if path.suffix.lower() == JUNIT else require_writable)(path)
        outputs.expect_output(path)


def write_reports(paths: Sequence[Path], report: Difference, display: Display, output: Output) -> None:
    """Write a comparison to each of the files, in the format of its extension."""
    for path in paths:
        extension = path.suffix.lower()
        if extension not in (JUNIT, ".md"):
            replace(output, file=path).show(Shown(report, display))
            continue
        text = junit(report) if extension == JUNIT else "".join([*markdown_lines(report), f"\n{_made_by()}\n"])
        size = write_file(path, [text.encode("utf-8")])
        output.note(f"wrote {path} ({size:,} bytes)")


def _command() -> str:
    return shlex.join(["tinytf", *sys.argv[1:]])


def _versions() -> str:
    return f"tinytf {__version__}, torch {torch.__version__}"


def _made_by() -> str:
    return f"{_versions()}: `{_command()}`"


def junit(report: Difference) -> str:
    """A test for every step: those before the first that differs pass, it fails with its cause, the later are skipped.

    Steps that differ pass where that is rounding: with a floor that says so, or where each follows from those before.
    """
    bug = None if report.floor is None else report.floor.bug
    differing = bug or (None if report.floor is not None or report.follows else report.first)
    first = [one.name for one in (differing, report.not_finite) if one is not None]
    skipped = 0
    suite = ElementTree.Element("testsuite", name="tinytf diff")
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (("command", _command()), ("versions", _versions())):
        ElementTree.SubElement(properties, "property", name=name, value=value)
    names = [step.name for step in report.steps]
    at = min(map(names.index, first), default=len(names))
    for number, name in enumerate(names):
        case = ElementTree.SubElement(suite, "testcase", classname="tinytf.diff", name=name)
        if number == at:
            failure = ElementTree.SubElement(case, "failure", message=report.sentence)
            failure.text = "\n".join(f"{one.step}: {one.in_words}" for one in report.causes if one.found)
        elif number > at:
            ElementTree.SubElement(case, "skipped", message=f"after {names[at]}, which differs")
            skipped += 1
    if not names:
        case = ElementTree.SubElement(suite, "testcase", classname="tinytf.diff", name="steps")
        ElementTree.SubElement(case, "failure", message="no step of the two can be compared")
    counts = {"tests": len(suite) - 1, "failures": int(bool(first) or not names), "skipped": skipped}
    for name, count in counts.items():
        suite.set(name, str(count))
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"
