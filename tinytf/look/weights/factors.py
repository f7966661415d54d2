"""The matrices of one head in the coordinates of the residual stream, and tokens as vectors in it.

A head is four narrow matrices, and only products of two of them matter: W_V·W_O, what it moves, and W_Q·W_Kᵀ, where it
looks (Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits"). The gain of the norm that a head reads
through, that of a norm after attention and that of the final norm are multiplied into them. Shapes: C d_model, D head
width, V vocabulary, N tokens; vectors are rows.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from tinytf.errors import AddressError, TinytfError, UsageError
from tinytf.model.transformer import Transformer
from tinytf.parts.norm import normed_input
from tinytf.parts.row import Step
from tinytf.report import Data
from tinytf.steps.operations import Add, HeadNorm, Linear, Multiply, Norm, Same
from tinytf.steps.operations.norm import gain_of
from tinytf.steps.operations.operation import Pass
from tinytf.steps.program import STREAM
from tinytf.steps.table import StepTable, table_of
from tinytf.trace.address import parse_tensor
from tinytf.trace.hooks import module_of, tap_steps
from tinytf.trace.parameters import parse_parameter

CHUNK = 8192
"""Tokens of the vocabulary that are in memory at a time."""


class HeadKey(NamedTuple):
    """A head by its layer and number, ``L1H2``."""

    layer: int
    head: int

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}"


@dataclass(frozen=True, eq=False)
class Product:
    """A matrix (C, C) of low rank as two factors: ``left`` (C, D) and ``right`` (D, C), float64."""

    left: Tensor
    right: Tensor

    @property
    def norm(self) -> float:
        """The Frobenius norm."""
        return float(self.triangle.norm())

    @property
    def triangle(self) -> Tensor:
        """A matrix (D, D) with the singular values of the product."""
        return torch.linalg.qr(self.left).R @ torch.linalg.qr(self.right.T).R.T

    @property
    def transposed(self) -> "Product":
        return Product(self.right.T, self.left.T)

    @property
    def spectrum(self) -> "Spectrum":
        return Spectrum(torch.linalg.svdvals(self.triangle).cpu())

    def singular(self) -> tuple[Tensor, Tensor, Tensor]:
        """Directions read (C, D), singular values (D,), largest first, and directions written (D, C)."""
        read, write = torch.linalg.qr(self.left), torch.linalg.qr(self.right.T)
        u, sizes, v = torch.linalg.svd(read.R @ write.R.T)
        return read.Q @ u, sizes, v @ write.Q.T


@dataclass(frozen=True, eq=False)
class Circuits:
    """The two products of a head: ``ov`` = W_V·W_O, from what it reads to what it adds, and ``qk`` = W_Q·W_Kᵀ."""

    ov: Product
    qk: Product


@dataclass(frozen=True, eq=False)
class Spectrum(Data):
    """The singular values of a matrix, largest first, its Frobenius ``norm``, and its effective ``rank``.

    That is the exponential of the entropy of the singular values as shares (Roy and Vetterli 2007): n for n equal ones,
    0 for a matrix of zeros.
    """

    ALSO: ClassVar = ("norm", "rank")

    singular_values: Tensor

    @property
    def norm(self) -> float:
        return float(self.singular_values.norm())

    @property
    def rank(self) -> float:
        shares = self.singular_values / self.singular_values.sum().clamp_min(1e-300)
        return float(torch.special.entr(shares).sum().exp()) if shares.any() else 0.0

    @property
    def first(self) -> float:
        """The share of the largest singular value in the sum of all squares."""
        energy = self.singular_values.square()
        return float(energy[0] / energy.sum().clamp_min(1e-300))


def find_head(text: str, table: StepTable) -> HeadKey:
    """Like ``one_head``. Raises UsageError for a head without circuits."""
    key = one_head(text, table)
    require_circuits(table, key.layer)
    return key


def one_head(text: str, table: StepTable) -> HeadKey:
    """The head that ``L1H2`` names. Raises AddressError for anything else."""
    address = parse_tensor(text, table)
    layers, heads = address.layers or (), address.heads or ()
    if address.step is not None or address.letter != "H" or (len(layers), len(heads)) != (1, 1):
        raise AddressError(f"{text!r} is not one head", "such as L1H2")
    return HeadKey(layers[0], heads[0])


def circuit_heads(table: StepTable) -> list[HeadKey]:
    """Every head that has circuits. Raises UsageError, with the reason, if none has."""
    keys, reason = list[HeadKey](), ""
    for layer in range(table.config.n_layers):
        if reason_here := _why_not(table, layer):
            reason = reason or reason_here
        else:
            keys += [HeadKey(layer, head) for head in range(table.config.at(layer).n_heads)]
    if not keys:
        raise UsageError(reason)
    return keys


def require_circuits(table: StepTable, layer: int) -> None:
    """Raise UsageError for a layer whose heads are no two products of matrices."""
    if reason := _why_not(table, layer):
        raise UsageError(reason)


def _why_not(table: StepTable, layer: int) -> str:
    """Why the heads of a layer have no circuits; empty if they have."""
    config, head_output = table.config.at(layer), table.head_output(layer)
    if layer not in table.attention_layers or head_output is None:
        return f"layer {layer} has no attention weights, so its heads have no OV and QK circuits"
    if config.qkv_groups > 1:
        return f"the matrices of layer {layer} map parts of the stream each, so a head is no circuit of it"
    if config.kv_rank:
        return f"the keys and values of layer {layer} are compressed first, so W_V·W_O is not what a head moves"
    if config.added_conv:
        return f"the keys and values of layer {layer} are convolved over tokens first, so a head is no two products"
    taken = [table.at(*place) for place in table.taken(layer).values()]  # cross-attention is apart from these heads
    if config.extra_streams or not all(step.of_source for step in taken) or config.memory != "none":
        return f"layer {layer} takes more than the residual stream, so its heads are no circuits of it alone"
    if head_output.name != table.head_out or table.at(table.head_out, layer).inputs[0] != table.weights:
        mixing = head_output if head_output.name != table.head_out else table.at(head_output.inputs[0], layer)
        return f"between the values and W_O of layer {layer} lies {mixing.name} ({mixing.title})"
    for name in ("W_Q", "W_K", "W_V"):
        if not table.has_parameter(name, layer):
            return f"layer {layer} has no {name} of its own"
    return ""


@torch.no_grad()
def circuits(model: Transformer, key: HeadKey) -> Circuits:
    """A head's circuits, with the gains of the norms on their ways; without their scales, biases and rotation.

    Raises TinytfError if a weight of the head is not finite.
    """
    table, layer = table_of(model.config), key.layer
    q, k, v, o = (_matrix(model, table, key, name) for name in ("W_Q", "W_K", "W_V", "W_O"))
    q, k, v = (_read(model, table, layer, matrix) for matrix in (q, k, v))  # (C, D)
    q, k = (_head_gain(model, table, key, name, matrix) for name, matrix in (("q_norm", q), ("k_norm", k)))
    attn = next(step for step in table.added_in(layer) if step.role == "attention")
    written = carried(model, [(step, layer) for step in table.to_stream(attn, layer)], o)
    if table.config.norm == "layernorm" and table.config.norm_order == "pre":  # whose readers do not see the mean
        written = written - written.mean(dim=-1, keepdim=True)
    if not all(matrix.isfinite().all() for matrix in (q, k, v, written)):
        raise TinytfError(f"{key} has weights that are not finite", "tinytf trace --at shows a parameter")
    return Circuits(Product(v, written), Product(q, k.T))


def _matrix(model: Transformer, table: StepTable, key: HeadKey, name: str) -> Tensor:
    address = parse_parameter(f"{key}.{name}", table)
    assert address is not None
    return address.tensor(model).double()


def _read(model: Transformer, table: StepTable, layer: int, matrix: Tensor) -> Tensor:
    """A matrix (C, D) after the norm that the heads of a layer read through, without the norm's scale."""
    if not normed_input(table.config.at(layer)):
        return matrix
    norm = table.at("norm1", layer)
    module = module_of(model, norm, layer) if not norm.below else module_of(model, norm, layer - norm.below)
    gained = gain_of(module).double().reshape(-1, 1) * matrix
    return gained - gained.mean(dim=0) if _centres(norm) else gained


def _head_gain(model: Transformer, table: StepTable, key: HeadKey, name: str, matrix: Tensor) -> Tensor:
    """Queries or keys (C, D) times the gain of their own norm."""
    if not table.has(name, key.layer):
        return matrix
    step = table.at(name, key.layer)
    gain = gain_of(module_of(model, step, key.layer)).double().flatten()
    if len(gain) > matrix.shape[1]:  # side by side
        config = table.config.at(key.layer)
        head = key.head if name == "q_norm" else key.head // config.heads_per_kv
        gain = gain.unflatten(0, (-1, matrix.shape[1]))[head]
    return matrix * gain


def _centres(step: Step) -> bool:
    return isinstance(step.operation, Norm | HeadNorm) and step.operation.centred


def carried(model: Transformer, rows: Iterable[tuple[Step, int | None]], vectors: Tensor) -> Tensor:
    """Vectors (…, C) after steps that are linear but for the scale of a norm, which is left out, as biases are.

    Raises UsageError for a step that is not.
    """
    for step, layer in rows:
        operation, module = step.operation, module_of(model, step, layer)
        if isinstance(operation, Norm):
            centred = vectors - vectors.mean(dim=-1, keepdim=True) if operation.centred else vectors
            vectors = centred * gain_of(module).to(vectors)
        elif isinstance(operation, Multiply):
            vectors = vectors * operation.factor
        elif isinstance(operation, Linear):
            matrix: Tensor = operation.matrix(module)
            vectors = vectors @ matrix.to(vectors).T
        elif not isinstance(operation, Add | Same):
            raise UsageError(
                f"{step.name} ({step.title}) is not linear, so what a head writes is not read as tokens",
                "weights --compose and --into need no tokens",
            )
    return vectors


class Vocabulary:
    """The tokens of a model as vectors on both ends of a circuit.

    ``embedded`` (N, C) are what a head reads if the stream holds the embedding of one token alone, without positions:
    normed, but for the gain, which ``circuits`` have. ``unembedded`` (N, C) are the tokens' rows of the unembedding,
    minus the mean of all rows: what raises every logit alike changes no prediction. Left out are the final norm's scale
    and a soft cap.
    """

    def __init__(self, model: Transformer) -> None:
        model.require_vocabulary("what a head writes is not read as tokens")
        self.model, self.size = model, model.config.vocab_size
        self._table = table_of(model.config)
        self._after = [
            (step, None) for step in self._table.after if step.to_loss and not step.is_vocabulary and step.runs
        ]
        self._factor = model.config.logit_scale
        self.matrix = model.unembedding[: self.size].detach()  # (V, C), or as wide as the head
        self._mean = self.matrix.mean(dim=0, dtype=torch.float64)
        self.to_head(torch.zeros(1, model.config.d_model, device=self.matrix.device))  # refuse what is not linear

    def embeddings(self, ids: Tensor) -> Tensor:
        """The residual stream (N, C) that each token enters with, without its position and type."""
        names = ("embed.positions", "embed.types")
        with tap_steps(self.model, lambda _, tensor: torch.zeros_like(tensor), names):
            return self.model.embed(ids[:, None])[:, 0]

    def embedded(self, ids: Tensor) -> Tensor:
        x, table = self.embeddings(ids), self._table
        layer = table.attention_layers[0]
        if not normed_input(table.config.at(layer)):
            return x
        normed: Tensor = table.at("norm1", layer).operation.normed(x)[0]
        return normed

    def chunks(self) -> Iterator[Tensor]:
        """All token ids, a few thousand at a time."""
        return iter(torch.arange(self.size, device=self.matrix.device).split(CHUNK))

    def to_head(self, vectors: Tensor) -> Tensor:
        """Vectors (N, C) in the stream as the unembedding takes them."""
        return carried(self.model, self._after, vectors) * self._factor

    def unembedded(self, ids: Tensor) -> Tensor:
        """Rows of the unembedding minus the mean row, (N, C) in float64."""
        return self.matrix[ids].double() - self._mean


@torch.no_grad()
def queries_and_keys(model: Transformer, key: HeadKey, ids: Tensor, vocabulary: Vocabulary, which: int) -> Tensor:
    """The queries (``which`` 0) or keys (1) of a head, (N, D), of tokens that stand alone at position 0.

    The rows of the block itself run, on streams that hold the embedding of one token each; so biases, norms of queries
    and keys and their scales are in them, and the rotation by a distance of 0 is none.
    """
    table, block = table_of(model.config), model.blocks[key.layer]
    name = table.at("scores", key.layer).inputs[which]
    needed = {name}
    rows: Any = block.rows
    for row in reversed(rows):
        if row.name in needed:
            needed |= {*row.inputs}
    values: dict[str, Tensor] = {STREAM: vocabulary.embeddings(ids)[:, None]}
    for row in rows:
        if row.name in needed:
            values[row.name] = row(values, Pass())
    config = model.config.at(key.layer)
    head = key.head // config.heads_per_kv if which else key.head
    return values[name][:, head, 0]
