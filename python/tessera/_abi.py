"""The structures of include/tessera/tessera.h for ctypes, field by field, and the loaded library.

tests/python compares sizes and offsets with what the C compiler says.
"""

import ctypes
import os
from ctypes import POINTER, c_char, c_char_p, c_float, c_int, c_int32, c_int64, c_size_t, c_void_p

MAX_SEGMENTS = 4


class Error(ctypes.Structure):
    _fields_ = [("code", c_int), ("text", c_char * 1020)]


class Executor(ctypes.Structure):
    _fields_ = [("context", c_void_p), ("num_threads", c_int32), ("parallel_for", c_void_p)]


class Stream(ctypes.Structure):
    _fields_ = [("executor", POINTER(Executor)), ("cuda_stream", c_void_p)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("stride_batch", c_int64),
        ("stride_token", c_int64),
        ("stride_head", c_int64),
        ("stride_dim", c_int64),
    ]


class RowScalars(ctypes.Structure):
    _fields_ = [("data", c_void_p), ("stride_batch", c_int64), ("stride_token", c_int64), ("stride_head", c_int64)]


class BitMask(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("stride_batch", c_int64),
        ("stride_head", c_int64),
        ("stride_row", c_int64),
        ("num_keys", c_int64),
    ]


class Segment(ctypes.Structure):
    _fields_ = [
        ("k", Tensor),
        ("v", Tensor),
        ("format", c_int),
        ("seqlen_k", c_int64),
        ("seqlens_k", c_void_p),
        ("cu_seqlens_k", c_void_p),
        ("page_table", c_void_p),
        ("page_table_stride", c_int64),
        ("page_size", c_int32),
        ("num_pages", c_int64),
        ("causal", c_int32),
        ("window_left", c_int64),
        ("window_right", c_int64),
        ("compress_ratio", c_int32),
        ("q_positions", c_void_p),
        ("mask", BitMask),
        ("indices", c_void_p),
        ("indices_stride", c_int64),
        ("topk", c_int32),
        ("topk_lens", c_void_p),
    ]


class OutputRope(ctypes.Structure):
    _fields_ = [
        ("cos_table", c_void_p),
        ("sin_table", c_void_p),
        ("positions", c_void_p),
        ("num_positions", c_int64),
        ("rotary_dim", c_int32),
    ]


class FmhaParams(ctypes.Structure):
    _fields_ = [
        ("struct_size", c_size_t),
        ("dtype", c_int),
        ("o_dtype", c_int),
        ("head_dim_qk", c_int32),
        ("head_dim_v", c_int32),
        ("num_heads_q", c_int32),
        ("num_heads_kv", c_int32),
        ("batch", c_int64),
        ("q", Tensor),
        ("seqlen_q", c_int64),
        ("cu_seqlens_q", c_void_p),
        ("seqlens_q", c_void_p),
        ("num_segments", c_int32),
        ("segments", Segment * MAX_SEGMENTS),
        ("softmax_scale", c_float),
        ("softcap", c_float),
        ("alibi_slopes", c_void_p),
        ("sinks", c_void_p),
        ("output_mode", c_int),
        ("o", Tensor),
        ("lse_natural_no_sink", RowScalars),
        ("row_max_log2", RowScalars),
        ("row_sum", RowScalars),
        ("chunk_begin", c_int64),
        ("chunk_end", c_int64),
        ("force_kernel", c_char_p),
        ("device", c_int),
        ("o_rope", OutputRope),
    ]


class KernelInfo(ctypes.Structure):
    _fields_ = [
        ("name", c_char_p),
        ("arithmetic", c_char_p),
        ("summary", c_char_p),
        ("operation", c_int),
        ("available", c_int32),
        ("reason", c_char_p),
    ]


def _find_library() -> str:
    name = "libtessera.so"
    given = os.environ.get("TESSERA_LIBRARY")
    if given:
        return given
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    places = [os.path.join(root, "build", preset, "src", "api", name) for preset in ("cuda", "cpu")]
    for place in places:
        if os.path.exists(place):
            return place
    raise ImportError(f"{name}: got none in {', '.join(places)}; build the target tessera_shared, or name the file in TESSERA_LIBRARY")


def load() -> ctypes.CDLL:
    library = ctypes.CDLL(_find_library())
    library.tessera_version.restype = c_char_p
    library.tessera_contract_version.restype = c_char_p
    library.tessera_fmha_select.argtypes = [POINTER(FmhaParams), POINTER(c_char_p), POINTER(Error)]
    library.tessera_fmha_workspace_size.argtypes = [POINTER(FmhaParams), c_int32, POINTER(c_size_t), POINTER(Error)]
    library.tessera_fmha_run.argtypes = [POINTER(FmhaParams), c_void_p, c_size_t, POINTER(Stream), POINTER(Error)]
    library.tessera_fmha_contract_id.argtypes = [POINTER(FmhaParams), c_char_p, c_size_t, POINTER(c_size_t), POINTER(Error)]
    library.tessera_kv_to_fp8.argtypes = [
        c_int, c_int64, c_void_p, c_int64, c_int32, c_void_p, c_void_p, c_int64, c_int32, c_int64, POINTER(Error)
    ]  # fmt: skip
    library.tessera_kernel_get.argtypes = [c_int32, POINTER(KernelInfo), POINTER(Error)]
    return library
