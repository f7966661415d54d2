"""tinytf: see every number inside a transformer.

``load`` opens a model, ``Model.trace`` records a text, ``Model.generate`` goes on from one; they import torch only when
they are first used.
"""

from typing import TYPE_CHECKING, Any

from tinytf.config import ModelConfig
from tinytf.errors import TinytfError
from tinytf.version import __version__

if TYPE_CHECKING:
    from tinytf.dumps.capture import capture
    from tinytf.generate.decoder import Kind
    from tinytf.generate.loop import Looking
    from tinytf.generate.samplers import Sampling
    from tinytf.loading import Model, load
    from tinytf.text.chat import Conversation
    from tinytf.trace.record import record
    from tinytf.trace.trace import Trace

__all__ = [
    "Conversation",
    "Kind",
    "Looking",
    "Model",
    "ModelConfig",
    "Sampling",
    "TinytfError",
    "Trace",
    "__version__",
    "capture",
    "load",
    "record",
]

_LAZY = {
    "Model": "tinytf.loading",
    "load": "tinytf.loading",
    "capture": "tinytf.dumps.capture",
    "Conversation": "tinytf.text.chat",
    "Kind": "tinytf.generate.decoder",
    "Looking": "tinytf.generate.loop",
    "Sampling": "tinytf.generate.samplers",
    "record": "tinytf.trace.record",
    "Trace": "tinytf.trace.trace",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
