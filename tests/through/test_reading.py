"""Questions to a model through transformers have the answers that transformers itself gives."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import transformers
from torch.nn import functional as F

from tinytf.errors import UsageError
from tinytf.generate.continuing import Streaming
from tinytf.through.changed import ablate_through, patch_through
from tinytf.through.diff import diff_through
from tinytf.through.model import open_through
from tinytf.through.reading import generate_through, lens_through, score_through
from tinytf.through.traced import trace_through
from tinytf_cli.main import run

THROUGH = ["--through", "transformers"]
TEXT, OTHER = "the cat sat on a mat", "the dog ran on a mat"


def logits_of(model, text=TEXT):
    with torch.no_grad():
        return model.transformer(**model.inputs(model.encode(text).ids)).logits[0].double()


@pytest.mark.parametrize("kind", ["falcon_mamba", "jamba"])
def test_a_score_is_the_cross_entropy_of_its_logits(kind, directories):
    model = open_through(directories(kind))
    ids = torch.tensor(model.encode(TEXT).ids)
    expected = F.cross_entropy(logits_of(model)[:-1], ids[1:], reduction="none")
    report = score_through(model, TEXT)
    assert [-token.log_probability for token in report.tokens] == pytest.approx(expected.tolist(), rel=1e-5)


@pytest.mark.parametrize("kind", ["falcon_mamba", "t5"])
def test_greedy_text_is_that_of_transformers(kind, directories):
    """Its own loop has a cache; ours computes every token anew."""
    model = open_through(directories(kind))
    prompt = model.prompt(TEXT)
    options = Streaming(max_tokens=6, ends=model.tokenizer.end_ids, decode=model.tokenizer.decode)
    steps = generate_through(model, prompt, options).whole.steps
    with transformers_quiet():
        theirs = model.transformer.generate(torch.tensor([prompt.ids]), max_new_tokens=6, do_sample=False)[0].tolist()
    new = theirs[1:] if kind == "t5" else theirs[len(prompt.ids) :]
    assert [step.id for step in steps] == new[: len(steps)]
    assert len(steps) == len(new)


def transformers_quiet():
    from tinytf.through.opening import quiet_transformers

    return quiet_transformers()


def test_a_lens_reads_each_layer_by_final_norm_and_head(directories):
    model = open_through(directories("falcon_mamba"))
    module, ids = model.transformer, model.encode(TEXT).ids
    report = lens_through(model, TEXT, track=["cat"])
    assert report.holds
    kept = []
    handle = module.backbone.layers[0].register_forward_hook(lambda part, args, result: kept.append(result))
    with torch.no_grad():
        module(torch.tensor([ids]))
        handle.remove()
        hidden = kept[0][0].double()
        unit = hidden / (hidden.square().mean(-1, keepdim=True) + model.transformer.config.layer_norm_epsilon).sqrt()
        logits = unit * module.backbone.norm_f.weight.double() @ module.lm_head.weight.double().T
    first, cat = report.stages[0], model.find_token("cat")
    torch.testing.assert_close(first.probabilities[:, 0], logits.softmax(-1)[:, cat], rtol=1e-4, atol=1e-6)
    assert first.top_ids[:, 0].tolist() == logits.argmax(-1).tolist()
    assert report.stages[-1].top_ids[:, 0].tolist() == logits_of(model).argmax(-1).tolist()


def test_several_threads_get_what_one_gets(directories):
    models = [open_through(directories(kind)) for kind in ("gpt2", "reformer")]  # which draws from torch's own seed
    part = "transformer.h.1.attn"
    asks = [
        *(partial(trace_through, model, text) for model in models for text in (TEXT, OTHER)),
        partial(ablate_through, models[0], TEXT, [part]),
        partial(patch_through, models[0], OTHER, TEXT, [part]),
        partial(lens_through, models[0], TEXT),
        partial(score_through, models[0], TEXT),
    ]
    alone = [json.dumps(ask().to_dict(), default=str) for ask in asks]
    verbosity = transformers.utils.logging.get_verbosity()
    with ThreadPoolExecutor(8) as threads:
        together = [*threads.map(lambda ask: json.dumps(ask().to_dict(), default=str), asks * 2)]
    assert together == alone * 2
    assert transformers.utils.logging.get_verbosity() == verbosity


def test_what_a_module_returned_is_replaced(directories):
    """By a hook of this test: zeros, or what it returned for the clean text."""
    model = open_through(directories("jamba"))
    part = model.transformer.get_submodule("model.layers.1.self_attn")

    def run_with(other, text):
        handle = part.register_forward_hook(lambda module, args, result: (other(result[0]), *result[1:]))
        logits = logits_of(model, text)[-1].log_softmax(-1)
        handle.remove()
        return logits

    seen = []
    run_with(lambda output: seen.append(output.clone()) or output, OTHER)
    before = logits_of(model)[-1].log_softmax(-1)
    for report, after in (
        (ablate_through(model, TEXT, ["*.self_attn"]), run_with(torch.zeros_like, TEXT)),
        (patch_through(model, OTHER, TEXT, ["model.layers.1.self_attn"]), run_with(lambda output: seen[0], TEXT)),
    ):
        assert report.modules == ("model.layers.1.self_attn",)
        assert report.divergence == pytest.approx(
            float(F.kl_div(after, before, log_target=True, reduction="sum")), rel=1e-3
        )
        assert report.followed == pytest.approx(float(after[before.argmax()].exp()), rel=1e-4)
    assert not part._forward_hooks


def test_the_first_module_that_differs_is_named(directories, tmp_path, capsys):
    model = open_through(directories("falcon_mamba"))
    other = transformers.AutoModelForCausalLM.from_pretrained(directories("falcon_mamba"))
    with torch.no_grad():
        other.backbone.layers[1].mixer.x_proj.weight[0] += 0.1
    other.save_pretrained(tmp_path / "other")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "other" / name).write_text((directories("falcon_mamba") / name).read_text("utf-8"), "utf-8")
    report = diff_through(model, TEXT, open_through(tmp_path / "other"))
    assert report.first is not None
    assert report.first.module == "backbone.layers.1.mixer.x_proj"
    assert report.sentence.startswith("The first module that differs is backbone.layers.1.mixer.x_proj, by ")

    capsys.readouterr()
    dump, line = str(tmp_path / "dump.safetensors"), ["-m", str(directories("falcon_mamba")), *THROUGH]
    assert run(["trace", TEXT, *line, "-o", dump]) == 0
    assert run(["diff", *line, "--versus", dump, "--json"]) == 0  # on the ids of the file
    assert json.loads(capsys.readouterr().out)["sentence"] == "All 19 modules agree exactly."
    assert run(["diff", *line, "-m", str(tmp_path / "other"), "--versus", dump, "--fail-over", "1e-3"]) == 1


REFUSED = {
    "score longformer": "longformer reads later tokens too, and score needs a model of the next token",
    "generate longformer": "longformer reads later tokens too, and generate needs a model of the next token",
    "score t5 --through transformers": "t5 reads TEXT in an encoder, which predicts none of its tokens",
    "lens longformer": "longformer has no final norm and head to read its layers with",
    "lens t5 --through transformers": "the logits of t5 are not lm_head of decoder.final_layer_norm of its last layer",
    "generate falcon_mamba --through transformers --beams 2": "--beams needs a model that tinytf computes itself",
    "attention reformer": "",
}


@pytest.mark.parametrize("asked", REFUSED)
def test_what_such_a_model_cannot_answer_is_refused_with_the_reason(asked, directories, capsys):
    command, kind, *options = asked.split()
    assert run([command, TEXT, "-m", str(directories(kind)), *options]) in (1, 2)
    *_, said, hint = capsys.readouterr().err.splitlines()
    assert said.startswith(f"tinytf: error: {REFUSED[asked]}")
    assert hint.startswith("hint: trace, score" if command == "attention" else "hint: ")


@pytest.mark.parametrize("number", [float("nan"), float("-inf")])
def test_the_first_module_that_is_not_finite_is_said(directories, number):
    model, other = (open_through(directories("falcon_mamba")) for _ in range(2))
    with torch.no_grad():
        other.transformer.backbone.layers[1].mixer.x_proj.weight[0] = number
    report = diff_through(model, TEXT, other, fail_over=1e9)
    assert report.not_finite is not None
    assert report.not_finite.name == "backbone.layers.1.mixer.x_proj"
    assert report.sentence.startswith(f"{other.name} is not finite from backbone.layers.1.mixer.x_proj on: ")
    assert not report.holds


def test_texts_of_different_lengths_are_not_compared(directories):
    model = open_through(directories("falcon_mamba"))
    with pytest.raises(UsageError, match="6 and 2 tokens"):
        diff_through(model, TEXT, "the cat")
    with pytest.raises(UsageError, match="6 and 2 tokens"):
        patch_through(model, TEXT, "the cat", ["*"])
