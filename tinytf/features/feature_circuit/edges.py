"""The direct effects of features, errors and tokens on the features and logits of a prompt (Ameisen et al. 2025).

Shapes: T tokens, C width of the step that is read, O of the one that is written, F features of a layer, V vocabulary,
S sources (active features, errors, tokens), R targets whose sources are known (logits, features), N a batch of targets.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tinytf.features.feature_circuit.frozen import Frozen, Replaced
from tinytf.features.place import Place
from tinytf.features.transcoders import TranscoderSet
from tinytf.model.transformer import Transformer
from tinytf.report import Progress
from tinytf.steps.table import StepTable, table_of

_ROOM = 2**25
"""Numbers of a batch of gradients at one step."""


@dataclass(frozen=True)
class Sources:
    """The active features of a prompt, sorted by layer, position and number: (n,) each; ``positions`` is T.

    Behind them, an error of each of ``layers`` and position is a source, and the vector that enters the first layer at
    each position.
    """

    layer: Tensor
    position: Tensor
    number: Tensor
    activation: Tensor
    layers: tuple[int, ...]
    positions: int

    @property
    def n_features(self) -> int:
        return len(self.layer)

    @property
    def errors(self) -> slice:
        return slice(self.n_features, self.n_features + len(self.layers) * self.positions)

    @property
    def tokens(self) -> slice:
        return slice(self.errors.stop, self.errors.stop + self.positions)

    @property
    def count(self) -> int:
        return self.tokens.stop

    def of_layer(self, layer: int) -> slice:
        """The features of a layer."""
        return slice(int((self.layer < layer).sum()), int((self.layer <= layer).sum()))


@dataclass(frozen=True)
class Edges:
    """What each source adds to each target: ``weights`` (R, S), with the ``values`` (R,) and ``biases`` of the targets.

    The first rows are the logits ``targets`` with their ``probabilities``, each less the mean of all logits; the others
    are features, layer by layer from the last: ``own`` (R,) is each row's own source, −1 for a logit, and ``groups``
    are the rows that no row of the same group adds to. ``influence`` (S,) is the share of the logits that reaches them
    through each source, if every target is divided among its sources by the size of what they add.
    """

    sources: Sources
    targets: tuple[int, ...]
    probabilities: Tensor
    weights: Tensor
    values: Tensor
    biases: Tensor
    own: Tensor
    groups: tuple[slice, ...]

    @property
    def difference(self) -> float:
        """The largest difference of a target from the sum of its sources and bias, relative to the largest of these."""
        parts = self.weights.double().abs().sum(1).clamp(min=1.0)
        return float(((self.weights.double().sum(1) + self.biases - self.values).abs() / parts).max())

    def reaching(self, weights: Tensor, of_logits: Tensor) -> Tensor:
        """What reaches each source (S,) of what is put on the logits, by ``weights`` (R, S) along each edge."""
        reached = weights.new_zeros(weights.shape[1])
        for group in self.groups:
            own = self.own[group]
            reached = reached + (of_logits if int(own[0]) < 0 else reached[own]) @ weights[group]
        return reached

    @property
    def effects(self) -> Tensor:
        """How much of the first logit each source makes, (S,), directly and through features that grow in proportion.

        It is what the logit loses without the source while patterns, scales and errors stay.
        """
        relative = self.weights.double().clone()
        of_features = self.own >= 0
        relative[of_features] /= self.values[of_features, None]
        first = torch.zeros(len(self.targets), dtype=torch.float64)
        first[0] = 1
        return self.reaching(relative, first)


def normalised(weights: Tensor) -> Tensor:
    """The share of each source in the sizes of what is added to a target."""
    sizes = weights.abs()
    return sizes / sizes.sum(dim=1, keepdim=True).clamp(min=1e-30)


class Attribution:
    """A frozen pass of a prompt, its active features and what the transcoders miss."""

    def __init__(self, model: Transformer, ids: Sequence[int], own: Sequence[int], transcoders: TranscoderSet) -> None:
        table = table_of(model.config)
        places = transcoders.places(table)
        self.model, self.set, self.numbers = model, transcoders, {layer: n for n, layer in enumerate(places)}
        self.replaced = tuple(_replaced(table, transcoders, places))
        self.frozen = Frozen(model, ids, self.replaced)
        self.own = torch.zeros(len(ids), dtype=torch.bool)
        self.own[list(own)] = True
        with torch.no_grad():
            self._find_features()

    def _find_features(self) -> None:
        found, activations = [], []
        for at_layer, coder_number in self.numbers.items():
            coder = self.set.coders[coder_number]
            active = coder.encode(self.frozen.read[at_layer][0]).cpu() * self.own[:, None]  # (T, F)
            at = active.nonzero()
            found.append(torch.cat((torch.full((len(at), 1), at_layer), at), dim=1))
            activations.append(active[at[:, 0], at[:, 1]])
        layer, position, feature = torch.cat(found).unbind(1)
        layers = tuple(at.layer for at in self.replaced)
        self.sources = Sources(layer, position, feature, torch.cat(activations), layers, len(self.own))
        self.added = {at.layer: self._written(at) for at in self.replaced}

    def vectors(self, feature: int) -> Iterator[tuple[int, Tensor]]:
        """What an active feature adds: each layer whose feed-forward it writes to, with the vector (O,)."""
        sources, layer = self.sources, int(self.sources.layer[feature])
        directions = self.set.directions(self.numbers[layer])[sources.number[feature]]  # (1 + n, O)
        for above, direction in enumerate(directions):
            yield layer + above, direction * sources.activation[feature].to(direction)

    def _written(self, at: Replaced) -> list[tuple[Tensor, Tensor]]:
        """The sources of what a feed-forward adds, for each position: their numbers (J,) and vectors (J, O)."""
        sources, value = self.sources, self.frozen.written[at.layer].detach()[0]  # (T, O)
        rest = value.clone()
        numbers, positions, vectors = [], [], []
        for layer, number in self.numbers.items():
            above = at.layer - layer
            if above < 0 or (above and not self.set.crosses_layers):
                continue
            features = sources.of_layer(layer)
            directions = self.set.directions(number)[sources.number[features], above]
            vectors.append((directions * sources.activation[features, None].to(directions)).to(value))
            positions.append(sources.position[features])
            numbers.append(torch.arange(features.start, features.stop))
            rest.index_add_(0, positions[-1].to(rest.device), -vectors[-1])
        rest -= self.biases(at).to(rest)
        first = sources.errors.start + sources.layers.index(at.layer) * sources.positions
        numbers.append(torch.arange(first, first + sources.positions))
        positions.append(torch.arange(sources.positions))
        vectors.append(rest)
        all_numbers, all_vectors, place = torch.cat(numbers), torch.cat(vectors), torch.cat(positions)
        return [(all_numbers[place == p], all_vectors[place == p]) for p in range(sources.positions)]

    def biases(self, at: Replaced) -> Tensor:
        """What a transcoder adds whichever features are active: its output bias at the text's own tokens, (T, O)."""
        if at.coder is None:
            return torch.zeros(())
        return self.own[:, None].to(at.coder.output_bias) * at.coder.output_bias

    def edges(self, targets: Sequence[int], probabilities: Tensor, most: int | None, on_progress: Progress) -> Edges:
        """The edges into the logits ``targets``, and into the ``most`` features of each layer with most influence."""
        sources, frozen = self.sources, self.frozen
        with torch.no_grad():
            zero = frozen.written[self.replaced[0].layer].new_zeros(1)
            given = {at.layer: self.biases(at).to(zero) for at in self.replaced}
            read, logits = frozen.constants(given)
        ways = torch.zeros(len(targets), len(logits)).to(frozen.logits)
        ways[range(len(targets)), list(targets)] = 1
        ways -= 1 / len(logits)
        rows = [self._rows(frozen.logits, ways)]
        values, biases = [(ways @ frozen.logits.detach()).cpu()], [(ways @ logits).cpu()]
        own, groups = [torch.full((len(targets),), -1)], [slice(0, len(targets))]
        influence = probabilities.double() @ normalised(rows[0]).double()
        for done, layer in enumerate(reversed(self.numbers), 1):
            of_layer = sources.of_layer(layer)
            features = torch.arange(of_layer.start, of_layer.stop)
            if most is not None and len(features) > most:
                features = features[influence[features].topk(most).indices.sort().values]
            if len(features):
                weights, value, bias = self._into(layer, features, read[layer])
                influence = influence + influence[features] @ normalised(weights).double()
                groups.append(slice(groups[-1].stop, groups[-1].stop + len(features)))
                for kept, part in zip((rows, values, biases, own), (weights, value, bias, features), strict=True):
                    kept.append(part)
            on_progress(done, len(self.numbers))
        joined = [torch.cat(parts) for parts in (rows, values, biases, own)]
        weights, value, bias, owns = joined
        return Edges(sources, tuple(targets), probabilities.double(), weights, value.double(), bias.double(), owns,
                     tuple(groups))  # fmt: skip

    def _into(self, layer: int, features: Tensor, constant: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The weights (N, S) of the edges into some features of a layer, their activations and their biases (N,)."""
        sources, read = self.sources, self.frozen.read[layer]
        encoder, bias = self.set.coders[self.numbers[layer]].affine
        numbers, positions = sources.number[features].to(encoder.device), sources.position[features].to(encoder.device)
        vectors = encoder.T[numbers].to(read)  # (N, C)
        batch, rows = max(1, _ROOM // read.numel()), []
        for first in range(0, len(features), batch):
            part = slice(first, first + batch)
            ways = read.new_zeros(len(numbers[part]), *read.shape)  # (N, 1, T, C)
            ways[range(len(ways)), 0, positions[part]] = vectors[part]
            rows.append(self._rows(read, ways))
        constants = (constant[0][positions].to(vectors) * vectors).sum(1) + bias[numbers].to(vectors)
        return torch.cat(rows), sources.activation[features].to(rows[0]), constants.cpu()

    def _rows(self, output: Tensor, ways: Tensor) -> Tensor:
        """What each source adds to N products of an output with directions: (N, S)."""
        of_start, *of_written = (gradient.detach()[:, 0] for gradient in self.frozen.gradients(output, ways))
        sources, start = self.sources, self.frozen.start.detach()[0]
        rows = torch.zeros(len(ways), sources.count, dtype=start.dtype)
        rows[:, sources.tokens] = torch.einsum("ntc,tc->nt", of_start, start).cpu()
        for at, gradient in zip(self.replaced, of_written, strict=True):
            for position, (numbers, vectors) in enumerate(self.added[at.layer]):
                rows[:, numbers] += (gradient[:, position] @ vectors.T).cpu()
        return rows

    def measured(
        self, changes: Sequence[Sequence[tuple[int, int, Tensor]]], target: int, *, held: bool = False
    ) -> Tensor:
        """The logit of ``target``, less the mean of all, in the model itself with some vectors added: (B,) float64.

        A change is a list of layers, positions, and the vectors (O,) added to what the feed-forward writes there. With
        ``held``, attention patterns and the scales of norms are those of the run without a change.
        """
        logits, tokens = [], self.frozen.ids.shape[1]
        batch = max(1, _ROOM // (tokens * 8 * self.model.config.d_model))
        for first in range(0, len(changes), batch):
            part = changes[first : first + batch]
            deltas: dict[int, Tensor] = {}
            for row, change in enumerate(part):
                for layer, position, vector in change:
                    value = self.frozen.written[layer].detach()
                    delta = deltas.setdefault(layer, value.new_zeros(len(part), *value.shape[1:]))
                    delta[row, position] += vector.to(delta)
            rows = self.frozen.changed(deltas, len(part), held=held).double()
            logits.append((rows[:, target] - rows.mean(dim=1)).cpu())
        return torch.cat(logits)


def _replaced(
    table: StepTable, transcoders: TranscoderSet, places: Mapping[int, tuple[Place, Place]]
) -> Iterator[Replaced]:
    """Every feed-forward of a model, with its transcoder or without."""
    coders = dict(zip(places, transcoders.coders, strict=True))
    for layer in range(table.config.n_layers):
        if layer in places:
            read, write = places[layer]
            yield Replaced(layer, coders[layer], read, table.at(write.name, layer))
        elif table.has(table.feed_forward.name, layer):
            yield Replaced(layer, None, None, table.at(table.feed_forward.name, layer))
