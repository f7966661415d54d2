"""Commands that a screen suggests open the model in the way in which it was opened there."""

import json
import shlex
from pathlib import Path

import pytest
import torch
from driving import Tinytf

import tinytf as library
import tinytf_cli
from tinytf.trace.faults import overflow_at
from tinytf_cli.command import parameters_of
from tinytf_cli.options import ModelOptions

OTHERS = {
    "model": "tiny", "device": "cpu", "dtype": "bfloat16", "seed": "7", "tokenizer": "tiny", "adapter": None,
    "through": None, "trust_remote_code": None, "keep_quantized": None, "stack": None,
}  # fmt: skip
"""A value of every option that opens a model; those that need a folder, or another kind of model, are left out."""


def test_every_option_that_opens_a_model_is_tried() -> None:
    assert {setting.name for setting in parameters_of(ModelOptions)} == OTHERS.keys()


@pytest.mark.share(4)
@pytest.mark.parametrize("name", [name for name, value in OTHERS.items() if value])
@pytest.mark.parametrize("command", ["trace", "grad"])
def test_a_suggested_command_has_the_options_and_runs(tinytf: Tinytf, command: str, name: str) -> None:
    printed = tinytf(command, "The cat sat", f"--{name}", OTHERS[name], "--width", "200")
    assert printed.status == 0, printed.err
    lines = [line.strip().split("   ")[0] for line in printed.lines if line.strip().startswith("tinytf ")]
    assert lines
    for line in lines:
        words = shlex.split(line)
        option = "-m" if name == "model" else f"--{name}"
        assert words[words.index(option) + 1] == OTHERS[name], line
    again = tinytf(*shlex.split(lines[0])[1:])
    assert again.status == 0, again.err


def test_an_overflow_is_said_with_its_step_and_its_number(tinytf: Tinytf) -> None:
    model = library.load("tiny", device="cpu")
    exact = model.trace("The cat sat")
    with torch.no_grad():
        model.transformer.blocks[1].ffn.down.weight *= 1e6 / float(exact["L1.ffn"].abs().max())
    reached = float(model.trace("The cat sat")["L1.ffn"].abs().max())
    model.transformer.half()
    trace = model.trace("The cat sat")
    words = overflow_at(trace, "L1.ffn")
    assert words.endswith(", beyond float16's 65,504")
    number = float(words.split()[2].rstrip(",").replace(",", ""))
    assert number == pytest.approx(reached, rel=1e-2), "weights rounded to float16"


SUGGESTING = {
    "views/overview.py": "trace", "views/grad.py": "grad", "views/steer.py": "steer",
    "views/train_sae.py": "train-sae",
}  # fmt: skip
"""Views that suggest a command about the same model, each with its command here."""
OTHERWISE = {
    "views/check.py": "an option of the same command",
    "views/verify.py": "no model",
    "views/train.py": "the run that was just made",
    "views/film.py": "a model of the film",
    "views/runs.py": "the runs that it lists",
    "views/parts.py": "the function itself",
}


def test_every_view_that_suggests_commands_is_tried() -> None:
    package = Path(tinytf_cli.__file__).parent
    found = {
        str(file.relative_to(package)) for file in package.rglob("*.py") if "next_lines(" in file.read_text("utf-8")
    }
    assert found == SUGGESTING.keys() | OTHERWISE.keys()


@pytest.mark.parametrize("command", SUGGESTING.values())
def test_a_screen_and_a_report_of_python_suggest_the_numbers_and_the_model(
    tinytf: Tinytf, command: str, decoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs, book = tmp_path / "pairs.jsonl", tmp_path / "book.txt"
    lines = ({"positive": f"The {word} sat", "negative": f"The {word} saw"} for word in ("cat", "dog", "mat"))
    pairs.write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    book.write_text("The cat sat on the mat.\n\n" * 20, "utf-8")
    sae = ("--at", "L0.out", "--features", "8", "--k", "2", "--tokens", "32", "--batch", "16", "--out", tmp_path / "s")
    words = {
        "trace": ("trace", "The cat"), "grad": ("grad", "The cat"), "steer": ("steer", pairs, "--at", "L1.out"),
        "train-sae": ("train-sae", book, *sae),
    }[command]  # fmt: skip
    opening = f"-m {decoder} --dtype bfloat16"
    printed = tinytf(*words, "-m", decoder, "--dtype", "bfloat16", "--width", "400")
    assert printed.status == 0, printed.err
    lines_shown = [line for line in printed.lines if line.strip().startswith("tinytf ")]
    assert lines_shown
    assert [line for line in lines_shown if opening not in line] == []
    model = library.load(decoder, dtype="bfloat16")
    report = {
        "trace": lambda: model.traced("The cat"),
        "grad": lambda: model.backward("The cat"),
        "steer": lambda: model.steer([("The cat sat", "The cat saw"), ("The dog sat", "The dog saw")], at="L1.out"),
    }.get(command)
    if report is None:  # a coder that no folder keeps suggests nothing
        return
    capsys.readouterr()
    report().show()
    lines_shown = [line for line in capsys.readouterr().out.splitlines() if line.strip().startswith("tinytf ")]
    assert [line for line in lines_shown if "--dtype bfloat16" not in line or str(decoder) not in line] == []
