"""Transcripts beside what they give; ``python tests/repl/golden.py`` writes that anew, to be read before it is kept."""

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from tinytf_cli.main import run

HERE = Path(__file__).parent
SESSIONS = sorted(HERE.glob("*.session"))


def given(path: Path) -> str:
    """Everything that a transcript writes, errors among the output."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", newline="")
    with redirect_stdout(stream), redirect_stderr(stream):
        run(["repl", "--allow-code", "-f", str(path), "--device", "cpu", "--echo", "--on-error", "continue"])
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode("utf-8")


if __name__ == "__main__":
    for one in SESSIONS:
        one.with_suffix(".expected").write_text(given(one), "utf-8")
