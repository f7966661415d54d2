"""The fixture for ports, as another repository's tests use it."""

from importlib import import_module

import pytest

pytest_plugins = "pytester"

PORT = """
import numpy as np
from safetensors.numpy import load_file
import tinytf

IDS = [267, 514, 374]
trace = tinytf.load("tiny").trace_of(tinytf.load("tiny").encode_ids(IDS))
RIGHT = {name: trace[name].numpy() for name in ("embed.out", "L0.norm1", "L0.q", "L0.q_rot", "L0.attn", "L1.out")}


def test_right(tinytf_port):
    found = tinytf_port("tiny").compare(IDS, RIGHT)
    assert found.first is None and len(found.steps) == 6
    assert tinytf_port("tiny") is tinytf_port("tiny")


def test_wrong(tinytf_port):
    port = tinytf_port(tinytf.load("tiny"))
    port.compare(IDS, {**RIGHT, "L0.norm1": RIGHT["L0.norm1"] * 0 + trace["L0.in"].numpy()})


def test_rounded(tinytf_port):
    rounded = {name: one.astype("f2").astype("f4") for name, one in RIGHT.items()}
    tinytf_port("tiny").compare(IDS, rounded, floor="fp16")


def test_bug(tinytf_port):
    tinytf_port("tiny").compare(IDS, {**RIGHT, "L0.attn": RIGHT["L0.attn"] * 0.5}, floor="fp16")


def test_file(tinytf_port, tmp_path):
    np.savez(tmp_path / "port.npz", input_ids=np.array(IDS), **RIGHT)
    assert tinytf_port("tiny").compare(None, tmp_path / "port.npz").first is None


def test_lost(tinytf_port):
    tinytf_port("tiny").compare(IDS, {**RIGHT, "L1.out": RIGHT["L1.out"] * float("nan")})


def test_other_names(tinytf_port):
    found = tinytf_port("tiny").compare(IDS, {"mine.0.query": RIGHT["L0.q"]}, names={"mine.{n}.query": "L{n}.q"})
    assert found.first is None
"""


@pytest.fixture(scope="module")
def imported() -> None:
    """torch's compiler, which cannot be imported again after pytester has removed what a test of it imported."""
    import_module("torch._dynamo")


@pytest.mark.usefixtures("imported")
@pytest.mark.slow
def test_a_wrong_port_fails_with_its_first_wrong_step(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_port=PORT)
    result = pytester.runpytest_inprocess("-p", "no:xdist", "-p", "no:cacheprovider")
    result.assert_outcomes(passed=4, failed=3)
    result.stdout.fnmatch_lines(
        [
            "They differ from L0.norm1 on: the norm is left out*",
            "L0.norm1: the norm is left out*",
            "No rounding: L0.attn is *× as far off as the model's own in fp16*: it is 0.5 times as large.",
            "B is not finite from L1.out on, at token 0 *: NaN.",
        ]
    )
    assert "pytest_plugin.py" not in result.stdout.str()
