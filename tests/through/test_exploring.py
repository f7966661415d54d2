"""The explorer of a model through transformers, driven by Textual's pilot."""

import asyncio

import pytest
import torch

from tinytf.through.model import open_through
from tinytf_cli.explore.modules import ModuleExplorer
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS
from tinytf_cli.repl.state import Spec
from tinytf_cli.repl.streams import Capture
from tinytf_cli.terminal import Terminal

TEXT = "the cat sat on a mat"


@pytest.fixture
def explore(directories):
    """Press keys in the explorer of a kind of model, and get it."""

    def explored(kind, *keys, size=(120, 40)):
        spec = Spec(str(directories(kind)), through="transformers")
        session = Session(VERBS, spec, stdout=Capture(), stderr=Capture())
        assert session.begin(TEXT).status == 0
        app = ModuleExplorer(session, Terminal())

        async def drive():
            async with app.run_test(size=size) as pilot:
                for key in keys:
                    await pilot.press(key)
                    while app.engine.waiting:
                        await pilot.pause(0.01)
                    await pilot.pause()
                return {name: lines_of(pane) for name, pane in app.panes.items()}

        return app, asyncio.run(drive())

    return explored


def lines_of(pane):
    return "\n".join("".join(segment.text for segment in line) for line in pane._lines)


def test_each_module_has_its_numbers_and_how_they_were_proved(explore, directories):
    app, panes = explore("llama", "down", "down", "pagedown", "down", "down")
    assert app.call.path == "model.layers.1.self_attn.q_proj"
    assert "x·Wᵀ + b, off by" in panes["main"]
    model = open_through(directories("llama"))
    kept = []
    handle = model.transformer.model.layers[1].self_attn.q_proj.register_forward_hook(
        lambda module, args, result: kept.append(result[0])
    )
    logits = model.logits(model.encode(TEXT).ids)
    handle.remove()
    assert f"{float(kept[0][2, 1]):.3f}" in next(line for line in panes["main"].split("\n") if " sat " in line)
    best = int(logits[-1].argmax())
    assert panes["next"].split("\n")[1].split()[:2] == [model.shown(best), f"{float(logits[-1].softmax(-1)[best]):.3f}"]
    assert "self_attn.q_proj" in panes["steps"]
    assert panes["steps"].count("self_attn.q_proj") == 1  # the other layer is folded


def test_another_token_predicts_another_next_token(explore, directories):
    model = open_through(directories("llama"))
    shares = torch.softmax(model.logits(model.encode(TEXT).ids)[1], -1)
    _, panes = explore("llama", "left", "left", "left", "left")
    assert "[cat]" in panes["text"]
    assert f"{float(shares.max()):.3f}" in panes["next"].split("\n")[1]


def test_attention_weights_are_a_map_and_unproved_modules_are_found(explore):
    app, panes = explore("llama", "down", "down", "down", "w")
    assert app.call.path == "model.layers.0.self_attn"
    assert "head 1" in panes["main"]
    app, _ = explore("falcon_mamba", "n")
    assert not app.call.passes
    assert app.call.proof is None or not app.call.proof.holds


@pytest.mark.share(4)
@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
def test_a_few_letters_find_any_module_token_key_and_line(explore, size):
    app, panes = explore("llama", "ctrl+p", *"l1qproj", size=size)
    assert "▶ model.layers.1.self_attn.q_proj" in " ".join(panes["offers"].split())
    app, _ = explore("llama", "slash", *"l1qproj", "enter", size=size)
    assert app.call.path == "model.layers.1.self_attn.q_proj"
    app, panes = explore("llama", "ctrl+p", *"l1selfattnweights", "enter", size=size)
    assert app.call.path == "model.layers.1.self_attn"
    assert "w shows its output" in panes["main"]
    _, panes = explore("llama", "ctrl+p", *"cat", "enter", size=size)
    assert "[cat]" in panes["text"]
    _, panes = explore("llama", "ctrl+p", *"list", "space", *"these", "enter", size=size)
    assert "a few letters" not in panes["main"]
    assert "the previous module" in panes["main"]
    app, panes = explore("llama", "ctrl+p", *"zzzz", "enter", size=size)
    assert "nothing here is called zzzz" in panes["status"]


def test_each_offered_module_and_token_is_found_by_its_own_name(explore):
    app, _ = explore("llama")
    found = []
    app.draw = lambda: found.append((app.call.path, app.weights, app.token))
    for number, token in enumerate(app.session.tokens):
        app.find(token.strip("·") or token)
        assert found[-1][2] == number
    for path in app.trace.outputs:
        app.find(path)
        assert found[-1][0] + ".weights" * found[-1][1] == path


@pytest.mark.share(6)
@pytest.mark.parametrize("size", [(200, 60), (80, 24), (40, 10)])
def test_lines_of_the_session_and_another_text(explore, size):
    _, panes = explore("llama", "colon", *"lens", "enter", size=size)
    assert "logit lens" in panes["main"] or size[0] == 40
    _, panes = explore("llama", "colon", *"grad", "enter", size=size)
    assert "this model runs through" in panes["status"]
    app, panes = explore("llama", "t", "end", "space", *"dog", "enter", size=size)
    assert app.trace.encoding.text == f"{TEXT} dog"
    assert "[dog]" in panes["text"]
    app, panes = explore("llama", "colon", *"model", "space", *"tiny", "enter", size=size)
    assert app.session.through is not None
    assert "model tiny: this screen is" in panes["status"]
