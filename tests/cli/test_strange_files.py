"""A file that is no file: a pipe where a model is read is one line, and never waited for."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from driving import Tinytf
from safetensors.torch import load_file

from tinytf import files
from tinytf.errors import CheckpointError
from tinytf.loading import load
from tinytf.outputs import write_state

PIPES = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are of POSIX")


@PIPES
@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_pipe_in_a_model_folder_is_told(tinytf: Tinytf, decoder: Path, tmp_path: Path, name: str) -> None:
    model = tmp_path / "model"
    shutil.copytree(decoder, model)
    (model / name).unlink()
    os.mkfifo(model / name)
    ran = tinytf("trace", "a", "-m", model)
    assert (ran.status, ran.out) == (1, "")
    assert f"{model / name}" in ran.err
    assert "it is a pipe, not a file" in ran.err


@PIPES
@pytest.mark.parametrize(
    "arguments",
    [("verify", "PIPE"), ("repl", "-f", "PIPE"), ("train", "TEXT", "--recipe", "PIPE", "--out", "RUN")],
)
def test_a_pipe_as_another_input_is_told(tinytf: Tinytf, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    pipe, text = tmp_path / "pipe.toml", tmp_path / "text.txt"
    os.mkfifo(pipe)
    text.write_text("the cat sat\n\non the mat\n")
    places = {"PIPE": pipe, "TEXT": text, "RUN": tmp_path / "run"}
    ran = tinytf(*(places.get(word, word) for word in arguments))
    assert ran.status in (1, 2)
    assert "it is a pipe, not a file" in ran.err
    assert not (tmp_path / "run").exists()


@PIPES
@pytest.mark.parametrize(
    "arguments",
    [
        ("blame", "--texts", "PIPE", "--versus", "tiny"),
        ("tokens", "--versus", "tiny-encoder", "--corpus", "PIPE"),
        ("train", "PIPE", "--out", "RUN"),
    ],
)
def test_a_pipe_that_nobody_writes_to_is_not_waited_for_without_end(
    tinytf: Tinytf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.setattr(files, "_SECONDS_FOR_THE_OTHER_END", 0.05)
    places = {"PIPE": tmp_path / "pipe", "RUN": tmp_path / "run"}
    os.mkfifo(places["PIPE"])
    ran = tinytf(*(places.get(word, word) for word in arguments))
    assert (ran.status, ran.out) == (2, "")
    assert (
        f"cannot read {tmp_path / 'pipe'}: nobody writes to this pipe\nhint: first start the program that writes to it"
        in ran.err
    )


@PIPES
def test_a_pipe_is_read_for_as_long_as_somebody_writes(tinytf: Tinytf, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        with pipe.open("w") as stream:
            for part in ("the cat", " sat\n\n", "on the mat\n"):
                time.sleep(0.1)
                stream.write(part)
                stream.flush()

    thread = threading.Thread(target=write)
    thread.start()
    ran = tinytf("tokens", "--versus", "tiny", "--corpus", pipe, "--json")
    thread.join()
    assert ran.status == 0, ran.err
    assert json.loads(ran.out)["texts"] == 2


def test_a_file_without_end_is_not_read(tinytf: Tinytf) -> None:
    ran = tinytf("verify", "/dev/zero")
    assert ran.status == 2
    assert "it is a device, not a file" in ran.err


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("how", ["cut short", "written over", "replaced"])
def test_a_weight_file_that_changes_under_an_open_model_is_told(
    tinytf: Tinytf, decoder: Path, tmp_path: Path, how: str, name: str
) -> None:
    tinytf("export", decoder, "--to", "huggingface", tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    if name != path.name:
        torch.save(load_file(path), path.with_name(name))
        path.unlink()
        path = path.with_name(name)
    model = load(str(path.parent), device="cpu")
    before, data = model.trace("the cat")["logits"], path.read_bytes()
    if how == "replaced":  # as a download or a training run does it: the old file stays for whoever has it open
        write_state(path, data[:-4] + b"\0\0\0\0")
        assert torch.equal(model.trace("the cat")["logits"], before)
        return
    with path.open("r+b") as file:
        if how == "cut short":
            file.truncate(len(data) // 2)
        else:
            file.seek(-4, 2)
            file.write(b"\0\0\0\0")
    with pytest.raises(CheckpointError, match=rf"{name} was changed while its model was open"):
        model.trace("the cat")


@pytest.mark.parametrize(
    "arguments", [("info", "closed/model"), ("runs", "closed/model"), ("tokens", "a", "-m", "closed/m.gguf")]
)
def test_what_nobody_may_look_at_is_not_called_missing(
    tinytf: Tinytf, decoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """A closed folder closes nothing to root, as whom tests may run: the system's answer is given instead."""
    stat, lstat = os.stat, os.lstat

    def denied(ask):
        def answer(path, *more, **options):
            if isinstance(path, str | Path) and "closed/" in os.fspath(path):
                raise PermissionError(13, "Permission denied", os.fspath(path))
            return ask(path, *more, **options)

        return answer

    monkeypatch.setattr(os, "stat", denied(stat))
    monkeypatch.setattr(os, "lstat", denied(lstat))
    ran = tinytf(*(str(tmp_path / word) if word.startswith("closed") else word for word in arguments))
    assert (ran.status, ran.out) == (1, "")
    first, hint = ran.err.splitlines()
    assert first.endswith(f"{tmp_path}/{arguments[-1]}: Permission denied")
    assert hint == "hint: change its permissions, or name another"


_READS_ON = """
import os, sys, threading
import torch
from tinytf.loading import load
from tinytf_cli.main import run
torch.set_num_threads(int(sys.argv[3]))
run(["tokens", "a"])
model = load(sys.argv[1], device="cpu")
os.truncate(sys.argv[2], int(sys.argv[4]))
print("kept")
model.transformer(torch.tensor([[1, 2, 3]]))
print("never")
"""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the file is found in /proc")
@pytest.mark.parametrize("threads", ["1", "4"])
@pytest.mark.slow
def test_a_file_that_is_cut_short_within_a_run_is_one_line(decoder: Path, tmp_path: Path, threads: str) -> None:
    """The check before a run is passed already: reading on would end the process by SIGBUS."""
    shutil.copytree(decoder, tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    arguments = [sys.executable, "-c", _READS_ON, str(path.parent), str(path), threads, "0"]
    ran = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert ran.stdout.endswith("kept\n")
    assert ran.stderr == (
        f"tinytf: error: {path} was cut short while it was read\nhint: run it again once the file is whole\n"
    )


@pytest.mark.skipif(not hasattr(signal, "SIGBUS"), reason="a signal of POSIX")
@pytest.mark.slow
def test_another_fault_ends_the_process_as_ever() -> None:
    script = "import os, signal; from tinytf_cli.main import run; run(['tokens', 'a']); "
    again = "os.kill(os.getpid(), signal.SIGBUS); " * 2  # a read that fails is tried again when the handler returns
    ran = subprocess.run([sys.executable, "-c", script + again], capture_output=True, check=False)
    assert ran.returncode == -signal.SIGBUS
    assert ran.stderr == b""
