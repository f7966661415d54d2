"""Transcripts of strangers: verbs with words that nobody would type, and lines that would run code."""

from collections.abc import Iterator
from functools import cache
from random import Random

from hostile import surface
from hostile.bases import ours, within
from hostile.case import Case
from hostile.strings import NASTY, text, word

_SLOW = {"explore", "learn", "watch", "check", "card", "certify", "doctor", "sweep", "train"}
_SOUND = ("run the cat sat", "step", "step 3", "next", "finish", "where", "list", "print L0.q", "heat L0H0",
          "goto logits",
          "back", "undo", "redo", "history", "without L0H0", "diff", "show", "set precision 2", "help", "model model",
          "save x.session", "source x.session", "break L0.scores", "watch L0.q", "continue",
          "print L0.q | head -1")  # fmt: skip
_CODE = ("!import os; os.mkdir('owned')", "! 1 + 1", "print L0 | touch owned", "!!", "!9", "source /dev/zero",
         "source .",
         "source FILE", "save /dev/full", "save model/config.json", "source a\0b", "check x.py:y", "# comment",
         ";;", "|", "'", '"',
         "run '", "print/ L0", "print/zzz L0.q", "/", "//", "?", "\\", "run \\", "alias x = x", "alias x=!ls",
         "set vi 7")  # fmt: skip


@cache
def _verbs() -> tuple[str, ...]:
    from tinytf_cli.repl.session_verbs import VERBS

    return tuple(name for name in (*VERBS, *surface.commands()) if name not in _SLOW)


def cases(count: int, seed: int) -> Iterator[Case]:
    rng = Random(f"sessions {seed}")
    for _ in range(count):
        lines = ["run the cat sat"] if rng.randrange(5) else []
        lines += [_line(rng) for _ in range(rng.randrange(1, 6))]
        made = "\n".join(lines).encode("utf-8", rng.choice(("surrogatepass", "replace")))
        files = {**within("model", ours()), "x.session": made}
        options = rng.choice(((), ("--echo",), ("--plain",), ("--ascii",)))
        words = ("repl", "-m", "model", "--on-error", "continue", *options, "-f", "x.session")
        yield Case(f"lines {lines[-3:]!a:.300}", words, files, lines=1_000)


def _line(rng: Random) -> str:
    match rng.randrange(6):
        case 0:
            return rng.choice(_CODE)
        case 1:
            return rng.choice(_SOUND)
        case 2:
            return f"{rng.choice(_SOUND)} {word(rng)}"
        case 3:
            return f"run {text(rng)}"
        case 4:
            more = rng.choice(("", word(rng), "--json", "-o out.html", rng.choice(NASTY)))
            return f"{rng.choice(_verbs())} {word(rng)} {more}"
    return rng.choice(_verbs())
