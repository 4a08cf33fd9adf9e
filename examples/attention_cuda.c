/* The same as attention.c on a Hopper GPU, in bf16: the prefill and the decode step may run different kernels and still
 * give the same bytes.
 *
 *   cc attention_cuda.c -I<prefix>/include -I<cuda>/include -L<prefix>/lib -L<cuda>/lib64 -ltessera -lcudart -lm
 */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera/tessera.h"

enum { SEQLEN = 700, HEADS_Q = 8, HEADS_KV = 2, DIM = 128, NO_DEVICE = 77 };

static uint16_t q[SEQLEN][HEADS_Q][DIM];
static uint16_t k[SEQLEN][HEADS_KV][DIM];
static uint16_t v[SEQLEN][HEADS_KV][DIM];
static uint16_t o_prefill[SEQLEN][HEADS_Q][DIM];
static uint16_t o_decode[1][HEADS_Q][DIM];

/* Random bf16 values in [-0.5, 0.5]: the upper half of an fp32 number. */
static void fill(uint16_t* x, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const float value = (float)rand() / (float)RAND_MAX - 0.5F;
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    x[i] = (uint16_t)(bits >> 16);
  }
}

/* Device memory with a copy of `bytes` bytes at `host`; NULL if there is none left. */
static void* upload(const void* host, size_t bytes) {
  void* device = NULL;
  if (cudaMalloc(&device, bytes) != cudaSuccess) {
    return NULL;
  }
  return cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice) == cudaSuccess ? device : NULL;
}

/* Query tokens [begin, SEQLEN) against all keys; the pointers are device memory but for `out`. */
static int attend(uint16_t* dq, uint16_t* dk, uint16_t* dv, uint16_t* d_o, int begin, uint16_t* out) {
  tessera_fmha_params p;
  memset(&p, 0, sizeof(p));
  p.struct_size = sizeof(p);
  p.device = TESSERA_DEVICE_CUDA; /* never falls back to the CPU */
  p.dtype = TESSERA_BF16;
  p.o_dtype = TESSERA_BF16;
  p.head_dim_qk = p.head_dim_v = DIM;
  p.num_heads_q = HEADS_Q;
  p.num_heads_kv = HEADS_KV;
  p.batch = 1;
  p.seqlen_q = SEQLEN - begin;
  p.q = (tessera_tensor){dq + (size_t)begin * HEADS_Q * DIM, 0, HEADS_Q * DIM, DIM, 1};
  p.o = (tessera_tensor){d_o, 0, HEADS_Q * DIM, DIM, 1};
  p.softmax_scale = 1.0F / sqrtf((float)DIM);
  p.num_segments = 1;
  tessera_kv_segment* s = &p.segments[0];
  s->k = (tessera_tensor){dk, 0, HEADS_KV * DIM, DIM, 1};
  s->v = (tessera_tensor){dv, 0, HEADS_KV * DIM, DIM, 1};
  s->seqlen_k = SEQLEN;
  s->causal = 1;
  s->window_left = s->window_right = -1;

  tessera_error error;
  const char* kernel = NULL;
  size_t bytes = 0;
  if (tessera_fmha_select(&p, &kernel, &error) != TESSERA_OK ||
      tessera_fmha_workspace_size(&p, 1, &bytes, &error) != TESSERA_OK) {
    fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  void* workspace = NULL; /* needs no initialisation */
  const size_t out_bytes = (size_t)(SEQLEN - begin) * HEADS_Q * DIM * sizeof(uint16_t);
  if (cudaMalloc(&workspace, bytes + 1) != cudaSuccess) {
    fprintf(stderr, "no device memory for %zu bytes of workspace\n", bytes);
    return 1;
  }
  const tessera_status status = tessera_fmha_run(&p, workspace, bytes, NULL, &error); /* NULL: the default stream */
  const int copied = status == TESSERA_OK && cudaMemcpy(out, d_o, out_bytes, cudaMemcpyDeviceToHost) == cudaSuccess;
  cudaFree(workspace);
  if (!copied) {
    fprintf(stderr, "%s\n", status == TESSERA_OK ? "the kernel failed" : error.text);
    return 1;
  }
  printf("%d query tokens by %s\n", SEQLEN - begin, kernel);
  return 0;
}

int main(void) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    printf("SKIPPED: no CUDA device\n");
    return NO_DEVICE;
  }
  fill(&q[0][0][0], sizeof(q) / sizeof(uint16_t));
  fill(&k[0][0][0], sizeof(k) / sizeof(uint16_t));
  fill(&v[0][0][0], sizeof(v) / sizeof(uint16_t));
  uint16_t* dq = upload(q, sizeof(q));
  uint16_t* dk = upload(k, sizeof(k));
  uint16_t* dv = upload(v, sizeof(v));
  uint16_t* d_o = upload(o_prefill, sizeof(o_prefill));
  if (dq == NULL || dk == NULL || dv == NULL || d_o == NULL) {
    fprintf(stderr, "no device memory\n");
    return 1;
  }
  if (attend(dq, dk, dv, d_o, 0, &o_prefill[0][0][0]) != 0 ||
      attend(dq, dk, dv, d_o, SEQLEN - 1, &o_decode[0][0][0]) != 0) {
    return 1;
  }
  const int same = memcmp(o_decode, o_prefill[SEQLEN - 1], sizeof(o_decode)) == 0;
  printf("last row of prefill and decode step: %s\n", same ? "the same bytes" : "DIFFERENT");
  cudaFree(dq);
  cudaFree(dk);
  cudaFree(dv);
  cudaFree(d_o);
  return same ? 0 : 1;
}
