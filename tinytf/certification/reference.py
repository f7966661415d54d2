"""The other side: a directory opened by transformers, in eager attention, and what it computes. Runs no remote code."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tinytf.config import ModelConfig
from tinytf.errors import CheckpointError, UsageError
from tinytf.text.printable import printable

Ran = tuple[list[Tensor], Tensor | None]
"""What goes into the first block and comes out of every one, (B, T, C) each, and the logits (B, T, V) if any."""
_LOCAL = {"trust_remote_code": False, "local_files_only": True}


class Reference:
    """The model that transformers makes of ``directory``.

    Raises UsageError where transformers is not installed, CheckpointError for what it cannot open, or opens with
    weights that are not in the files.
    """

    def __init__(self, directory: Path, dtype: torch.dtype, device: torch.device) -> None:
        self.device = device
        with _opening(directory) as transformers:
            config = transformers.AutoConfig.from_pretrained(directory, **_LOCAL)
            kind = getattr(transformers, (config.architectures or [""])[0], transformers.AutoModel)
            how = {"dtype": dtype, "attn_implementation": "eager", "output_loading_info": True, **_LOCAL}
            model, loaded = kind.from_pretrained(directory, config=config, **how)
        if loaded["missing_keys"]:
            missing = sorted(loaded["missing_keys"])
            raise CheckpointError(f"transformers finds no {missing[0]} in {directory}, and would make it up")
        self.model = model.eval().to(device)

    @property
    def n_tokens(self) -> int:
        """How many tokens it has embeddings for."""
        return len(self.model.get_input_embeddings().weight)

    def run_fused(self, ids: Tensor, real: Tensor | None, config: ModelConfig) -> Ran | None:
        """A run in fused attention, which sums in another order; None where the model has none."""
        try:
            self.model.set_attn_implementation("sdpa")
        except (ValueError, ImportError):
            return None
        try:
            return self.run(ids, real, config)
        finally:
            self.model.set_attn_implementation("eager")

    @torch.no_grad()
    def run(self, ids: Tensor, real: Tensor | None, config: ModelConfig) -> Ran:
        """What goes into the first block and comes out of every one, (B, T, C) each, and the logits (B, T, V).

        ``real`` (B, T) is False for padding. The last states are those after the final norm. Logits are None where
        there is no head, and those of classes where texts are padded: their head looks for the padding by itself.
        """
        given: dict[str, Any] = {"input_ids": ids.to(self.device)}
        if real is not None:
            given["attention_mask"] = real.long().to(self.device)
            if config.position_offset and config.causal:  # OPT counts from the first real token
                given["position_ids"] = torch.arange(ids.shape[1], device=self.device)[None].expand(len(ids), -1)
        given |= {"use_cache": False} if config.causal else {}
        unread = bool(config.labels) and real is not None
        result = (self.model.base_model if unread else self.model)(**given, output_hidden_states=True)
        states = [one.float().cpu() for one in result.hidden_states]
        if config.head.kind == "none" or unread:
            return states, None
        if config.head.kind == "question":
            return states, torch.stack([result.start_logits, result.end_logits], dim=-1).float().cpu()
        logits = result.logits.float().cpu()
        if config.head.kind == "sequence":
            return states, logits[:, None]
        return states, logits if logits.dim() == 3 else logits[..., None]  # one logit a token (ELECTRA)


def their_tokenizer(directory: Path) -> tuple[Callable[[str], list[int]], str]:
    """What gives the ids of a text, with what the tokenizer adds; and the version of transformers. Raises as above."""
    with _opening(directory) as transformers:
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory, **_LOCAL)
    return lambda text: [int(one) for one in tokenizer(text, verbose=False)["input_ids"]], transformers.__version__


@contextmanager
def _opening(directory: Path) -> Iterator[Any]:
    """transformers, without its progress bars and warnings; what goes wrong is a CheckpointError."""
    try:
        import transformers
    except ImportError:
        said = "certify compares with transformers, which is not installed"
        raise UsageError(said, 'pip install "tinytf[certify]"') from None
    logging: Any = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield transformers
    except Exception as error:  # whatever a library of this size raises
        said = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise CheckpointError(
            f"transformers cannot open {directory}: {printable(said, spaces=False)[:300].rstrip(': ')}"
        ) from None
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
