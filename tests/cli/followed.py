"""Runs for the tests to look at, and a terminal to look at them on."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from safetensors.torch import save_file

from tinytf.config import ModelConfig
from tinytf.model.transformer import Transformer

CONFIG = ModelConfig.of(vocab_size=50, d_model=8, n_layers=2, n_heads=2, d_ff=8, context=16)


def line(step: int, **more: object) -> str:
    return json.dumps({"step": step, "loss": 1 + 4 / step, "lr": 1e-3, "grad_norm": 0.5, **more}) + "\n"


def measured(step: int, held_out: float) -> str:
    heads = {"entropy": [[0.5, 0.25], [1.0, 0.75]], "previous": [[0.0, 0.1], [0.2, 0.9]], "duplicate": None,
             "induction": [[0.0, 0.1], [0.52, 0.3]]}  # fmt: skip
    said = [f"L1H0 became an induction head, score 0.{step}"]
    return line(step, held_out_loss=held_out, heads=heads, milestones=said)


def made(folder: Path, last: int = 20, steps: int = 20, held_out: float = 2.0) -> Path:
    """A run of which two measurements are there; the first is the better one."""
    folder.mkdir(parents=True)
    (folder / "recipe.json").write_text(json.dumps({"steps": steps, "seed": 3}), "utf-8")
    lines = [line(step) for step in range(1, last + 1)]
    lines[9], lines[last - 1] = measured(10, held_out), measured(last, held_out + 1)
    (folder / "metrics.jsonl").write_text("".join(lines), "utf-8")
    speed = {"step": 10, "seconds": 1.0, "tokens_per_second": 41000.0, "memory_bytes": 512}
    (folder / "speed.jsonl").write_text(json.dumps(speed) + "\n", "utf-8")
    (folder / "config.json").write_text(
        json.dumps({"format": "tinytf", "format_version": 1, "model": CONFIG.to_dict()}), "utf-8"
    )
    save_file(dict(Transformer.initialised(CONFIG, 0).state_dict()), folder / "model.safetensors")
    return folder


def files(folder: Path) -> dict[str, tuple[bytes, int]]:
    """All that is in a folder, and when it was written."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in found}


def watching(run: Path, *options: str, **more: object) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "tinytf_cli", "runs", "--follow", str(run), "--interval", "0.05", *options]
    return subprocess.Popen(command, **more)  # type: ignore[call-overload,no-any-return]


def append(run: Path, text: str) -> None:
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write(text)


_CODE = re.compile(r"\x1b\[(\??[\d;]*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)")


def on_a_screen(written: str) -> list[str]:
    """What an endless terminal shows in the end; a code that changes more than lines and colours is an error."""
    lines, row, column = [""], 0, 0
    for code in _CODE.finditer(written):
        number, letter, back, down, text = code.groups()
        if text:
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
            column += len(text)
        elif back:
            column = 0
        elif down:
            row, column = row + 1, 0
            lines += [""] * (row + 1 - len(lines))
        elif letter == "A":
            row -= int(number)
            assert row >= 0
        elif letter == "K":
            lines[row] = lines[row][:column]
        elif letter == "J":
            lines[row:] = [lines[row][:column]]
        else:
            assert letter == "m" or number == "?2026", code[0]
    return lines


Act = tuple[str, "str | signal.Signals"]


def on_a_terminal(run: Path, rows: int, *acts: Act) -> tuple[int, str]:
    """Watch a run on a terminal of 80 columns; what each act does, more lines or a signal, is done when its words

    have been shown since the act before, so that every state in between is drawn, however slow the machine is.
    """
    import fcntl
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, 80, 0, 0))
    before = termios.tcgetattr(slave)
    with watching(run, stdin=slave, stdout=slave, stderr=slave) as process:
        written, since, todo, deadline = b"", 0, list(acts), time.monotonic() + 300
        try:
            while process.poll() is None:
                assert time.monotonic() < deadline, written
                if select.select([master], [], [], 0.01)[0]:
                    written += os.read(master, 65536)
                if todo and todo[0][0].encode() in written[since:] and written.endswith(b"?2026l"):
                    since, (_, done) = len(written), todo.pop(0)
                    if isinstance(done, signal.Signals):
                        process.send_signal(done)
                    else:
                        append(run, done)
        finally:
            process.kill()  # of no effect when it has ended
        while select.select([master], [], [], 0)[0]:
            written += os.read(master, 65536)
        assert termios.tcgetattr(slave) == before
    os.close(master)
    os.close(slave)
    assert not todo, written
    return process.returncode, written.decode("utf-8").replace("\r\n", "\n")
