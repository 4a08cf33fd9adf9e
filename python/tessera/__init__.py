"""Tessera's attention for Python, over the C interface: numpy arrays or torch tensors in, the same kind out.

    import tessera
    o = tessera.fmha(q, k, v, causal=True)                     # (batch, seqlen, heads, head_dim)
    o, lse = tessera.fmha(q, k, v, causal=True, return_lse=True)

Arrays on the host run on the CPU kernels, torch tensors on a GPU on the CUDA kernels, on torch's current stream. The bits
depend on the inputs and on `contract_id` only. `Attention` is the same split into a prepared call and its launch, for
loops and CUDA graphs. `SegmentedAttention` is a call over several `Segment`s of keys: windows, compressed and listed keys,
pages, FP8 rows; `kv_to_fp8` makes such rows.
"""

import ctypes

from tessera import _abi

__all__ = [
    "Attention",
    "Segment",
    "SegmentedAttention",
    "TesseraError",
    "contract_version",
    "fmha",
    "kernels",
    "kv_to_fp8",
    "version",
]

_LIBRARY = _abi.load()
_DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
_FORMATS = {"dense": 0, "fp8_v32": 1, "fp8_v4": 2}
_FP8_ROWS = {"fp8_v32": (656, 0), "fp8_v4": (576, 8)}  # bytes of a row, and behind the rows of a page for each of them
_WORKSPACE_ALIGNMENT = 64


class TesseraError(RuntimeError):
    """A refused call: `code` is the name of the tessera_status, the text says what was got, allowed, and to do."""

    NAMES = ("OK", "INVALID_ARGUMENT", "UNSUPPORTED", "WORKSPACE_TOO_SMALL", "IO", "BAD_FILE", "DEVICE", "INTERNAL")

    def __init__(self, code: int, text: str):
        super().__init__(text)
        self.code = self.NAMES[code]


def _check(code: int, error: _abi.Error) -> None:
    if code != 0:
        raise TesseraError(code, error.text.decode())


def version() -> str:
    return _LIBRARY.tessera_version().decode()


def contract_version() -> str:
    return _LIBRARY.tessera_contract_version().decode()


def kernels() -> list[dict]:
    """Every kernel of the build: name, arithmetic, summary, available, and the reason if not."""
    rows = []
    for index in range(_LIBRARY.tessera_kernel_count()):
        info, error = _abi.KernelInfo(), _abi.Error()
        _check(_LIBRARY.tessera_kernel_get(index, ctypes.byref(info), ctypes.byref(error)), error)
        rows.append(
            {
                "name": info.name.decode(),
                "arithmetic": info.arithmetic.decode(),
                "summary": info.summary.decode(),
                "available": bool(info.available),
                "reason": info.reason.decode() if info.reason else None,
            }
        )
    return rows


def _is_torch(array) -> bool:
    return type(array).__module__.split(".")[0] == "torch"


def _address(array) -> int:
    return array.data_ptr() if _is_torch(array) else array.ctypes.data


def _element_strides(array) -> tuple[int, ...]:
    return tuple(array.stride()) if _is_torch(array) else tuple(s // array.itemsize for s in array.strides)


def _dtype_name(array) -> str:
    return str(array.dtype).removeprefix("torch.")


def _tensor(name: str, array, packed: bool) -> _abi.Tensor:
    wanted = 3 if packed else 4
    if len(array.shape) != wanted:
        shape = "(tokens, heads, dim)" if packed else "(batch, tokens, heads, dim)"
        raise TesseraError(1, f"{name}: got {len(array.shape)} dimensions; allowed {wanted}; pass {shape}")
    strides = _element_strides(array)
    return _abi.Tensor(_address(array), *((0,) if packed else ()), *strides)


def _contiguous(name: str, array, like, dtype: str) -> int | None:
    if array is None:
        return None
    step = 1
    contiguous = True
    for extent, stride in zip(reversed(array.shape), reversed(_element_strides(array))):
        contiguous = contiguous and (stride == step or extent == 1)
        step *= extent
    if _dtype_name(array) != dtype or not contiguous:
        raise TesseraError(1, f"{name}: got {_dtype_name(array)} or a strided array; allowed contiguous {dtype}; convert it")
    _same_place(name, array, like)
    return _address(array)


def _int32(name: str, array, like) -> int | None:
    return _contiguous(name, array, like, "int32")


def _float32(name: str, array, like) -> int | None:
    return _contiguous(name, array, like, "float32")


def _same_place(name: str, array, like) -> None:
    place = lambda a: str(a.device) if _is_torch(a) else "host"  # noqa: E731
    if place(array) != place(like):
        raise TesseraError(1, f"{name}: got memory of {place(array)}; allowed that of q ({place(like)}); move it there")


class _Call:
    """What a prepared call is, however it was described: `o` and `lse` are filled by every run."""

    def _prepare(self, p, q, owned) -> None:
        """Takes the parameters and gives the call its workspace. `owned` lives as long as this object: the C structure
        only has addresses."""
        self._params = p
        self._owned = (q, *owned)
        size, error = ctypes.c_size_t(), _abi.Error()
        _check(_LIBRARY.tessera_fmha_workspace_size(p, 1, ctypes.byref(size), ctypes.byref(error)), error)
        self._bytes = size.value
        self._workspace = self._empty(q, (size.value + _WORKSPACE_ALIGNMENT,), "uint8")
        at = _address(self._workspace)
        self._workspace_at = (at + _WORKSPACE_ALIGNMENT - 1) // _WORKSPACE_ALIGNMENT * _WORKSPACE_ALIGNMENT

    @staticmethod
    def _empty(like, shape, dtype=None):
        if _is_torch(like):
            import torch

            return torch.empty(shape, dtype=like.dtype if dtype is None else getattr(torch, dtype), device=like.device)
        import numpy

        return numpy.empty(shape, dtype=like.dtype if dtype is None else dtype)

    @property
    def kernel(self) -> str:
        """Name of the kernel that runs."""
        name, error = ctypes.c_char_p(), _abi.Error()
        _check(_LIBRARY.tessera_fmha_select(self._params, ctypes.byref(name), ctypes.byref(error)), error)
        return name.value.decode()

    @property
    def contract_id(self) -> str:
        text, error = ctypes.create_string_buffer(256), _abi.Error()
        _check(_LIBRARY.tessera_fmha_contract_id(self._params, text, len(text), None, ctypes.byref(error)), error)
        return text.value.decode()

    def run(self) -> None:
        """Fills `o` and `lse`: at once on the CPU, enqueued on torch's current stream on a GPU."""
        stream = _abi.Stream()
        if self._params.device == 1:
            import torch

            stream.cuda_stream = torch.cuda.current_stream().cuda_stream
        error = _abi.Error()
        _check(_LIBRARY.tessera_fmha_run(self._params, self._workspace_at, self._bytes, ctypes.byref(stream), ctypes.byref(error)), error)


class Attention(_Call):
    """One attention call over fixed buffers: prepared once, run any number of times, from `o` and `lse` read.

    q (batch, seqlen_q, heads_q, dim), k and v (batch, seqlen_k, heads_kv, dim), any strides; with cu_seqlens_q or
    cu_seqlens_k the packed form without the batch dimension (max_seqlen_q and max_seqlen_k bound the lengths). With
    page_table (batch, pages), k and v are pools (page, slot, head, dim). window = (left, right) in keys, -1 unlimited.
    """

    def __init__(
        self,
        q,
        k,
        v,
        *,
        causal=False,
        window=(-1, -1),
        softmax_scale=None,
        softcap=0.0,
        sinks=None,
        alibi_slopes=None,
        cu_seqlens_q=None,
        cu_seqlens_k=None,
        max_seqlen_q=None,
        max_seqlen_k=None,
        seqlens_k=None,
        page_table=None,
        out=None,
        return_lse=False,
        kernel=None,
    ):
        packed_q, packed_k = cu_seqlens_q is not None, cu_seqlens_k is not None
        dtype = _dtype_name(q)
        if dtype not in _DTYPES or any(_dtype_name(t) != dtype for t in (k, v)):
            got = ", ".join(_dtype_name(t) for t in (q, k, v))
            raise TesseraError(1, f"q, k, v: got {got}; allowed one of {', '.join(_DTYPES)} for all three; convert them")
        for name, array in (("k", k), ("v", v), ("out", out)):
            if array is not None:
                _same_place(name, array, q)
        p = _abi.FmhaParams()
        p.struct_size = ctypes.sizeof(p)
        p.device = int(_is_torch(q) and q.is_cuda)
        p.dtype = p.o_dtype = _DTYPES[dtype]
        p.q = _tensor("q", q, packed_q)
        p.num_heads_q, p.head_dim_qk = q.shape[-2:]
        p.num_segments = 1
        s = p.segments[0]
        s.k, s.v = _tensor("k", k, packed_k), _tensor("v", v, packed_k)
        p.num_heads_kv, p.head_dim_v = k.shape[-2], v.shape[-1]
        if k.shape[-1] != q.shape[-1] or v.shape[:-1] != k.shape[:-1]:
            raise TesseraError(1, f"k, v: got shapes {tuple(k.shape)}, {tuple(v.shape)}; allowed the head dim of q and equal tokens and heads")
        batches = {"q": None if packed_q else q.shape[0], "cu_seqlens_q": cu_seqlens_q.shape[0] - 1 if packed_q else None}
        if page_table is None:
            batches["k"] = None if packed_k else k.shape[0]
        batches["cu_seqlens_k"] = cu_seqlens_k.shape[0] - 1 if packed_k else None
        batches["seqlens_k"] = None if seqlens_k is None else seqlens_k.shape[0]
        batches["page_table"] = None if page_table is None else page_table.shape[0]
        known = {name: size for name, size in batches.items() if size is not None}
        if len(set(known.values())) != 1:
            raise TesseraError(1, f"batch: got {known}; allowed one number of sequences in all of them")
        p.batch = next(iter(known.values()))
        for bound, packed, name in ((max_seqlen_q, packed_q, "max_seqlen_q"), (max_seqlen_k, packed_k, "max_seqlen_k")):
            if packed and bound is None:
                raise TesseraError(1, f"{name}: got none; allowed the longest sequence of the packed batch")
        p.seqlen_q = max_seqlen_q if packed_q else q.shape[1]
        p.cu_seqlens_q = _int32("cu_seqlens_q", cu_seqlens_q, q)
        s.cu_seqlens_k = _int32("cu_seqlens_k", cu_seqlens_k, q)
        s.seqlens_k = _int32("seqlens_k", seqlens_k, q)
        s.seqlen_k = max_seqlen_k if packed_k else k.shape[1]
        if page_table is not None:
            s.page_table = _int32("page_table", page_table, q)
            s.page_table_stride, s.page_size, s.num_pages = page_table.shape[1], k.shape[1], k.shape[0]
            s.seqlen_k = max_seqlen_k if max_seqlen_k is not None else page_table.shape[1] * k.shape[1]
        s.causal = int(causal)
        s.window_left, s.window_right = window
        s.mask.num_keys = -1
        p.softmax_scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        p.softcap = softcap
        p.sinks = _float32("sinks", sinks, q)
        p.alibi_slopes = _float32("alibi_slopes", alibi_slopes, q)
        self.o = self._empty(q, (*q.shape[:-1], v.shape[-1])) if out is None else out
        p.o = _tensor("out", self.o, packed_q)
        self.lse = None
        if return_lse:  # (batch, heads, seqlen_q), packed (heads, tokens)
            tokens = q.shape[0] if packed_q else q.shape[1]
            self.lse = self._empty(q, (p.num_heads_q, tokens) if packed_q else (p.batch, p.num_heads_q, tokens), "float32")
            p.lse_natural_no_sink = _abi.RowScalars(
                _address(self.lse), 0 if packed_q else p.num_heads_q * tokens, 1, tokens
            )
        p.force_kernel = None if kernel is None else kernel.encode()
        self._prepare(p, q, (k, v, sinks, alibi_slopes, cu_seqlens_q, cu_seqlens_k, seqlens_k, page_table))


class Segment:
    """One ordered part of the keys of a SegmentedAttention, as tessera_kv_segment describes it.

    k (batch, tokens, heads_kv, dim), or with page_table (batch, pages) a pool (page, slot, heads_kv, dim); v likewise, or
    None: V is the first dims of the rows of k. FP8 rows (one K/V head) are bytes: k (batch, tokens, 656) or (page, slot,
    656) with format "fp8_v32", (page, bytes) and page_size with format "fp8_v4". indices (batch, tokens of q, topk) lists
    the keys of every query token, -1 for none; topk_lens (batch, tokens of q) cuts the lists.
    """

    def __init__(
        self,
        k,
        v=None,
        *,
        format="dense",
        causal=False,
        window=(-1, -1),
        compress_ratio=0,
        q_positions=None,
        seqlens_k=None,
        max_seqlen_k=None,
        page_table=None,
        page_size=None,
        indices=None,
        topk_lens=None,
    ):
        if format not in _FORMATS:
            raise TesseraError(1, f"format: got {format}; allowed {', '.join(_FORMATS)}")
        if format == "fp8_v4" and (page_table is None or page_size is None):
            raise TesseraError(1, "page_table, page_size: got none; allowed both with format fp8_v4, whose scales lie behind a page's rows")
        self.k, self.v, self.format = k, v, format
        self.causal, self.window, self.compress_ratio = causal, window, compress_ratio
        self.q_positions, self.seqlens_k, self.max_seqlen_k = q_positions, seqlens_k, max_seqlen_k
        self.page_table, self.indices, self.topk_lens = page_table, indices, topk_lens
        self.page_size = k.shape[1] if page_size is None else page_size

    def fill(self, s, q, head_dim_v: int) -> None:
        if self.format == "dense":
            v = self.k[..., :head_dim_v] if self.v is None else self.v
            s.k, s.v = _tensor("k", self.k, False), _tensor("v", v, False)
        else:
            strides = _element_strides(self.k)
            row = _FP8_ROWS[self.format][0] if self.format == "fp8_v4" else strides[1]
            s.k = s.v = _abi.Tensor(_address(self.k), strides[0], row, 0, 1)
        _same_place("k", self.k, q)
        s.format = _FORMATS[self.format]
        s.seqlen_k = self.k.shape[1] if self.max_seqlen_k is None else self.max_seqlen_k
        s.seqlens_k = _int32("seqlens_k", self.seqlens_k, q)
        if self.page_table is not None:
            s.page_table = _int32("page_table", self.page_table, q)
            s.page_table_stride, s.page_size, s.num_pages = self.page_table.shape[1], self.page_size, self.k.shape[0]
            if self.max_seqlen_k is None:
                s.seqlen_k = self.page_table.shape[1] * self.page_size
        s.causal = int(self.causal)
        s.window_left, s.window_right = self.window
        s.compress_ratio = self.compress_ratio
        s.q_positions = _int32("q_positions", self.q_positions, q)
        s.mask.num_keys = -1
        if self.indices is not None:
            s.topk = s.indices_stride = self.indices.shape[2]
            s.indices = _int32("indices", self.indices, q)
            s.topk_lens = _int32("topk_lens", self.topk_lens, q)


class SegmentedAttention(_Call):
    """Attention of q (batch, tokens, heads_q, dim) over the keys of up to four segments, in that order.

    dtype: of q and of dense k and v, if it is not that of the array (numpy has no bfloat16: pass uint16 and "bfloat16").
    out_dtype: "float32", or that of q. o_rope: (cos, sin, positions) turns the last dims of the output back: tables
    (positions, pairs) of the angles, and the position of every query token (batch, tokens).
    """

    def __init__(
        self,
        q,
        segments,
        *,
        head_dim_v=None,
        softmax_scale=None,
        sinks=None,
        o_rope=None,
        dtype=None,
        out_dtype="float32",
        return_lse=False,
        kernel=None,
    ):
        dtype = _dtype_name(q) if dtype is None else dtype
        if dtype not in _DTYPES or out_dtype not in _DTYPES:
            raise TesseraError(1, f"dtype, out_dtype: got {dtype}, {out_dtype}; allowed {', '.join(_DTYPES)}")
        if not 1 <= len(segments) <= _abi.MAX_SEGMENTS:
            raise TesseraError(1, f"segments: got {len(segments)}; allowed 1 to {_abi.MAX_SEGMENTS}")
        p = _abi.FmhaParams()
        p.struct_size = ctypes.sizeof(p)
        p.device = int(_is_torch(q) and q.is_cuda)
        p.dtype, p.o_dtype = _DTYPES[dtype], _DTYPES[out_dtype]
        p.q = _tensor("q", q, False)
        p.batch, p.seqlen_q, p.num_heads_q, p.head_dim_qk = q.shape
        p.head_dim_v = p.head_dim_qk if head_dim_v is None else head_dim_v
        p.num_heads_kv = next((s.k.shape[2] for s in segments if s.format == "dense"), 1)
        p.num_segments = len(segments)
        for given, s in zip(segments, p.segments):
            given.fill(s, q, p.head_dim_v)
        p.softmax_scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
        p.sinks = _float32("sinks", sinks, q)
        self.o = self._empty(q, (*q.shape[:-1], p.head_dim_v), out_dtype if out_dtype != dtype else None)
        p.o = _tensor("out", self.o, False)
        self.lse = None
        if return_lse:  # (batch, heads, tokens)
            self.lse = self._empty(q, (p.batch, p.num_heads_q, p.seqlen_q), "float32")
            p.lse_natural_no_sink = _abi.RowScalars(_address(self.lse), p.num_heads_q * p.seqlen_q, 1, p.seqlen_q)
        if o_rope is not None:
            cos, sin, positions = o_rope
            if cos.ndim != 2 or tuple(sin.shape) != tuple(cos.shape) or tuple(positions.shape) != (p.batch, p.seqlen_q):
                raise TesseraError(
                    1,
                    f"o_rope: got shapes {tuple(cos.shape)}, {tuple(sin.shape)}, {tuple(positions.shape)}; allowed two tables (positions, pairs) "
                    f"and positions ({p.batch}, {p.seqlen_q})",
                )
            tables = _float32("o_rope cos", cos, q), _float32("o_rope sin", sin, q)
            p.o_rope = _abi.OutputRope(*tables, _int32("o_rope positions", positions, q), cos.shape[0], 2 * cos.shape[1])
        p.force_kernel = None if kernel is None else kernel.encode()
        self._prepare(p, q, (segments, sinks, o_rope))


def kv_to_fp8(rows, format, cache, *, page_size=None, slots=None, smallest_scale=-22):
    """Rounds bf16 rows (n, dim), given as uint16, to slots of an FP8 cache (page, bytes) or (page, slot, 656) on the host."""
    if page_size is None:
        page_size = cache.shape[1]
    error = _abi.Error()
    code = _LIBRARY.tessera_kv_to_fp8(
        _FORMATS[format],
        rows.shape[0],
        _address(rows),
        _element_strides(rows)[0],
        smallest_scale,
        None if slots is None else _address(slots),
        _address(cache),
        _element_strides(cache)[0],
        page_size,
        cache.shape[0],
        ctypes.byref(error),
    )
    _check(code, error)


def fmha(q, k, v, **options):
    """softmax(scale q k^T) v; the options are those of Attention. Returns o, or (o, lse) with return_lse=True."""
    call = Attention(q, k, v, **options)
    call.run()
    return (call.o, call.lse) if call.lse is not None else call.o
