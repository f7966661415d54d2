"""What names mean that no module path has: ours, TransformerLens', those of GGML's graphs, and a user's own."""

import pytest
from architectures import config_of

from tinytf.checkpoints.gguf.architecture import ARCHITECTURES
from tinytf.compare.dumps.layouts import Meaning
from tinytf.compare.dumps.names import read_names, resolve, resolve_all
from tinytf.errors import DumpError, TinytfError, UsageError
from tinytf.steps.table import StepKey, StepTable

LLAMA, GPT2, BERT = (StepTable(config_of(kind)) for kind in ("llama, grouped", "gpt2", "bert with a masked head"))


def places(name: str, steps: StepTable = LLAMA) -> list[StepKey]:
    return [one.place for one in resolve(name, steps)]


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("L1.q", ("q", 1)),
        ("blocks.1.attn.hook_q", ("q", 1)),
        ("blocks.0.hook_resid_post", ("out", 0)),
        ("final.norm", ("final.norm", None)),
        ("model.layers.1.self_attn.q_proj", ("q", 1)),
        ("module.model.layers.1.self_attn.q_proj.output", ("q", 1)),
        ("model.layers.1.self_attn.o_proj.input", ("concat", 1)),
        ("model.layers.1.mlp.down_proj.input[0]", ("ffn.act", 1)),
        ("model.layers.1.input", ("in", 1)),
        ("layers.1.input_layernorm", ("norm1", 1)),
        ("hidden_states.1", ("in", 1)),
        ("hidden_states[2]", ("final.norm", None)),
        ("attentions.0", ("weights", 0)),
        ("lm_head", ("logits", None)),
        ("blk.1.attn_q", ("q", 1)),
        ("blk.0.ffn_gate", ("ffn.gate", 0)),
        ("output_norm", ("final.norm", None)),
        ("kq_soft_max-1", ("weights", 1)),
        ("ffn_inp-0", ("mid", 0)),
        ("l_out-1", ("out", 1)),
        ("result_output", ("logits", None)),
    ],
)
def test_a_name_means_a_step(name: str, place: StepKey) -> None:
    assert places(name) == [place]


@pytest.mark.parametrize(
    "name",
    ["", "cat", "model.layers.7.self_attn", "L0.q[1,2]", "q", "L9.q", "model.layers.0.mlp.act_fn", "W_Q", "\x1b[0m"],
)
def test_a_name_that_means_nothing_is_unmatched(name: str) -> None:
    assert resolve_all([name], LLAMA).unmatched == (name,)


def test_the_paths_of_an_encoder_end_where_its_modules_do() -> None:
    """A feed-forward's first module activates too, and attention is normed after the sum inside its module."""
    there = {
        "intermediate": "ffn.act",
        "attention.self": "concat",
        "attention": "norm1",
        "output": "norm2",
        "output.dense": "ffn",
    }
    for path, step in there.items():
        assert places(f"bert.encoder.layer.1.{path}", BERT) == [(step, 1)], path


def test_a_joint_module_means_its_three_parts() -> None:
    found = resolve("transformer.h.1.attn.c_attn", GPT2)
    assert [(one.place[0], one.how.part if one.how else None) for one in found] == [("q", 0), ("k", 1), ("v", 2)]


def test_llama_cpp_calls_queries_by_one_name_before_and_after_rope() -> None:
    found = resolve_all(["Qcur-1", "Kcur-1", "kq-1"], LLAMA, table=ARCHITECTURES["llama"])
    assert [one.place for one in found.found["Qcur-1"]] == [("q", 1), ("q_rot", 1)]
    assert not any(one.certain for one in found.found["Kcur-1"])
    how = found.found["Kcur-1"][0].how
    assert how is not None
    assert how.paired == "n_kv_heads"
    assert found.spelling == "GGML (llama)"


def test_heads_may_be_written_one_by_one() -> None:
    assert resolve("L1H2.weights", LLAMA) == (Meaning(("weights", 1), (2,)),)


def test_names_of_two_spellings_are_told_apart() -> None:
    found = resolve_all(["L0.q", "L1.q", "model.layers.0.mlp"], LLAMA)
    assert found.spelling.startswith("tinytf and Hugging Face")
    assert found.unmatched == ()


def test_a_user_says_what_names_mean(tmp_path) -> None:
    path = tmp_path / "names.toml"
    path.write_text('"enc.{n}.mha/q" = "L{n}.q"\n[top]\nfirst = "embed.out"\n')
    table = read_names(path)
    found = resolve_all(["enc.1.mha/q", "top.first", "enc.1.mha/k"], LLAMA, table).found
    assert {name: one.place for name, (one,) in found.items()} == {
        "enc.1.mha/q": ("q", 1),
        "top.first": ("embed.out", None),
    }


@pytest.mark.parametrize("text", ["a = 3", 'a = ["b"]', "a = ", "\xff"])
def test_a_table_that_is_none_is_refused(tmp_path, text: str) -> None:
    path = tmp_path / "names.toml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(DumpError):
        read_names(path)


@pytest.mark.parametrize("address", ["L{n}.qq", "L{n}", "q", "L{n}.q[1,2]"])
def test_a_table_that_names_no_step_is_refused(address: str) -> None:
    with pytest.raises((UsageError, TinytfError)):
        resolve_all(["x.0"], LLAMA, {"x.{n}": address})
