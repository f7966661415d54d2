"""all-MiniLM-L6-v2, a BERT for sentence embeddings: our numbers are those of transformers."""

import os
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
import transformers

import tinytf
from tinytf.certification.certify import certify_model
from tinytf.loading import Model

pytestmark = pytest.mark.real

SENTENCES = [
    "The cat sat on the mat.",
    "A feline rested on the rug.",
    "Interest rates rose by a quarter of a percent in the spring of 1994.",
    "Ünïcode, 東京 and 🙂 in one line, and then some more words so that it is the longest of them all.",
]


@pytest.fixture(scope="module")
def folder() -> Path:
    where = os.environ.get("TINYTF_REAL_WEIGHTS")
    found = [path.parent for path in Path(where).rglob("model.safetensors")] if where else []
    if not found:
        pytest.skip("TINYTF_REAL_WEIGHTS names no folder with a model.safetensors")
    return found[0]


@pytest.fixture(scope="module")
def ours(folder: Path) -> Model:
    return tinytf.load(str(folder), device="cpu")


@pytest.fixture(scope="module")
def theirs(folder: Path) -> transformers.BertModel:
    return transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()


@torch.no_grad()
@pytest.mark.parametrize("text", SENTENCES)
def test_hidden_states_after_every_layer(ours: Model, theirs: transformers.BertModel, text: str) -> None:
    trace = ours.trace(text)
    ids = torch.tensor([[token.id for token in trace.tokens]])
    expected = theirs(ids, output_hidden_states=True)
    for layer in range(ours.config.n_layers):
        assert (trace[f"L{layer}.in"] - expected.hidden_states[layer][0]).abs().max() < 1e-5
        assert (trace[f"L{layer}.out"] - expected.hidden_states[layer + 1][0]).abs().max() < 1e-5


def test_vectors_and_cosines_are_those_of_sentence_transformers(ours: Model, folder: Path) -> None:
    library = pytest.importorskip("sentence_transformers").SentenceTransformer(str(folder), device="cpu")
    expected = torch.from_numpy(library.encode(SENTENCES))
    found = torch.stack([trace["embedding"] for trace in ours.traces(SENTENCES)])
    assert (found - expected).abs().max() < 1e-6
    cosines = library.similarity(expected, expected)
    for other in range(1, len(SENTENCES)):
        alike = ours.similar(SENTENCES[0], SENTENCES[other])
        assert alike.cosine == pytest.approx(float(cosines[0, other]), abs=1e-6)
        assert alike.pairs is not None
        assert float(alike.pairs.sum()) == pytest.approx(float(cosines[0, other]), abs=1e-6)
    words = ours.similar(*SENTENCES[:2]).word_pairs[0]
    assert (words.first, words.second) == (2, 2)  # cat and feline, of two pieces, after [CLS] and an article


@torch.no_grad()
def test_sentence_embeddings_of_a_padded_batch(ours: Model, theirs: transformers.BertModel, folder: Path) -> None:
    """The mean of the last hidden states over the tokens that are no padding, at length 1, as the model's card says."""
    batch = transformers.AutoTokenizer.from_pretrained(folder)(SENTENCES, padding=True, return_tensors="pt")
    ids, real = batch["input_ids"], batch["attention_mask"].bool()

    def embeddings(hidden: torch.Tensor) -> torch.Tensor:
        kept = hidden * real[:, :, None]
        return F.normalize(kept.sum(1) / real.sum(1, keepdim=True))

    expected = embeddings(theirs(**batch).last_hidden_state)
    found = embeddings(ours.transformer.hidden(ids, padding_mask=real))
    assert (found - expected).abs().max() < 1e-5
    alone = torch.cat([F.normalize(ours.trace(text).last_hidden.mean(0)[None]) for text in SENTENCES])
    assert (alone - expected).abs().max() < 1e-5
    likeness = found @ found.T
    assert likeness[0, 1] > 0.5 > likeness[0, 2]


def test_it_is_certified_on_the_hard_texts(folder: Path, ours: Model) -> None:
    found = certify_model(ours, folder)
    assert found.holds, [check for check in found.checks if not check.holds]
    assert found.checks[0].texts == 20
