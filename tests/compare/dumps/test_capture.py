"""What tinytf.capture catches of any PyTorch model, and what it leaves behind: a file, and no hook."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from architectures import asked
from reference import FAMILIES, pair
from safetensors import safe_open
from safetensors.numpy import load_file
from torch import nn

import tinytf
from tinytf.compare.dumps.read import open_dump
from tinytf.errors import UsageError

IDS = torch.tensor([[3, 1, 4, 1, 5]])


class InPlace(nn.Module):
    """A block that adds to what a module returned, uses one module twice and returns a tuple."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.inner = nn.Linear(4, 4)

    def forward(self, ids):
        x = self.embed(ids)
        for _ in range(2):
            x += self.inner(x)
        return None, x, ids


@pytest.fixture
def gpt2():
    return FAMILIES["gpt2"]().eval()


def hooks(module):
    return [hook for one in module.modules() for hook in (*one._forward_hooks, *one._forward_pre_hooks)]


def test_every_module_is_caught_by_its_path_as_it_was_when_it_returned():
    torch.manual_seed(3)
    module = InPlace()
    with tinytf.capture(module) as dump:
        result = module(IDS)[1]
    embedded = module.embed.weight[IDS]
    first = module.inner(embedded)
    second = module.inner(embedded + first)
    assert list(dump) == ["embed", "inner", "inner#2", "output"]
    assert torch.equal(dump["embed"], embedded)
    assert torch.equal(dump["inner"], first)
    assert torch.equal(dump["inner#2"], second)
    assert torch.equal(dump["output"], result)
    assert not any(tensor.requires_grad for tensor in dump.values())


def test_calls_of_several_threads_are_not_taken_for_those_of_one():
    module, other = InPlace(), ThreadPoolExecutor(1)
    with pytest.raises(UsageError, match="2 threads ran the modules"), tinytf.capture(module):
        [run(IDS) for run in (module, lambda ids: other.submit(module, ids).result())]
    assert not hooks(module)
    with tinytf.capture(module) as dump:
        other.submit(module, IDS).result()
    other.shutdown()
    assert list(dump) == ["embed", "inner", "inner#2", "output"]


def test_a_model_of_transformers_gives_its_hidden_states_and_logits_by_name(gpt2):
    with torch.no_grad(), tinytf.capture(gpt2) as dump:
        theirs = gpt2(input_ids=IDS, output_hidden_states=True)
    assert torch.equal(dump["logits"], theirs.logits)
    assert torch.equal(dump["transformer.wte"] + gpt2.transformer.wpe.weight[:5], theirs.hidden_states[0])
    for layer in range(2):
        assert torch.equal(dump[f"transformer.h.{layer}"], theirs.hidden_states[layer + 1])
    assert torch.equal(dump["transformer.last_hidden_state"], theirs.hidden_states[-1])
    assert dump.ids == IDS[0].tolist()


def test_only_the_modules_that_are_named_are_caught(gpt2):
    with torch.no_grad(), tinytf.capture(gpt2, ["transformer.h.*.mlp", "lm_head"]) as dump:
        gpt2(IDS)
    assert list(dump) == [*(f"transformer.h.{layer}.mlp" for layer in range(3)), "lm_head"]
    with torch.no_grad(), tinytf.capture(gpt2, "") as dump:
        gpt2(IDS)
    assert list(dump) == ["logits"]


def test_the_numbers_are_those_without_capture(gpt2):
    with torch.no_grad():
        before = gpt2(IDS).logits
        with tinytf.capture(gpt2):
            assert hooks(gpt2)
            assert torch.equal(gpt2(IDS).logits, before)


def test_no_hook_is_left_behind_even_after_an_error(gpt2):
    with pytest.raises(IndexError), tinytf.capture(gpt2):
        gpt2(torch.tensor([[10**6]]))
    assert hooks(gpt2) == []


def test_a_name_that_fits_no_module_is_refused_with_the_nearest(gpt2):
    with (
        pytest.raises(UsageError, match=r"no module is called 'transformer\.h\.0\.mlq'") as caught,
        tinytf.capture(gpt2, "transformer.h.0.mlq"),
    ):
        raise AssertionError("the block ran")
    assert caught.value.hint == "did you mean transformer.h.0.mlp?"
    assert hooks(gpt2) == []


def test_compiled_modules_are_refused_since_they_call_no_hooks(gpt2):
    with pytest.raises(UsageError, match="is compiled"), tinytf.capture(torch.compile(gpt2)):
        raise AssertionError("the block ran")
    with pytest.raises(UsageError, match="is no PyTorch module"), tinytf.capture(len):
        raise AssertionError("the block ran")


def test_a_file_of_safetensors_says_what_it_is_of(gpt2, tmp_path):
    gpt2.to(torch.bfloat16)
    with torch.no_grad(), tinytf.capture(gpt2) as dump:
        gpt2(IDS)
    dump.text = "the cat"
    dump.save(tmp_path / "x.safetensors")
    with safe_open(tmp_path / "x.safetensors", "pt") as file:
        said = file.metadata()
        assert set(file.keys()) == set(dump)
        assert all(torch.equal(file.get_tensor(name), dump[name]) for name in dump)
    assert json.loads(said["ids"]) == [3, 1, 4, 1, 5]
    assert json.loads(said["config"])["model_type"] == "gpt2"
    assert (said["model"], said["dtype"], said["text"]) == ("GPT2LMHeadModel", "bfloat16", "the cat")
    assert said["tinytf"] == tinytf.__version__


def test_a_file_of_numpy_holds_the_same(gpt2, tmp_path):
    with torch.no_grad(), tinytf.capture(gpt2) as dump:
        gpt2(IDS)
    dump.save(tmp_path / "x.npz")
    dump.save(tmp_path / "x.safetensors")
    found, expected = np.load(tmp_path / "x.npz"), load_file(tmp_path / "x.safetensors")
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert found["ids"].tolist() == [3, 1, 4, 1, 5]
    assert str(found["model"]) == "GPT2LMHeadModel"


def test_a_batch_has_the_ids_of_every_text(gpt2):
    with torch.no_grad(), tinytf.capture(gpt2, "lm_head") as dump:
        gpt2(IDS.repeat(2, 1))
    assert dump.ids == [[3, 1, 4, 1, 5]] * 2
    with tinytf.capture(linear := nn.Linear(2, 2)) as dump:
        linear(torch.ones(1, 2))
    assert dump.ids is None


def test_a_file_of_another_kind_or_in_a_models_folder_is_not_written(gpt2, tmp_path):
    with torch.no_grad(), tinytf.capture(gpt2) as dump:
        gpt2(IDS)
    with pytest.raises(UsageError, match=r"neither \.safetensors nor \.npz"):
        dump.save(tmp_path / "x.pt")
    gpt2.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="lies in the folder of a model"):
        dump.save(tmp_path / "model.safetensors")


@pytest.mark.parametrize("ending", ["safetensors", "npz"])
@pytest.mark.slow
def test_what_was_captured_is_read_again_and_compared_step_by_step(gpt2, tmp_path, ending):
    with torch.no_grad(), tinytf.capture(gpt2) as dump:
        gpt2(IDS)
    dump.save(tmp_path / f"x.{ending}")
    found = open_dump(tmp_path / f"x.{ending}")
    assert found.ids == IDS[0].tolist()
    assert all(torch.equal(found.read(name), dump[name]) for name in dump)
    assert tinytf.load(gpt2).diff("3 1 4 1 5", found).worst.relative < 1e-5
    gpt2.transformer.h[1].mlp.c_fc.weight.data[0, 0] += 1
    assert tinytf.load(gpt2).diff("3 1 4 1 5", found).first.name == "L1.ffn.hidden"


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_a_model_of_two_stacks_is_caught_with_the_ids_of_its_decoder(family, tmp_path):
    models, source = pair(family), torch.tensor([[5, 9, 2, 6, 5, 3]])
    for name, given in (("both", source), ("other", source.repeat(1, 2))):
        with tinytf.capture(models.theirs) as caught, torch.no_grad():
            models.theirs(input_ids=given, decoder_input_ids=IDS)
        assert caught.ids == IDS[0].tolist()
        caught.save(tmp_path / f"{name}.safetensors")
    model = asked(models.ours)
    bound = model.reading(model.encoder.trace(ids=source[0].tolist()))
    found = bound.diff(None, open_dump(tmp_path / "both.safetensors"))
    assert found.equal or max(step.relative for step in found.steps) < 1e-4
    assert {"L0.cross.k", "L0.cross.attn"} <= {step.name for step in found.steps}
    other = bound.diff(None, open_dump(tmp_path / "other.safetensors"))
    assert not other.equal
    assert any("and is of another source" in one.why for one in other.incomparable)
