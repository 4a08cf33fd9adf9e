/* Causal attention with grouped query heads through the C interface: one prefill, then the same last token as a decode
 * step against the same keys. Under the contract the two have the same bytes.
 *
 *   cc attention.c -I<prefix>/include -L<prefix>/lib -ltessera -o attention && ./attention
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tessera/tessera.h"

enum { SEQLEN = 700, HEADS_Q = 8, HEADS_KV = 2, DIM = 64 };

static float q[SEQLEN][HEADS_Q][DIM];
static float k[SEQLEN][HEADS_KV][DIM];
static float v[SEQLEN][HEADS_KV][DIM];
static float o_prefill[SEQLEN][HEADS_Q][DIM];
static float o_decode[1][HEADS_Q][DIM];

static void fill(float* x, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    x[i] = (float)rand() / (float)RAND_MAX - 0.5F;
  }
}

/* Query tokens [begin, SEQLEN) against all keys. */
static int attend(int begin, float* out) {
  tessera_fmha_params p;
  memset(&p, 0, sizeof(p));
  p.struct_size = sizeof(p);
  p.dtype = TESSERA_F32;
  p.o_dtype = TESSERA_F32;
  p.head_dim_qk = p.head_dim_v = DIM;
  p.num_heads_q = HEADS_Q;
  p.num_heads_kv = HEADS_KV;
  p.batch = 1;
  p.seqlen_q = SEQLEN - begin;
  p.q = (tessera_tensor){&q[begin][0][0], 0, HEADS_Q * DIM, DIM, 1};
  p.o = (tessera_tensor){out, 0, HEADS_Q * DIM, DIM, 1};
  p.softmax_scale = 1.0F / sqrtf((float)DIM);
  p.num_segments = 1;
  tessera_kv_segment* s = &p.segments[0];
  s->k = (tessera_tensor){k, 0, HEADS_KV * DIM, DIM, 1};
  s->v = (tessera_tensor){v, 0, HEADS_KV * DIM, DIM, 1};
  s->seqlen_k = SEQLEN;
  s->causal = 1; /* aligned bottom-right: query token i stands at key position SEQLEN - seqlen_q + i */
  s->window_left = s->window_right = -1;

  tessera_error error;
  const char* kernel = NULL;
  size_t bytes = 0;
  if (tessera_fmha_select(&p, &kernel, &error) != TESSERA_OK ||
      tessera_fmha_workspace_size(&p, 1, &bytes, &error) != TESSERA_OK) {
    fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  void* workspace = aligned_alloc(64, (bytes + 63) / 64 * 64);
  const tessera_status status = tessera_fmha_run(&p, workspace, bytes, NULL, &error); /* NULL: the calling thread */
  free(workspace);
  if (status != TESSERA_OK) {
    fprintf(stderr, "%s\n", error.text);
    return 1;
  }
  printf("%d query tokens by %s\n", SEQLEN - begin, kernel);
  return 0;
}

int main(void) {
  fill(&q[0][0][0], sizeof(q) / sizeof(float));
  fill(&k[0][0][0], sizeof(k) / sizeof(float));
  fill(&v[0][0][0], sizeof(v) / sizeof(float));
  if (attend(0, &o_prefill[0][0][0]) != 0 || attend(SEQLEN - 1, &o_decode[0][0][0]) != 0) {
    return 1;
  }
  const int same = memcmp(o_decode, o_prefill[SEQLEN - 1], sizeof(o_decode)) == 0;
  printf("last row of prefill and decode step: %s\n", same ? "the same bytes" : "DIFFERENT");
  return same ? 0 : 1;
}
