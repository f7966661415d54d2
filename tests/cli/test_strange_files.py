"""A file that is no file: a pipe where a model is read is one line, and never waited for."""

import os
import shutil
from pathlib import Path

import pytest
from driving import Tinytf

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


def test_a_file_without_end_is_not_read(tinytf: Tinytf) -> None:
    ran = tinytf("verify", "/dev/zero")
    assert ran.status == 2
    assert "it is a device, not a file" in ran.err
