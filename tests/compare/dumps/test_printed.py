"""Logs as llama-eval-callback prints them, of a llama in numpy: nothing differs, or first the step with the mistake."""

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import asked

sys.path += [str(Path(__file__).parents[2] / "parity"), str(Path(__file__).parent)]
sys.path += [str(Path(__file__).parents[2] / "checkpoints"), str(Path(__file__).parents[2] / "text")]

from gguf_files import Kind, model_and_parts
from ports import MISTAKES, llama
from reference import saved

from tinytf.checkpoints.huggingface.load import read_directory
from tinytf.compare.dumps.dumped import of_ids
from tinytf.compare.dumps.printed import read_log
from tinytf.compare.printed import PrintedDifference, diff_printed
from tinytf.errors import DumpError, UsageError
from tinytf.loading import Model, load
from tinytf.trace.record import record

IDS = [3, 14, 15, 9, 2, 6, 5, 11]
ROOM = 32
"""llama.cpp makes room for so many keys."""
IN_LAYER = (
    ("norm1", "attn_norm-{n}", "MUL", ""), ("q", "Qcur-{n}", "ADD", "attn_q"), ("k", "Kcur-{n}", "ADD", "attn_k"),
    ("v", "Vcur-{n}", "ADD", "attn_v"), ("q_rot", "Qcur-{n}", "ROPE", ""), ("k_rot", "Kcur-{n}", "ROPE", ""),
    ("scores", "kq-{n}", "MUL_MAT", ""), ("weights", "kq_soft_max-{n}", "SOFT_MAX", ""),
    ("head_out", "kqv-{n}", "MUL_MAT", ""), ("concat", "kqv_out-{n}", "CONT", ""),
    ("attn", "node_{n}7", "ADD", "attn_output"), ("mid", "ffn_inp-{n}", "ADD", ""),
    ("norm2", "ffn_norm-{n}", "MUL", ""),
    ("ffn.hidden", "ffn_up_b-{n}", "ADD", "ffn_up"), ("ffn.gate", "ffn_gate_b-{n}", "ADD", "ffn_gate"),
    ("ffn.act", "ffn_swiglu-{n}", "GLU", ""), ("ffn", "ffn_out-{n}", "ADD", "ffn_down"),
    ("out", "l_out-{n}", "ADD", ""),
)  # fmt: skip
OF_THE_LAST_TOKEN = ("attn", "mid", "norm2", "ffn.gate", "ffn.hidden", "ffn.act", "ffn", "out")
LAST = (("final.norm", "result_norm", "MUL"), ("logits", "result_output", "MUL_MAT"))


@pytest.fixture(scope="module")
@torch.no_grad()
def folder() -> Path:
    return saved("llama, biases everywhere")


@pytest.fixture(scope="module")
def model(folder: Path) -> Model:
    return asked(read_directory(folder).load().transformer)


def printed(x: np.ndarray, *, new: bool, sum_all: bool) -> list[str]:
    """What common_debug_print_tensor writes of a tensor in ggml's order, (ne2, ne1, ne0)."""
    step = "    " if new else " "
    indent = "" if new else " " * 36
    lines = [f"{indent}{step}["]
    total = 0.0

    def some(size: int) -> list[int | None]:
        return [*range(3), None, *range(size - 3, size)] if size > 6 else [*range(size)]

    for a in some(len(x)):
        if a is None:
            lines.append(f"{indent}{step * 2}..., ")
            continue
        lines.append(f"{indent}{step * 2}[")
        for b in some(x.shape[1]):
            if b is None:
                lines.append(f"{indent}{step * 3}..., ")
                continue
            words = ["..." if c is None else f"{x[a, b, c]:12.4f}" for c in some(x.shape[2])]
            total += sum(float(x[a, b, c]) for c in some(x.shape[2]) if c is not None)
            lines.append(f"{indent}{step * 3}[{', '.join(words)}{'  ' if new else ''}],")
        lines.append(f"{indent}{step * 2}],")
    return [*lines, f"{indent}{step}]", f"{indent}{step}sum = {float(x.sum()) if sum_all else total:f}"]


def as_ggml(name: str, x: np.ndarray, last: bool) -> np.ndarray:
    """The axes of ggml's graph: heads beside each other or behind the tokens, room for keys, the last token alone."""
    if name in ("q", "k", "v"):
        return x.swapaxes(0, 1).reshape(1, len(IDS), -1)
    if name in ("q_rot", "k_rot"):
        return x.swapaxes(0, 1)
    if name in ("scores", "weights"):
        return np.pad(x, ((0, 0), (0, 0), (0, ROOM - len(IDS))))
    return x[None, -1:] if last else x if x.ndim == 3 else x[None]


def log(path: Path, steps: dict[str, np.ndarray], *, new: bool = True, sum_all: bool = True, ids: bool = True) -> Path:
    """A log of all steps of a llama; of the last layer, what follows attention is of the last token alone."""
    lines = ["llama_context: n_ctx = 512", *(["number of input tokens = 8", *(f"  {i}" for i in IDS)] if ids else [])]

    def add(node: str, op: str, x: np.ndarray, of: str = "a{1, 1, 1, 1}, b{1, 1, 1, 1}") -> None:
        ne = ", ".join(map(str, [*x.shape[::-1], 1]))
        prefix = "common_debug_cb_eval" if new else "ggml_debug"
        lines.append(f"{prefix}: {node:>24} = (f32) {op:>10}({of}}}) = {{{ne}}}")
        lines.extend(printed(x, new=new, sum_all=sum_all))

    add("inp_embd", "GET_ROWS", steps["embed.out"][None])
    layers = 1 + max(int(name[1]) for name in steps if name.startswith("L"))
    for n in range(layers):
        for name, node, op, module in IN_LAYER:
            x = as_ggml(name, steps[f"L{n}.{name}"], n == layers - 1 and name in OF_THE_LAST_TOKEN)
            node, of = node.format(n=n), f"blk.{n}.{module}"
            if module:
                add(node.replace("_b-", "-"), "MUL_MAT", x - 0.5, f"{of}.weight{{1, 1, 1, 1}}, x{{1, 1, 1, 1}}")
                add(node, op, x, f"{node}{{1, 1, 1, 1}}, {of}.bias{{1, 1, 1, 1}}")
            else:
                add(node, op, x)
            if name == "q":
                add(f"{node} (reshaped)", "RESHAPE", x)
    for name, node, op in LAST:
        add(node, op, steps[name][None, -1:])
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def against(model: Model, path: Path, **settings: Any) -> PrintedDifference:
    return diff_printed(model, None, read_log(path), **settings)


@pytest.mark.share(8)
@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("sum_all", [True, False])
def test_of_a_sound_program_nothing_differs(
    folder: Path, model: Model, tmp_path: Path, new: bool, sum_all: bool
) -> None:
    steps = llama(folder, IDS)
    found = against(model, log(tmp_path / "eval.log", steps, new=new, sum_all=sum_all), tolerance=1e-4)
    assert found.first is None, found.sentence
    in_layers = {f"L{n}.{name}" for n in range(3) for name, *_ in IN_LAYER}
    assert {step.name for step in found.steps} == in_layers | {"embed.tokens", "final.norm", "logits"}
    assert all(step.sums is None for step in found.steps) is not sum_all
    printed_of = {step.name: (step.printed, step.numbers) for step in found.steps}
    q = steps["L0.q"]
    assert printed_of["L0.q"] == (min(6, q.shape[0] * q.shape[2]) * 6, q.size)
    total = sum(count for count, _ in printed_of.values()), sum(count for _, count in printed_of.values())
    n_sums = sum(step.sums is not None for step in found.steps)
    said = f"Nothing printed differs, in {len(found.steps)} steps: {total[0]:,} of {total[1]:,} numbers were printed"
    assert found.sentence == said + (f", and {n_sums} sums." if sum_all else ".")


@pytest.mark.share(8)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_first_step_with_a_mistake_is_named(folder: Path, model: Model, tmp_path: Path, mistake: str) -> None:
    steps = llama(folder, IDS, mistake)
    found = against(model, log(tmp_path / "eval.log", steps), tolerance=1e-4)
    step = MISTAKES[mistake][0]
    place = {"L0.masked": "L0.weights"}.get(step, step)  # llama.cpp masks in its softmax
    assert found.first is not None
    assert found.first.name == place
    assert found.sentence.startswith(f"They differ from {place} (")


@pytest.mark.share(4)
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("is_printed", [True, False])
def test_what_is_not_finite_is_said_first(
    folder: Path, model: Model, tmp_path: Path, number: float, is_printed: bool
) -> None:
    steps = llama(folder, IDS)
    steps["L1.ffn"] = steps["L1.ffn"].copy()
    steps["L1.ffn"][0 if is_printed else 4, 0 if is_printed else 4] = number  # of 8 tokens the middle is not printed
    found = against(model, log(tmp_path / "eval.log", steps), tolerance=1e-4, fail_over=1.0)
    assert found.not_finite is not None
    assert (found.not_finite.name, found.not_finite.sides, found.holds) == ("L1.ffn", "B", False)
    said = {math.inf: "∞", -math.inf: "−∞"}.get(number, "NaN")
    assert found.sentence.startswith(f"The log is not finite from L1.ffn on: {said} ")


def test_rows_in_pairs_as_in_a_gguf_file_are_read_in_halves(tmp_path: Path) -> None:
    """A log of the model's own numbers, whose queries and keys llama.cpp has in the order of the file's rows."""
    model = load(str(model_and_parts("llama", Kind.F32)[1].write(tmp_path / "llama.gguf")))
    trace = record(model.transformer, of_ids(IDS, model.tokenizer.shown, ""))
    tensors = [(step, layer) for step, layer in trace.steps.rows if step.is_tensor and not step.is_vocabulary]
    steps = {step.full_name(layer): trace.step(step.name, layer).double().numpy() for step, layer in tensors}
    for name, x in steps.items():
        if name.endswith((".q", ".k", ".q_rot", ".k_rot")):
            steps[name] = x.reshape(*x.shape[:-1], 2, -1).swapaxes(-1, -2).reshape(x.shape)
    steps |= {"embed.out": steps["embed.tokens"], "logits": trace.vocabulary("logits", range(len(IDS))).numpy()}
    path = log(tmp_path / "eval.log", steps)
    assert against(model, path, tolerance=1e-4).first is None
    steps["L1.q_rot"] = np.roll(steps["L1.q_rot"], 1, axis=1)
    first = against(model, log(path, steps)).first
    assert first is not None
    assert first.name == "L1.q_rot"


@pytest.mark.slow
def test_a_name_of_several_steps_is_the_one_with_its_operation_or_its_numbers(
    folder: Path, model: Model, tmp_path: Path
) -> None:
    """Gemma's kq is of scaled queries; kqv_out was once that of the output matrix."""
    steps = llama(folder, IDS)
    found = against(model, log(tmp_path / "eval.log", {**steps, "L0.scores": steps["L0.scaled"]}), tolerance=1e-4)
    names = [step.name for step in found.steps]
    assert ("L0.scaled" in names, "L0.scores" in names, "L1.scores" in names) == (True, False, True)
    assert found.first is None
    old = (tmp_path / "eval.log").read_text("utf-8")
    for n in range(3):
        old = old.replace(f" kqv_out-{n} =", f" kqv_merged-{n} =").replace(f" node_{n}7 =", f" kqv_out-{n} =")
    (tmp_path / "old.log").write_text(old, "utf-8")
    named = {step.name: step.node for step in against(model, tmp_path / "old.log").steps}
    assert (named["L1.concat"], named["L1.attn"]) == ("kqv_merged-1", "kqv_out-1")
    broken = against(model, log(tmp_path / "c.log", {**steps, "L1.concat": steps["L1.concat"] * 1.5})).first
    assert broken is not None
    assert broken.name == "L1.concat"


def test_a_step_of_the_last_token_is_at_its_position(folder: Path, model: Model, tmp_path: Path) -> None:
    steps = llama(folder, IDS)
    steps["L2.mid"] = steps["L2.mid"].copy()
    steps["L2.mid"][-1, 2] += 9
    first = against(model, log(tmp_path / "eval.log", steps)).first
    assert first is not None
    assert (first.name, first.at, first.numbers) == ("L2.mid", (len(IDS) - 1, 2), steps["L2.mid"].shape[1])


def test_a_step_whose_printed_numbers_are_right_differs_by_its_sum(folder: Path, model: Model, tmp_path: Path) -> None:
    steps = llama(folder, IDS)
    steps["L1.norm1"] = steps["L1.norm1"].copy()
    steps["L1.norm1"][4, 8] += 40  # neither among the first three nor the last
    found = against(model, log(tmp_path / "eval.log", steps))
    assert found.first is not None
    assert (found.first.name, found.first.relative) == ("L1.norm1", 0.0)
    ours, theirs = float(llama(folder, IDS)["L1.norm1"].sum()), float(steps["L1.norm1"].sum())
    assert found.first.sums == pytest.approx((ours, theirs), abs=1e-4)
    assert f"its numbers sum to {theirs:.4g} instead of {ours:.4g}; " in found.sentence
    unseen = log(tmp_path / "old.log", steps, sum_all=False)
    assert against(model, unseen).first is None


def test_a_difference_of_less_than_half_a_printed_digit_is_none(folder: Path, model: Model, tmp_path: Path) -> None:
    steps = llama(folder, IDS)
    x = steps["L0.norm1"] = steps["L0.norm1"].copy()
    path = log(tmp_path / "eval.log", {**steps, "L0.norm1": np.round(x, 4) + 0.0}, sum_all=False)
    assert against(model, path, tolerance=1e-9).steps[1].relative < 1e-6
    x[0, 0] += 3e-4
    by = against(model, log(tmp_path / "eval.log", steps, sum_all=False), tolerance=1e-9).steps[1]
    assert by.at == (0, 0)
    assert by.relative == pytest.approx(3e-4 / np.abs(x[0]).max(), rel=0.4)
    assert by.values[1] == pytest.approx(x[0, 0], abs=5e-5)


def test_rows_are_read_as_they_are_printed(tmp_path: Path) -> None:
    """The first format too: no sum, no last numbers; numbers keep their place."""
    x = np.arange(2 * 9 * 10, dtype=float).reshape(2, 9, 10)
    lines = ["ggml_debug:   some (view) = (f32)   VIEW(x{1, 1, 1, 1}, }) = {10, 9, 2, 1}"]
    lines += printed(x, new=True, sum_all=True)
    lines += ["ggml_debug:  inp = (f32) GET_ROWS(w{9, 9, 1, 1}, i{1, 1, 1, 1}}) = {9, 8, 1, 1} ", "    [", "     [",
              "      [ -0.0181,   0.0272,      nan, ...],", "      [    -inf,   1.5000,   2.0000, ...],", "      ...",
              "     ],", "    ]"]  # fmt: skip
    (tmp_path / "a.txt").write_text("\n".join(lines), "utf-8")
    view, rows = read_log(tmp_path / "a.txt").nodes
    assert (view.name, view.op, view.ne, view.sums) == ("some (view)", "VIEW", (10, 9, 2, 1), [x.sum()])
    assert dict(zip(view.places, view.values, strict=True)) == {place: float(place) for place in view.places}
    assert len(view.places) == 2 * 6 * 6
    assert rows.places == [0, 1, 2, 9, 10, 11]
    assert rows.values[:2] == [-0.0181, 0.0272]
    assert math.isnan(rows.values[2])
    assert rows.values[3] == -math.inf
    assert (rows.half, rows.sums) == (5e-5, [])


def test_ids_come_from_the_log_or_the_text(folder: Path, model: Model, tmp_path: Path) -> None:
    path = log(tmp_path / "eval.log", llama(folder, IDS), ids=False)
    with pytest.raises(UsageError, match="does not say which text"):
        against(model, path)
    text = " ".join(map(str, IDS))
    assert diff_printed(model, text, read_log(path)).first is None
    with pytest.raises(UsageError, match="another text"):
        diff_printed(model, "4 14 15", read_log(log(path, llama(folder, IDS))))


def test_what_is_no_log_is_refused(model: Model, tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="there is no file"):
        read_log(tmp_path / "none.log")
    (tmp_path / "a.log").write_bytes(b"\xff\x00 hello\n[\n...\n")
    with pytest.raises(DumpError, match="holds no tensors that llama-eval-callback printed"):
        read_log(tmp_path / "a.log")
    lines = ["number of input tokens = 1", " 3", "ggml_debug: x = (f32) ADD(a{1, 1, 1, 1}, }) = {2, 1, 1, 1}"]
    lines += ["[", "[", "[ 1.0000, 2.0000],"]
    (tmp_path / "b.log").write_text("\n".join(lines), "utf-8")
    with pytest.raises(DumpError, match="no tensor has the name and size of a step of this model; the first is x"):
        against(model, tmp_path / "b.log")
