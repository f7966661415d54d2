"""Take the film of a run: at some steps, what the model does with a few fixed texts. ``film.py`` reads it.

Shapes: L layers, H heads, T tokens, Q and K where query and key differ, F units of a layer.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save as save_tensors
from torch import Tensor

from tinytf.checkpoints.run import write_run
from tinytf.files import to_json
from tinytf.look.heads.measures import spread_over_layers
from tinytf.model.transformer import Transformer
from tinytf.outputs import make_folder, remove, remove_folder, write_state
from tinytf.runs.film import SEEN, TWICE, UNSEEN
from tinytf.runs.run_files import FRAMES, PROBES, frame_step
from tinytf.steps.table import table_of
from tinytf.text.tokenizer import Tokenizer
from tinytf.trace.hooks import tap_steps
from tinytf.training.data.chats import FIRST, LEARNED
from tinytf.training.data.examples import IGNORED, Examples, Ids, NextToken, parts_of
from tinytf.training.data.setup import Setup
from tinytf.training.film.probe import HeadScores
from tinytf.training.recipe import Recipe
from tinytf.training.tuning.health import Health
from tinytf.training.tuning.sharding import gather

_UNSEEN, _SEEN, _TWICE = 128, 32, 12
_MAP_SIDE, _MAP_BYTES = 48, 1 << 18
_TOP = 5
_DEAD = 0.01


@dataclass(frozen=True)
class Probe:
    """A fixed text: input ``ids`` (T,) and ``targets`` (T,), IGNORED where there is none, and any ``source`` (1, S)."""

    name: str
    ids: Tensor
    targets: Tensor
    source: Tensor | None = None


def probes_of(examples: Examples, longest: int) -> tuple[Probe, ...]:
    """The start of the held-out text, the start of the training text, and some held-out tokens twice in a row.

    Other objectives use the first held-out examples. Without held-out text, all probes come from the training text.
    """
    if not isinstance(examples, NextToken):
        batch, name = next(examples.held_out(1), None), UNSEEN
        if batch is None:
            batch, name = examples.batch(0), SEEN
        rows = (
            zip(batch.ids, batch.targets, strict=True)
            if batch.padding_mask is None
            else (
                (ids[mask == 1], targets[mask == 1])  # of several texts in a row, only the first
                for ids, targets, mask in zip(batch.ids, batch.targets, batch.padding_mask, strict=True)
            )
        )
        texts = [(ids[:_MAP_SIDE], targets[:_MAP_SIDE]) for ids, targets in rows][:3]
        return tuple(Probe(f"{name} {n + 1}", *text, batch.source_of(n)) for n, text in enumerate(texts))
    unseen = len(examples.held_out_set) > 3
    once = (examples.held_out_set if unseen else examples.train)[: min(_TWICE, longest // 2)]
    streams = {UNSEEN: examples.held_out_set[: min(_UNSEEN, longest) + 1]} if unseen else {}
    streams |= {SEEN: examples.train[: min(_SEEN, longest) + 1], TWICE: np.concatenate((once, once))}
    tensors = {name: torch.from_numpy(stream.astype(np.int64)) for name, stream in streams.items()}
    return tuple(Probe(name, ids[:-1], ids[1:]) for name, ids in tensors.items())


def without_context(stream: Ids, vocab_size: int) -> list[float]:
    """The loss in nats of each token of the vocabulary, guessed by its frequency in a text, or uniformly if better.

    Every count starts from 1, so that no loss is infinite.
    """
    counts = np.ones(vocab_size, dtype=np.int64)
    for part in parts_of(stream):
        counts += np.bincount(part.astype(np.int64) & ~int(FIRST | LEARNED), minlength=vocab_size)
    by_frequency = math.log(counts.sum()) - np.log(counts)
    losses: list[float] = np.minimum(by_frequency, math.log(vocab_size)).tolist()
    return losses


class Camera:
    """Takes the frames of a run: before its first step, after 1, 2, 4, 8 … steps, at each checkpoint and at the end."""

    def __init__(self, setup: Setup, recipe: Recipe, run: Path) -> None:
        self.setup, self.recipe, self.folder = setup, recipe, run / FRAMES
        config = setup.model.config
        self.probes = probes_of(setup.examples, min(recipe.block, config.context))
        self.side = min(_MAP_SIDE, math.isqrt(_MAP_BYTES // (2 * config.n_layers * config.n_heads)))
        self._interval = recipe.save_every or recipe.eval_every

    def due(self, step: int) -> bool:
        """Whether a frame is taken after ``step`` steps."""
        return step & (step - 1) == 0 or step % self._interval == 0 or step in (self.recipe.at_step, self.recipe.steps)

    def begin(self, step: int) -> None:
        """Write the probes, and remove the frames of steps that will be repeated. Raises OSError."""
        for path in self.folder.glob("step-*"):
            if frame_step(path) > step:
                for file in sorted(path.iterdir()) if path.is_dir() else [path]:
                    remove(file)
                if path.is_dir():
                    remove_folder(path)
        token_text = self.setup.tokenizer.shown
        baseline = without_context(self.setup.stream, self.setup.model.config.vocab_size)
        described = [
            {
                "name": probe.name,
                "text": self.setup.tokenizer.decode(probe.ids.tolist()),
                "ids": probe.ids.tolist(),
                "tokens": [token_text(token_id) for token_id in probe.ids.tolist()],
                "targets": [None if target == IGNORED else target for target in probe.targets.tolist()],
                "expected": [None if target == IGNORED else token_text(target) for target in probe.targets.tolist()],
                "baseline": [None if target == IGNORED else baseline[target] for target in probe.targets.tolist()],
            }
            for probe in self.probes
        ]
        make_folder(self.folder)
        write_state(self.folder / PROBES, to_json({"probes": described}))

    def measure(self, model: Transformer) -> "Frame":
        """Run the model on the probes; leaves the model and the random state unchanged."""
        return Frame.of(model, self.probes, self.side, self.setup.tokenizer)

    def write(self, step: int, frame: "Frame", heads: HeadScores, health: Health | None) -> None:
        """Write a frame, complete or not at all. Raises OSError."""
        tensors = dict(frame.tensors)
        for kind, scores in vars(heads).items():
            if scores is not None:
                tensors[f"heads.{kind}"] = torch.tensor(scores)
        if health is not None:
            tensors["gradient_norm"] = torch.tensor(health.gradient_norm)
            tensors["update_ratio"] = torch.tensor(health.update_ratio)
        metadata = {"tinytf": json.dumps({"step": step, "words": frame.words}, ensure_ascii=False)}
        write_state(self.folder / f"step-{step:06d}.safetensors", save_tensors(tensors, metadata=metadata))

    def weights(self, model: Transformer) -> dict[str, Tensor]:
        """All weights in bfloat16, by name; every process of a sharded model must call this."""
        return {
            name: gather(parameter.detach()).cpu().to(torch.bfloat16) for name, parameter in model.named_parameters()
        }

    def write_weights(self, step: int, weights: dict[str, Tensor]) -> None:
        """Write the weights as a model that any command opens. Raises OSError."""
        write_run(self.folder / f"step-{step:06d}", self.setup.model.config, weights, self.setup.tokenizer)


@dataclass(frozen=True)
class Frame:
    """Tensors by name, and for each probe the ``words`` (T, 5) that the model thinks most probable.

    For every probe, by its name: ``maps`` (L, H, Q, K), only of its first tokens if it is long; ``norms`` (L + 1, T) of
    the residual stream; ``loss`` (T,) in nats, NaN without a target; ``top`` (T, 5) probabilities. Over all probes:
    ``rms`` (L,) of the stream after each layer, and ``dead`` (L,), the share of units whose activation stays below a
    hundredth of the layer's root mean square at every token.
    """

    tensors: dict[str, Tensor]
    words: dict[str, list[list[str]]]

    @classmethod
    @torch.no_grad()
    def of(cls, model: Transformer, probes: tuple[Probe, ...], side: int, tokenizer: Tokenizer) -> "Frame":
        config, table = model.config, table_of(model.config)
        device = model.embed.tokens.weight.device
        tensors: dict[str, Tensor] = {}
        words: dict[str, list[list[str]]] = {}
        streams: list[Tensor] = []
        units: list[list[Tensor]] = [[] for _ in range(config.n_layers)]

        def layers(recorded: dict[str, Tensor], name: str) -> Iterator[Tensor]:
            return (recorded[f"L{n}.{name}"][0] for n in range(config.n_layers) if f"L{n}.{name}" in recorded)

        for probe in probes:
            recorded: dict[str, Tensor] = {}

            def keep(name: str, tensor: Tensor, recorded: dict[str, Tensor] = recorded) -> Tensor:
                recorded[name] = tensor.float().cpu()
                return tensor

            with tap_steps(model, keep), torch.autocast(device.type, enabled=False):
                read = model.read(probe.source)
                logits = model.unembed(model.hidden(probe.ids[None].to(device), source=read))[0].float().cpu()  # (T, V)
            log_p = logits.log_softmax(dim=-1)
            top = log_p.topk(min(_TOP, log_p.shape[-1]), dim=-1)
            loss = F.nll_loss(log_p, probe.targets, ignore_index=IGNORED, reduction="none")
            weights = [recorded[f"L{n}.{table.weights}"][0, :, :side, :side] for n in table.attention_layers]
            empty = torch.empty(0, config.n_heads, *[min(side, len(probe.ids))] * 2)
            maps = spread_over_layers(
                torch.stack(weights) if weights else empty, table.attention_layers, config.n_layers
            )
            stream = torch.stack([recorded[table.embedded][0], *layers(recorded, table.output)])  # (L + 1, T, C)
            streams.append(stream[1:])
            for layer, activated in enumerate(layers(recorded, table.ffn_activation)):
                units[layer].append(activated)
            tensors |= {
                f"{probe.name}.maps": maps.to(torch.float16),
                f"{probe.name}.norms": stream.norm(dim=-1),
                f"{probe.name}.loss": torch.where(probe.targets == IGNORED, math.nan, loss),
                f"{probe.name}.top": top.values.exp(),
            }
            words[probe.name] = [[tokenizer.shown(token_id) for token_id in row] for row in top.indices.tolist()]
        tensors["rms"] = torch.cat(streams, dim=1).square().mean(dim=(1, 2)).sqrt()
        if all(units) and all(activations.dim() == 2 for layer in units for activations in layer):
            tensors["dead"] = torch.stack([dead_share(torch.cat(layer)) for layer in units])
        return cls({name: tensor.contiguous() for name, tensor in tensors.items()}, words)


def dead_share(activations: Tensor) -> Tensor:
    """The share of dead units of a layer: activations (T, F); all of them are if none is ever active."""
    root_mean_square = activations.square().mean().sqrt()
    return (activations.abs().amax(dim=0) <= _DEAD * root_mean_square).float().mean()
