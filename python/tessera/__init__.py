"""Tessera's attention for Python, over the C interface: numpy arrays or torch tensors in, the same kind out.

    import tessera
    o = tessera.fmha(q, k, v, causal=True)                     # (batch, seqlen, heads, head_dim)
    o, lse = tessera.fmha(q, k, v, causal=True, return_lse=True)

Arrays on the host run on the CPU kernels, torch tensors on a GPU on the CUDA kernels, on torch's current stream. The bits
depend on the inputs and on `contract_id` only. `Attention` is the same split into a prepared call and its launch, for
loops and CUDA graphs.
"""

import ctypes

from tessera import _abi

__all__ = ["Attention", "TesseraError", "contract_version", "fmha", "kernels", "version"]

_LIBRARY = _abi.load()
_DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
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


def _int32(name: str, array, like) -> int | None:
    if array is None:
        return None
    if _dtype_name(array) != "int32" or any(s not in (1, array.shape[-1]) for s in _element_strides(array)):
        raise TesseraError(1, f"{name}: got {_dtype_name(array)} or a strided array; allowed contiguous int32; convert it")
    _same_place(name, array, like)
    return _address(array)


def _float32(name: str, array, like) -> int | None:
    if array is None:
        return None
    if _dtype_name(array) != "float32" or _element_strides(array) != (1,):
        raise TesseraError(1, f"{name}: got {_dtype_name(array)} or a strided array; allowed contiguous float32; convert it")
    _same_place(name, array, like)
    return _address(array)


def _same_place(name: str, array, like) -> None:
    place = lambda a: str(a.device) if _is_torch(a) else "host"  # noqa: E731
    if place(array) != place(like):
        raise TesseraError(1, f"{name}: got memory of {place(array)}; allowed that of q ({place(like)}); move it there")


class Attention:
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
        self._params = p
        self._torch = _is_torch(q)
        # The C structure only has addresses: what they point to lives as long as this object.
        self._owned = (q, k, v, sinks, alibi_slopes, cu_seqlens_q, cu_seqlens_k, seqlens_k, page_table)
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


def fmha(q, k, v, **options):
    """softmax(scale q k^T) v; the options are those of Attention. Returns o, or (o, lse) with return_lse=True."""
    call = Attention(q, k, v, **options)
    call.run()
    return (call.o, call.lse) if call.lse is not None else call.o
