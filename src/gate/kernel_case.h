// A problem of attention for the kernel gates, and its tensors in host memory. Every value is a hash of its logical
// place (sequence, token, head, dim), so the same rows can be put into another batch, layout or page order.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "tessera/tessera.h"

namespace tessera {

struct KernelCase {
  std::string name = {};
  tessera_dtype dtype = TESSERA_F32;
  bool o_f32 = false;  // the output in fp32 instead of dtype
  int32_t head_dim = 64;
  int32_t heads_q = 4;
  int32_t heads_kv = 2;
  int64_t batch = 2;
  int64_t seqlen_q = 1;
  int64_t seqlen_k = 1;
  bool causal = true;
  int64_t window_left = -1;
  float softcap = 0;
  bool sinks = false;
  int64_t page_size = 0;  // 0: contiguous
  uint64_t seed = 1;

  tessera_dtype o_dtype() const { return o_f32 ? TESSERA_F32 : dtype; }
  int64_t rows() const { return batch * seqlen_q * heads_q; }
};

// Lengths at the edges of tiles, granules, chunks (2048 keys) and windows, with the features that carry faults: sinks,
// windows, softcap, GQA, batches. For f32 on the CPU, and for f16 and bf16 on either device.
std::vector<KernelCase> built_in_grid(tessera_device device);

// A JSON array of objects with the names above ("dtype": "f32" | "f16" | "bf16"); what is left out has the default.
Result<std::vector<KernelCase>> parse_grid(const std::string& path, const std::string& text);

// Which part of a case is run, and how it lies in memory: what may not move a bit.
struct CaseView {
  int64_t first_sequence = 0;
  int64_t sequences = -1;   // -1: all
  int64_t first_token = 0;  // query tokens, the same of every sequence
  int64_t tokens = -1;
  int64_t page_size = -1;  // -1: the case's own; 0: contiguous
};

// The arrays of a view in host memory. Pages that no key uses hold NaN.
class CaseTensors {
 public:
  CaseTensors(const KernelCase& problem, const CaseView& view);

  // Parameters whose pointers are place(host array, bytes); outputs are the caller's.
  using Place = std::function<const void*(const void* data, size_t bytes)>;
  tessera_fmha_params params(const Place& place, void* o, float* lse) const;

  size_t o_bytes() const;
  size_t lse_bytes() const;
  int64_t first_sequence() const { return first_sequence_; }
  int64_t sequences() const { return sequences_; }
  int64_t first_token() const { return first_token_; }
  int64_t tokens() const { return tokens_; }

 private:
  KernelCase c_;
  int64_t first_sequence_;
  int64_t sequences_;
  int64_t first_token_;
  int64_t tokens_;
  int64_t page_size_;
  std::vector<std::byte> q_, k_, v_;
  std::vector<float> sinks_;
  std::vector<int32_t> pages_;      // (sequences, pages of a sequence)
  std::vector<int32_t> positions_;  // [sequences] where query token 0 of the view stands
};

// A row of Q, K or V as the case's dtype holds it, widened: element `dim` of tensor 'q', 'k' or 'v'.
class CaseRow {
 public:
  CaseRow(const KernelCase& problem, char tensor, int64_t sequence, int64_t token, int64_t head);
  float operator[](int64_t dim) const;

 private:
  tessera_dtype dtype_;
  uint64_t hash_;  // of everything but the dim
};
float case_sink(const KernelCase& problem, int64_t head);

}  // namespace tessera
