"""What a model in training makes of the beginning of the held-out text, without its training noticing.

A decoder goes on from it, an encoder fills in a word of its first sentence.
"""

from collections.abc import Callable
from itertools import takewhile

import torch

from tinytf.errors import GenerationError
from tinytf.generate.loop import stream
from tinytf.generate.samplers import Sampling
from tinytf.training.data import NextToken
from tinytf.training.history import Sample
from tinytf.training.masked import MaskedTokens
from tinytf.training.recipe import Recipe
from tinytf.training.setup import Setup

_PROMPT_TOKENS = 5
_SAMPLING = Sampling(temperature=0.8)


class Sampler:
    """Samples of one run: always the same prompt and the same draws, so that only the model makes the difference.

    The prompt are the first tokens of the held-out text; without one the start token, or what training begins with.
    For the masked objective it is the first sentence, with [MASK] in the middle.
    """

    def __init__(self, setup: Setup, recipe: Recipe) -> None:
        self.setup, self.tokens, self.seed = setup, recipe.sample_tokens, recipe.seed
        self.prompt = _prompt(setup) if self.tokens else []

    def sample(self, step: int) -> Sample | None:
        """What the model says now; None where none is asked for, and where its logits are no numbers.

        Random state, weights and mode are left as they were: it goes through the modules, without a cache. What comes
        behind an end token is computed and left out, so that processes with parts of a model go through it equally
        often.
        """
        if not self.prompt:
            return None
        if isinstance(self.setup.examples, MaskedTokens):
            return self._filled_in(step, self.setup.examples)
        decode = self.setup.tokenizer.decode
        steps = stream(
            self.setup.model,
            self.prompt,
            max_tokens=self.tokens,
            sampling=_SAMPLING,
            seed=self.seed,
            use_cache=False,
            decode=decode,
        )
        try:
            made = list(steps)
        except GenerationError:
            return None
        ends = self.setup.tokenizer.end_ids
        said = takewhile(lambda one: one.id not in ends, made)
        return Sample(step, decode(self.prompt), "".join(one.text for one in said))

    @torch.no_grad()
    def _filled_in(self, step: int, examples: MaskedTokens) -> Sample | None:
        """The likeliest word for the one that is hidden."""
        model, decode = self.setup.model, self.setup.tokenizer.decode
        place = self.prompt.index(examples.mask)
        training = model.training
        model.eval()
        ids = torch.tensor([self.prompt], device=model.embed.tokens.weight.device)
        logits = model.unembed(model.hidden(ids)[:, place])  # (1, V)
        model.train(training)
        if not bool(torch.isfinite(logits).all()):
            return None
        before, behind = decode(self.prompt[:place]), decode(self.prompt[place + 1 :])
        words = (before, "[MASK]", behind)
        return Sample(step, " ".join(word for word in words if word), decode([int(logits.argmax())]))


def _hidden_in(examples: MaskedTokens, name_of: Callable[[int], str | None]) -> list[int]:
    """A sentence between [CLS] and [SEP], a word of one token in its middle hidden; no longer than a block."""
    sentences = examples.kept if len(examples.kept) else examples.train
    ids = sentences[0][: examples.block - 2]
    pieces = [name_of(token_id) or "" for token_id in ids]
    goes_on = [piece.startswith("##") for piece in (*pieces, "")]
    words = [place for place in range(len(ids)) if pieces[place].isalpha() and not goes_on[place + 1]]
    hidden = min(words, key=lambda place: abs(place - len(ids) // 2), default=len(ids) // 2)
    return [examples.cls, *ids[:hidden], examples.mask, *ids[hidden + 1 :], examples.sep]


def _prompt(setup: Setup) -> list[int]:
    """Ids to go on from, no more than half a context; with something to fill in for an encoder."""
    examples, tokenizer = setup.examples, setup.tokenizer
    if isinstance(examples, MaskedTokens):
        return _hidden_in(examples, tokenizer.library.id_to_token)
    if not isinstance(examples, NextToken):
        return []
    room = min(_PROMPT_TOKENS, max(1, setup.model.config.context // 2))
    start = tokenizer.start()
    found: list[int] = examples.kept[:room].tolist()
    if not found and start is not None:
        return list(start.ids)
    found = found or examples.train[:room].tolist()
    ends = [place for place, token_id in enumerate(found) if token_id in tokenizer.end_ids]
    return found[: ends[0]] if ends and ends[0] else found
