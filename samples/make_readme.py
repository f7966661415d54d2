"""Draw the pictures of the README anew, and run its examples again: ``python samples/make_readme.py [--examples]``."""

import contextlib
import html
import io
import re
import shlex
import sys
from pathlib import Path

from tinytf_cli.main import run

ROOT = Path(__file__).parent.parent
DRAWN = ROOT / "samples" / "pictures"
BALL, HAT = "The cat lost the ball. The cat lost the", "The cat lost the hat. The cat lost the"
PICTURES: dict[str, list[str]] = {
    "trace": ["trace", "The cat sat"],
    "attention": ["attention", "The cat sat on the mat.", "--by", "previous"],
    "induction": [
        "trace", "The cat lost the red ball. The cat lost the red ball.", "--at", "L1H2.weights", "--width", "110"
    ],
    "grad": [
        "grad", "The dog lost the ball. The dog lost the", "--target", "ball", "--at", "L1H2.weights", "--derive",
        "L1H2.masked[9]",
    ],
    "lens": ["lens", BALL, "--track", "ball"],
    "short-convolution": [
        "explain", "L0H1.v_conv[5,3]", "The cat sat on the mat", "-m", "preset:lfm2-tiny", "--width", "90"
    ],
    "circuit": ["circuit", "--pairs", "samples/lost.jsonl"],
    "patch": ["patch", BALL, HAT, "--sweep", "residual", "--width", "90"],
    "cross-attention": [
        "attention", "the third of May 1994", "--target-text", "1994-05-03", "--cross", "--head", "L1H1", "-m",
        "tiny-translator",
    ],
    "both-texts": [
        "grad", "the third of May 1994", "--target-text", "1994-05-03", "--integrated", "-m", "tiny-translator",
    ],
}  # fmt: skip
EXAMPLE = re.compile(r"(?<=^```console\n)\$ (tinytf [^\n]*)\n(.*?)(?=^```)", re.MULTILINE | re.DOTALL)


def draw(name: str, folder: Path) -> Path:
    """Draw a picture into a folder, and return its file."""
    words, file = PICTURES[name], folder / f"{name}.svg"
    width = [] if "--width" in words else ["--width", "100"]
    with contextlib.chdir(ROOT):
        if status := run([*words, *width, "--theme", "dark", "-o", str(file)]):
            raise SystemExit(f"{name}: status {status}")
    return file


def printed(line: str) -> str:
    """What a command prints off a terminal."""
    heard = io.TextIOWrapper(io.BytesIO(), "utf-8")
    with contextlib.redirect_stdout(heard), contextlib.chdir(ROOT):
        status = run(shlex.split(line)[1:])
        if status > line.startswith("tinytf check "):  # which answers 1 about a file that is wrong
            raise SystemExit(f"{line}: status {status}")
    heard.seek(0)
    return heard.read()


def again(text: str) -> str:
    """A page with every example followed by what its command prints now."""
    return EXAMPLE.sub(lambda found: f"$ {found[1]}\n{printed(found[1])}", text)


def words(picture: str) -> list[str]:
    """The text of a picture, line by line as it was drawn."""
    drawn = re.findall(r">([^<]*)</text>", picture)
    return rounded("\n".join(html.unescape(text).replace("\xa0", " ") for text in drawn))


def rounded(text: str) -> list[str]:
    """Lines without what differs from processor to processor: the size of a rounding error, and where it is largest.

    Nor with the last digits of a long number, and how far these push what follows.
    """
    text = re.sub(r"\d+\.\d{5,}", lambda number: f"{float(number[0]):.4g}", text)
    text = re.sub(r" +", " ", text)
    text = re.sub(r"\d\.\d+e-(0[5-9]|1\d)", "ROUNDING", text)
    text = re.sub(r", exactly$", ", off by ROUNDING", text, flags=re.MULTILINE)
    text = re.sub(r"\d+ were tried$", "SOME were tried", text, flags=re.MULTILINE)  # but those that change nothing
    return re.sub(r"(ROUNDING( is allowed,)? at) \S+", r"\1 PLACE", text).splitlines()


if __name__ == "__main__":
    if "--examples" not in sys.argv:
        for name in PICTURES:
            draw(name, DRAWN)
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        text = page.read_text("utf-8")
        page.write_text(again(text), "utf-8")
