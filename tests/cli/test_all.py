"""With --all and --full every view writes all that it has: no fold, no cut word, no mark in place of a number."""

import csv
import io
import re
from pathlib import Path

import pytest
from driving import Tinytf
from every_command import GIVEN
from test_every_output import made as made

from tinytf_cli.main import EVERY, cli

TEXT = "The dog ate my red ball while the cat slept on the mat, and the bird sat near the hat"
OTHER = TEXT.replace("dog", "cat", 1)
LOST = ("--pairs", str(Path(__file__).parent.parent.parent / "samples" / "lost.jsonl"))
LONG = (
    ("trace", TEXT, "--all"), ("trace", TEXT, "--at", "L1.out", "--all"), ("attribute", TEXT, "--all"),
    ("trace", TEXT, "--at", "L1.masked", "--full"), ("trace", TEXT, "--at", "L2H1.weights", "--full"),
    ("trace", "--at", "L0.W_Q", "--all"),
    ("attention", "--rollout", TEXT, "--all"),
    ("score", TEXT, "--all"), ("diff", TEXT, OTHER, "--all"), ("neurons", TEXT, "--all"),
    ("attention", TEXT, "--all"), ("attention", TEXT, "--head", "L1H2", "--all"), ("grad", TEXT, "--all"),
    ("grad", TEXT, "--at", "L1.out", "--full"), ("weights", "--all"), ("lens", TEXT, "--all"),
    ("state", TEXT, "-m", "preset:mamba-tiny", "--all"), ("experts", TEXT, "-m", "preset:mixtral-tiny", "--all"),
    ("pairs", "agreement", "-n", "30", "--all"), ("lens", *LOST, "--all"), ("attribute", *LOST, "--all"),
    ("patch", *LOST, "--sweep", "heads", "--all"), ("ablate", *LOST, "--sweep", "heads", "--all"),
)  # fmt: skip
"""Command lines about the built-in model whose answer is wider and longer than a screen of 80 columns."""
LEFT_OUT = re.compile(
    r"\d more\b(?! than)|\w…(?!\d)|… *$|folded|omitted|max-pooled|--(?:all|full) shows|"
    r"the (?:first|largest) [\d,]+ of [\d,]+ |[▼▾▴▲]{2,}"
)
"""What a view says where it leaves something out; the two pairs of triangles are the key of a signed map."""
SLOW = {"certify": pytest.mark.exhaustive}
PROMISING = {"all", "every", "full"}


def left_out(drawn: str) -> list[str]:
    return [line for line in drawn.replace("▼▾ ▴▲", "").splitlines() if LEFT_OUT.search(line)]


@pytest.mark.share(8)
@pytest.mark.parametrize("words", LONG, ids=" ".join)
def test_nothing_is_left_out_with_all_on_a_narrow_screen(words: tuple[str, ...], tinytf: Tinytf) -> None:
    model = () if "-m" in words else ("-m", "tiny")
    ran = tinytf(*words, *model, "--device", "cpu", "--width", "80", "--color", "never", "--no-pager", screen=True)
    assert ran.status == 0
    assert not left_out(ran.out)
    table = list(csv.reader(io.StringIO(tinytf(*words, *model, "--device", "cpu", "--format", "csv").out)))
    shown_rows = len({row[0] for row in table[1:]})
    assert len(ran.lines) > shown_rows


@pytest.mark.share(4)
@pytest.mark.parametrize("name", [pytest.param(name, marks=SLOW.get(name, ())) for name in sorted(GIVEN)])
def test_every_command_that_promises_all_leaves_nothing_out(
    name: str, made: Path, tinytf: Tinytf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(made)
    command = cli.get_command(None, name)  # type: ignore[arg-type]
    assert command is not None
    names = {one.name for one in command.params} & PROMISING
    for option in ("--full" if names == {"full"} else "--all",) if names else ():
        for words in GIVEN[name]:
            ran = tinytf(*words, option, "--width", "60", "--color", "never", "--no-pager", screen=True)
            if ran.status != 2:
                assert not left_out(ran.out), words


def test_every_command_is_tried() -> None:
    promising = {name for name in EVERY if {one.name for one in cli.get_command(None, name).params} & PROMISING}  # type: ignore[arg-type, union-attr]
    assert promising <= set(GIVEN)
