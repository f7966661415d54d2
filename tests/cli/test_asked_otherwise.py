"""Questions as people type them: with articles, plurals, typing errors, without a question mark."""

import pytest

from tinytf.glossary import spellings
from tinytf_cli.asking import answering

ASKED_OTHERWISE = {
    "What is the softmax?": "help softmax",
    "what's the softmax": "help softmax",
    "whats a softmax?": "help softmax",
    "what is an embedding?": "help embedding",
    "what are embeddings?": "help embeddings",
    "what are the logits": "help logits",
    "WHAT IS SOFTMAX": "help SOFTMAX",
    "what is sofmax?": "help softmax",
    "what is a softmaxx?": "help softmax",
    "what is perplexitiy?": "help perplexity",
    "what is temprature?": "help temperature",
    "what does softmax mean?": "help softmax",
    "what does softmax do": "help softmax",
    "explain softmax?": "help softmax",
    "define perplexity?": "help perplexity",
    "How does attention work?": "help attention",
    "how does the softmax work": "help softmax",
    "What's L0.norm1?": "help L0.norm1",
    "what is the L0.norm1?": "help L0.norm1",
    "why the mat?": "attribute --token mat",
    "why is it the mat": "attribute --token mat",
    "Why mat and not rug": "attribute --token mat --versus rug",
    "why mat instead of rug?": "attribute --token mat --versus rug",
    "WHEN DID IT KNOW": "lens",
    "when does it know?": "lens",
    "when did the model know?": "lens",
    "when did the model decide on mat?": "lens --track mat",
    "what does the head L1H0 do?": "attention --head L1H0",
    "what does head L1H0 do": "attention --head L1H0",
    "where does the model look?": "attention",
    "where does head L1H0 look at": "attention --head L1H0",
    "what happens if it runs without the L1H0?": "ablate --at L1H0",
    "what hapens without L1H0?": "ablate --at L1H0",
    "which heads maters most?": "attribute",
    "Which head matters": "attribute",
    "which layers are the most important?": "attribute",
    "which heads are important": "attribute",
    "what comess next?": "lens",
    "what comes next": "lens",
    "what will come next?": "lens",
    "what does the model predict?": "lens",
    "how many parametrs does it have?": "info",
    "how many parameters does the model have": "info",
    "how many heads has the model?": "info",
    "How likely is the mat?": "lens --track mat",
    "what is the loss of it?": "score",
}  # fmt: skip
NOT_FOR_A_COMMAND = (
    "what is the time?",
    "what is the meaning of life?",
    "what is a cat?",
    "what are dogs?",
    "where is the mat?",
    "how many cats are there?",
    "how many people live in Paris?",
    "how do I cook an egg?",
    "why did the cat sit on the mat?",
    "when did the war end?",
    "what does the fox say?",
    "which heads of state met in Paris?",
    "how likely is it that it rains?",
    "how does the train reach Paris?",
    "what comes next after Monday?",
)


@pytest.mark.parametrize("question", ASKED_OTHERWISE)
def test_a_question_is_understood_however_it_is_typed(question: str) -> None:
    assert answering(question, spellings()) == ASKED_OTHERWISE[question]


@pytest.mark.parametrize("question", NOT_FOR_A_COMMAND)
def test_a_question_about_something_else_is_not_answered_by_a_command(question: str) -> None:
    assert answering(question, spellings()) == ""
