"""Sample from a model in training: a decoder continues the held-out text, an encoder fills in a word of it.

A model of two stacks translates a source.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile

import torch

from tinytf.errors import GenerationError
from tinytf.generate.loop import stream
from tinytf.generate.samplers import Sampling
from tinytf.model.transformer import evaluating
from tinytf.runs.history import Sample
from tinytf.runs.lines import append_line
from tinytf.runs.run_files import SAMPLES
from tinytf.text.tokenizer import Tokenizer
from tinytf.training.data.chats import ChatTurns
from tinytf.training.data.examples import NextToken
from tinytf.training.data.masked import MaskedTokens
from tinytf.training.data.setup import Setup
from tinytf.training.data.translation import Translations, facing_row
from tinytf.training.loop import Loop, Observer
from tinytf.training.metrics import Metrics
from tinytf.training.observers.inside import Heads
from tinytf.training.recipe import Recipe

_PROMPT_TOKENS = 5
ARROW = " → "
"""What a sample shows between a source and its translation."""
_SAMPLING = Sampling(temperature=0.8)


class Samples(Observer):
    """Writes what the model says where held-out text is measured or a frame is taken, and before the first step."""

    def __init__(self, loop: Loop, heads: Heads) -> None:
        self.heads, self.sampler = heads, Sampler(loop.setup, loop.recipe)
        self.prompt = self.sampler.prompt

    def begin(self, loop: Loop) -> None:
        super().begin(loop)
        if loop.progress.step == loop.recipe.at_step:
            self.step(Metrics(loop.progress.step))

    def step(self, line: Metrics) -> None:
        loop, done = self.loop, line.step
        due = done == loop.recipe.steps or (done and done % loop.recipe.eval_every == 0)
        due = due or (loop.recipe.probe_every and self.heads.camera.due(done))
        line.sample = self.sampler.sample(done) if due and loop.group.measures else None
        if line.sample is not None and loop.group.writes:
            append_line(loop.out / SAMPLES, vars(line.sample), sync=True)


class Sampler:
    """Samples of one run, with a fixed prompt and seed, so that only the model makes a difference.

    The prompt is the first tokens of the held-out text; without held-out text, the start token, or the start of the
    training text. For the masked objective it is the first sentence, with [MASK] in the middle; a translation begins
    with the start of a target, and shows its source.
    """

    def __init__(self, setup: Setup, recipe: Recipe) -> None:
        self.setup, self.tokens, self.seed = setup, recipe.sample_tokens, recipe.seed
        self.prompt: list[int] = []
        if self.tokens and isinstance(setup.examples, MaskedTokens):
            self.prompt = _masked_sentence(setup.examples, setup.tokenizer)
        elif self.tokens and isinstance(setup.examples, ChatTurns):
            self.prompt = setup.examples.prompt[-max(1, setup.model.config.context // 2) :]
        elif self.tokens and isinstance(setup.examples, NextToken):
            self.prompt = _first_tokens(setup.examples, setup.tokenizer, max(1, setup.model.config.context // 2))
        elif self.tokens and isinstance(setup.examples, Translations):
            self.prompt = [setup.examples.train.start]

    def sample(self, step: int) -> Sample | None:
        """Sample from the model as it is now; None without a prompt, or where its logits are not finite.

        Leaves random state, weights and mode unchanged. Runs without a cache. Tokens after an end token are computed
        and dropped, so that all processes of a sharded model run it equally often.
        """
        if not self.prompt:
            return None
        if isinstance(self.setup.examples, MaskedTokens):
            return self._filled_in(step, self.setup.examples)
        decode, ends = self.setup.tokenizer.decode, self.setup.tokenizer.end_ids
        with reading_first(self.setup) as source:
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
                tokens = takewhile(lambda token: token.id not in ends, list(steps))
            except GenerationError:
                return None
        return Sample(step, source or decode(self.prompt), "".join(token.text for token in tokens))

    @torch.no_grad()
    def _filled_in(self, step: int, examples: MaskedTokens) -> Sample | None:
        """The most probable word at [MASK]."""
        model, decode = self.setup.model, self.setup.tokenizer.decode
        position = self.prompt.index(examples.mask)
        ids = torch.tensor([self.prompt], device=model.embed.tokens.weight.device)
        with evaluating(model):
            logits = model.unembed(model.hidden(ids)[:, position])  # (1, V)
        if not bool(torch.isfinite(logits).all()):
            return None
        words = (decode(self.prompt[:position]), "[MASK]", decode(self.prompt[position + 1 :]))
        return Sample(step, " ".join(word for word in words if word), decode([int(logits.argmax())]))


@contextmanager
def reading_first(setup: Setup) -> Iterator[str]:
    """Let a model of two stacks read the first held-out source, and yield it in words; empty for other models."""
    if not isinstance(setup.examples, Translations):
        yield ""
        return
    batch = setup.examples.first
    source = batch.source_of(0)
    assert source is not None
    with facing_row(setup.model, batch):
        yield setup.tokenizer.decode(source[0].tolist()) + ARROW


def _masked_sentence(examples: MaskedTokens, tokenizer: Tokenizer) -> list[int]:
    """A sentence between [CLS] and [SEP], at most a block long, with a one-token word near its middle masked."""
    sentences = examples.held_out_set if len(examples.held_out_set) else examples.train
    ids = sentences[0][: examples.block - 2]
    pieces = [tokenizer.library.id_to_token(token_id) or "" for token_id in ids]
    continues_word = [piece.startswith("##") for piece in (*pieces, "")]
    words = [index for index in range(len(ids)) if pieces[index].isalpha() and not continues_word[index + 1]]
    hidden = min(words, key=lambda index: abs(index - len(ids) // 2), default=len(ids) // 2)
    return [examples.cls, *ids[:hidden], examples.mask, *ids[hidden + 1 :], examples.sep]


def _first_tokens(examples: NextToken, tokenizer: Tokenizer, limit: int) -> list[int]:
    """The first tokens of the held-out text, up to an end token and at most ``limit`` of them."""
    room, start = min(_PROMPT_TOKENS, limit), tokenizer.start()
    first: list[int] = examples.held_out_set[:room].tolist()
    if not first and start is not None:
        return list(start.ids)
    first = first or examples.train[:room].tolist()
    return list(takewhile(lambda token_id: token_id not in tokenizer.end_ids, first)) or first
