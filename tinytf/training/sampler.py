"""A decoder in training goes on from the beginning of the held-out text, without its training noticing."""

from itertools import takewhile

from tinytf.errors import GenerationError
from tinytf.generate.loop import stream
from tinytf.generate.samplers import Sampling
from tinytf.training.data import NextToken
from tinytf.training.recipe import Recipe
from tinytf.training.samples import Sample
from tinytf.training.setup import Setup

_PROMPT_TOKENS = 5
_SAMPLING = Sampling(temperature=0.8)


class Sampler:
    """Samples of one run: always the same prompt and the same draws, so that only the model makes the difference.

    The prompt are the first tokens of the held-out text; without one the start token, or what training begins with.
    """

    def __init__(self, setup: Setup, recipe: Recipe) -> None:
        self.setup, self.tokens, self.seed = setup, recipe.sample_tokens, recipe.seed
        self.prompt = _prompt(setup) if self.tokens else []

    def sample(self, step: int) -> Sample | None:
        """What the model says now; None where none is asked for, of an encoder, and where its logits are no numbers.

        Random state, weights and mode are left as they were: it goes through the modules, without a cache. What comes
        behind an end token is computed and left out, so that processes with parts of a model go through it equally
        often.
        """
        if not self.prompt:
            return None
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


def _prompt(setup: Setup) -> list[int]:
    """Ids to go on from, no more than half a context; none for an encoder."""
    examples, tokenizer = setup.examples, setup.tokenizer
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
