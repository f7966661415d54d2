"""Quantised weights as Hugging Face folders store them: each matrix from the several tensors of a published layout.

Shapes: (out, in) a matrix, G groups of its inputs. Whole numbers of a few bits lie in 32-bit words, the first lowest;
of 3 bits, say, 32 lie in three words, and some begin in one and end in the next.
"""

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tinytf.checkpoints.load import Shapes, WeightFiles
from tinytf.checkpoints.mxfp4 import NIBBLE_VALUES
from tinytf.errors import CheckpointError, ConfigError
from tinytf.fields import quoted, shown
from tinytf.files import parse_json

Parts = Mapping[str, Tensor]
Settings = Mapping[str, Any]


class Layout(NamedTuple):
    """One way to store a matrix: the endings of its tensors, after the name of its module, and how it is read.

    A module is stored so if it has all tensors of ``parts``; those of ``may`` can be lacking. ``facts`` have numbers
    that say what shape the matrix has. Tensors of ``unread`` are of activations, which stay as they are here.
    """

    title: str
    parts: tuple[str, ...]
    read: Callable[[Parts, Settings], Tensor]
    may: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


def unpacked(words: Tensor, bits: int, axis: int = -1) -> Tensor:
    """The numbers of ``bits`` bits in 32-bit words, which run along an axis of a matrix."""
    if bits not in range(1, 9):
        raise CheckpointError(f"numbers of {bits} bits are not implemented", "1 to 8 are")
    if words.element_size() != 4:
        raise CheckpointError(f"numbers in words of type {str(words.dtype).removeprefix('torch.')} are not implemented")
    words = (words.view(torch.int32) if words.dtype != torch.int32 else words).movedim(axis, -1)
    starts = torch.arange(words.shape[-1] * 32 // bits, device=words.device) * bits
    word, shift = starts // 32, (starts % 32).int()
    here = (32 - shift).clamp(max=bits)  # of its bits, how many are in the word where it starts
    numbers = (words[..., word] >> shift) & ((1 << here) - 1)
    if 32 % bits:
        numbers |= (words.roll(-1, -1)[..., word] << here) & (2**bits - 1)
    return numbers.movedim(-1, axis)


def _groups(parts: Parts, name: str, count: int, settings: Settings) -> Tensor:
    """The group of each input: stored, or as many inputs after each other as the settings say."""
    if name in parts and parts[name].numel():
        return parts[name].long()
    size, scales = int(settings.get("group_size") or -1), parts["scales"]
    size = count if size < 0 else size
    if -(-count // size) != len(scales):
        raise CheckpointError(f"{len(scales)} groups of {size} inputs are not {count} inputs")
    return torch.arange(count, device=scales.device) // size


def _gptq(parts: Parts, settings: Settings) -> Tensor:
    """Of as many bits as the shapes say, which a config may give for some modules alone (``dynamic``)."""
    bits = 32 * parts["qzeros"].shape[1] // parts["scales"].shape[1]
    layout = settings.get("checkpoint_format") or settings.get("format") or "gptq"
    if bits not in (2, 3, 4, 8) or layout not in ("gptq", "gptq_v2"):
        raise CheckpointError(f"numbers of {bits} bits in the format {quoted(layout)} of GPTQ are not implemented")
    numbers, zeros = unpacked(parts["qweight"], bits, 0), unpacked(parts["qzeros"], bits)  # (in, out), (G, out)
    zeros = zeros + (layout != "gptq_v2") & (2**bits - 1)  # stored less 1 at first, 0 as the largest
    group = _groups(parts, "g_idx", len(numbers), settings)
    return (parts["scales"].float()[group] * (numbers - zeros[group])).t()


_AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
"""Where in its word each of eight columns lies."""


def _awq(parts: Parts, settings: Settings) -> Tensor:
    version = str(settings.get("version") or settings.get("format") or "gemm")
    if version.lower() != "gemm":
        raise CheckpointError(f"AWQ in the version {quoted(version)} is not implemented", "gemm is")
    numbers, zeros = (
        unpacked(parts[name], 4).unflatten(-1, (-1, 8))[..., _AWQ_PLACES].flatten(-2) for name in ("qweight", "qzeros")
    )
    group = _groups(parts, "g_idx", len(numbers), settings)
    return (parts["scales"].float()[group] * (numbers - zeros[group])).t()


def _packed(parts: Parts, settings: Settings) -> Tensor:
    """compressed-tensors: numbers and zero points less half of their range, (out, in) and (out, G)."""
    (rows, columns), words, scale = parts["weight_shape"].tolist(), parts["weight_packed"], parts["weight_scale"]
    fitting = [bits for bits in settings["num_bits"] if -(-columns * bits // 32) == words.shape[-1]]
    if len(fitting) != 1:
        told = " and ".join(map(str, settings["num_bits"]))
        raise CheckpointError(f"{columns} numbers in {words.shape[-1]} words are not of {told} bits side by side")
    bits = fitting[0]
    numbers = unpacked(words, bits)[:, :columns] - 2 ** (bits - 1)
    group = parts.get("weight_g_idx")
    if group is None or (not group.is_meta and bool((group < 0).any())):  # -1 where it was never set
        group = torch.arange(columns, device=scale.device) // (columns // scale.shape[1])
    if "weight_zero_point" in parts:
        numbers = numbers - (unpacked(parts["weight_zero_point"], bits, 0)[:rows] - 2 ** (bits - 1))[:, group.long()]
    return numbers * scale.float()[:, group.long()]


def _powers(scale: Tensor) -> Tensor:
    """Scales as numbers: a byte is the exponent of a power of two, plus 127."""
    return torch.exp2(scale.float() - 127) if scale.dtype == torch.uint8 else scale.float()


def _four_bit_floats(parts: Parts, settings: Settings) -> Tensor:
    """NVFP4 and MXFP4: two numbers a byte, the first in the low half, times the scale of their group and of all.

    compressed-tensors stores by what scales are divided, and ModelOpt by what they are multiplied.
    """
    packed, scale = parts["weight_packed" if "weight_packed" in parts else "weight"], _powers(parts["weight_scale"])
    if not packed.is_meta and packed.dtype != torch.uint8:
        raise CheckpointError(f"floats of 4 bits in {str(packed.dtype).removeprefix('torch.')} are not implemented")
    if "weight_global_scale" in parts:
        scale = scale / parts["weight_global_scale"].float()
    if "weight_scale_2" in parts:
        scale = scale * parts["weight_scale_2"].float()
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2).long()
    numbers = torch.from_numpy(NIBBLE_VALUES).to(codes.device)[codes]
    if numbers.shape[1] % scale.shape[1]:
        raise ValueError("groups")
    return numbers * scale.repeat_interleave(numbers.shape[1] // scale.shape[1], 1)


def _holds_four_bits(weight: Tensor, scale: Tensor, settings: Settings) -> bool:
    """Whether a matrix among those of FP8 has two numbers of 4 bits a byte, as experts of DeepSeek-V4: MXFP4."""
    whole = weight.is_meta or weight.dtype in (torch.int8, torch.uint8)
    groups = (*weight.shape[:-1], weight.shape[-1] * 2 // _MXFP4_GROUP)
    return whole and settings.get("quant_method") == "fp8" and tuple(scale.shape) == groups


def _scaled(parts: Parts, settings: Settings) -> Tensor:
    """A number in 8 bits times the scale of all, of its row, or of its block of rows and columns."""
    weight, scale = parts["weight"], parts[next(name for name in parts if "scale" in name)]
    if _holds_four_bits(weight, scale, settings):
        packed = weight if weight.is_meta else weight.view(torch.uint8)
        return _four_bit_floats({"weight": packed, "weight_scale": scale}, settings)
    weight, scale = weight.float(), _powers(scale)
    if "weight_zero_point" in parts:
        weight = weight - parts["weight_zero_point"].float().reshape(scale.shape)
    if scale.numel() == 1:
        return weight * scale.reshape(())
    scale = scale.reshape(len(scale), -1)
    blocks = settings.get("weight_block_size") or settings.get("block_structure")
    if not blocks:  # rows of their own, and groups of columns; a ragged last block would hide any other size
        columns = weight.shape[1] if scale.shape[1] == 1 else int(settings.get("group_size") or 0)
        if len(scale) != len(weight) or columns < 1:
            raise CheckpointError(
                f"scales of shape {tuple(scale.shape)} are of blocks whose size config.json does not give",
                "weight_block_size or block_structure has it",
            )
        blocks = [1, columns]
    if [-(-a // b) for a, b in zip(weight.shape, blocks, strict=True)] != [*scale.shape]:
        raise CheckpointError(f"scales of shape {tuple(scale.shape)} do not fit a matrix {tuple(weight.shape)}")
    row, column = (torch.arange(a, device=scale.device) // b for a, b in zip(weight.shape, blocks, strict=True))
    return weight * scale[row][:, column]


def _affine(parts: Parts, settings: Settings) -> Tensor:
    """MLX: a number times the scale of its group, plus that group's bias."""
    numbers, group = unpacked(parts["weight"], int(settings.get("bits", 4))), int(settings.get("group_size", 64))
    scales, biases = (parts[name].float().repeat_interleave(group, -1) for name in ("scales", "biases"))
    return numbers * scales + biases


def _by_code(parts: Parts, settings: Settings) -> Tensor:
    """bitsandbytes: two numbers a byte, the first in the high half, by a table, times the largest of their block."""
    state: Any = parse_json(bytes(parts[next(name for name in parts if "quant_state" in name)].tolist()))
    largest = parts["weight.absmax"]
    if "weight.nested_absmax" in parts:
        outer = parts["weight.nested_absmax"].repeat_interleave(state["nested_blocksize"])[: largest.numel()]
        largest = parts["weight.nested_quant_map"][largest.long()] * outer + state["nested_offset"]
    packed = parts["weight"].flatten().long()
    numbers = parts["weight.quant_map"][torch.stack((packed >> 4, packed & 15), -1).flatten()]
    if largest.numel() != -(-numbers.numel() // state["blocksize"]):
        raise ValueError("blocks")
    numbers = numbers * largest.repeat_interleave(state["blocksize"])[: numbers.numel()]
    return numbers[: math.prod(state["shape"])].view(state["shape"])


def _by_row(parts: Parts, settings: Settings) -> Tensor:
    """bitsandbytes in 8 bits: of 127 parts of the largest of a row."""
    return parts["weight"].float() * parts["SCB"].float()[:, None] / 127


_MXFP4_GROUP = 32
_OF_ACTIVATIONS = (
    "qscale_act",
    "input_scale",
    "input_zero_point",
    "input_global_scale",
    "output_scale",
    "k_scale",
    "v_scale",
    "q_scale",
)
_NESTED = ("weight.nested_absmax", "weight.nested_quant_map")
_STATES = tuple(f"weight.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))
LAYOUTS: Mapping[str, tuple[Layout, ...]] = {
    "gptq": (Layout("GPTQ", ("qweight", "qzeros", "scales"), _gptq, ("g_idx",)),),
    "awq": (Layout("AWQ", ("qweight", "qzeros", "scales"), _awq),),
    "fp8": tuple(
        Layout("FP8", ("weight", scale), _scaled, unread=("activation_scale", *_OF_ACTIVATIONS))
        for scale in ("weight_scale_inv", "scale", "qscale_weight")  # the others of DeepSeek-V4 and of Mistral
    ),
    "fbgemm_fp8": (Layout("FP8", ("weight", "weight_scale"), _scaled, unread=_OF_ACTIVATIONS),),
    "compressed-tensors": (
        Layout("compressed-tensors", ("weight_packed", "weight_scale", "weight_shape"), _packed,
               ("weight_zero_point", "weight_g_idx"), ("weight_shape",), _OF_ACTIVATIONS),
        Layout("compressed-tensors", ("weight_packed", "weight_scale"), _four_bit_floats, ("weight_global_scale",)),
        Layout("compressed-tensors", ("weight", "weight_scale"), _scaled, ("weight_zero_point",), (), _OF_ACTIVATIONS),
    ),
    "modelopt": (
        Layout("ModelOpt", ("weight", "weight_scale", "weight_scale_2"), _four_bit_floats, unread=_OF_ACTIVATIONS),
        Layout("ModelOpt", ("weight", "weight_scale"), _scaled, unread=_OF_ACTIVATIONS),
    ),
    "mlx": (Layout("MLX", ("weight", "scales", "biases"), _affine),),
    "bitsandbytes": (
        *(Layout("bitsandbytes", ("weight", "weight.absmax", "weight.quant_map", state), _by_code, _NESTED, (state,))
          for state in _STATES),
        Layout("bitsandbytes", ("weight", "SCB"), _by_row, ("weight_format",)),
    ),
}  # fmt: skip
"""By the quant_method of config.json, which of MLX is its key ``quantization``."""
_FORMATS = (
    "pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "nvfp4-pack-quantized",
    "mxfp4-pack-quantized", "mxfp8-quantized", "mixed-precision", "dense",
)  # fmt: skip
"""Of compressed-tensors, those that are read."""
_ALGORITHMS = ("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "W4A16_NVFP4", "MIXED_PRECISION")
"""Of ModelOpt, those that are read."""
_SIGNS = (
    "qweight",
    "weight_packed",
    "weight_scale_inv",
    "qscale_weight",
    "weight_scale",

    "scales",
    "weight.absmax",
    "SCB",
)  # fmt: skip
"""Endings that only a quantised tensor has."""


class QuantizedWeights:
    """Weight files in which some matrices are stored in several tensors; each appears as MODULE.weight.

    Raises CheckpointError for tensors whose shapes do not fit each other.
    """

    def __init__(self, files: WeightFiles, method: str, settings: Settings) -> None:
        self._files, self._method, self._settings = files, method, settings
        self._found: dict[str, tuple[Layout, dict[str, str]]] = {}
        hidden: set[str] = set()
        for layout in LAYOUTS[method]:
            for name in files.shapes:
                module = name.removesuffix(f".{layout.parts[0]}")
                stored = {part: f"{module}.{part}" for part in (*layout.parts, *layout.may)}
                stored = {part: full for part, full in stored.items() if full in files.shapes}
                if module != name and set(layout.parts) <= stored.keys() and name not in hidden:
                    self._found[f"{module}.weight"] = layout, stored
                    hidden.update(stored.values())
            hidden.update(name for name in files.shapes if name.rpartition(".")[2] in layout.unread)
        self.shapes: Shapes = {name: shape for name, shape in files.shapes.items() if name not in hidden}
        for name, (layout, stored) in self._found.items():
            outlines = {
                part: files.stored(full)
                if part in layout.facts
                else torch.empty(files.shapes[full], dtype=torch.int32, device="meta")
                for part, full in stored.items()
            }
            self.shapes[name] = tuple(self._read(name, layout, outlines).shape)

    @property
    def mapped(self) -> tuple[Any, ...]:
        return getattr(self._files, "mapped", ())

    @property
    def words(self) -> str:
        """What is stored how, for a note."""
        if not self._found:
            return f"quantised by {self._method}, says config.json, but no matrix is stored so: read as they are"
        layout = next(iter(self._found.values()))[0]
        bits = self._settings.get("bits") or " and ".join(map(str, self._settings.get("num_bits", ())))
        size = self._settings.get("group_size") or 0
        algorithm = str(self._settings.get("quant_algo") or "")
        told = [f"{bits} bits" if bits else algorithm, f"groups of {size}" if size > 0 else ""]
        as_they_are = "; activations are not quantised here" if layout.unread else ""
        return f"{len(self._found):,} matrices stored as {', '.join(filter(None, (layout.title, *told)))}{as_they_are}"

    def _read(self, name: str, layout: Layout, parts: Parts) -> Tensor:
        own = self._settings.get(name.removesuffix(".weight"))  # as MLX has it where modules differ
        try:
            return layout.read(parts, {**self._settings, **own} if isinstance(own, Mapping) else self._settings)
        except CheckpointError as error:
            raise CheckpointError(f"{name}: {error.message}", error.hint) from None
        except (RuntimeError, IndexError, ValueError, KeyError, TypeError) as error:
            shapes = ", ".join(f"{part} {tuple(tensor.shape)}" for part, tensor in parts.items())
            raise CheckpointError(f"{name}: its tensors in {layout.title} do not fit: {shapes}") from error

    def stored(self, name: str) -> Tensor:
        if name not in self._found:
            return self._files.stored(name)
        layout, stored = self._found[name]
        return self._read(name, layout, {part: self._files.stored(full) for part, full in stored.items()})

    def takes(self, dtype: torch.dtype) -> int:
        return sum(math.prod(shape) for shape in self.shapes.values()) * dtype.itemsize

    def tensors(self, dtype: torch.dtype, pieces: Container[str] = ()) -> Iterator[tuple[str, Tensor]]:
        for name in self.shapes:
            tensor = self.stored(name)
            yield name, tensor.to(dtype) if tensor.is_floating_point() else tensor


def settings_of(config: Mapping[str, Any]) -> tuple[str, Settings] | None:
    """The method and settings that a config.json names; None for plain weights. Raises ConfigError for others.

    A model with images may name them in its text_config (Kimi K2.5).
    """
    text = config.get("text_config")
    if isinstance(text, Mapping) and not config.get("quantization_config") and not config.get("quantization"):
        return settings_of(text)
    given, mlx = config.get("quantization_config"), config.get("quantization")
    if isinstance(mlx, Mapping) and (not given or "quant_method" not in given):
        _require_known(("affine",), "mode", [mlx, *mlx.values()])
        return "mlx", mlx
    if not given:
        return None
    method = given.get("quant_method") if isinstance(given, Mapping) else None
    if method not in (*LAYOUTS, "mxfp4"):
        by = f" by {quoted(method)}" if isinstance(method, str) else ""
        raise ConfigError(
            f"quantised weights{by} (quantization_config) are not implemented", f"known: {', '.join(LAYOUTS)}, mxfp4"
        )
    try:
        if method == "compressed-tensors":
            return method, _of_groups(given)
        if method == "modelopt":
            _require_known(_ALGORITHMS, "quant_algo", [given, *dict(given.get("quantized_layers") or {}).values()])
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f"quantization_config does not say what {method} writes there") from None
    return str(method), given


def _require_known(known: Container[str], key: str, entries: Iterable[Any]) -> None:
    for entry in entries:
        if isinstance(entry, Mapping) and entry.get(key) is not None and entry[key] not in known:
            raise ConfigError(f"quantised weights by {shown(entry[key])} ({key}) are not implemented")


def _of_groups(given: Settings) -> Settings:
    """compressed-tensors: what its groups say. Which of them stored a matrix is seen from its tensors."""
    groups = [*dict(given.get("config_groups") or {}).values()]
    _require_known(_FORMATS, "format", [given, given.get("sparsity_config"), *groups])
    weights = [group.get("weights") or {} for group in groups]
    settings: dict[str, Any] = {"num_bits": sorted({int(one.get("num_bits") or 8) for one in weights})}
    for key in ("group_size", "block_structure"):  # which matter where scales are neither of a row nor of all
        values = [one.get(key) for one in weights if one.get("num_bits") == 8 or len(settings["num_bits"]) == 1]
        if values and all(value == values[0] for value in values):
            settings[key] = values[0]
    return settings


def require_plain(files: WeightFiles) -> None:
    """Raise ConfigError for a quantised tensor in a folder whose config.json says nothing of it."""
    for name in files.shapes:
        if name.endswith(tuple(f".{sign}" for sign in _SIGNS)):
            raise ConfigError(
                f"no quantization_config, but {quoted(name)} is a quantised tensor",
                "copy the config.json that belongs to these weights",
            )
