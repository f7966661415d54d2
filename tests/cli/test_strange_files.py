"""A file that is no file: a pipe where a model is read is one line, and never waited for."""

import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from driving import Tinytf

from tinytf import files

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
        f"cannot read {tmp_path / 'pipe'}: nobody writes to this pipe\nhint: start what writes to it first" in ran.err
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
