"""Draw the screen of every command in three widths and two themes: ``python samples/gallery.py FOLDER [COMMAND …]``.

FOLDER gets an SVG of each, and ``index.html`` with all of them below their command lines.
"""

import contextlib
import html
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tinytf_cli.command import FORMS
from tinytf_cli.main import run

ROOT = Path(__file__).parent.parent
WIDTHS, THEMES = (80, 120, 200), ("dark", "light")
NOTEBOOK = "samples/notebook.txt --tokenizer char --block 8"
LINES = f"""
tokens "The cat sat on the mat."
tokens "# Transformers" --characters --windows 8
trace "The cat sat on the mat."
trace "The cat [MASK] on the mat." --model tiny-encoder
attention "The cat sat on the mat."
heads
heads --grammar
neurons "The cat sat on the mat."
trace --curve "The cat sat on"
experts "The cat sat" --model preset:mixtral-tiny
lens "The cat sat on the" --track mat
neighbours dog cat cow car bus boat --untrained
neighbours "The cat sat on the mat" --at L*.in[cat] --toward dog --toward boat
explain "L1H2.scores[sat,cat]" "The cat sat"
trace --code "The cat sat" --at L0.masked --at L0.weights
grad "The cat sat on the mat"
attribute "The cat sat on the"
attention --rollout "The cat sat on the mat."
state "The cat sat on the mat." -m preset:qwen3.5-tiny
ablate "The cat sat on the" --sweep heads
ablate "The cat sat" --without scaling
ablate "The cat sat on the" --at L1H2 --repair
patch "The cat lost the ball. The cat lost the" "The cat lost the hat. The cat lost the" --sweep residual
patch "The cat lost the ball. The cat lost the" "The cat lost the hat. The cat lost the" --sweep heads
diff "The cat sat" "The dog sat"
diff "The cat sat" --set √d=1
diff --sampling transformers llama.cpp "The cat sat"
same "The cat sat on the mat."
diff --recorder
blame "The cat sat on the mat" --budget 1.5MB
pairs agreement --score
learn softmax
verify
verify cat-sleeps
verify paper:induction
check samples/my_gpt.py:GPT --like gpt2-tiny
generate "The cat sat" --max-tokens 20
generate "The cat sat on" --watch --top-k 5 --top-p 0.9 --temperature 0.8 --max-tokens 3
generate "The cat sat" --beams 4 --watch --max-tokens 5
generate "The cat sat" --explain-cache --max-tokens 20
score "The cat sat on the mat."
neighbours --texts "The cat sat." "A dog ran." --pooling mean
train {NOTEBOOK} --dry-run
train {NOTEBOOK} --explain 2 --steps 2
train {NOTEBOOK} --steps 60 --out FOLDER/run --overwrite
runs FOLDER/run
runs --follow FOLDER/run --once
runs --film FOLDER/run
models
info tiny
info preset:paper --batch 32 --length 50
info tiny-encoder --positions
info --card tiny --pieces 2
weights L1H2
circuit --pairs samples/lost.jsonl
config
steer samples/moods.jsonl
features "The cat sat on the mat." --sae samples/sae
config --doctor
""".strip().splitlines()
"""The command lines, in this order: the run of ``train`` is what ``runs`` and its forms show."""
NOT_DRAWN = {
    "explore": "it takes the whole terminal",
    "repl": "it is a session, whose screens are those of other commands",
    "sweep": "it trains for minutes; its table is that of runs",
    "certify": "it needs transformers",
    "export": "it writes a folder, and says so in a line",
    "record": "it writes a folder, and says so in a line",
    "train-sae": "it trains for a minute; its page shows what it prints",
    "probe": "it needs a file of labels; its page shows what it prints",
    "diff --logprobs": "it needs the logs of two programs; its page shows what it prints",
    "config --completion": "it prints a script for a shell",
    "mcp": "it speaks with a program",
}
"""The commands without a picture, each with the reason."""


def name_of(line: str) -> str:
    """The command of a line, or the form of it that the line asks for."""
    name, *words = line.split()
    return next((form for word in words if (form := f"{name} {word}") in FORMS), name)


def drawings(folder: Path, lines: Sequence[str], widths: Sequence[int] = WIDTHS) -> Iterator[tuple[str, list[Path]]]:
    """Draw each command line in every width and theme, and yield it with its pictures."""
    for number, line in enumerate(lines):
        words = [word.replace("FOLDER", str(folder)) for word in shlex.split(line)]
        pictures = []
        for width in widths:
            for theme in THEMES:
                picture = folder / f"{number:02}-{name_of(line).replace(' --', '-')}-{width}-{theme}.svg"
                with contextlib.chdir(ROOT):
                    status = run([*words, "--width", str(width), "--theme", theme, "-o", str(picture)])
                if status > (words[0] in ("check", "verify")):  # which answer 1 about what is wrong
                    raise SystemExit(f"tinytf {line}: status {status}")
                pictures.append(picture)
        yield line, pictures


def page(drawn: Sequence[tuple[str, list[Path]]]) -> str:
    """The index: each command line, then its pictures."""
    body = "\n".join(
        f"<h2><code>tinytf {html.escape(line)}</code></h2>\n"
        + "\n".join(f'<p><img src="{picture.name}" alt="{picture.stem}" loading="lazy"></p>' for picture in pictures)
        for line, pictures in drawn
    )
    return f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>tinytf</title>\n{body}\n</html>\n'


def draw(folder: Path, commands: Sequence[str] = ()) -> None:
    """Draw every line, or those of some commands, and write the index."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [line for line in LINES if not commands or name_of(line) in commands]
    (folder / "index.html").write_text(page(list(drawings(folder.resolve(), lines))), "utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit("usage: python samples/gallery.py FOLDER [COMMAND …]")
    draw(Path(sys.argv[1]), sys.argv[2:])
