"""The operations that compute the steps, one file each."""

from tinytf.steps.operations.activate import Activate
from tinytf.steps.operations.add import Add
from tinytf.steps.operations.alibi import Alibi
from tinytf.steps.operations.append import Append
from tinytf.steps.operations.by_segment import BySegment
from tinytf.steps.operations.cap import Cap
from tinytf.steps.operations.channel_delta import DecayedFits, DecayedRead, WriteByFits
from tinytf.steps.operations.choose import Choose
from tinytf.steps.operations.choose_by_id import ChooseById
from tinytf.steps.operations.choose_keys import ChooseKeys
from tinytf.steps.operations.clamped_glu import ClampedGlu
from tinytf.steps.operations.clip import Clip
from tinytf.steps.operations.compress import Compress, CompressIndex
from tinytf.steps.operations.concat import Concat
from tinytf.steps.operations.constant import Constant
from tinytf.steps.operations.decay import Decay
from tinytf.steps.operations.delta import Fade, Write
from tinytf.steps.operations.difference import Difference
from tinytf.steps.operations.disentangled import ByDistance, Table, WaveKeys
from tinytf.steps.operations.exceed import Exceed
from tinytf.steps.operations.expert_linear import ExpertLinear
from tinytf.steps.operations.fade_at_rate import FadeAtRate
from tinytf.steps.operations.fit_streams import FitStreams
from tinytf.steps.operations.gain import Gain
from tinytf.steps.operations.given import Given
from tinytf.steps.operations.grouped_linear import GroupedLinear
from tinytf.steps.operations.grow import Grow, GrowFrom
from tinytf.steps.operations.grow_heads import GrowHeads
from tinytf.steps.operations.head_linear import HeadLinear
from tinytf.steps.operations.head_norm import HeadNorm
from tinytf.steps.operations.index_scores import BlockIndexScores, IndexScores
from tinytf.steps.operations.join import Join
from tinytf.steps.operations.keep import Keep
from tinytf.steps.operations.key_blocks import BlockScores, ChooseBlocks, ChooseByHead, MeanOfBlock, RotateMeans
from tinytf.steps.operations.layer_scale import LayerScale, LearnedScale
from tinytf.steps.operations.linear import Linear, Pooled, Unembed
from tinytf.steps.operations.lookup import Lookup
from tinytf.steps.operations.lookup_ngrams import LookupNgrams
from tinytf.steps.operations.mask import Mask, Sight
from tinytf.steps.operations.match_streams import MatchStreams
from tinytf.steps.operations.mix import CrossMix, Mix
from tinytf.steps.operations.mix_heads import MixHeads
from tinytf.steps.operations.mix_streams import MixStreams
from tinytf.steps.operations.multiply import Multiply
from tinytf.steps.operations.neighbours import Neighbours
from tinytf.steps.operations.norm import Norm
from tinytf.steps.operations.operation import Operation, Parameter
from tinytf.steps.operations.pair_norm import PairNorm
from tinytf.steps.operations.part_norm import PartNorm
from tinytf.steps.operations.pass_on import PassOn
from tinytf.steps.operations.pool import MeanOfTokens, Pool
from tinytf.steps.operations.positions import Positions
from tinytf.steps.operations.prefer import Prefer
from tinytf.steps.operations.product import Product
from tinytf.steps.operations.profile import Profile
from tinytf.steps.operations.relative import RelativeBias
from tinytf.steps.operations.rg_lru import ChannelDecay, Retain
from tinytf.steps.operations.rotate import Rotate, RotateBlocks, RotateEach
from tinytf.steps.operations.route import Route
from tinytf.steps.operations.route_near import RouteNear
from tinytf.steps.operations.same import Same
from tinytf.steps.operations.scale import Scale
from tinytf.steps.operations.scan import Scan
from tinytf.steps.operations.scores import CrossScores, Scores
from tinytf.steps.operations.shift import Shift
from tinytf.steps.operations.short_conv import ShortConv
from tinytf.steps.operations.sigmoid import Sigmoid
from tinytf.steps.operations.sink import Sink, SunkSoftmax
from tinytf.steps.operations.sinkhorn import Sinkhorn
from tinytf.steps.operations.softmax import Softmax, TokenSoftmax, VocabularySoftmax
from tinytf.steps.operations.softplus import Softplus
from tinytf.steps.operations.stream_linear import StreamLinear
from tinytf.steps.operations.switch import Switch
from tinytf.steps.operations.unit import Unit
from tinytf.steps.operations.unroll import Unroll
from tinytf.steps.operations.weigh import SumExperts, Weigh
from tinytf.steps.operations.weigh_heads import WeighHeads
from tinytf.steps.operations.xielu import Xielu

__all__ = [
    "Activate",
    "Add",
    "Alibi",
    "Append",
    "BlockIndexScores",
    "BlockScores",
    "ByDistance",
    "BySegment",
    "Cap",
    "ChannelDecay",
    "Choose",
    "ChooseBlocks",
    "ChooseByHead",
    "ChooseById",
    "ChooseKeys",
    "ClampedGlu",
    "Clip",
    "Compress",
    "CompressIndex",
    "Concat",
    "Constant",
    "CrossMix",
    "CrossScores",
    "Decay",
    "DecayedFits",
    "DecayedRead",
    "Difference",
    "Exceed",
    "ExpertLinear",
    "Fade",
    "FadeAtRate",
    "FitStreams",
    "Gain",
    "Given",
    "GroupedLinear",
    "Grow",
    "GrowFrom",
    "GrowHeads",
    "HeadLinear",
    "HeadNorm",
    "IndexScores",
    "Join",
    "Keep",
    "LayerScale",
    "LearnedScale",
    "Linear",
    "Lookup",
    "LookupNgrams",
    "Mask",
    "MatchStreams",
    "MeanOfBlock",
    "MeanOfTokens",
    "Mix",
    "MixHeads",
    "MixStreams",
    "Multiply",
    "Neighbours",
    "Norm",
    "Operation",
    "PairNorm",
    "Parameter",
    "PartNorm",
    "PassOn",
    "Pool",
    "Pooled",
    "Positions",
    "Prefer",
    "Product",
    "Profile",
    "RelativeBias",
    "Retain",
    "Rotate",
    "RotateBlocks",
    "RotateEach",
    "RotateMeans",
    "Route",
    "RouteNear",
    "Same",
    "Scale",
    "Scan",
    "Scores",
    "Shift",
    "ShortConv",
    "Sight",
    "Sigmoid",
    "Sink",
    "Sinkhorn",
    "Softmax",
    "Softplus",
    "StreamLinear",
    "SumExperts",
    "SunkSoftmax",
    "Switch",
    "Table",
    "TokenSoftmax",
    "Unembed",
    "Unit",
    "Unroll",
    "VocabularySoftmax",
    "WaveKeys",
    "Weigh",
    "WeighHeads",
    "Write",
    "WriteByFits",
    "Xielu",
]
