"""The session on a model that runs through transformers: what works shows its modules, the rest says why not."""

import json

import pytest
import torch

from tinytf.through.model import open_through
from tinytf.through.reading import score_through
from tinytf.through.traced import trace_through
from tinytf_cli.repl.completing import find_offers
from tinytf_cli.repl.prompt import bar_of
from tinytf_cli.repl.session import Session
from tinytf_cli.repl.session_verbs import VERBS
from tinytf_cli.repl.state import Spec
from tinytf_cli.repl.streams import Capture

TEXT, OTHER = "the cat sat on a mat", "the dog ran on a mat"


@pytest.fixture
def begin(directories):
    """Begin a session, and get the function that runs its lines and gives what the last one wrote."""

    def begun(kind, **options):
        session = Session(VERBS, Spec(str(directories(kind)), **options), stdout=Capture(), stderr=Capture())

        def talk(*lines):
            outcomes = [session.execute(line) for line in lines]
            assert all(outcome.status == 0 for outcome in outcomes), outcomes
            return outcomes[-1].text

        talk.session = session
        return talk

    return begun


def offered(session, line):
    return [offer.word for offer in find_offers(session, line)[1]]


def test_a_session_opens_a_model_without_a_table_and_runs_texts(begin, directories):
    talk = begin("longformer")
    shown = talk(f"run {TEXT}")
    assert "LongformerForMaskedLM through transformers" in talk("model")
    assert "longformer.encoder.layer.*.intermediate" in shown
    assert "proved" in shown
    path = "longformer.encoder.layer.1.intermediate"
    expected = dict(trace_through(open_through(directories("longformer")), TEXT, at=[path]).at)[path]
    values = json.loads(talk(f"print/json {path}"))["values"][path]["values"]
    torch.testing.assert_close(torch.tensor(values), expected, rtol=1e-6, atol=1e-6)
    assert talk(f"print {path}").lstrip().startswith(path)
    assert talk(f"trace --at {path} --json") == talk(f'trace "{TEXT}" --at {path} --json')
    ids = open_through(directories("longformer")).encode(TEXT).ids
    assert [token["id"] for token in json.loads(talk("tokens --json"))["tokens"]] == ids
    assert talk("! trace.recording.calls[0].path").strip() == "'longformer.embeddings.word_embeddings'"
    assert bar_of(talk.session).text == TEXT


def test_module_paths_are_completed_up_to_the_next_dot(begin):
    talk = begin("xlnet", through="transformers")
    talk("model")
    assert offered(talk.session, "print trans") == ["transformer"]
    assert offered(talk.session, "print transformer.layer.") == ["transformer.layer.0", "transformer.layer.1"]
    talk(f"run {TEXT}")
    assert "transformer.layer.1.ff" in offered(talk.session, "trace --at transformer.layer.1.")
    assert offered(talk.session, "ablate --at lm_l") == ["lm_loss"]


def test_commands_answer_about_the_open_model(begin, directories):
    talk = begin("jamba", through="transformers")
    talk(f"run {TEXT}")
    model = open_through(directories("jamba"))
    scored = score_through(model, TEXT)
    assert json.loads(talk("score --json"))["perplexity"] == pytest.approx(scored.perplexity)
    (top,) = json.loads(talk("top 3 --json"))["predictions"]
    assert [one["id"] for one in top["top"]] == model.logits(model.encode(TEXT).ids)[-1].topk(3).indices.tolist()
    part = "model.layers.1.self_attn"
    assert json.loads(talk(f"ablate --at {part} --json"))["modules"] == [part]
    assert json.loads(talk(f'patch "{OTHER}" "{TEXT}" --at {part} --json'))["modules"] == [part]
    assert len(json.loads(talk("lens --json"))["stages"]) == 2
    assert len(json.loads(talk("generate --max-tokens 2 --temperature 0 --json"))["steps"]) == 2
    talk(f"run {OTHER}")
    assert json.loads(talk("diff --json"))["first"]["module"] == "model.embed_tokens"
    talk("keep dog", f"run {TEXT}", "use dog", "undo", "redo")


def test_the_session_changes_between_both_kinds_of_model(begin, directories):
    talk = begin("llama")
    talk("run the cat", "step 3", f"model {directories('longformer')}")
    assert talk.session.row is None
    assert "one of the two runs is through transformers" in talk.session.execute("diff").failure.message
    talk(f"model {directories('llama')}", "step")
    assert talk.session.row == 1
    talk(f"model {directories('llama')} --through transformers")
    assert talk.session.through is not None
    assert talk("trace -m tiny --at L0.ffn hello")
    talk("undo", "step")


ASKED = [
    "step", "back", "next", "finish", "continue", "goto L0", "where", "list", "heat lm_loss", "heads", "display L0",
    "break L0", "tbreak L0", "set L0.ffn[0,0] = 0", "attention", "grad", "attribute",
    "explain L0.ffn[0,0]", "heads --by induction", "neurons", "info",
]  # fmt: skip
STEPS = "this model runs through transformers, which has no steps"
REFUSED = {
    "without L0": f"{STEPS} to ablate or numbers to set",
    "print": "no module is named",
    "print/stats lm_loss": "/stats is of a step, and this model runs through transformers",
    "print L0.ffn": "no module that ran is called 'L0.ffn'",
    "top --at 1": "--at predicts after a step, and this model runs through transformers",
    "score": "xlnet reads later tokens too, and score needs a model of the next token",
    "lens": "xlnet has no final norm and head to read its layers with",
    "model tiny --through transformers": "tiny is not a directory of transformers",
    f"trace --trust-remote-code {TEXT}": "code in the directory of a model does not run in a session",
}


def test_what_needs_steps_says_why_not(begin):
    talk = begin("xlnet", through="transformers")
    talk(f"run {TEXT}")
    for line in (*ASKED, *REFUSED):
        outcome = talk.session.execute(line)
        assert outcome.failure is not None, line
        assert outcome.failure.message in (f"{STEPS}, and {line.split()[0]} needs them", REFUSED.get(line))
    for verb in VERBS:
        outcome = talk.session.execute(f"help {verb}")
        assert outcome.status == 0, outcome
