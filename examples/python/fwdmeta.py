"""libfwdmeta from Python, by ctypes and the standard library alone.

    import fwdmeta

    builder = fwdmeta.Builder(max_batch_size=8, max_num_tokens=64, max_model_len=4096, num_q_heads=64, num_kv_heads=8)
    batch = fwdmeta.Batch([0, 7, 20, 0], [10, 50, 118, 200], [3, 0, 20, 1], memory_kind=fwdmeta.MemoryKind.HOST)
    with builder.build(batch) as meta:
        print(meta.counts().num_tokens)
        slots = torch.from_dlpack(meta["slot_mapping"])      # or numpy.from_dlpack, cupy.from_dlpack: no copy
        print(meta.dump())

The rules on ownership, streams, threads and capture are those of fwdmeta.h; names are its names without their prefix. A
call that does not return FWDMETA_OK raises Error, with the status and the library's message.

The library is looked for where load() or Library() is told, else where the environment's FWDMETA_LIBRARY says, else as
libfwdmeta.so.1 by the loader.

Arrays. meta["name"] is an Array: a description that holds no memory. Its __dlpack__ makes a DLPack tensor, which holds
the builder's memory until whoever took it lets go, even when meta and builder are closed. The memory, not the content:
the next build of the same set overwrites it. The arrays are read-only; the versioned tensors say so, older ones cannot.
"""

from __future__ import annotations

import ctypes
import enum
import os
import re
import threading
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Union

__all__ = [
    "AgreementResult", "Array", "Attention", "Attr", "Backend", "Batch", "Context", "Dispatcher", "DispatchReason",
    "DLDevice", "Error", "Field", "ForwardMeta", "ForwardMode", "GraphMode", "GraphSupport", "Builder", "Layers",
    "Library", "MemoryKind", "Status", "agree", "capacities", "load", "plan_slices", "reorder_by_role",
    "slice_lengths", "split_by_role",
]

DEFAULT = -(2**63)  # FWDMETA_DEFAULT
API_VERSION = 10000  # FWDMETA_VERSION of the header that the structs below are of
MAX_CACHE_GROUPS = 8
MAX_DIMS = 8
ALL_LAYERS = -1


class Status(enum.IntEnum):
    OK = 0
    INVALID_ARGUMENT = 1
    INVALID_HANDLE = 2
    INVALID_BATCH = 3
    CAPACITY_EXCEEDED = 4
    NOT_FOUND = 5
    NOT_SET = 6
    OUT_OF_RANGE = 7
    ALREADY_EXISTS = 8
    NOT_READY = 9
    EXPIRED = 10
    BUSY = 11
    NOT_CAPTURABLE = 12
    NO_GRAPH = 13
    RANK_MISMATCH = 14
    TIMEOUT = 15
    UNSUPPORTED = 16
    UNAVAILABLE = 17
    OUT_OF_MEMORY = 18
    NO_DEVICE = 19
    CUDA_ERROR = 20
    INTERNAL = 21


class Error(RuntimeError):
    """A call that did not return FWDMETA_OK. str() is "INVALID_BATCH: ..." with the offending numbers."""

    def __init__(self, status: int, message: str) -> None:
        known = status in Status.__members__.values()
        self.status: int = Status(status) if known else status
        self.message = message
        super().__init__(f"{Status(status).name if known else status}: {message}")


class Backend(enum.IntEnum):
    AUTO = 0
    HOST = 1
    CUDA = 2


class Attention(enum.IntEnum):
    APPEND = 0
    MLA = 1


class MemoryKind(enum.IntEnum):
    DEVICE = 0
    HOST = 1


class Field(enum.IntEnum):
    """The arrays of a step. The lower-case name is the field's."""

    DECODER_BATCH_IDS = 0
    DECODER_TILE_IDS_PER_BATCH = 1
    DECODER_NUM_BLOCKS_DEVICE = 2
    DECODER_NUM_BLOCKS_CPU = 3
    DECODER_CU_TILES = 4
    ENCODER_BATCH_IDS = 5
    ENCODER_TILE_IDS_PER_BATCH = 6
    ENCODER_NUM_BLOCKS_X = 7
    ENCODER_NUM_BLOCKS_X_CPU = 8
    ENCODER_CU_TILES = 9
    KV_BATCH_IDS = 10
    KV_TILE_IDS_PER_BATCH = 11
    KV_NUM_BLOCKS_X = 12
    KV_NUM_BLOCKS_X_CPU = 13
    KV_CU_TILES = 14
    PRE_CACHE_BATCH_IDS = 15
    PRE_CACHE_TILE_IDS_PER_BATCH = 16
    PRE_CACHE_NUM_BLOCKS = 17
    PRE_CACHE_NUM_BLOCKS_CPU = 18
    PRE_CACHE_CU_TILES = 19
    DECODER_CHUNK_SIZE_DEVICE = 20
    CU_SEQLENS_Q = 21
    CU_SEQLENS_K = 22
    ATTN_CU_SEQLENS_K = 23
    SEQ_LENS_KV = 24
    SEQ_LENS_KV_LOCAL = 25
    BATCH_ID_PER_TOKEN = 26
    POSITION_IDS = 27
    SLOT_MAPPING = 28
    IS_PADDING = 29
    MASK_ENCODER_BATCH = 30
    IDS_REMOVE_PADDING = 31
    SEQ_LENS_OUTPUT = 32
    CU_SEQLENS_Q_OUTPUT = 33
    BATCH_ID_PER_TOKEN_OUTPUT = 34
    LOGITS_INDICES = 35
    LAST_TOKEN_INDEX = 36
    MAX_LEN_TENSOR = 37
    MAX_LEN_TENSOR_CPU = 38
    COUNTS = 39
    COUNTS_I64 = 40


class Attr(enum.IntEnum):
    FORWARD_MODE = 0
    EXIST_PREFILL = 1
    REAL_BSZ = 2
    IS_ZERO_SIZE = 3
    STEP = 4
    GENERATION = 5
    STEP_USE_CUDAGRAPH = 6
    ROPE_ALREADY_APPLIED = 7
    IS_DUMMY_OR_PROFILE_RUN = 8
    PRE_CACHES_LENGTH = 9
    MOE_NUM_CHUNK = 10
    MAX_MOE_NUM_CHUNK = 11


class ForwardMode(enum.IntEnum):
    EXTEND = 1
    DECODE = 2
    MIXED = 3
    NATIVE = 4


class GraphMode(enum.IntEnum):
    NONE = 0
    PIECEWISE = 1
    FULL = 2
    FULL_DECODE_ONLY = 0x200
    FULL_AND_PIECEWISE = 0x201


class GraphSupport(enum.IntEnum):
    NEVER = 0
    UNIFORM_SINGLE_TOKEN_DECODE = 1
    UNIFORM_BATCH = 2
    ALWAYS = 3


class DispatchReason(enum.IntEnum):
    OK = 0
    MODE_NONE = 1
    ZERO_TOKENS = 2
    ABOVE_LARGEST = 3
    NOT_UNIFORM = 4
    NO_FULL_SIZE = 5
    LORA_NOT_CAPTURED = 6
    NOT_ALLOWED = 7
    NOT_CAPTURED = 8


class DLDevice(enum.IntEnum):
    """DLPack's device types that occur here."""

    CPU = 1
    CUDA = 2
    CUDA_HOST = 3


# ----------------------------------------------------------------------------------------------------- structs --

_i32, _i64, _u64, _ptr = ctypes.c_int32, ctypes.c_int64, ctypes.c_uint64, ctypes.c_void_p


class Struct(ctypes.Structure):
    """A struct of the header: keyword arguments over its INITIALIZER. A number that does not fit its field raises."""

    _c_name_ = ""
    _defaults_: Dict[str, Any] = {}

    def __init__(self, **values: Any) -> None:
        super().__init__()
        types = dict(self._field_types())
        if "struct_size" in types:
            setattr(self, "struct_size", ctypes.sizeof(self))
        for name, value in {**self._defaults_, **values}.items():
            if name not in types:
                raise TypeError(f"{type(self).__name__} has no field {name}")
            setattr(self, name, value)
            if isinstance(value, int) and types[name] is not _ptr and getattr(self, name) != value:
                raise OverflowError(f"{name} is {value}, which does not fit {types[name].__name__}")

    @classmethod
    def _field_types(cls) -> List[Tuple[str, Any]]:
        return [(entry[0], entry[1]) for entry in cls._fields_]

    def as_dict(self) -> Dict[str, Any]:
        """The fields but for struct_size and what is reserved; arrays as lists, structs as dicts."""

        def plain(value: Any) -> Any:
            if isinstance(value, Struct):
                return value.as_dict()
            return list(value) if isinstance(value, ctypes.Array) else value

        return {n: plain(getattr(self, n)) for n, _ in self._field_types() if n not in ("struct_size", "reserved")}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in self.as_dict().items())})"


def _fields(ctype: Any, names: str) -> List[Tuple[str, Any]]:
    return [(name, ctype) for name in names.split()]


_SIZE = [("struct_size", _u64)]


class GroupConfig(Struct):
    """One KV-cache group."""

    _c_name_ = "fwdmeta_group_config_t"
    _fields_ = _fields(_i64, "block_size kernel_block_size replicated")
    _defaults_ = {"kernel_block_size": DEFAULT}


class Allocator(Struct):
    """Addresses of C functions: alloc(bytes, alignment, user), free(ptr, bytes, user)."""

    _c_name_ = "fwdmeta_allocator_t"
    _fields_ = _fields(_ptr, "alloc free user")


class Config(Struct):
    """What a builder is made with; fwdmeta_config_t. `groups`, a list of GroupConfig, stands for num_cache_groups and
    cache_groups, and `outputs` may be a list of Fields."""

    _c_name_ = "fwdmeta_config_t"
    _fields_ = (
        _SIZE
        + _fields(_i32, "api_version backend")
        + _fields(_i64, "device max_batch_size max_num_tokens max_model_len max_num_kv_tokens num_q_heads num_kv_heads")
        + _fields(_i64, "block_size kernel_block_size num_cache_groups")
        + [("cache_groups", ctypes.POINTER(GroupConfig))]
        + _fields(_i64, "encoder_block_shape_q decoder_block_shape_q")
        + _fields(_i32, "attention reserved")
        + _fields(_i64, "mla_chunk_size num_sms cp_size cp_rank cp_interleave pad_token_id pad_seq_len")
        + [("outputs", _u64)]
        + _fields(_i64, "generations depth max_metas")
        + _fields(Allocator, "device_allocator pinned_allocator host_allocator")
    )
    _defaults_ = {
        "api_version": API_VERSION, "device": DEFAULT, "max_num_kv_tokens": DEFAULT, "block_size": 64,
        "kernel_block_size": DEFAULT, "encoder_block_shape_q": 64, "decoder_block_shape_q": 16, "num_sms": DEFAULT,
        "cp_size": 1, "cp_interleave": 1, "outputs": 2**64 - 1, "generations": 1, "depth": 4, "max_metas": 64,
    }

    def __init__(self, *, groups: Optional[Sequence[GroupConfig]] = None, **values: Any) -> None:
        outputs = values.get("outputs")
        if outputs is not None and not isinstance(outputs, int):
            values["outputs"] = sum(1 << field for field in {Field(f) for f in outputs})
        super().__init__(**values)
        if groups is not None:
            self.num_cache_groups = len(groups)
            self.cache_groups = (GroupConfig * len(groups))(*groups)  # kept alive by the field


class CapacityQuery(Struct):
    _c_name_ = "fwdmeta_capacity_query_t"
    _fields_ = _SIZE + _fields(_i64, "slots tokens block_table_alignment")
    _defaults_ = {"slots": DEFAULT, "tokens": DEFAULT, "block_table_alignment": 1}


class Capacities(Struct):
    _c_name_ = "fwdmeta_capacities_t"
    _fields_ = (
        _SIZE
        + _fields(_i64, "decoder encoder kv pre_cache")
        + [("block_table_width", _i64 * MAX_CACHE_GROUPS)]
        + _fields(_i64, "device_bytes pinned_bytes host_bytes")
    )


class BuilderInfo(Struct):
    _c_name_ = "fwdmeta_builder_info_t"
    _fields_ = (
        _SIZE
        + _fields(_i32, "backend device")
        + _fields(_i64, "num_sms generations depth single_launch_slots last_step last_advance host_waits")
        + _fields(_i64, "device_bytes pinned_bytes host_bytes")
        + [("advance_counts", _ptr)]
    )


class Rows(Struct):
    """Rows of a two-dimensional array, by address; Batch makes them from lists and arrays."""

    _c_name_ = "fwdmeta_rows_t"
    _fields_ = [("data", _ptr), ("width", _i64), ("row_stride", _i64), ("row_lengths", _ptr)]


class BatchStruct(Struct):
    _c_name_ = "fwdmeta_batch_t"
    _fields_ = (
        _SIZE
        + _fields(_i32, "memory_kind flags")
        + _fields(_i64, "batch_size num_padded_tokens")
        + _fields(_ptr, "seq_lens_encoder seq_lens_decoder seq_lens_this_time")
        + [("num_block_tables", _i64), ("block_tables", ctypes.POINTER(Rows))]
        + _fields(Rows, "input_ids draft_tokens")
        + [("stream", _ptr), ("generation", _i64)]
    )
    _defaults_ = {"num_padded_tokens": -1, "generation": DEFAULT}


class Counts(Struct):
    """The counts of a step."""

    _c_name_ = "fwdmeta_counts_t"
    _fields_ = (
        _SIZE
        + _fields(_i64, "step error_value error_limit")
        + _fields(_i32, "batch_size num_live num_prefill num_decode num_tokens num_padded_tokens num_kv_tokens")
        + _fields(_i32, "num_attn_kv_tokens decoder_num_blocks encoder_num_blocks kv_num_blocks pre_cache_num_blocks")
        + _fields(_i32, "num_output_tokens num_invalid_slots num_invalid_ids warnings error error_slot")
        + [("max_len", _i32 * 9)]
        + _fields(_i32, "decoder_chunk_size is_final reserved")
    )


class AdvanceArgs(Struct):
    _c_name_ = "fwdmeta_advance_args_t"
    _fields_ = (
        _SIZE
        + [("batch_size", _i64)]
        + _fields(_ptr, "seq_lens_encoder seq_lens_decoder seq_lens_this_time num_rejected stop prompt_lens")
        + [("num_draft_tokens", _i64), ("stream", _ptr)]
    )


class AdvanceCounts(Struct):
    _c_name_ = "fwdmeta_advance_counts_t"
    _fields_ = _SIZE + [("advance", _i64)] + _fields(_i32, "num_stopped num_length_limited")


class Tensor(Struct):
    """A tensor by address, as the engine hands over its own."""

    _c_name_ = "fwdmeta_tensor_t"
    _fields_ = (
        _SIZE
        + [("data", _ptr)]
        + _fields(_i32, "memory_kind device")
        + [("dtype_code", ctypes.c_uint8), ("dtype_bits", ctypes.c_uint8), ("dtype_lanes", ctypes.c_uint16)]
        + [("ndim", _i32), ("shape", _i64 * MAX_DIMS), ("strides", _i64 * MAX_DIMS)]
    )
    _defaults_ = {"device": -1, "dtype_bits": 32, "dtype_lanes": 1}


class DlpackArgs(Struct):
    _c_name_ = "fwdmeta_dlpack_args_t"
    _fields_ = _SIZE + _fields(_i32, "field group shape device_type")


class BatchDescriptor(Struct):
    """The shape that a graph is captured for."""

    _c_name_ = "fwdmeta_batch_descriptor_t"
    _fields_ = _fields(_i32, "num_tokens num_reqs uniform has_lora num_active_loras")


class GraphKey(Struct):
    _c_name_ = "fwdmeta_graph_key_t"
    _fields_ = [("mode", _i32), ("descriptor", BatchDescriptor)]


class DispatcherConfig(Struct):
    _c_name_ = "fwdmeta_dispatcher_config_t"
    _fields_ = (
        _SIZE
        + _fields(_i32, "api_version mode support piecewise_available")
        + _fields(_i64, "max_num_seqs max_num_tokens")
        + [("capture_sizes", ctypes.POINTER(_i64)), ("num_capture_sizes", _i64), ("max_capture_size", _i64)]
        + [("query_lens", ctypes.POINTER(_i64)), ("num_query_lens", _i64)]
        + _fields(_i64, "max_loras max_full_reqs")
        + _fields(_i32, "round_piecewise specialize_active_loras")
    )
    _defaults_ = {
        "api_version": API_VERSION, "support": GraphSupport.ALWAYS, "piecewise_available": 1,
        "num_capture_sizes": DEFAULT, "max_capture_size": DEFAULT, "num_query_lens": DEFAULT, "max_full_reqs": DEFAULT,
    }


class DispatcherInfo(Struct):
    _c_name_ = "fwdmeta_dispatcher_info_t"
    _fields_ = (
        _SIZE
        + _fields(_i32, "resolved_mode resolve_reason")
        + _fields(_i64, "num_capture_sizes num_piecewise_keys num_full_keys num_captured")
        + [("config_hash", _u64)]
    )


class DispatchArgs(Struct):
    _c_name_ = "fwdmeta_dispatch_args_t"
    _fields_ = (
        _SIZE
        + _fields(_i64, "num_tokens num_reqs query_len num_active_loras")
        + _fields(_i32, "allowed_modes reserved")
    )
    _defaults_ = {"allowed_modes": 7}


class DispatchResult(Struct):
    _c_name_ = "fwdmeta_dispatch_result_t"
    _fields_ = _SIZE + _fields(_i32, "mode reason") + [("descriptor", BatchDescriptor)] + _fields(_i32, "reserved")


class RankRow(Struct):
    """What each rank tells the others."""

    _c_name_ = "fwdmeta_rank_row_t"
    _fields_ = (
        _fields(_i64, "num_tokens num_reqs")
        + [("config", _u64), ("step", _i64)]
        + _fields(_i32, "max_mode query_len wants_slices")
        + [("reserved", _i32 * 5)]
    )


class Agreement(Struct):
    _c_name_ = "fwdmeta_agreement_t"
    _fields_ = (
        _SIZE
        + _fields(_i32, "mode reason query_len num_reqs sliced skip mismatch_rank")
        + [("descriptor", BatchDescriptor)]
    )
    _defaults_ = {"mismatch_rank": -1}


class SliceArgs(Struct):
    _c_name_ = "fwdmeta_slice_args_t"
    _fields_ = (
        _SIZE
        + _fields(_ptr, "query_lens seq_lens")
        + _fields(_i64, "num_reqs num_padded_tokens num_padded_reqs num_slices split")
    )
    _defaults_ = {"num_padded_tokens": DEFAULT, "num_padded_reqs": DEFAULT, "num_slices": 1, "split": DEFAULT}


class Slice(Struct):
    """One microbatch; ranges are half-open."""

    _c_name_ = "fwdmeta_slice_t"
    _fields_ = _fields(_i32, "first_req end_req first_token end_token num_tokens empty")


class ContextConfig(Struct):
    _c_name_ = "fwdmeta_context_config_t"
    _fields_ = (
        _SIZE
        + _fields(_i32, "api_version reserved")
        + [("layers", _u64)]
        + _fields(_i64, "max_slices max_values")
    )
    _defaults_ = {"api_version": API_VERSION, "max_slices": 1, "max_values": 16}


class AttnMetadata(Struct):
    _c_name_ = "fwdmeta_attn_metadata_t"
    _fields_ = [("pointer", _ptr), ("meta", _u64)]


class BatchSplit(Struct):
    _c_name_ = "fwdmeta_batch_split_t"
    _fields_ = _SIZE + _fields(_i64, "num_decodes num_prefills num_decode_tokens num_prefill_tokens")


# ----------------------------------------------------------------------------------------------------- library --

_WRITE = ctypes.CFUNCTYPE(_i32, _ptr, ctypes.c_size_t, _ptr)
_str = ctypes.c_char_p
_P = ctypes.POINTER

# Every call of this module: its arguments, all of which return a status but for those in _OTHERS.
_CALLS: Dict[str, List[Any]] = {
    "log_set_level": [_i32],
    "get_capacities": [_P(Config), _P(CapacityQuery), _P(Capacities)],
    "builder_create": [_P(Config), _P(_u64)],
    "builder_destroy": [_u64],
    "builder_get_info": [_u64, _P(BuilderInfo)],
    "builder_reset": [_u64, _ptr],
    "builder_set_tensor": [_u64, _str, _P(Tensor)],
    "build": [_u64, _P(BatchStruct), _P(_u64), _P(_i64)],
    "counts_wait": [_u64, _i64, _i32, _i64, _P(Counts)],
    "replay_wait": [_u64, _i64, _i32, _i64, _P(Counts)],
    "advance": [_u64, _P(AdvanceArgs)],
    "advance_wait": [_u64, _i64, _i64, _P(AdvanceCounts)],
    "meta_destroy": [_u64],
    "meta_get": [_u64, _str, _P(Tensor)],
    "meta_get_field": [_u64, _i32, _i32, _P(Tensor)],
    "meta_set_tensor": [_u64, _str, _P(Tensor)],
    "meta_wait": [_u64, _i32, _i64, _P(Counts)],
    "meta_get_attr": [_u64, _i32, _P(_i64)],
    "meta_set_attr": [_u64, _i32, _i64],
    "meta_reader_begin": [_u64, _ptr],
    "meta_reader_end": [_u64, _ptr],
    "meta_dlpack_device": [_u64, _P(DlpackArgs), _P(_i32), _P(_i32)],
    "meta_to_dlpack": [_u64, _P(DlpackArgs), _i64, _P(_ptr)],
    "meta_to_dlpack_versioned": [_u64, _P(DlpackArgs), _i64, _P(_ptr)],
    "meta_dump": [_u64, _i32, _WRITE, _ptr],
    "graph_mode_resolve": [_i32, _i32, _i64, _i32, _P(_i32), _P(_i32)],
    "dispatcher_create": [_P(DispatcherConfig), _P(_u64)],
    "dispatcher_destroy": [_u64],
    "dispatcher_get_info": [_u64, _P(DispatcherInfo)],
    "dispatcher_get_sizes": [_u64, _ptr, _i64, _P(_i64)],
    "dispatcher_get_keys": [_u64, _ptr, _i64, _P(_i64)],
    "dispatcher_mark_captured": [_u64, _P(GraphKey)],
    "dispatch": [_u64, _P(DispatchArgs), _P(DispatchResult)],
    "dispatch_args_from_lengths": [_ptr, _ptr, _i64, _i64, _P(DispatchArgs)],
    "agree": [_u64, _P(RankRow), _i64, _i64, _ptr, _P(Agreement)],
    "plan_slices": [_P(SliceArgs), _P(Slice)],
    "slice_lengths": [_P(SliceArgs), _P(Slice), _ptr, _ptr, _ptr],
    "layers_create": [_P(_u64)],
    "layers_destroy": [_u64],
    "layers_add": [_u64, _str, _ptr, _i32, _P(_i64)],
    "layers_find": [_u64, _str, _P(_i64)],
    "layers_count": [_u64, _P(_i64), _P(_i64)],
    "context_create": [_P(ContextConfig), _P(_u64)],
    "context_destroy": [_u64],
    "context_reset": [_u64],
    "context_set_attn_metadata": [_u64, _i64, _i64, _P(AttnMetadata)],
    "context_get_attn_metadata": [_u64, _i64, _i64, _P(AttnMetadata)],
    "context_set_runtime_mode": [_u64, _i32],
    "context_get_runtime_mode": [_u64, _P(_i32)],
    "context_set_descriptor": [_u64, _P(BatchDescriptor)],
    "context_get_descriptor": [_u64, _P(BatchDescriptor)],
    "context_set_slices": [_u64, _P(Slice), _i64],
    "context_get_slices": [_u64, _ptr, _i64, _P(_i64)],
    "context_set_skip_compiled": [_u64, _i32],
    "context_get_skip_compiled": [_u64, _P(_i32)],
    "context_set_int64": [_u64, _str, _i64],
    "context_set_double": [_u64, _str, ctypes.c_double],
    "context_get_int64": [_u64, _str, _P(_i64)],
    "context_get_double": [_u64, _str, _P(ctypes.c_double)],
    "context_push": [_u64],
    "context_pop": [_u64],
    "context_current": [_P(_u64)],
    "context_override": [_u64, _P(_u64)],
    "context_next_moe_layer": [_u64, _P(_i64)],
    "split_by_role": [_ptr, _ptr, _i64, _P(BatchSplit)],
    "reorder_by_role": [_ptr, _ptr, _i64, _ptr, _P(_i32)],
}
_OTHERS: Dict[str, Tuple[Any, List[Any]]] = {
    "version": (_i32, []),
    "last_error": (_str, []),
    "status_name": (_str, [_i32]),
    "field_name": (_str, [_i32]),
}


class Library:
    """The loaded library. OSError where it cannot be loaded, ImportError where it is of another major version."""

    def __init__(self, path: Optional[str] = None) -> None:
        self.path = path or os.environ.get("FWDMETA_LIBRARY") or "libfwdmeta.so.1"
        self._dll = ctypes.CDLL(self.path)
        for name, (result, arguments) in {**{n: (_i32, a) for n, a in _CALLS.items()}, **_OTHERS}.items():
            function = getattr(self._dll, "fwdmeta_" + name)
            function.restype, function.argtypes = result, arguments
        self.version: int = self._dll.fwdmeta_version()
        if self.version // 10000 != API_VERSION // 10000:
            raise ImportError(f"{self.path} is version {self.version}, this module is of {API_VERSION}")

    def status(self, name: str, *arguments: Any) -> int:
        """Makes the call fwdmeta_<name> and returns its status."""
        return int(getattr(self._dll, "fwdmeta_" + name)(*arguments))

    def call(self, name: str, *arguments: Any) -> None:
        """Makes the call fwdmeta_<name>, and raises Error for any status but OK."""
        status = self.status(name, *arguments)
        if status != Status.OK:
            raise Error(status, self.last_error())

    def last_error(self) -> str:
        return bytes(self._dll.fwdmeta_last_error()).decode(errors="replace")

    def field_name(self, field: int) -> Optional[str]:
        name = self._dll.fwdmeta_field_name(field)
        return None if name is None else name.decode()

    def set_log_level(self, level: int) -> None:
        """0 trace, 1 debug, 2 info, 3 warn, 4 error, 5 off."""
        self.call("log_set_level", level)


_loaded: Optional[Library] = None
_load_lock = threading.Lock()


def load(path: Optional[str] = None) -> Library:
    """The library that everything uses which is not given one; loaded once, `path` replaces it."""
    global _loaded
    with _load_lock:
        if _loaded is None or path is not None:
            _loaded = Library(path)
        return _loaded


# ------------------------------------------------------------------------------------------------------ memory --


class _Memory(NamedTuple):
    """An address, and what keeps it alive. on_host is None where nobody knows."""

    address: Optional[int]
    shape: Optional[Tuple[int, ...]]
    strides: Optional[Tuple[int, ...]]  # elements
    on_host: Optional[bool]
    keep: Any


_NOTHING = _Memory(None, None, None, None, None)
_SIGNED, _BYTES = "bhilq", "bB?"


def _memory(values: Any, ctype: Any, name: str, writable: bool = False) -> _Memory:
    """The elements of `values` as memory of `ctype`: None; an address; a torch or CuPy array; a buffer (NumPy, array);
    or a sequence of numbers, which is copied. The type of elements is checked, never converted."""
    size = ctypes.sizeof(ctype)
    if values is None:
        return _NOTHING
    if isinstance(values, int):
        return _Memory(values, None, None, None, None)
    if hasattr(values, "data_ptr") and hasattr(values, "element_size"):  # torch
        kind = str(values.dtype)
        if values.element_size() != size or not ("int" in kind or (size == 1 and "bool" in kind)):
            raise TypeError(f"{name} is of {kind}, expected {8 * size}-bit integers")
        on_host = values.device.type == "cpu"
        return _Memory(values.data_ptr(), tuple(values.shape), tuple(values.stride()), on_host, values)
    interface = getattr(values, "__cuda_array_interface__", None)
    if interface is not None:
        typestr = interface["typestr"]
        if typestr[1] not in ("iub" if size == 1 else "i") or int(typestr[2:]) != size:
            raise TypeError(f"{name} is of {typestr}, expected {8 * size}-bit integers")
        steps = interface.get("strides")
        strides = None if steps is None else tuple(step // size for step in steps)
        return _Memory(interface["data"][0], tuple(interface["shape"]), strides, False, values)
    try:
        view = memoryview(values)
    except TypeError:
        if writable:
            raise TypeError(f"{name} is rewritten in place and cannot be a {type(values).__name__}") from None
        copied = (ctype * len(values))(*values)
        if any(a != b for a, b in zip(copied, values)):
            raise OverflowError(f"{name} has a number that does not fit {8 * size} bits") from None
        return _Memory(ctypes.addressof(copied), (len(values),), (1,), True, copied)
    if view.itemsize != size or view.format.lstrip("@=<") not in (_BYTES if size == 1 else _SIGNED):
        raise TypeError(f"{name} is of format {view.format!r}, expected {8 * size}-bit integers")
    strides = tuple(step // size for step in view.strides or ())
    if view.nbytes == 0:
        return _Memory(None, view.shape, strides, True, values)
    if view.readonly and writable:
        raise TypeError(f"{name} is rewritten in place and is read-only")
    array_interface = getattr(values, "__array_interface__", None)
    if array_interface is not None:
        return _Memory(array_interface["data"][0], view.shape, strides, True, values)
    if not view.c_contiguous:
        raise TypeError(f"{name} is a buffer that is not contiguous")
    flat = view.cast("B")
    held = (ctypes.c_char * 1).from_buffer(flat) if not view.readonly else _copy(flat)
    return _Memory(ctypes.addressof(held), view.shape, strides, True, (values, held))


def _copy(view: memoryview) -> Any:
    return (ctypes.c_char * view.nbytes).from_buffer_copy(view)


def _list(values: Any, ctype: Any, name: str, writable: bool = False) -> Tuple[_Memory, Optional[int]]:
    """One-dimensional contiguous memory, or [n, 1], and its length where it is known."""
    memory = _memory(values, ctype, name, writable)
    if memory.shape is None:
        return memory, None
    count = 1
    for extent in memory.shape:
        count *= extent
    if max(memory.shape, default=count) != count:
        raise ValueError(f"{name} has the shape {memory.shape}, expected one dimension")
    if memory.strides is not None and count > 1:
        step = memory.strides[memory.shape.index(count)]
        if step != 1:
            raise ValueError(f"{name} is not contiguous: a step of {step} elements")
    return memory, count


def _lists(first: Any, first_name: str, second: Any, second_name: str) -> Tuple[_Memory, _Memory, int]:
    """Two int32 lists of one length."""
    (a, count), (b, others) = _list(first, _i32, first_name), _list(second, _i32, second_name)
    if count is None or count != others:
        raise ValueError(f"{first_name} has {count} entries, {second_name} {others}")
    return a, b, count


def _rows(values: Any, ctype: Any, name: str, slots: int) -> Tuple[Rows, List[_Memory]]:
    """Rows of `slots` slots from None, Rows, a two-dimensional array, or a list of lists of any lengths."""
    if values is None:
        return Rows(), []
    if isinstance(values, Rows):
        return values, []
    if isinstance(values, (list, tuple)):
        if not all(hasattr(row, "__len__") for row in values):
            raise ValueError(f"{name} is a list of numbers, expected one of lists, a row each")
        if len(values) < slots:
            raise ValueError(f"{name} has {len(values)} rows, but there are {slots} slots")
        lengths = [len(row) for row in values]
        width = max(lengths, default=0)
        flat = [number for row in values for number in [*row, *[0] * (width - len(row))]]
        data = _memory(flat or [0], ctype, name)  # an address also where no row has a column
        cut = _memory(lengths, _i32, name) if any(n != width for n in lengths) else _NOTHING
        return Rows(data=data.address, width=width, row_stride=width, row_lengths=cut.address), [data, cut]
    memory = _memory(values, ctype, name)
    if memory.shape is None or len(memory.shape) != 2:
        raise ValueError(f"{name} has the shape {memory.shape}, expected two dimensions")
    if memory.shape[0] < slots:
        raise ValueError(f"{name} has {memory.shape[0]} rows, but there are {slots} slots")
    strides = memory.strides or (memory.shape[1], 1)
    if memory.shape[1] > 1 and strides[1] != 1:
        raise ValueError(f"{name} has a step of {strides[1]} elements within a row, expected 1")
    stride = strides[0] if memory.shape[0] > 1 else memory.shape[1]
    return Rows(data=memory.address, width=memory.shape[1], row_stride=stride), [memory]


def _stream(stream: Any) -> Optional[int]:
    """A cudaStream_t as a number, from one, from torch's and CuPy's streams, or None for CUDA's default stream."""
    for attribute in ("cuda_stream", "ptr"):
        if hasattr(stream, attribute):
            stream = getattr(stream, attribute)
    return stream or None


class Batch:
    """The arguments of a build.

    encoder, decoder, this_time: the int32 lengths E, D and N of every slot. block_tables: one table, or a list of one a
    cache group when `grouped`. Each of these, and input_ids and draft_tokens (int64), may be a sequence of numbers (of
    sequences), a NumPy array or other buffer, a torch or CuPy array, or an address (with batch_size, or Rows).
    memory_kind says where the three lengths are and is never guessed; lists and buffers are host memory. The other
    arrays are always in the backend's memory.
    """

    def __init__(
        self,
        encoder: Any,
        decoder: Any,
        this_time: Any,
        *,
        memory_kind: MemoryKind,
        batch_size: Optional[int] = None,
        num_padded_tokens: int = -1,
        block_tables: Any = None,
        grouped: bool = False,
        input_ids: Any = None,
        draft_tokens: Any = None,
        stream: Any = None,
        generation: int = DEFAULT,
        no_wait: bool = False,
    ) -> None:
        lengths = [
            _list(encoder, _i32, "seq_lens_encoder"),
            _list(decoder, _i32, "seq_lens_decoder"),
            _list(this_time, _i32, "seq_lens_this_time"),
        ]
        counts = {count for _, count in lengths if count is not None}
        if batch_size is None:
            if len(counts) != 1:
                raise ValueError(f"the lengths have {sorted(counts)} slots; with addresses alone give batch_size")
            batch_size = counts.pop()
        elif any(count < batch_size for count in counts):
            raise ValueError(f"batch_size is {batch_size} and the lengths have {sorted(counts)} slots")
        tables = block_tables if grouped else [block_tables]
        made = [_rows(table, _i32, "block_tables", batch_size) for table in tables if table is not None]
        ids = _rows(input_ids, _i64, "input_ids", batch_size)
        drafts = _rows(draft_tokens, _i64, "draft_tokens", batch_size)
        self._lengths = [memory for memory, _ in lengths]
        self._others = [memory for _, memories in [*made, ids, drafts] for memory in memories]
        self._tables = (Rows * len(made))(*[rows for rows, _ in made])
        self.struct = BatchStruct(
            memory_kind=memory_kind,
            flags=1 if no_wait else 0,
            batch_size=batch_size,
            num_padded_tokens=num_padded_tokens,
            seq_lens_encoder=self._lengths[0].address,
            seq_lens_decoder=self._lengths[1].address,
            seq_lens_this_time=self._lengths[2].address,
            num_block_tables=len(made),
            input_ids=ids[0],
            draft_tokens=drafts[0],
            stream=_stream(stream),
            generation=generation,
        )
        if made:
            self.struct.block_tables = self._tables

    def check_for(self, backend: Backend) -> None:
        """ValueError where arrays that a kernel would read are known to be in plain host memory."""
        if backend != Backend.CUDA:
            return
        device_lengths = self.struct.memory_kind == MemoryKind.DEVICE
        if any(memory.on_host for memory in self._others) or (
            device_lengths and any(memory.on_host for memory in self._lengths)
        ):
            raise ValueError("arrays in host memory were given where the CUDA backend reads device memory")


# ----------------------------------------------------------------------------------------------------- handles --


class _Handle:
    """An owned handle: closed by close(), by the end of a with block, or with the object."""

    _destroy = ""

    def __init__(self, library: Library, handle: int) -> None:
        self.library = library
        self.handle = handle

    def close(self) -> None:
        """Ends the handle; again is fine. Error, and still open, where the library refuses (a reader has not ended)."""
        handle, self.handle = self.handle, 0
        try:
            self.library.call(self._destroy, handle)
        except Error:
            self.handle = handle
            raise

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "handle", 0):
            self.library.status(self._destroy, self.handle)


def _created(library: Library, name: str, *arguments: Any) -> int:
    out = _u64()
    library.call(name, *arguments, ctypes.byref(out))
    return out.value


# --------------------------------------------------------------------------------------------------- dlpack --


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", _ptr), ("device_type", _i32), ("device_id", _i32), ("ndim", _i32), ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", _P(_i64)), ("strides", _P(_i64)),
        ("byte_offset", _u64),
    ]


_DELETER = ctypes.CFUNCTYPE(None, _ptr)


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _DLTensor), ("context", _ptr), ("deleter", _DELETER)]


class _ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", _ptr), ("deleter", _DELETER),
        ("flags", _u64), ("tensor", _DLTensor),
    ]


_NAME, _NAME_VERSIONED = b"dltensor", b"dltensor_versioned"  # a taker renames its capsule to used_dltensor...
_DESTRUCTOR = ctypes.PYFUNCTYPE(None, _ptr)
_api = ctypes.pythonapi
_capsule_new = ctypes.PYFUNCTYPE(ctypes.py_object, _ptr, _ptr, _DESTRUCTOR)(("PyCapsule_New", _api))
# By address: what is being destroyed has no reference left that ctypes could count.
_capsule_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, _ptr, _ptr)(("PyCapsule_IsValid", _api))
_capsule_pointer = ctypes.PYFUNCTYPE(_ptr, _ptr, _ptr)(("PyCapsule_GetPointer", _api))


def _address_of(name: bytes) -> int:
    return ctypes.cast(ctypes.c_char_p(name), _ptr).value or 0


_NAMES = {_address_of(_NAME): _Managed, _address_of(_NAME_VERSIONED): _ManagedVersioned}


def _destroy_capsule(capsule: int, names: Any = _NAMES, is_valid: Any = _capsule_is_valid,
                     pointer: Any = _capsule_pointer) -> None:
    for name, struct in names.items():
        if is_valid(capsule, name):  # not taken by anybody
            address = pointer(capsule, name)
            struct.from_address(address).deleter(address)


_destroy = _DESTRUCTOR(_destroy_capsule)
for _immortal in (_NAME, _NAME_VERSIONED, _destroy):  # capsules point at them for as long as they live
    _api.Py_IncRef(ctypes.py_object(_immortal))

# The thread's latest capsule, until the next one. A taker written in C that refuses a capsule drops it with its own
# exception under way, and a destructor written in Python would lose that: so the last reference is ours.
_parked = threading.local()


def _make_capsule(address: int, versioned: bool) -> Any:
    capsule = _capsule_new(address, _address_of(_NAME_VERSIONED if versioned else _NAME), _destroy)
    _parked.capsule = capsule
    return capsule


_TYPES = {(0, 32): ("int32", _i32), (0, 64): ("int64", _i64), (1, 8): ("bool", ctypes.c_bool)}


class Array:
    """A built array of a step, for from_dlpack of torch, CuPy, NumPy and others. It has one dimension.

    `synchronise` orders the taker's stream behind the build, or, for arrays in host memory, waits for the counts;
    without it the caller sees to that. See ForwardMeta.array. is_padding is of bool, which NumPy 1.24 does not take.
    """

    def __init__(self, meta: "ForwardMeta", field: Field, group: int, live: bool, synchronise: bool,
                 device_type: int = 0) -> None:
        self._meta = meta
        self._args = DlpackArgs(field=field, group=group, shape=1 if live else 0, device_type=device_type)
        self._synchronise = synchronise
        kind, ordinal = _i32(), _i32()
        self._call("meta_dlpack_device", ctypes.byref(self._args), ctypes.byref(kind), ctypes.byref(ordinal))
        tensor = Tensor()
        self._call("meta_get_field", field, group, ctypes.byref(tensor))
        self.field = field
        self.group = group
        self.device: Tuple[int, int] = (kind.value, ordinal.value)
        self.dtype: str = _TYPES[tensor.dtype_code, tensor.dtype_bits][0]
        self.address: int = tensor.data  # of the whole array, whatever is live of it
        self._ctype = _TYPES[tensor.dtype_code, tensor.dtype_bits][1]

    @property
    def name(self) -> str:
        return self.field.name.lower() + (f"[{self.group}]" if self.group else "")

    def as_cpu(self) -> "Array":
        """The same array labelled as plain host memory, for takers that do not know pinned memory (torch)."""
        live = self._args.shape == 1
        return Array(self._meta, self.field, self.group, live, self._synchronise, DLDevice.CPU)

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        """For NumPy's functions, of arrays in host memory."""
        if self.device[0] == DLDevice.CUDA:
            raise TypeError(f"{self.name} is in device memory: take it by from_dlpack of torch or CuPy, or tolist()")
        import numpy

        array = numpy.from_dlpack(self)
        return array.astype(dtype) if dtype is not None else array.copy() if copy else array

    def __dlpack_device__(self) -> Tuple[int, int]:
        return self.device

    def __dlpack__(
        self,
        *,
        stream: Optional[int] = None,
        max_version: Optional[Tuple[int, int]] = None,
        dl_device: Optional[Tuple[int, int]] = None,
        copy: Optional[bool] = None,
    ) -> Any:
        """A DLPack capsule, by the Python array API standard 2023.12.

        stream: for CUDA None and 1 are the legacy default stream, 2 the per-thread one, others a cudaStream_t, -1 none;
        host arrays take None and -1. From max_version (1, 0) on the capsule is a versioned one, which says that the
        array is read-only. BufferError for copy=True and for another device than the array's.
        """
        if copy:
            raise BufferError(f"{self.name} is exported without a copy only")
        array = self
        if dl_device is not None and tuple(map(int, dl_device)) != self.device:
            if int(dl_device[0]) != DLDevice.CPU or self.device[0] != DLDevice.CUDA_HOST:
                raise BufferError(f"{self.name} is on device {self.device}, not {tuple(dl_device)}")
            array = self.as_cpu()
        if self.device[0] != DLDevice.CUDA and stream not in (None, -1):
            raise BufferError(f"{self.name} is in host memory, which has no streams: stream is {stream}")
        number = -1
        if self._synchronise and stream != -1:
            if self.device[0] == DLDevice.CUDA:
                number = 1 if stream is None else int(stream)
            else:
                self._meta._wait_readable()
        versioned = max_version is not None and max_version[0] >= 1
        return _make_capsule(array._export(number, versioned), versioned)

    def __len__(self) -> int:
        """The number of elements; of a live array that of the step's part now."""
        address = self._export(-1, True)
        managed = _ManagedVersioned.from_address(address)
        try:
            return int(managed.tensor.shape[0])
        finally:
            managed.deleter(address)

    @property
    def shape(self) -> Tuple[int]:
        return (len(self),)

    def tolist(self) -> List[int]:
        """The elements of an array in host memory."""
        if self.device[0] == DLDevice.CUDA:
            raise BufferError(f"{self.name} is in device memory: take it by torch.from_dlpack or cupy.from_dlpack")
        if self._synchronise:
            self._meta._wait_readable()
        address = self._export(-1, True)
        managed = _ManagedVersioned.from_address(address)
        try:
            count = managed.tensor.shape[0]
            return list((self._ctype * count).from_address(managed.tensor.data)) if count else []
        finally:
            managed.deleter(address)

    def __repr__(self) -> str:
        live = ", live" if self._args.shape == 1 else ""
        return f"<fwdmeta.Array {self.name}: {self.dtype}, device {self.device}{live}>"

    def _call(self, name: str, *arguments: Any) -> None:
        self._meta.library.call(name, self._meta.handle, *arguments)

    def _export(self, stream: int, versioned: bool) -> int:
        out = _ptr()
        name = "meta_to_dlpack_versioned" if versioned else "meta_to_dlpack"
        self._call(name, ctypes.byref(self._args), stream, ctypes.byref(out))
        return out.value or 0


# ------------------------------------------------------------------------------------------------ forward meta --


class ForwardMeta(_Handle):
    """The view of one step. It holds the builder's memory; close it when the step is done with."""

    _destroy = "meta_destroy"

    def __init__(self, library: Library, handle: int, inputs: Any = None) -> None:
        super().__init__(library, handle)
        self._inputs = inputs  # what a kernel may still be reading
        self._kept: Dict[str, Any] = {}

    def close(self) -> None:
        _parked.capsule = None
        super().close()

    def counts(self, timeout_us: int = -1, final: bool = False) -> Counts:
        """The counts; waits for them unless timeout_us says otherwise (0 asks: Error NOT_READY). A step with an error
        raises it. With `final` the invalid counters are final too."""
        out = Counts()
        self.library.call("meta_wait", self.handle, int(final), timeout_us, ctypes.byref(out))
        return out

    def array(self, name: Union[str, Field], group: int = 0, *, live: bool = False,
              synchronise: bool = True) -> Array:
        """A built array by its name ("slot_mapping[1]" too) or Field.

        live: the step's part of it instead of the whole capacity; waits for the counts. synchronise=False leaves it to
        the caller that the taker reads after the build: needed for captured builds taken on another stream than theirs.
        """
        if isinstance(name, Field):
            field = name
        else:
            match = re.fullmatch(r"([a-z0-9_]+?)(?:\[([0-7])\])?", name)
            if match is None or match[1].upper() not in Field.__members__:
                raise KeyError(name)
            field, group = Field[match[1].upper()], int(match[2] or group)
        if live:
            self.counts()
        return Array(self, field, group, live, synchronise)

    def __getitem__(self, name: Union[str, Field]) -> Array:
        return self.array(name)

    def tensor(self, name: str) -> Tensor:
        """Address and shape by name: of built arrays, and of what the engine has set."""
        out = Tensor()
        self.library.call("meta_get", self.handle, name.encode(), ctypes.byref(out))
        return out

    def set_tensor(self, name: str, tensor: Optional[Tensor], keep: Any = None) -> None:
        """Sets an engine's tensor under a name, or removes it with None. `keep` lives as long as it is set."""
        pointer = None if tensor is None else ctypes.byref(tensor)
        self.library.call("meta_set_tensor", self.handle, name.encode(), pointer)
        self._kept[name] = keep

    def attr(self, attr: Attr) -> int:
        out = _i64()
        self.library.call("meta_get_attr", self.handle, attr, ctypes.byref(out))
        return out.value

    def set_attr(self, attr: Attr, value: int) -> None:
        self.library.call("meta_set_attr", self.handle, attr, value)

    @property
    def step(self) -> int:
        """0 for a captured build."""
        return self.attr(Attr.STEP)

    @property
    def forward_mode(self) -> ForwardMode:
        return ForwardMode(self.attr(Attr.FORWARD_MODE))

    @contextmanager
    def reader(self, stream: Any) -> Iterator["ForwardMeta"]:
        """Work given to `stream` within the block comes after the build and before the set's next build."""
        number = _stream(stream)
        self.library.call("meta_reader_begin", self.handle, number)
        try:
            yield self
        finally:
            self.library.call("meta_reader_end", self.handle, number)

    def dump(self, json: bool = False) -> str:
        """All of the step as text or JSON. Synchronises the step's stream."""
        pieces: List[bytes] = []

        def write(data: int, size: int, _: Any) -> int:
            pieces.append(ctypes.string_at(data, size))
            return 0

        self.library.call("meta_dump", self.handle, 0 if json else 1, _WRITE(write), None)
        return b"".join(pieces).decode()

    def _wait_readable(self) -> None:
        # The status of a step with an error is no obstacle: its arrays are there, all padding.
        status = self.library.status("meta_wait", self.handle, 0, -1, None)
        if status in (Status.EXPIRED, Status.INVALID_HANDLE):
            raise Error(status, self.library.last_error())


class Builder(_Handle):
    """Builds steps. Takes a Config, or its fields as keywords."""

    _destroy = "builder_destroy"

    def __init__(self, config: Optional[Config] = None, *, library: Optional[Library] = None, **values: Any) -> None:
        library = library or load()
        self.config = config or Config(**values)
        super().__init__(library, _created(library, "builder_create", ctypes.byref(self.config)))
        self.backend = Backend(self.info().backend)

    def build(self, batch: Batch) -> ForwardMeta:
        """Enqueues a build and returns the view of its step, which keeps the batch's arrays alive."""
        batch.check_for(self.backend)
        out = _u64()
        self.library.call("build", self.handle, ctypes.byref(batch.struct), ctypes.byref(out), None)
        return ForwardMeta(self.library, out.value, batch)

    def enqueue(self, batch: Batch) -> int:
        """The same without a view: the step's number, 0 for a captured build. The caller keeps the arrays alive."""
        batch.check_for(self.backend)
        step = _i64()
        self.library.call("build", self.handle, ctypes.byref(batch.struct), None, ctypes.byref(step))
        return step.value

    def wait(self, step: int, timeout_us: int = -1, final: bool = False) -> Counts:
        out = Counts()
        self.library.call("counts_wait", self.handle, step, int(final), timeout_us, ctypes.byref(out))
        return out

    def wait_replay(self, replay: int = 0, timeout_us: int = -1, final: bool = False) -> Counts:
        """Counts of a captured build's replay; 0: the newest that has published."""
        out = Counts()
        self.library.call("replay_wait", self.handle, replay, int(final), timeout_us, ctypes.byref(out))
        return out

    def advance(self, encoder: Any, decoder: Any, this_time: Any, *, batch_size: Optional[int] = None,
                num_rejected: Any = None, stop: Any = None, prompt_lens: Any = None, num_draft_tokens: int = 0,
                stream: Any = None) -> None:
        """Moves the lengths to the next decode step, in place: buffers or arrays of the backend's memory."""
        lengths = [_list(v, _i32, n, True) for v, n in ((encoder, "encoder"), (decoder, "decoder"), (this_time, "N"))]
        rejected, stops = _list(num_rejected, _i32, "num_rejected"), _list(stop, ctypes.c_uint8, "stop")
        prompts = _list(prompt_lens, _i32, "prompt_lens")
        given = [*lengths, rejected, stops, prompts]
        counts = {count for _, count in given if count is not None}
        if batch_size is None:
            if len(counts) != 1:
                raise ValueError(f"the arrays have {sorted(counts)} slots; with addresses alone give batch_size")
            batch_size = counts.pop()
        elif any(count < batch_size for count in counts):
            raise ValueError(f"batch_size is {batch_size} and the arrays have {sorted(counts)} slots")
        if self.backend == Backend.CUDA and any(memory.on_host for memory, _ in given):
            raise ValueError("arrays in host memory were given where the CUDA backend reads device memory")
        args = AdvanceArgs(
            batch_size=batch_size,
            seq_lens_encoder=lengths[0][0].address,
            seq_lens_decoder=lengths[1][0].address,
            seq_lens_this_time=lengths[2][0].address,
            num_rejected=rejected[0].address,
            stop=stops[0].address,
            prompt_lens=prompts[0].address,
            num_draft_tokens=num_draft_tokens,
            stream=_stream(stream),
        )
        self.library.call("advance", self.handle, ctypes.byref(args))

    def wait_advance(self, advance: int = 0, timeout_us: int = -1) -> AdvanceCounts:
        out = AdvanceCounts()
        self.library.call("advance_wait", self.handle, advance, timeout_us, ctypes.byref(out))
        return out

    def reset(self, stream: Any = None) -> None:
        """Refills every array with its tail values."""
        self.library.call("builder_reset", self.handle, _stream(stream))

    def info(self) -> BuilderInfo:
        out = BuilderInfo()
        self.library.call("builder_get_info", self.handle, ctypes.byref(out))
        return out


def capacities(config: Config, *, slots: int = DEFAULT, tokens: int = DEFAULT, block_table_alignment: int = 1,
               library: Optional[Library] = None) -> Capacities:
    """Sizes and bytes of a configuration, or the bounds of a bucket; allocates nothing."""
    query = CapacityQuery(slots=slots, tokens=tokens, block_table_alignment=block_table_alignment)
    out = Capacities()
    (library or load()).call("get_capacities", ctypes.byref(config), ctypes.byref(query), ctypes.byref(out))
    return out


# --------------------------------------------------------------------------------------------- forward context --


def _filled(ctype: Any, ask: Callable[[Any, int, Any], None]) -> List[Any]:
    """An array that the library fills: asks for the count, then for the elements."""
    count = _i64()
    ask(None, 0, ctypes.byref(count))
    out = (ctype * count.value)()
    if count.value:
        ask(ctypes.cast(out, _ptr), count.value, ctypes.byref(count))
    return list(out)


class Dispatcher(_Handle):
    """Which captured graph a step runs in. Keywords are the fields of DispatcherConfig; capture_sizes and query_lens
    are lists."""

    _destroy = "dispatcher_destroy"

    def __init__(self, mode: GraphMode, *, max_num_seqs: int, max_num_tokens: int,
                 capture_sizes: Optional[Sequence[int]] = None, query_lens: Optional[Sequence[int]] = None,
                 library: Optional[Library] = None, **values: Any) -> None:
        config = DispatcherConfig(mode=mode, max_num_seqs=max_num_seqs, max_num_tokens=max_num_tokens, **values)
        if capture_sizes is not None:
            config.num_capture_sizes = len(capture_sizes)
            config.capture_sizes = (_i64 * len(capture_sizes))(*capture_sizes)
        if query_lens is not None:
            config.num_query_lens = len(query_lens)
            config.query_lens = (_i64 * len(query_lens))(*query_lens)
        library = library or load()
        super().__init__(library, _created(library, "dispatcher_create", ctypes.byref(config)))

    def info(self) -> DispatcherInfo:
        out = DispatcherInfo()
        self.library.call("dispatcher_get_info", self.handle, ctypes.byref(out))
        return out

    def sizes(self) -> List[int]:
        return _filled(_i64, lambda *out: self.library.call("dispatcher_get_sizes", self.handle, *out))

    def keys(self) -> List[GraphKey]:
        """All keys in the order to capture them."""
        return _filled(GraphKey, lambda *out: self.library.call("dispatcher_get_keys", self.handle, *out))

    def mark_captured(self, key: Optional[GraphKey] = None) -> None:
        """Makes a key dispatchable; None: all."""
        self.library.call("dispatcher_mark_captured", self.handle, None if key is None else ctypes.byref(key))

    def dispatch(self, num_tokens: int, num_reqs: int, query_len: int = 0, **values: Any) -> DispatchResult:
        args = DispatchArgs(num_tokens=num_tokens, num_reqs=num_reqs, query_len=query_len, **values)
        out = DispatchResult()
        self.library.call("dispatch", self.handle, ctypes.byref(args), ctypes.byref(out))
        return out

    def dispatch_lengths(self, encoder: Any, this_time: Any, query_len: int = 1, **values: Any) -> DispatchResult:
        """The same by host lengths: `query_len` counts where every live slot decodes so many tokens."""
        args = DispatchArgs(**values)
        e, n, slots = _lists(encoder, "seq_lens_encoder", this_time, "seq_lens_this_time")
        self.library.call("dispatch_args_from_lengths", e.address, n.address, slots, query_len, ctypes.byref(args))
        out = DispatchResult()
        self.library.call("dispatch", self.handle, ctypes.byref(args), ctypes.byref(out))
        return out


class AgreementResult(NamedTuple):
    agreement: Agreement
    num_tokens: List[int]  # that each rank runs


def agree(dispatcher: Dispatcher, rows: Sequence[RankRow], num_slices: int = 1) -> AgreementResult:
    """What all ranks conclude from the table of their rows."""
    tokens, out = (_i64 * len(rows))(), Agreement()
    dispatcher.library.call("agree", dispatcher.handle, (RankRow * len(rows))(*rows), len(rows), num_slices, tokens,
                            ctypes.byref(out))
    return AgreementResult(out, list(tokens))


def _slice_args(query_lens: Any, seq_lens: Any, values: Dict[str, Any]) -> Tuple[SliceArgs, Any]:
    query, seq, count = _lists(query_lens, "query_lens", seq_lens, "seq_lens")
    return SliceArgs(query_lens=query.address, seq_lens=seq.address, num_reqs=count, **values), (query, seq)


def plan_slices(query_lens: Any, seq_lens: Any, num_slices: int, *, library: Optional[Library] = None,
                **values: Any) -> List[Slice]:
    """Cuts a step into microbatches; further keywords are the fields of SliceArgs."""
    args, _keep = _slice_args(query_lens, seq_lens, {"num_slices": num_slices, **values})
    out = (Slice * max(0, num_slices))()
    (library or load()).call("plan_slices", ctypes.byref(args), out)
    return list(out)


def slice_lengths(query_lens: Any, seq_lens: Any, part: Slice, num_slices: int, *, library: Optional[Library] = None,
                  **values: Any) -> Tuple[List[int], List[int], List[int]]:
    """query_start_loc, seq_lens and computed of one planned slice; the other arguments are those of its plan."""
    args, _keep = _slice_args(query_lens, seq_lens, {"num_slices": num_slices, **values})
    count = max(0, part.end_req - part.first_req)
    starts, lengths, computed = (_i32 * (count + 1))(), (_i32 * count)(), (_i32 * count)()
    (library or load()).call("slice_lengths", ctypes.byref(args), ctypes.byref(part), starts, lengths, computed)
    return list(starts), list(lengths), list(computed)


def split_by_role(encoder: Any, this_time: Any, *, library: Optional[Library] = None) -> BatchSplit:
    """How many decode and prefill slots, and tokens of each."""
    e, n, count = _lists(encoder, "seq_lens_encoder", this_time, "seq_lens_this_time")
    out = BatchSplit()
    (library or load()).call("split_by_role", e.address, n.address, count, ctypes.byref(out))
    return out


def reorder_by_role(encoder: Any, this_time: Any, *, library: Optional[Library] = None) -> List[int]:
    """The slot that belongs at each place: decodes, then prefills, then idle ones."""
    e, n, count = _lists(encoder, "seq_lens_encoder", this_time, "seq_lens_this_time")
    order = (_i32 * count)()
    (library or load()).call("reorder_by_role", e.address, n.address, count, order, None)
    return list(order)


class Layers(_Handle):
    """The layers of a model, in the order of registration."""

    _destroy = "layers_destroy"

    def __init__(self, *, library: Optional[Library] = None) -> None:
        library = library or load()
        super().__init__(library, _created(library, "layers_create"))

    def add(self, name: str, pointer: Optional[int] = None, is_moe: bool = False) -> int:
        index = _i64()
        self.library.call("layers_add", self.handle, name.encode(), pointer, int(is_moe), ctypes.byref(index))
        return index.value

    def find(self, name: str) -> int:
        index = _i64()
        self.library.call("layers_find", self.handle, name.encode(), ctypes.byref(index))
        return index.value

    def __len__(self) -> int:
        count = _i64()
        self.library.call("layers_count", self.handle, ctypes.byref(count), None)
        return count.value


class Context(_Handle):
    """A forward context: set while building, pushed for the thread by `with context.pushed():`, read until its pop."""

    _destroy = "context_destroy"

    def __init__(self, layers: Optional[Layers] = None, *, max_slices: int = 1, max_values: int = 16,
                 library: Optional[Library] = None) -> None:
        library = library or (layers.library if layers is not None else load())
        config = ContextConfig(layers=layers.handle if layers is not None else 0, max_slices=max_slices,
                               max_values=max_values)
        super().__init__(library, _created(library, "context_create", ctypes.byref(config)))

    def _call(self, name: str, *arguments: Any) -> None:
        self.library.call("context_" + name, self.handle, *arguments)

    def _get(self, name: str, out: Any, *arguments: Any) -> Any:
        self._call(name, *arguments, ctypes.byref(out))
        return out.value

    def set_meta(self, meta: ForwardMeta, layer: int = ALL_LAYERS, part: int = 0) -> None:
        """The attention metadata of a layer in a slice; the caller keeps the meta open."""
        self._call("set_attn_metadata", layer, part, ctypes.byref(AttnMetadata(meta=meta.handle)))

    def meta_handle(self, layer: int = ALL_LAYERS, part: int = 0) -> int:
        out = AttnMetadata()
        self._call("get_attn_metadata", layer, part, ctypes.byref(out))
        return int(out.meta)

    def set_dispatch(self, result: Union[DispatchResult, Agreement]) -> None:
        """Runtime mode and descriptor of a dispatched or agreed step."""
        self._call("set_runtime_mode", result.mode)
        self._call("set_descriptor", ctypes.byref(result.descriptor))

    @property
    def runtime_mode(self) -> GraphMode:
        return GraphMode(self._get("get_runtime_mode", _i32()))

    @property
    def descriptor(self) -> BatchDescriptor:
        out = BatchDescriptor()
        self._call("get_descriptor", ctypes.byref(out))
        return out

    def set_slices(self, slices: Sequence[Slice]) -> None:
        self._call("set_slices", (Slice * len(slices))(*slices), len(slices))

    @property
    def slices(self) -> List[Slice]:
        return _filled(Slice, lambda *out: self._call("get_slices", *out))

    def set_skip_compiled(self, skip: bool) -> None:
        self._call("set_skip_compiled", int(skip))

    @property
    def skip_compiled(self) -> bool:
        return bool(self._get("get_skip_compiled", _i32()))

    def set(self, name: str, value: Union[int, float]) -> None:
        """An additional value; an int and a float are of different kinds."""
        self._call("set_double" if isinstance(value, float) else "set_int64", name.encode(), value)

    def get_int(self, name: str) -> int:
        return int(self._get("get_int64", _i64(), name.encode()))

    def get_float(self, name: str) -> float:
        return float(self._get("get_double", ctypes.c_double(), name.encode()))

    def next_moe_layer(self) -> int:
        return int(self._get("next_moe_layer", _i64()))

    def reset(self) -> None:
        """Makes it empty and building again."""
        self._call("reset")

    @contextmanager
    def pushed(self) -> Iterator["Context"]:
        """The thread's current context within the block."""
        self._call("push")
        try:
            yield self
        finally:
            self._call("pop")

    @contextmanager
    def overriding(self) -> Iterator["Context"]:
        """This context, pushed by any thread, is the thread's current one within the block."""
        previous = _u64()
        self._call("override", ctypes.byref(previous))
        try:
            yield self
        finally:
            self.library.call("context_override", previous.value, None)


def current_context(library: Optional[Library] = None) -> int:
    """The handle of the thread's current context. Error NOT_SET where there is none."""
    return _created(library or load(), "context_current")
