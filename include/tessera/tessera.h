/* Tessera: attention and matrix products whose output bits do not depend on how the work was scheduled.
 *
 * This is the whole C interface. Rules that hold everywhere:
 *   - Nothing here allocates, synchronises, prints, exits or keeps hidden state. Scratch memory is the caller's
 *     `workspace`, whose size a query returns.
 *   - Every call returns a tessera_status and, if `error` is not NULL, fills it with one sentence
 *     ("<argument>: got X; allowed Y; do Z"). On failure no output byte has been written, unless the code is
 *     TESSERA_DEVICE.
 *   - Strides and offsets are 64-bit and count elements, unless the name says bytes.
 *   - What the bits depend on is written in docs/contract.md; rule numbers (R1...) below refer to it.
 *   - Inputs inside the declared lengths must be finite. Bytes outside the lengths, keys that no query token of their
 *     sequence may see, page tails and padding are never used: they may hold anything, NaN included. The same goes for
 *     the bytes that a workspace comes with.
 *
 * Thread safety: all functions are re-entrant; two calls must not share a workspace or an output at the same time.
 */
#ifndef TESSERA_TESSERA_H_
#define TESSERA_TESSERA_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TESSERA_API __attribute__((visibility("default")))
#else
#define TESSERA_API
#endif

/* ---------------------------------------------------------------- status */

typedef enum tessera_status {
  TESSERA_OK = 0,
  TESSERA_INVALID_ARGUMENT = 1,    /* the description contradicts itself or is out of range */
  TESSERA_UNSUPPORTED = 2,         /* valid, but no kernel of this build covers it */
  TESSERA_WORKSPACE_TOO_SMALL = 3, /* workspace is NULL, too small or not 64-byte aligned */
  TESSERA_IO = 4,
  TESSERA_BAD_FILE = 5,
  TESSERA_DEVICE = 6, /* the CUDA runtime or driver reported an error */
  TESSERA_INTERNAL = 7
} tessera_status;

typedef struct tessera_error {
  tessera_status code;
  char text[1020]; /* NUL-terminated UTF-8 sentence */
} tessera_error;

/* ---------------------------------------------------------------- execution */

/* Whose memory every pointer of a call points to: tensors, lengths, tables, slopes, sinks, outputs and the workspace.
 * It also chooses the kernels: a call never falls back to those of another device.
 * TESSERA_DEVICE_CUDA: memory that the current CUDA device can access; the current device must be of compute
 * capability 9.0, and the library must have been built with -DTESSERA_CUDA=ON. */
typedef enum tessera_device { TESSERA_DEVICE_CPU = 0, TESSERA_DEVICE_CUDA = 1 } tessera_device;

/* Threads for CPU kernels, supplied by the caller: runs task(arg, i, thread) for every i in [0, num_tasks), in any
 * order, with 0 <= thread < num_threads, and returns when all are done. The results never depend on it. */
typedef struct tessera_executor {
  void* context;
  int32_t num_threads; /* >= 1 */
  void (*parallel_for)(void* context, int64_t num_tasks, void (*task)(void* arg, int64_t index, int32_t thread),
                       void* arg);
} tessera_executor;

/* What a call runs on. CPU kernels use `executor` (NULL: the calling thread only); CUDA kernels enqueue on
 * `cuda_stream` (a cudaStream_t of the current device; NULL is the default stream) and return at once. Their calls can
 * be captured into a CUDA graph; a replay reads the same addresses again. */
typedef struct tessera_stream {
  const tessera_executor* executor;
  void* cuda_stream;
} tessera_stream;

/* ---------------------------------------------------------------- attention: the problem */

typedef enum tessera_dtype { TESSERA_F32 = 0, TESSERA_F16 = 1, TESSERA_BF16 = 2 } tessera_dtype;

/* A tensor of shape (batch, token, head, dim). Packed variable-length tensors have stride_batch = 0 and take the first
 * token of sequence b from cu_seqlens[b]. BSHD: stride_token = heads * dim, stride_head = dim. BHSD: stride_head =
 * seqlen * dim, stride_token = dim. Paged pools: stride_batch is the stride between pages. */
typedef struct tessera_tensor {
  void* data;
  int64_t stride_batch;
  int64_t stride_token;
  int64_t stride_head;
  int64_t stride_dim; /* 1; other values are refused by kernels that need contiguous rows */
} tessera_tensor;

/* One fp32 scalar per (sequence, query token, query head). data == NULL: not wanted. */
typedef struct tessera_row_scalars {
  float* data;
  int64_t stride_batch; /* 0 for packed variable-length Q */
  int64_t stride_token;
  int64_t stride_head;
} tessera_row_scalars;

/* Bytes of the K/V rows of a segment. The FP8 formats (R11) are for latent caches with one K/V head: dtype is BF16, V
 * is the first dims of the K row, strides count bytes, and v repeats k. An element that is e4m3 is worth bf16(fp32(e4m3
 * x scale)), both roundings to nearest even; the result has the bits of rows in TESSERA_KV_DENSE that hold these
 * values. Rows and pages start at multiples of 16 bytes, and stride_token is one. V32_656: head_dim_qk 576, head_dim_v
 * 512. A row: 512 e4m3, 4 fp32 scales (one for each 128 of them), 64 bf16. V4_584:  head_dim_qk 512, head_dim_v 512,
 * paged. A page: page_size rows of 448 e4m3 and 64 bf16 (stride_token 576), behind them 8 bytes for each row: 7 UE8M0
 * scales (2^(byte - 127), one for each 64 e4m3), and one that is not read. stride_batch, from page to page, is a
 * multiple of 576. */
typedef enum tessera_kv_format {
  TESSERA_KV_DENSE = 0, /* elements of the problem's dtype */
  TESSERA_KV_FP8_V32_656 = 1,
  TESSERA_KV_FP8_V4_584 = 2
} tessera_kv_format;

/* Custom visibility bits, for tree decoding. Bit (j & 7) of byte data[b * stride_batch + head * stride_head +
 * i * stride_row + (j >> 3)], head the query head, says whether query token i sees the j-th of the covered keys; the
 * covered keys are the last num_keys keys of the sequence (all of them if num_keys < 0 or beyond its length), keys
 * before them are not affected. Combined (AND) with causal and window. Strides are in bytes, at most 2^28; 0
 * broadcasts. data == NULL: no custom mask. */
typedef struct tessera_bit_mask {
  const uint8_t* data;
  int64_t stride_batch;
  int64_t stride_head;
  int64_t stride_row;
  int64_t num_keys;
} tessera_bit_mask;

/* One ordered part of the keys with its own index space, mask and layout (R10). */
typedef struct tessera_kv_segment {
  tessera_tensor k;         /* (batch, token, num_heads_kv, head_dim_qk) or a page pool (page, slot, head, dim) */
  tessera_tensor v;         /* (batch, token, num_heads_kv, head_dim_v)  or a page pool; own strides; may alias k */
  tessera_kv_format format; /* of k and v; other than DENSE their strides count bytes */

  /* Length of sequence b, first that applies: seqlens_k[b]; cu_seqlens_k[b+1] - cu_seqlens_k[b]; seqlen_k. */
  int64_t seqlen_k;            /* also the bound of the lengths in the two arrays */
  const int32_t* seqlens_k;    /* [batch] used lengths, or NULL */
  const int32_t* cu_seqlens_k; /* [batch + 1] first token of each sequence in packed K/V, or NULL */

  /* Paged K/V: page_table[b * page_table_stride + j / page_size] is the page of key j. NULL: not paged. Entries whose
   * keys no query token can see by length, causal mask and windows are not looked at. */
  const int32_t* page_table;
  int64_t page_table_stride;
  int32_t page_size; /* >= 1 */
  int64_t num_pages; /* pages in the pool; table entries in use are checked against it */

  /* Visibility (R2). Query token i of a sequence stands at key position p = position0 + i, where position0 is
   * q_positions[b], or seqlen_k(b) - seqlen_q(b) when q_positions is NULL (aligned bottom-right).
   * Key j is visible iff all that are set hold: causal: j <= p; window_left >= 0: j >= p - window_left;
   * window_right >= 0: j <= p + window_right; compress_ratio r > 0: j < (p + 1) / r (then causal and windows are off).
   * A sliding window of W keys that counts the query's own token is window_left = W - 1. */
  int32_t causal;
  int64_t window_left;  /* -1: unlimited */
  int64_t window_right; /* -1: unlimited */
  int32_t compress_ratio;
  const int32_t* q_positions; /* [batch] or NULL */
  tessera_bit_mask mask;

  /* Gathered keys of query token i of sequence b, shared by all heads: indices[n * indices_stride + t], t < topk or
   * topk_lens[n], with n = cu_seqlens_q[b] + i, or b * seqlen_q + i; each -1 (no key) or a key index below the length.
   * NULL: all keys. Of this version's kernels those of the CPU, sm90_fmha_decode and sm90_fmha_mqa_512 take them.
   */
  const int32_t* indices;
  int64_t indices_stride;
  int32_t topk;
  const int32_t* topk_lens;
} tessera_kv_segment;

enum { TESSERA_MAX_SEGMENTS = 4 };

typedef enum tessera_output_mode {
  TESSERA_OUTPUT_NORMALIZED = 0,  /* O = softmax(S) V, in o_dtype */
  TESSERA_OUTPUT_UNNORMALIZED = 1 /* the state (O, row_max_log2, row_sum) before R9, O in fp32; sinks must be NULL */
} tessera_output_mode;

/* Turns the last rotary_dim dims of every finished row of O back to position 0 (R12), as layers do whose values carry
 * the rotation of their keys (DeepSeek-V4). Pairs are neighbours (x[2i], x[2i+1]), as in TESSERA_ROPE_INTERLEAVED;
 * tables with the sines negated turn forwards. The position of query token i of sequence b is positions[n], with
 * n = cu_seqlens_q[b] + i, or b * seqlen_q + i (of a merge: n is the token). */
typedef struct tessera_output_rope {
  const float* cos_table; /* (num_positions, rotary_dim / 2), contiguous; NULL: off */
  const float* sin_table; /* the same shape */
  const int32_t* positions;
  int64_t num_positions; /* CUDA kernels make NaN of the dims to turn where a position is not in the tables */
  int32_t rotary_dim;    /* even, 2 .. head_dim_v */
} tessera_output_rope;

/* The complete description of one attention call. Zero-initialise, set struct_size, fill what applies. Fields whose
 * zero is not "off" and that must be set: stride_dim = 1 of every tensor; window_left = window_right = -1 for no
 * window; mask.num_keys = -1 when a mask covers all keys; softmax_scale; num_segments. */
typedef struct tessera_fmha_params {
  size_t struct_size; /* sizeof(tessera_fmha_params); a smaller one without the last fields means their zero */

  tessera_dtype dtype;   /* of Q, K, V */
  tessera_dtype o_dtype; /* dtype or TESSERA_F32 */
  int32_t head_dim_qk;
  int32_t head_dim_v;
  int32_t num_heads_q;
  int32_t num_heads_kv; /* divides num_heads_q; query head h reads K/V head h / (num_heads_q / num_heads_kv) */
  int64_t batch;        /* sequences */

  tessera_tensor q; /* (batch, token, num_heads_q, head_dim_qk) */
  int64_t seqlen_q; /* tokens per sequence, or the upper bound when cu_seqlens_q or seqlens_q is given */
  /* Length of sequence b, first that applies: seqlens_q[b]; cu_seqlens_q[b+1] - cu_seqlens_q[b]; seqlen_q. */
  const int32_t* cu_seqlens_q; /* [batch + 1] or NULL */
  const int32_t* seqlens_q;    /* [batch] used lengths, or NULL */

  int32_t num_segments; /* 1 .. TESSERA_MAX_SEGMENTS */
  tessera_kv_segment segments[TESSERA_MAX_SEGMENTS];

  float softmax_scale;       /* > 0, finite; usually 1 / sqrt(head_dim_qk) */
  float softcap;             /* 0: off; else s := softcap * tanh(s * softmax_scale / softcap) */
  const float* alibi_slopes; /* [num_heads_q] or NULL: s += slope * (j - p) in natural units */
  const float* sinks;        /* [num_heads_q] or NULL: one more term exp(sink) in the denominator only (R9);
                                natural units, not scaled; -inf: no effect, +inf: O = 0 */

  tessera_output_mode output_mode;
  tessera_tensor o; /* (batch, token, num_heads_q, head_dim_v) */
  /* Natural log of the sum of exp(s) over visible keys, sink excluded; -inf when no key is visible. */
  tessera_row_scalars lse_natural_no_sink;
  /* Un-normalised mode: m - b, integer-valued, -inf when empty (R8, R9), and l, +0 when empty. Otherwise NULL. */
  tessera_row_scalars row_max_log2;
  tessera_row_scalars row_sum;

  /* Split-KV: only chunks [chunk_begin, chunk_end) of the one segment; chunk_end = 0: all. Un-normalised mode only.
   * The range must be one chunk, a prefix of a superchunk, or a prefix of all superchunks: what the chain of R8 itself
   * would merge (a last superchunk that is not full counts as one); chunk_begin is 0 when chunk_end is. Merge the
   * states with tessera_fmha_merge. */
  int64_t chunk_begin;
  int64_t chunk_end;

  const char* force_kernel; /* name from tessera_kernel_get(), or NULL: first supported row of the registry */

  tessera_device device; /* of every pointer in here and of the workspace; host arrays for CPU */

  tessera_output_rope o_rope; /* normalised mode only */
} tessera_fmha_params;

/* ---------------------------------------------------------------- attention: the calls */

/* The kernel that tessera_fmha_run would use. Looks at shapes, strides, addresses and at which pointers are NULL; reads
 * no memory behind them. TESSERA_UNSUPPORTED names the nearest registry row and the field that differs. */
TESSERA_API tessera_status tessera_fmha_select(const tessera_fmha_params* params, const char** kernel_name,
                                               tessera_error* error);

/* Bytes of workspace for tessera_fmha_run with this many CPU threads (1 for CUDA kernels, which have no use for it).
 * The workspace needs no initialisation, and no call leaves anything in it that the next one needs. */
TESSERA_API tessera_status tessera_fmha_workspace_size(const tessera_fmha_params* params, int32_t num_threads,
                                                       size_t* bytes, tessera_error* error);

/* O, LSE and states as described by `params`. `workspace` is 64-byte aligned memory of params->device. CPU kernels
 * check every length, page and index before they write; CUDA kernels treat out-of-range device values as absent keys.
 */
TESSERA_API tessera_status tessera_fmha_run(const tessera_fmha_params* params, void* workspace, size_t workspace_bytes,
                                            const tessera_stream* stream, tessera_error* error);

/* The contract identity of the bits, for example "tessera-1/cpu-fma32/f32/d64". Writes at most `capacity` bytes,
 * NUL included; *length is the length without NUL. */
TESSERA_API tessera_status tessera_fmha_contract_id(const tessera_fmha_params* params, char* text, size_t capacity,
                                                    size_t* length, tessera_error* error);

/* What tessera_fmha_run would launch for the problem: lines of "key: value" about tiles, threads, memory and barriers,
 * the first of them the kernel's name. For people and tools; keys may be added and change. Needs no device, and takes
 * any kernel of the build for available. Buffer and length as for tessera_fmha_contract_id. */
TESSERA_API tessera_status tessera_fmha_explain(const tessera_fmha_params* params, char* text, size_t capacity,
                                                size_t* length, tessera_error* error);

/* Keys per chunk (R0's C) for this problem: split boundaries are its multiples. */
TESSERA_API tessera_status tessera_fmha_chunk_keys(const tessera_fmha_params* params, int64_t* keys,
                                                   tessera_error* error);

/* The chain of R8 over num_states un-normalised states of the same rows, in the order given: state t of row
 * (token, head) is o_states[t * stride_batch + token * stride_token + head * stride_head ...] and likewise for the
 * scalars. Empty states (row_max_log2 = -inf, row_sum = 0) are the identity whatever bytes their O holds.
 * Output: a state again (un-normalised mode) or the finished row with sink, dtype and LSE (R9). */
typedef struct tessera_merge_params {
  size_t struct_size;
  /* Of the Q, K, V that made the states: with the arithmetic of the merge kernel, which must be that of the kernels
   * that made them, it selects b of R0. */
  tessera_dtype dtype;
  tessera_dtype o_dtype;
  int32_t head_dim_qk;
  int32_t head_dim_v;
  int32_t num_heads_q;
  int64_t num_rows;        /* tokens */
  int64_t num_states;      /* >= 1 */
  tessera_tensor o_states; /* fp32; stride_batch steps from state to state */
  tessera_row_scalars row_max_log2_states;
  tessera_row_scalars row_sum_states;
  const float* sinks;
  tessera_output_mode output_mode;
  tessera_tensor o;
  tessera_row_scalars lse_natural_no_sink;
  tessera_row_scalars row_max_log2;
  tessera_row_scalars row_sum;
  const char* force_kernel;
  tessera_device device;      /* of every pointer in here */
  tessera_output_rope o_rope; /* normalised mode only */
} tessera_merge_params;

TESSERA_API tessera_status tessera_fmha_merge(const tessera_merge_params* params, const tessera_stream* stream,
                                              tessera_error* error);

/* ---------------------------------------------------------------- matrix products (rules M1..M5) */

/* Type of a stored weight matrix; the numbers are those of GGUF. */
typedef enum tessera_weight_type {
  TESSERA_WEIGHT_F32 = 0,
  TESSERA_WEIGHT_F16 = 1,
  TESSERA_WEIGHT_Q4_0 = 2,
  TESSERA_WEIGHT_Q4_1 = 3,
  TESSERA_WEIGHT_Q5_0 = 6,
  TESSERA_WEIGHT_Q5_1 = 7,
  TESSERA_WEIGHT_Q8_0 = 8,
  TESSERA_WEIGHT_Q4_K = 12,
  TESSERA_WEIGHT_Q5_K = 13,
  TESSERA_WEIGHT_Q6_K = 14,
  TESSERA_WEIGHT_BF16 = 30
} tessera_weight_type;

/* Size of the packed form of an (n, k) matrix: rows in groups of 16, interleaved along k. */
TESSERA_API tessera_status tessera_gemm_packed_size(tessera_weight_type type, int64_t n, int64_t k, size_t* bytes,
                                                    tessera_error* error);

/* Packs rows [row_begin, row_end) of an (n, k) matrix, given in GGUF's row layout at `rows` (first row = row_begin),
 * into `packed` (64-byte aligned). row_begin is a multiple of 16; row_end too, or n. Moves bytes, rounds nothing. */
TESSERA_API tessera_status tessera_gemm_pack(tessera_weight_type type, int64_t n, int64_t k, int64_t row_begin,
                                             int64_t row_end, const void* rows, size_t rows_bytes, void* packed,
                                             size_t packed_bytes, tessera_error* error);

/* One row of a packed matrix as fp32 (embedding lookup): dst[k]. */
TESSERA_API tessera_status tessera_gemm_unpack_row(tessera_weight_type type, int64_t n, int64_t k, const void* packed,
                                                   int64_t row, float* dst, tessera_error* error);

typedef struct tessera_gemm_weight {
  tessera_weight_type type;
  int64_t n;          /* output features */
  const void* packed; /* from tessera_gemm_pack */
  const float* bias;  /* [n] or NULL; added last (M5) */
  float* y;           /* (m, n), fp32 */
  int64_t stride_y;   /* elements between rows of y */
} tessera_gemm_weight;

/* y_w = x W_w^T + bias_w for up to TESSERA_MAX_GEMM_WEIGHTS matrices that share x (m, k), fp32. A row of y has the same
 * bits whatever m, the other rows, the other matrices, the threads and the instruction set. */
enum { TESSERA_MAX_GEMM_WEIGHTS = 4 };
typedef struct tessera_gemm_params {
  size_t struct_size;
  int64_t m;
  int64_t k;
  const float* x;
  int64_t stride_x;
  int32_t num_weights;
  tessera_gemm_weight weights[TESSERA_MAX_GEMM_WEIGHTS];
  const char* force_kernel;
} tessera_gemm_params;

/* Floats are aligned to 4 bytes. An output may interleave with another one (columns of one matrix), but shares no
 * element with it, with x or with a bias: that is the caller's to ensure. */
TESSERA_API tessera_status tessera_gemm_workspace_size(const tessera_gemm_params* params, int32_t num_threads,
                                                       size_t* bytes, tessera_error* error);
TESSERA_API tessera_status tessera_gemm_run(const tessera_gemm_params* params, void* workspace, size_t workspace_bytes,
                                            const tessera_stream* stream, tessera_error* error);

/* ---------------------------------------------------------------- row operations (rules E1..E3, E6) */

/* y[r] = x[r] / sqrt(mean(x[r]^2) + eps) * weight, over `dim` elements (E1). y may alias x. */
TESSERA_API tessera_status tessera_rms_norm(int64_t rows, int64_t dim, const float* x, int64_t stride_x,
                                            const float* weight, float eps, float* y, int64_t stride_y,
                                            const tessera_stream* stream, tessera_error* error);

/* y[r] = silu(gate[r]) * up[r] (E2). y may alias gate or up. */
TESSERA_API tessera_status tessera_swiglu(int64_t rows, int64_t dim, const float* gate, int64_t stride_gate,
                                          const float* up, int64_t stride_up, float* y, int64_t stride_y,
                                          const tessera_stream* stream, tessera_error* error);

typedef enum tessera_rope_pairing {
  TESSERA_ROPE_INTERLEAVED = 0, /* (x[2i], x[2i+1]); GGUF "NORM": llama */
  TESSERA_ROPE_HALVES = 1       /* (x[i], x[i + rotary_dim / 2]); GGUF "NEOX": qwen */
} tessera_rope_pairing;

/* Rotates the first rotary_dim elements of every head in place (E3). x: (rows, num_heads, head_dim);
 * cos_table, sin_table: (max position + 1, rotary_dim / 2); positions: [rows]. */
TESSERA_API tessera_status tessera_rope(int64_t rows, int32_t num_heads, int32_t head_dim, int32_t rotary_dim,
                                        tessera_rope_pairing pairing, const int32_t* positions, const float* cos_table,
                                        const float* sin_table, int64_t num_positions, float* x, int64_t stride_row,
                                        int64_t stride_head, const tessera_stream* stream, tessera_error* error);

/* Rounds bf16 rows to an FP8 format of K/V rows (E6), on the calling thread, in host memory. Row r of x, head_dim_qk
 * elements of the format, goes to slot slots[r] (r itself if slots is NULL; -1: nowhere), which is row slot % page_size
 * of page slot / page_size of `cache`, stride_page bytes apart; the last of several rows of a slot stays. The scale of
 * a tile is the smallest power of two that holds its largest value, and at least 2^smallest_scale: -22 is the floor of
 * vLLM and FlashInfer, -13 that of FlashMLA's tests. */
TESSERA_API tessera_status tessera_kv_to_fp8(tessera_kv_format format, int64_t rows, const void* x, int64_t stride_x,
                                             int32_t smallest_scale, const int64_t* slots, void* cache,
                                             int64_t stride_page, int32_t page_size, int64_t num_pages,
                                             tessera_error* error);

/* ---------------------------------------------------------------- registry */

typedef enum tessera_operation { TESSERA_OP_FMHA = 0, TESSERA_OP_MERGE = 1, TESSERA_OP_GEMM = 2 } tessera_operation;

/* Kernels of this build in priority order. `available` says whether this machine can run it; `reason` why not. */
typedef struct tessera_kernel_info {
  const char* name;       /* for example "cpu_fmha_avx512" */
  const char* arithmetic; /* contract arithmetic, for example "cpu-fma32" */
  const char* summary;    /* one line: dtypes, head dims, features */
  tessera_operation operation;
  int32_t available;
  const char* reason; /* NULL if available */
} tessera_kernel_info;

TESSERA_API int32_t tessera_kernel_count(void);
TESSERA_API tessera_status tessera_kernel_get(int32_t index, tessera_kernel_info* info, tessera_error* error);

/* "0.1.0" and the contract version ("tessera-1"). */
TESSERA_API const char* tessera_version(void);
TESSERA_API const char* tessera_contract_version(void);

#ifdef __cplusplus
}
#endif

#endif /* TESSERA_TESSERA_H_ */
