"""The reference: a directory opened by transformers, with eager attention, and its outputs. Runs no remote code."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError, UsageError
from tinytf.text.printable import printable

Outputs = tuple[list[Tensor], Tensor | None]
"""The input of the first block and the output of every block, (B, T, C) each, and the logits (B, T, V) if any."""
_LOCAL = {"trust_remote_code": False, "local_files_only": True}


class Reference:
    """The model that transformers makes of ``directory``.

    Raises UsageError if transformers is not installed, CheckpointError if it cannot open the directory or would make up
    weights that are not in the files.
    """

    def __init__(self, directory: Path, dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
        with _open_transformers(directory) as transformers:
            config = transformers.AutoConfig.from_pretrained(directory, **_LOCAL)
            kind = getattr(transformers, (config.architectures or [""])[0], transformers.AutoModel)
            options = {"dtype": dtype, "attn_implementation": "eager", "output_loading_info": True, **_LOCAL}
            model, loaded = kind.from_pretrained(directory, config=config, **options)
        if loaded["missing_keys"]:
            missing = sorted(loaded["missing_keys"])
            raise CheckpointError(f"transformers finds no {missing[0]} in {directory}, and would make it up")
        self.model = model.eval().to(device)

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
        head, and for padded texts of a classifier, whose head looks for the padding by itself.
        """
        inputs: dict[str, Any] = {"input_ids": ids.to(self.device)}
        if real is not None:
            inputs["attention_mask"] = real.long().to(self.device)
            if config.position_offset and config.causal:  # OPT counts from the first real token
                inputs["position_ids"] = torch.arange(ids.shape[1], device=self.device)[None].expand(len(ids), -1)
        inputs |= {"use_cache": False} if config.causal else {}
        skips_head = bool(config.labels) and real is not None
        result = (self.model.base_model if skips_head else self.model)(**inputs, output_hidden_states=True)
        states = [layer.float().cpu() for layer in result.hidden_states]
        if config.head.kind == "none" or skips_head:
            return states, None
        if config.head.kind == "question":
            return states, torch.stack([result.start_logits, result.end_logits], dim=-1).float().cpu()
        logits = result.logits.float().cpu()
        if config.head.kind == "sequence":
            return states, logits[:, None]
        return states, logits if logits.dim() == 3 else logits[..., None]  # one logit per token (ELECTRA)


def open_tokenizer(directory: Path) -> tuple[Callable[[str], list[int]], str]:
    """A function from a text to its ids, special tokens included, and the version of transformers.

    Raises UsageError if transformers is not installed, CheckpointError if it cannot open the directory.
    """
    with _open_transformers(directory) as transformers:
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory, **_LOCAL)
    return lambda text: [
        int(number) for number in tokenizer(text, verbose=False)["input_ids"]
    ], transformers.__version__


@contextmanager
def _open_transformers(directory: Path) -> Iterator[Any]:
    """Yield transformers, without progress bars and warnings; turns its errors into CheckpointError."""
    try:
        import transformers
    except ImportError:
        message = "certify compares with transformers, which is not installed"
        raise UsageError(message, 'pip install "tinytf[certify]"') from None
    logging: Any = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield transformers
    except Exception as error:  # the library may raise anything
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise CheckpointError(
            f"transformers cannot open {directory}: {printable(reason, spaces=False)[:300].rstrip(': ')}"
        ) from None
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
