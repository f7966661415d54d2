"""A model without a table runs through transformers: its modules are recorded, recomputed and named."""

import json

import pytest
import torch
import transformers
from torch import nn

import tinytf
from tinytf.errors import CheckpointError, UsageError
from tinytf.through import model as through_model
from tinytf.through.formulas import Proof
from tinytf.through.model import ThroughModel, open_through
from tinytf.through.recording import Call, Recording
from tinytf.through.traced import trace_through
from tinytf_cli.main import run

TEXT = "the cat sat on a mat"
KINDS = (
    "falcon_mamba", "t5", "xlnet", "longformer", "reformer", "jamba", "convbert", "gpt2", "trocr", "hyperclovax",
    "iquestcoder",
)  # fmt: skip
"""Decoders, encoders, both, mixers that are not attention, square matrices (in, out), looked-up positions."""


def recorded(model: ThroughModel, text: str = TEXT):
    """The outputs of modules by path, by hooks of this file, and the result of the model."""
    outputs: dict[str, torch.Tensor] = {}

    def keep(path):
        def hook(module, args, result):
            tensor = (
                result if isinstance(result, torch.Tensor) else next(iter(getattr(result, "values", lambda: result)()))
            )
            if isinstance(tensor, torch.Tensor):
                outputs.setdefault(path, tensor.detach().clone())

        return hook

    handles = [module.register_forward_hook(keep(path)) for path, module in model.transformer.named_modules()]
    torch.manual_seed(0)
    with torch.no_grad():
        result = model.transformer(**model.inputs(model.encode(text).ids))
    for handle in handles:
        handle.remove()
    return outputs, result


@pytest.mark.parametrize("kind", KINDS)
def test_any_architecture_is_recorded_and_mostly_computed_again(kind, directories):
    model = open_through(directories(kind))
    report = trace_through(model, f"{TEXT} [MASK]" if kind == "longformer" else TEXT)
    outputs, result = recorded(model, report.encoding.text)
    assert report.check.holds
    assert report.check.proved >= 0.85 * report.check.made
    for call in report.recording.calls:
        if "#" not in call.path and call.path in outputs:
            assert torch.equal(call.output, outputs[call.path]), call.path
    if report.prediction is not None and kind not in ("convbert", "t5"):
        shares = result.logits[0].double().softmax(-1)[report.prediction.position]
        assert report.prediction.top[0].id == int(shares.argmax())
        assert report.prediction.top[0].probability == pytest.approx(float(shares.max()), rel=1e-5)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.transformer.modules())


def test_what_a_module_is_follows_from_what_it_does(directories):
    def roles(kind):
        report = trace_through(open_through(directories(kind)), TEXT)
        return {group.modules: group.role for group in report.groups if group.role}, report

    jamba, report = roles("jamba")
    assert jamba["model.layers.*.mamba"] == "mixer"
    assert jamba["model.layers.*.self_attn"] == "attention"
    assert jamba["model.layers.*.mamba.dt_layernorm"] == "norm"
    assert jamba["model.layers.*.feed_forward"] == "feed-forward"
    assert (jamba["model.embed_tokens"], jamba["model.final_layernorm"]) == ("embedding", "final norm")
    assert (jamba["lm_head"], report.stacks) == ("head", (("model.layers", 2),))
    assert roles("t5")[1].stacks == (("encoder.block", 2), ("decoder.block", 2))
    assert roles("xlnet")[0]["transformer.layer.*.ff"] == "feed-forward"
    convbert, report = roles("convbert")
    assert convbert["convbert.encoder.layer.*.attention"] == "mixer"
    assert report.prediction.what == "class"


def test_causal_is_what_does_not_see_later_tokens(directories):
    causal = {
        kind: open_through(directories(kind)).config.causal for kind in ("falcon_mamba", "jamba", "xlnet", "longformer")
    }
    assert causal == {"falcon_mamba": True, "jamba": True, "xlnet": False, "longformer": False}


def test_the_layers_of_a_model_with_a_table_are_those_of_tinytf(directories):
    ours = tinytf.load(directories("llama")).trace(TEXT)
    outputs = dict(trace_through(open_through(directories("llama")), TEXT, at=["model.layers.*"]).at)
    for layer in range(2):
        torch.testing.assert_close(outputs[f"model.layers.{layer}"], ours.step("out", layer), rtol=1e-5, atol=1e-5)
        weights = outputs[f"model.layers.{layer}.self_attn.weights"]
        torch.testing.assert_close(weights, ours.step("weights", layer), rtol=1e-5, atol=1e-6)
        assert torch.equal(ours.step("ffn", layer).sign(), outputs[f"model.layers.{layer}.mlp"].sign())


BREAKS = {
    "model.layers.1.mlp.up_proj": "x·Wᵀ + b",
    "model.layers.0.input_layernorm": "RMS norm",
    "model.layers.1.mlp.act_fn": "silu",
    "model.embed_tokens": "rows of the ids",
}


@pytest.mark.parametrize("path", BREAKS)
def test_a_module_that_returns_something_else_is_named(path, directories, monkeypatch, capsys):
    opened = through_model.open_module

    def broken(*args, **settings):
        module = opened(*args, **settings)
        part = module.get_submodule(path)
        forward = part.forward
        part.forward = lambda x: forward(x) + 1e-2
        return module

    monkeypatch.setattr(through_model, "open_module", broken)
    line = ["trace", TEXT, "-m", str(directories("llama")), "--through", "transformers"]
    assert run([*line, "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert [failure["module"] for failure in data["check"]["failures"]] == [path]
    assert data["check"]["failures"][0]["formula"] == BREAKS[path]
    assert data["check"]["failures"][0]["difference"] == pytest.approx(1e-2, rel=1e-3)
    assert "sentence" not in data
    assert run(line) == 1
    assert f"check failed: {path} is not {BREAKS[path]}: off by 1.0e-02" in capsys.readouterr().out


def test_a_class_that_mostly_does_something_else_breaks_nothing():
    """Its formula held by chance, such as that of a norm in groups for groups that are alike."""
    grouped = type("Grouped", (nn.RMSNorm,), {})
    right, wrong, also = (
        Call("a", grouped(4), torch.ones(4), proof=Proof("RMS norm", off, 1e-5, 1.0)) for off in (0.0, 1.0, 1.0)
    )
    assert Recording((right, wrong, also), None).failed() == ()
    assert Recording((right, wrong), None).failed() == (wrong,)


def test_code_between_modules_is_counted_and_not_called_proved(directories):
    """o_proj reads weights · v, which is found; Mamba's scan, and the softmax of q·k, are not."""
    llama = trace_through(open_through(directories("llama")), TEXT).check
    assert (llama.unseen, llama.maps) == (0, 2)
    assert (
        trace_through(open_through(directories("falcon_mamba")), TEXT).check.unseen == 10
    )  # five inputs in each layer, between the scan and its norms


def test_a_layer_with_another_sum_is_not_proved(directories):
    model = open_through(directories("llama"))
    layer = model.transformer.model.layers[1]
    before = trace_through(model, TEXT)
    proof = {call.path: call.proof for call in before.recording.calls}["model.layers.1"]
    assert proof is not None
    assert proof.formula == "its input + self_attn.o_proj + mlp.down_proj"
    handle = layer.register_forward_hook(lambda module, args, result: result + 1e-2)
    after = trace_through(model, TEXT)
    handle.remove()
    assert {call.path: call.proof for call in after.recording.calls}["model.layers.1"] is None
    assert after.check.proved == before.check.proved - 1


def test_an_architecture_without_a_table_goes_through_by_itself(directories, capsys):
    path = str(directories("longformer"))
    capsys.readouterr()  # transformers shows its progress as it writes
    assert run(["trace", TEXT, "-m", path, "--at", "*.intermediate", "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == "tinytf: there is no table for this architecture, so it runs through transformers\n"
    values = json.loads(shown.out)["values"]
    assert list(values) == [f"longformer.encoder.layer.{layer}.intermediate" for layer in range(2)]
    assert run(["trace", TEXT, "-m", path]) == 0
    assert len(capsys.readouterr().out.splitlines()) < 45


REFUSED = {
    "a module that did not run": (["--at", "model.nothing"], 2, "no module that ran is called 'model.nothing'"),
    "a step of tinytf": (["--layer", "1"], 2, "--layer needs a model that tinytf computes itself"),
    "an adapter": (["--adapter", "x"], 2, "--adapter goes with a model that tinytf computes itself"),
}


@pytest.mark.parametrize(("options", "status", "message"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_go_through_says_so(options, status, message, directories, capsys):
    line = ["trace", TEXT, "-m", str(directories("llama")), "--through", "transformers", *options]
    assert run(line) == status
    said, hint = capsys.readouterr().err.splitlines()
    assert said.startswith(f"tinytf: error: {message}")
    assert hint.startswith("hint: ")


def test_other_models_and_other_commands_are_refused(directories, tmp_path, capsys):
    for line in (["trace", TEXT, "-m", "tiny"], ["attention", TEXT, "-m", str(directories("llama"))]):
        assert run([*line, "--through", "transformers"]) == 2
        assert capsys.readouterr().err.count("\n") == 2
    vision = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4
    )
    transformers.ViTModel(vision).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="takes pixel_values and no text"):
        trace_through(open_through(tmp_path), "1 2")


def test_code_in_the_directory_runs_only_by_that_word(directories, tmp_path):
    mark = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(
        f"open({str(mark)!r}, 'w')\nfrom transformers import LlamaConfig\nclass EvilConfig(LlamaConfig):\n"
        "    model_type = 'evil'\n", "utf-8",
    )  # fmt: skip
    config = {
        "model_type": "evil",
        "auto_map": {"AutoConfig": "evil.EvilConfig"},
        "architectures": ["LlamaForCausalLM"],
    }
    (tmp_path / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(CheckpointError, match="transformers cannot open") as caught:
        open_through(tmp_path)
    assert caught.value.hint == "its code runs only with --through transformers --trust-remote-code"
    assert not mark.exists()


def test_each_formula_is_that_of_torch():
    """Of strided, grouped and dilated convolutions too, which no small text model here has."""
    from tinytf.through.formulas import recompute

    torch.manual_seed(0)
    for module, x in (
        (nn.Conv1d(6, 4, 3, stride=2, padding=2, groups=2), torch.randn(1, 6, 11)),
        (nn.Conv2d(3, 5, (3, 2), padding=(1, 0), dilation=(2, 1), bias=False), torch.randn(2, 3, 9, 8)),
        (nn.LayerNorm(8, eps=1e-3), torch.randn(2, 8)),
        (nn.GELU("tanh"), torch.randn(5)),
    ):
        with torch.no_grad():
            y = module(x)
        for output, holds in ((y, True), (y + 1e-2, False)):
            proof = recompute(module, x, output)
            assert proof is not None
            assert proof.holds is holds


def test_attention_that_returns_its_mixture_is_proved(tmp_path):
    config = transformers.BertConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24
    )
    transformers.BertModel(config).save_pretrained(tmp_path)
    report = trace_through(open_through(tmp_path), "5 6 7 8")
    assert report.check.proved == report.check.made
    proofs = {call.path: call.proof for call in report.recording.calls}
    assert proofs["encoder.layer.1.attention.self"] is not None
    assert proofs["encoder.layer.1.attention.self"].formula == "weights · value"
