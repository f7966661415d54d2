"""Commands that a screen suggests open the model in the way in which it was opened there."""

import shlex

import pytest
import torch
from driving import Tinytf

import tinytf as library
from tinytf.trace.faults import overflow_at
from tinytf_cli.command import parameters_of
from tinytf_cli.options import ModelOptions

OTHERS = {
    "model": "tiny", "device": "cpu", "dtype": "bfloat16", "seed": "7", "tokenizer": "tiny", "adapter": None,
    "through": None, "trust_remote_code": None,
}  # fmt: skip
"""A value of every option that opens a model; those that need a folder, or another kind of model, are left out."""


def test_every_option_that_opens_a_model_is_tried() -> None:
    assert {setting.name for setting in parameters_of(ModelOptions)} == OTHERS.keys()


@pytest.mark.share(2)
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
