"""Each recorder, run as it is printed where its program is there: diff reads what it wrote, and nothing differs."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import asked

sys.path += [str(Path(__file__).parents[2] / "parity"), str(Path(__file__).parent)]

from ports import llama
from reference import saved

from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.compare.diff import Difference
from tinytf.compare.dumps.read import open_dump
from tinytf.errors import UsageError
from tinytf.loading import Model
from tinytf.recorders import RECORDERS, recorder

IDS = [3, 14, 15, 9, 2, 6, 5]


@pytest.fixture(scope="module")
@torch.no_grad()
def folder() -> Path:
    return saved("llama, biases everywhere")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return asked(read_directory(folder).load().transformer)


@pytest.fixture(scope="module")
def steps(folder: Path) -> dict[str, Any]:
    """The steps of a port in numpy."""
    return {name: one for name, one in llama(folder, IDS).items() if name != "input_ids"}


def defined_by(program: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(recorder(program).text, f"{program}.txt", "exec"), names)
    return names


def agrees(found: Difference, least: int) -> None:
    assert found.first is None
    assert len(found.steps) >= least


@pytest.mark.parametrize("program", RECORDERS)
def test_a_recorder_is_short_and_needs_nothing_of_ours(program: str) -> None:
    text = recorder(program).text
    assert len(text.splitlines()) <= 40
    assert not [line for line in text.splitlines() if "import" in line and "tinytf" in line]
    assert max(map(len, text.splitlines())) <= 120
    assert "tinytf diff -m MODEL" in text
    if text.startswith('"""'):
        compile(text, program, "exec")


def test_an_unknown_program_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        recorder("torhc")
    assert (caught.value.message, caught.value.hint) == ("there is no recorder for 'torhc'", "did you mean torch?")


def test_torch(folder: Path, model: Model, tmp_path: Path) -> None:
    import transformers

    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    defined_by("torch")["record"](theirs, IDS, tmp_path / "port.npz")
    agrees(model.diff(None, open_dump(tmp_path / "port.npz")), 20)
    assert not [hook for module in theirs.modules() for hook in module._forward_hooks]


def test_numpy(model: Model, steps: dict[str, Any], tmp_path: Path) -> None:
    step = defined_by("numpy")["Recorder"](tmp_path / "port.npz", IDS)
    for name, array in steps.items():
        assert step(name, array) is array
        if name == "L0.q":
            array += 0.0  # a copy was kept
    step.save()
    agrees(model.diff(None, open_dump(tmp_path / "port.npz")), len(steps))


def test_jax(model: Model, steps: dict[str, Any], tmp_path: Path) -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    step = defined_by("jax")["Recorder"](tmp_path / "port.npz", IDS)

    def forward(arrays: dict[str, Any]) -> Any:
        for name, array in arrays.items():
            step(name.replace("L1.", "L{n}."), array, n=1) if name.startswith("L1.") else step(name, array)
        return arrays["logits"]

    step.save(jax.jit(forward)({name: np.float32(array) for name, array in steps.items()}))
    agrees(model.diff(None, open_dump(tmp_path / "port.npz")), len(steps))


def _compiled(tmp_path: Path, compiler: str, name: str, source: str) -> None:
    """Compile and run a program in a folder."""
    found = shutil.which(compiler)
    if found is None:
        pytest.skip(f"there is no {compiler}")
    (tmp_path / name).write_text(source, "utf-8")
    subprocess.run([found, "-Wall", "-Werror", "-I.", name, "-o", "program", "-lm"], cwd=tmp_path, check=True)
    subprocess.run([str(tmp_path / "program")], cwd=tmp_path, check=True)


def _in_c(x: np.ndarray) -> str:
    return ", ".join("-INFINITY" if v == -np.inf else f"{v:.9g}f" if "." in f"{v:.9g}" else f"{v:.9g}" for v in x.flat)


def test_c(model: Model, steps: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "record.h").write_text(recorder("c").text, "utf-8")
    some = {
        name: np.float32(steps[name]) for name in ("embed.out", "L0.norm1", "L0.q", "L0.masked", "L1.out", "logits")
    }
    arrays = [f"static float a{n}[] = {{{_in_c(one)}}};" for n, one in enumerate(some.values())]
    calls = [
        f'  record(steps, "{name}", a{n}, {one.ndim}, {", ".join(map(str, one.shape))});'
        for n, (name, one) in enumerate(some.items())
    ]
    lines = ['#include "record.h"', f"static int ids[] = {{{', '.join(map(str, IDS))}}};", *arrays, "int main(void) {",
             '  FILE *steps = fopen("port.ndjson", "w");', f"  record_ids(steps, ids, {len(IDS)});", *calls,
             "  return fclose(steps);", "}"]  # fmt: skip
    _compiled(tmp_path, "cc", "port.c", "\n".join(lines))
    agrees(model.diff(None, open_dump(tmp_path / "port.ndjson")), len(some))


_STANDS_FOR_GGML = """
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
enum { GGML_TYPE_F32 = 0 };
struct ggml_tensor { int type; int64_t ne[4]; size_t nb[4]; char name[64]; float *data; };
static size_t ggml_nbytes(const ggml_tensor *t) { return t->nb[3]; }
static void ggml_backend_tensor_get(const ggml_tensor *t, void *to, size_t, size_t n) { memcpy(to, t->data, n); }
"""


def test_llama_cpp(model: Model, steps: dict[str, Any], tmp_path: Path) -> None:
    """In the place of its library stand the fields and two functions that the callback uses; inner sizes come first."""
    (tmp_path / "ggml-backend.h").write_text(_STANDS_FOR_GGML, "utf-8")
    (tmp_path / "llama.h").write_text("", "utf-8")
    names = {"attn_norm-0": "L0.norm1", "l_out-0": "L0.out", "kq_soft_max-1": "L1.weights", "result_output": "logits"}
    lines = ['#include "record.cpp"', "#include <math.h>", "int main() {", '  FILE *steps = fopen("port.ndjson", "w");',
             f'  fputs("{{\\"name\\": \\"input_ids\\", \\"values\\": {IDS}}}\\n", steps);']  # fmt: skip
    for n, (name, ours) in enumerate(names.items()):
        x = np.float32(steps[ours])
        ne = [*x.shape[::-1], 1, 1][:4] if x.ndim < 3 else [*x.shape[::-1], 1]
        nb = [4 * int(np.prod(ne[:axis])) for axis in range(4)]
        sizes = f"{{{', '.join(map(str, ne))}}}, {{{', '.join(map(str, nb))}}}"
        lines += [f"  static float a{n}[] = {{{_in_c(x)}}};",
                  f'  ggml_tensor t{n} = {{0, {sizes}, "{name}", a{n}}};',
                  f"  if (record_step(&t{n}, true, steps)) record_step(&t{n}, false, steps);"]  # fmt: skip
    (tmp_path / "record.cpp").write_text(recorder("llama.cpp").text, "utf-8")
    _compiled(tmp_path, "g++", "port.cpp", "\n".join([*lines, "  return fclose(steps);", "}"]))
    agrees(model.diff(None, open_dump(tmp_path / "port.ndjson")), len(names))
