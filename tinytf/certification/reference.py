"""The reference: a directory opened by transformers, with eager attention, and its outputs. Runs no remote code."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.through.opening import LOCAL, open_module, open_transformers

Outputs = tuple[list[Tensor], Tensor | None]
"""The input of the first block and the output of every block, (B, T, C) each, and the logits (B, T, V) if any."""


class Reference:
    """The model that transformers makes of ``directory``.

    Raises UsageError if transformers is not installed, CheckpointError if it cannot open the directory or would make up
    weights that are not in the files.
    """

    def __init__(self, directory: Path, dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
        self.model: Any = open_module(directory, device=device, dtype=str(dtype).removeprefix("torch."))

    @property
    def n_tokens(self) -> int:
        """The number of tokens with embeddings."""
        return len(self.model.get_input_embeddings().weight)

    def run_fused(self, ids: Tensor, real: Tensor | None, config: ModelConfig) -> Outputs | None:
        """Run with fused attention, which sums in another order; None if the model does not support it."""
        try:
            self.model.set_attn_implementation("sdpa")
        except (ValueError, ImportError):
            return None
        try:
            return self.run(ids, real, config)
        finally:
            self.model.set_attn_implementation("eager")

    @torch.no_grad()
    def run(self, ids: Tensor, real: Tensor | None, config: ModelConfig) -> Outputs:
        """Run the model: the input of the first block, the output of every block, (B, T, C) each, and logits (B, T, V).

        ``real`` (B, T) is False for padding. The last states come after the final norm. Logits are None if there is no
        head, and for padded texts of a classifier, whose head looks for the padding by itself. Of two stacks both have
        states, the encoder first; the decoder is given the text one token later.
        """
        inputs: dict[str, Any] = {"input_ids": ids.to(self.device)}
        if real is not None:
            inputs["attention_mask"] = real.long().to(self.device)
        inputs |= {"use_cache": False} if config.causal else {}
        skips_head = bool(config.labels) and real is not None
        last: list[Tensor] = []
        keep = self.model.base_model.register_forward_hook(lambda module, given, made: last.append(made[0]))
        if config.d_source:
            inputs["decoder_input_ids"] = given_to(config, ids, real).to(self.device)
            inputs |= {"decoder_attention_mask": mask} if (mask := inputs.get("attention_mask")) is not None else {}
        elif real is not None and config.position_offset and config.causal:  # OPT counts from the first real
            inputs["position_ids"] = torch.arange(ids.shape[1], device=self.device)[None].expand(len(ids), -1)
        result = (self.model.base_model if skips_head else self.model)(**inputs, output_hidden_states=True)
        keep.remove()
        kinds = ("encoder_hidden_states", "decoder_hidden_states", "hidden_states")
        states = [layer.float().cpu() for kind in kinds for layer in result.get(kind) or ()]
        if config.hyper:  # (B, T, n, C) -> (B, T, n·C)
            states = [layer.flatten(2) for layer in states]
        elif config.extra_streams and not config.stream_rank:  # (n, B, T, C) -> (B, T, n·C)
            # theirs does not norm the last ones
            states = [*(layer.movedim(0, -2).flatten(-2) for layer in states[:-1]), last[0].float().cpu()]
        if config.head.kind == "none" or skips_head:
            return states, None
        if config.head.kind == "question":
            return states, torch.stack([result.start_logits, result.end_logits], dim=-1).float().cpu()
        logits = result.logits.float().cpu()
        if config.head.kind == "sequence":
            return states, logits[:, None]
        return states, logits if logits.dim() == 3 else logits[..., None]  # one logit per token (ELECTRA)


def given_to(config: ModelConfig, ids: Tensor, real: Tensor | None) -> Tensor:
    """What a stack is given of texts (B, T), where ``real`` (B, T) is False for padding.

    One that reads another takes them as targets: the start token, then all tokens but the last.
    """
    if not config.d_source:
        return ids
    first = torch.zeros(len(ids), dtype=torch.long) if real is None else real.long().argmax(dim=1)
    return ids.roll(1, dims=1).index_put((torch.arange(len(ids)), first), torch.tensor(config.start_id))


def open_tokenizer(directory: Path) -> tuple[Callable[[str], list[int]], str]:
    """A function from a text to its ids, special tokens included, and the version of transformers.

    Raises UsageError if transformers is not installed, CheckpointError if it cannot open the directory.
    """
    with open_transformers(directory) as transformers:
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory, **LOCAL)
    return lambda text: [
        int(number) for number in tokenizer(text, verbose=False)["input_ids"]
    ], transformers.__version__
