"""Students' files: right ones are right, of a broken one the first wrong step is named, its line, and the mistake."""

import math
import sys
from itertools import combinations
from pathlib import Path

import pytest
import torch
from covering import sample

sys.path.insert(0, str(Path(__file__).parent))

from students import FILES, MISTAKES, RIGHT, RIGHTED, SAMPLE, SMALL, checked, edited, like

from tinytf.check.checked import check
from tinytf.check.opened import StudentError, open_student, parse_args, split_target
from tinytf.check.reference import reference
from tinytf.check.seen import find_logits
from tinytf.check.steps import difference
from tinytf.check.weights import copy_weights, guess_pairs
from tinytf.compare.mistakes import MISTAKES as KNOWN
from tinytf.compare.mistakes.mistake import Mistake
from tinytf.compare.mistakes.wrong_trace import WrongTrace, wrong_formulas
from tinytf.errors import UsageError
from tinytf.loading import load
from tinytf.trace.trace import Trace

pytestmark = pytest.mark.usefixtures("checks_here")

GPT, LLAMA = "gpt.py:GPT", "llama.py:Llama"
BROKEN = [*((GPT, row) for row in MISTAKES["gpt"]), *((LLAMA, row) for row in MISTAKES["llama"])]
BY_NUMBERS = "from_transformers.py:neox", "complex_llama", "functional_gpt"
"""The files whose layouts are settled by their numbers."""
SCALE = "math.sqrt(k.size(-1))", "math.sqrt(C)"
ACTIVATION = 'F.gelu(self.c_fc(x), approximate="tanh")', "F.relu(self.c_fc(x))"


@pytest.mark.share(12)
@sample("target", RIGHT, every=2)
def test_a_right_file_is_right_whatever_its_style(target: str, tmp_path: Path) -> None:
    found = checked(target, tmp_path)
    assert found.first_wrong is None
    assert found.holds
    assert found.unheld == ()
    assert found.mistakes == ()
    assert all(step.state != "wrong" for step in found.steps)


@pytest.mark.parametrize("target", [one for one in RIGHT if not one.startswith(BY_NUMBERS)])
def test_the_guessed_weights_make_the_student_s_logits_the_reference_s(target: str, tmp_path: Path) -> None:
    model = like(target)
    student = open_student(edited(target, tmp_path), model.config, {})
    copy_weights(student.module, model.transformer, guess_pairs(student.module, model.config))
    ids = torch.tensor([[3, 14, 15, 92, 65, 35]])
    more = {"targets": ids} if target == GPT else {"mask": torch.ones(6, 6).tril()} if "by_hand" in target else {}
    with torch.no_grad():
        found, expected = student.module(ids, **more), model.transformer(ids)
    logits = find_logits(found, model.config.vocab_size)
    assert logits is not None
    assert float((logits - expected).abs().max() / expected.abs().max()) < 1e-5


@pytest.mark.share(12)
@sample(("target", "row"), BROKEN, ids=[row["name"] for _, row in BROKEN])
@pytest.mark.slow
def test_a_broken_file_is_wrong_at_its_step_by_a_mistake_that_explains_all_of_it(
    target: str, row: dict[str, str], tmp_path: Path
) -> None:
    found = checked(target, tmp_path, (row["right"], row["wrong"]))
    assert not found.holds
    assert found.first_wrong is not None
    assert found.first_wrong.step == row["step"]
    (mistake,) = found.mistakes
    assert row["says"] in mistake.mistake
    assert mistake.difference <= found.tolerance
    assert found.unexplained == ""
    assert found.first_wrong.lesson is not None


@pytest.mark.parametrize(
    ("target", "edit", "says"),
    [(GPT, SCALE, "att = att / math.sqrt(C)"), (GPT, ACTIVATION, "x = F.relu(self.c_fc(x))"),
     (LLAMA, ("* self.w3(x)", "+ self.w3(x)"), "silu(self.w1(x)) + self.w3(x)")],
)  # fmt: skip
def test_the_line_of_the_mistake_is_named(target: str, edit: tuple[str, str], says: str, tmp_path: Path) -> None:
    found = checked(target, tmp_path, edit)
    assert found.first_wrong is not None
    line = found.first_wrong.line
    assert line is not None
    assert says in line.text
    assert (tmp_path / line.file).read_text("utf-8").splitlines()[line.number - 1].strip() == line.text


@pytest.mark.slow
def test_two_mistakes_in_one_file_are_both_named(tmp_path: Path) -> None:
    found = checked(GPT, tmp_path, SCALE, ACTIVATION)
    assert [one.step for one in found.mistakes] == ["L0.scaled", "L0.ffn.act"]
    assert [one.mistake for one in found.mistakes] == [
        "divided by √d_model, not √d_head (by 6.928, not by 3.464)", "the activation is ReLU"
    ]  # fmt: skip
    assert found.unexplained == ""


@pytest.mark.slow
def test_two_mistakes_inside_one_function_are_both_named(tmp_path: Path) -> None:
    text = SAMPLE.read_text("utf-8").replace(*next(iter(RIGHTED.items())))
    core = text[text.index("        att = q @") : text.index("        y = y.transpose")]
    fused = "        y = F.scaled_dot_product_attention(q, k, v, {})\n"
    right = checked(GPT, tmp_path, (core, fused.format("is_causal=True")))
    assert right.holds
    assert [step.step for step in right.steps if step.state == "unseen"][:4] == [
        "L0.scores", "L0.scaled", "L0.masked", "L0.weights"
    ]  # fmt: skip
    found = checked(GPT, tmp_path, (core, fused.format("scale=0.5")))
    assert [one.step for one in found.mistakes] == ["L0.scaled", "L0.masked"]
    assert found.unexplained == ""


@pytest.mark.parametrize(
    ("edit", "line"),
    [
        (("att = q @ k", "att = (0 * q / 0) @ k"), "att = (0 * q / 0)"),
        (("        x = self.ln_f(x)", "        x = self.ln_f(torch.log(-x.abs()))"), "x = self.ln_f(torch.log"),
    ],
)
@pytest.mark.slow
def test_the_first_nan_is_named_and_no_mistake_is_confirmed_by_nan(
    edit: tuple[str, str], line: str, tmp_path: Path
) -> None:
    found = checked(GPT, tmp_path, edit)
    assert found.mistakes == ()
    assert found.troubles == ()
    trouble = found.not_finite
    assert trouble is not None
    assert trouble.what in ("NaN", "∞")
    assert " is not finite from line " in found.sentence
    assert trouble.line is not None
    assert trouble.line.text.startswith(line)
    assert found.invariances == ()


@pytest.mark.slow
def test_a_mask_that_leaves_a_query_nothing_is_named_and_so_is_its_nan(tmp_path: Path) -> None:
    found = checked(GPT, tmp_path, ("config.block_size))\n", "config.block_size), -1)\n"))
    assert [one.mistake for one in found.mistakes] == [
        "the mask hides the token itself, and the softmax of a query that sees nothing is NaN"
    ]
    assert found.not_finite is not None
    assert found.not_finite.line is not None
    assert found.not_finite.line.text == "att = F.softmax(att, dim=-1)"
    assert found.unexplained == ""


@pytest.mark.slow
def test_dropout_that_is_always_on_is_named_by_its_line(tmp_path: Path) -> None:
    found = checked(GPT, tmp_path, ("att = self.attn_dropout(att)", "att = F.dropout(att, 0.1)"))
    (trouble,) = found.troubles
    assert "at random" in trouble.what
    assert trouble.line is not None
    assert trouble.line.text == "att = F.dropout(att, 0.1)"
    assert "again" in {one.name for one in found.invariances if not one.holds}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_mistake_after_which_nothing_is_the_student_s_is_not_named(tmp_path: Path) -> None:
    found = checked(LLAMA, tmp_path, ("silu(self.w1(x)) * self.w3(x)", "silu(self.w1(x)) * self.w3(x).tanh().cos()"))
    assert found.mistakes == ()  # though SiLU of the gate, not multiplied, is there on the way
    assert found.unexplained == "L0.ffn.act"


@pytest.mark.slow
def test_a_mistake_in_one_layer_alone_is_found_there(tmp_path: Path) -> None:
    found = checked(GPT, tmp_path, ("for block in self.h:\n            x = block(x)", "x = self.h[0](x)\n        x = x + self.h[1].attn(x)\n        x = x + self.h[1].mlp(self.h[1].ln_2(x))"))  # fmt: skip  # noqa: E501
    assert found.first_wrong is not None
    assert found.first_wrong.step == "L1.norm1"
    assert [one.mistake for one in found.mistakes] == ["the norm is left out"]
    assert [one.places for one in found.mistakes] == [1]


@pytest.mark.slow
def test_a_mistake_that_nobody_knows_is_not_explained_by_another(tmp_path: Path) -> None:
    found = checked(GPT, tmp_path, ("att = q @ k.transpose(-2, -1)", "att = q @ k.mT + 0.1 * q @ q.mT"))
    assert found.mistakes == ()
    assert found.unexplained == "L0.scaled"
    assert found.first_wrong is not None
    assert found.first_wrong.line is not None
    assert found.first_wrong.line.text.startswith("att = q @")
    assert found.first_wrong.yours != found.first_wrong.reference
    assert len(found.tried) > 50


def test_rotary_pairs_side_by_side_are_right_with_weights_in_that_order(tmp_path: Path) -> None:
    halves = "    x1, x2 = x.chunk(2, dim=-1)\n    return torch.cat((-x2, x1), dim=-1)"
    pairs = "    return torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1).flatten(-2)"
    angles = "torch.cat((angles, angles), dim=-1)", "angles.repeat_interleave(2, dim=-1)"
    found = checked(LLAMA, tmp_path, (halves, pairs), angles)
    assert found.holds
    ways = {row.theirs: row.way for row in found.names}
    assert ways["layers.{n}.attention.wq.weight"].endswith("in pairs 2i, 2i+1")
    assert "pairs" not in ways["layers.{n}.attention.wv.weight"]


def test_names_that_are_exchanged_are_settled_by_what_comes_out(tmp_path: Path) -> None:
    joined = "self.w1 = nn.Linear(dim, hidden_dim, bias=False)", "self.w12 = nn.Linear(dim, 2 * hidden_dim, bias=False)"
    without = "        self.w3 = nn.Linear(dim, hidden_dim, bias=False)\n", ""
    for gate in ("silu(a) * b", "silu(b) * a"):
        used = "self.w2(nn.functional.silu(self.w1(x)) * self.w3(x))", f"self.w2(nn.functional.{gate})"
        split = "        return self.w2(", "        a, b = self.w12(x).chunk(2, dim=-1)\n        return self.w2("
        found = checked(LLAMA, tmp_path, joined, without, used, split)
        assert found.holds, gate


@pytest.mark.slow
def test_a_table_of_names_is_not_guessed(tmp_path: Path) -> None:
    exchanged = {
        "layers.{n}.feed_forward.w1.weight": "ffn.W_up",
        "layers.{n}.feed_forward.w3.weight": "L{n}.ffn.W_gate",
    }
    found = checked(LLAMA, tmp_path, names=exchanged)
    assert found.first_wrong is not None
    assert found.first_wrong.step == "L0.ffn.act"
    assert [one.mistake for one in found.mistakes] == ["gate and up are exchanged: the activation is on up"]
    with pytest.raises(UsageError, match="your module has no parameter 'w9'"):
        checked(LLAMA, tmp_path, names={"w9": "W_Q"})
    with pytest.raises(UsageError, match="the reference has no parameter 'W_Z'"):
        checked(LLAMA, tmp_path, names={"norm.weight": "L0.W_Z"})
    with pytest.raises(UsageError, match="W_Q \\| W_O cannot lie side by side"):
        checked(LLAMA, tmp_path, names={"norm.weight": "W_Q | W_O"})
    with pytest.raises(UsageError, match=r"norm\.weight, 48, cannot hold E"):
        checked(LLAMA, tmp_path, names={"norm.weight": "E"})


def test_a_parameter_that_is_missing_is_said(tmp_path: Path) -> None:
    found = checked(GPT, tmp_path, ("self.ln_f = nn.LayerNorm(config.n_embd)", "self.ln_f = nn.Identity()"))
    assert found.unheld == ("final.norm.gain", "final.norm.bias")
    assert [one.mistake for one in found.mistakes] == ["the norm is left out"]


@pytest.mark.share(8)
@pytest.mark.parametrize(
    ("target", "edit", "names"),
    [
        (GPT, ("return self.resid_dropout(self.c_proj(y))", "return self.c_proj(F.dropout(y, 0.3))"), ["again"]),
        (GPT, ("return self.dropout(self.c_proj(x))", "return F.dropout(self.c_proj(x), self.dropout.p)"), ["dropout"]),
        (GPT, ("x = self.ln_f(x)", "x = self.ln_f(x) + 0 * x.mean(1, True) + x.mean(0) - x[0]"), ["batch"]),
        (GPT, ("        x = self.ln_f(x)", "        x = self.ln_f(x + (T > 7) * x.roll(1, -1))"), ["padding"]),
        (LLAMA, ("torch.arange(past, past + T)", "torch.arange(T)"), ["cache"]),
        (LLAMA, ("k = torch.cat((cache[0], k), dim=2)", "k = torch.cat((cache[0], 0.9 * k), dim=2)"), ["cache"]),
    ],
)
@pytest.mark.slow
def test_what_a_module_should_not_depend_on(
    target: str, edit: tuple[str, str], names: list[str], tmp_path: Path
) -> None:
    found = checked(target, tmp_path, edit)
    assert not found.holds
    assert set(names) <= {one.name for one in found.invariances if not one.holds}


def test_a_right_file_depends_on_none_of_it_and_says_what_was_not_tried(tmp_path: Path) -> None:
    by_name = {one.name: one for one in check(like(LLAMA), str(FILES / LLAMA)).invariances}
    assert by_name.keys() == {"batch", "again", "padding", "cache"}
    assert all(one.difference is not None and one.difference < 1e-5 for one in by_name.values())
    (cache,) = (one for one in checked(GPT, tmp_path).invariances if one.name == "cache")
    assert cache.difference is None
    assert "no cache" in cache.what


@pytest.mark.slow
def test_the_built_in_model_is_a_reference_too() -> None:
    found = check(load("tiny"), str(FILES / LLAMA), args={"scale_embeddings": True})
    assert found.holds
    without = check(load("tiny"), str(FILES / LLAMA))
    assert [one.mistake for one in without.mistakes] == ["token embeddings are not multiplied by √d_model"]


@pytest.mark.exhaustive
def test_every_mistake_gives_numbers_of_its_own() -> None:
    """Each changes the logits of some reference, and no two do the same to all: a confirmed one is the one."""
    other = {"n_kv_heads": 2, "rope_theta": 5e5, "norm_eps": 1e-6}
    limits = {"act_limit": 0.02}, {"glu_limit": 0.5}
    references = [*map(like, (GPT, LLAMA, "lecture.py:BigramLanguageModel")), load("tiny"),
                  reference("llama-tiny", SMALL | other), reference("qwen3.5-tiny", {"rope_width": 0}),
                  *(reference(name, {}) for name in ("lfm2-tiny", "mamba-tiny", "mixtral-tiny")),
                  reference("granite4-tiny", {"n_kv_heads": 2}),
                  *(reference("llama-tiny", SMALL | limit) for limit in limits)]  # fmt: skip
    found: dict[tuple[str, type], list[torch.Tensor | None]] = {(one.words, one.at): [] for one in KNOWN}
    assert len(found) == len(KNOWN)
    for model in references:
        trace = model.trace("The cat sat on the mat.")
        for one in KNOWN:
            found[one.words, one.at].append(_logits_with(one, trace))
    unseen = [words for (words, _), logits in found.items() if all(one is None for one in logits)]
    assert unseen == ["the norm of what is read is over all heads, not over groups"]  # no reference has groups
    same = [{words for words, _ in pair} for pair in combinations(found, 2) if _alike(*(found[one] for one in pair))]
    assert same == [{"RoPE turns the other way", "RoPE's sine and cosine are exchanged"}]  # what is rotated differs


def _logits_with(mistake: Mistake, trace: Trace) -> torch.Tensor | None:
    """The logits of a reference that makes a mistake where it first can; None where it makes no difference."""
    rows = [(step.name, layer) for step, layer in trace.steps.rows if type(step.operation) is mistake.at]
    for scope in ("all", "name"):
        for at in rows:
            try:
                found = WrongTrace(trace, wrong_formulas(mistake, trace.steps, at, scope)).step("logits")
            except RuntimeError:
                continue
            if difference(found, trace.step("logits")) > 2e-5:
                return found
    return None


def _alike(first: list[torch.Tensor | None], second: list[torch.Tensor | None]) -> bool:
    return all(
        (a is None and b is None)
        or (a is not None and b is not None and not bool(a.isnan().all()) and difference(a, b) < 2e-5)
        for a, b in zip(first, second, strict=True)
    )


def test_the_code_of_a_file_that_fails_is_named_by_its_line(tmp_path: Path) -> None:
    with pytest.raises(StudentError, match=r"gpt.py, line \d+: RuntimeError") as error:
        checked(GPT, tmp_path, ("y = att @ v", "y = att @ k.transpose(-2, -1)"))
    assert error.value.hint == "it says: y = att @ k.transpose(-2, -1)"
    for text, said in [("import nowhere_at_all", "line 1: ModuleNotFoundError"), ("def f(:", "line 1: SyntaxError"),
                       ("raise SystemExit(3)", "line 1: it exits Python")]:  # fmt: skip
        (tmp_path / "bad.py").write_text(text, "utf-8")
        with pytest.raises(StudentError, match=said):
            check(like(GPT), f"{tmp_path / 'bad.py'}:GPT")


@pytest.mark.slow
def test_what_cannot_be_built_is_said_before_anything_is_compared(tmp_path: Path) -> None:
    model = like(GPT)
    with pytest.raises(UsageError, match="has no class or function 'GTP'") as error:
        check(model, f"{SAMPLE}:GTP")
    assert "GPT" in error.value.hint
    with pytest.raises(UsageError, match="names no class") as error:
        check(model, str(SAMPLE))
    assert "CausalSelfAttention" in error.value.hint
    with pytest.raises(UsageError, match="cannot be read"):
        check(model, f"{tmp_path}/none.py:GPT")
    wide = "config.n_embd = 64\n        self.wte = nn.Embedding(config.vocab_size"
    with pytest.raises(UsageError, match=r"has the shape of one of the reference: wte\.weight is 2048 × 64"):
        checked(GPT, tmp_path, ("self.wte = nn.Embedding(config.vocab_size", wide))
    sizes = "vocab_size=99, block_size=8, n_layer=1, n_head=2, n_embd=8"
    built = edited(GPT, tmp_path) + "x"
    with Path(built.partition(":")[0]).open("a", encoding="utf-8") as file:
        file.write(f"\n\nGPTx = GPT(GPTConfig({sizes}))\n")
    with pytest.raises(UsageError, match=r"GPTx of .* is already an instance") as error:
        check(model, built)
    assert error.value.hint == "name its class: GPT"
    (tmp_path / "one.py").write_text("def make():\n    return 'no module'", "utf-8")
    with pytest.raises(UsageError, match="makes no torch module but a value of type str"):
        check(model, f"{tmp_path / 'one.py'}:make")
    with pytest.raises(UsageError, match=r"h has 3 layers, and the reference has 2"):
        checked(GPT, tmp_path, ("for _ in range(config.n_layer)", "for _ in range(3)"))
    blocks = "[Block(config) for _ in range(config.n_layer)]"
    with pytest.raises(UsageError, match="h has 1 layer, and") as error:
        checked(GPT, tmp_path, (blocks, "[Block(config)] * config.n_layer"))
    assert "one block repeated" in error.value.hint
    with pytest.raises(UsageError, match="parameters in no layers") as error:
        checked(GPT, tmp_path, (f"nn.ModuleList({blocks})", blocks))
    assert "nn.ModuleList" in error.value.hint
    with pytest.raises(UsageError, match="Llama takes frobs, which the reference does not have") as error:
        checked(LLAMA, tmp_path, ("self,\n        vocab_size,", "self,\n        frobs,\n        vocab_size,"))
    assert "--args frobs=" in error.value.hint


def test_arguments_and_targets_are_read_as_written() -> None:
    assert parse_args("n_layer=4, bias=False,name='x'") == {"n_layer": 4, "bias": False, "name": "x"}
    assert parse_args("") == {}
    for bad in ("4", "a=open('x')", "a=", "a b", "__import__('os')"):
        with pytest.raises(UsageError, match="is not a list of keywords"):
            parse_args(bad)
    assert split_target("a/b.py:GPT") == (Path("a/b.py"), "GPT")
    assert split_target("a/b.py") == (Path("a/b.py"), "")


def test_the_report_is_json_with_its_events(tmp_path: Path) -> None:
    found = checked(GPT, tmp_path, SCALE)
    data = found.to_dict()
    assert data["kind"] == "check"
    assert data["first_wrong"]["step"] == "L0.scaled"
    assert data["mistakes"][0]["line"]["text"] == "att = att / math.sqrt(C)"
    assert math.isclose(data["mistakes"][0]["difference"], found.mistakes[0].difference)
    kinds = [event["type"] for event in found.events()]
    assert kinds[0] == "check"
    assert kinds.count("step") == len(found.steps)
    assert kinds.count("mistake") == 1
