// Every decode kernel against the oracle, byte for byte: O, LSE, and the guard rows around them. Needs an sm_90 GPU.
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/sm90/fmha_decode/table.h"
#include "oracle/oracle.h"
#include "sm90/byte_test.h"

namespace tessera::sm90 {

// Names the kernel in a failure's text.
void PrintTo(const DecodeEntry& entry, std::ostream* out) {  // NOLINT(readability-identifier-naming)
  *out << entry.name;
}

namespace {

// What kernels for modified scores take besides.
struct Modifiers {
  float softcap = 0.0F;
  bool alibi = false;
  bool mask = false;  // custom bits; keys that they hide from everybody are NaN
  int64_t mask_keys = -1;
  bool mask_per_head = false;
  uint32_t seen_of_8 = 5;
};

struct Case {
  int64_t heads_q, heads_kv, seqlen_q;
  bool causal;
  Values values;
  std::vector<int32_t> lengths;  // keys of each sequence
  bool ragged = true;            // lengths on the device; else all equal
  int64_t window_left = -1;
  bool sinks = false;
  bool wide_output = false;
  bool unnormalized = false;  // with wide_output
  Modifiers modifiers = {};
  int64_t head_dim = 0;    // of Q and K; 0: the kernel's
  int64_t value_dim = 0;   // of V
  bool stray_nan = false;  // K and V of the first K/V head hold one; its rows are not compared
};

int64_t qk_dims(const Case& c, const DecodeEntry& entry) {
  return c.head_dim == 0 ? entry.head_dim / (entry.twin ? 2 : 1) : c.head_dim;
}
int64_t v_dims(const Case& c, const DecodeEntry& entry) {
  return c.value_dim == 0 ? entry.value_dim / (entry.twin ? 2 : 1) : c.value_dim;
}

// Kernels that take two K/V heads at a time get twice as many heads where a case has an odd number.
Case for_kernel(Case c, const DecodeEntry& entry) {
  if (entry.twin && c.heads_kv % 2 != 0) {
    c.heads_q *= 2;
    c.heads_kv *= 2;
  }
  return c;
}

std::string describe(const Case& c, const DecodeEntry& entry) {
  std::string lengths;
  for (const int32_t length : c.lengths) {
    lengths += fmt::format(" {}", length);
  }
  const Modifiers& m = c.modifiers;
  return fmt::format("d{}/{} h{}/{} q{} {} values {} keys{} {}, window {}{}{}{}, {}, softcap {}{}{}{}",
                     qk_dims(c, entry), v_dims(c, entry), c.heads_q, c.heads_kv, c.seqlen_q,
                     c.causal ? "causal" : "full", static_cast<int>(c.values), lengths, c.ragged ? "ragged" : "uniform",
                     c.window_left, c.sinks ? " sinks" : "", c.wide_output ? " f32 O" : "",
                     c.unnormalized ? " state" : "", entry.bf16 ? "bf16" : "f16", m.softcap, m.alibi ? " ALiBi" : "",
                     m.mask ? fmt::format(" mask {} {} {}", m.mask_keys, m.mask_per_head, m.seen_of_8) : "",
                     c.stray_nan ? " stray NaN" : "");
}

// (batch, tokens, heads, dim) of 16-bit elements; tokens that nobody fills stay NaN.
struct Tensor {
  int64_t batch, tokens, heads, dims;
  Mirror memory;

  Tensor(int64_t b, int64_t t, int64_t h, int64_t d, int64_t element_bytes = 2)
      : batch(b), tokens(t), heads(h), dims(d), memory(static_cast<size_t>(b * t * h * d * element_bytes)) {}

  TensorView view(int64_t visible_tokens) const {
    return {memory.device(), batch, visible_tokens, heads, dims, tokens * heads * dims, heads * dims, dims};
  }
  tessera_tensor host_view() { return {memory.host(), tokens * heads * dims, heads * dims, dims, 1}; }
};

// Fills tokens [0, lengths[b]) of every sequence.
void fill(Tensor& tensor, const std::vector<int32_t>& lengths, bool bf16, Values values, bool keys,
          std::mt19937& random) {
  ValueSource source(bf16, values, keys, random);
  auto* elements = reinterpret_cast<uint16_t*>(tensor.memory.host());
  for (int64_t b = 0; b < tensor.batch; ++b) {
    for (int64_t t = 0; t < lengths[static_cast<size_t>(b)]; ++t) {
      for (int64_t i = 0; i < tensor.heads * tensor.dims; ++i) {
        elements[(b * tensor.tokens + t) * tensor.heads * tensor.dims + i] = source.draw(t / 64 % 60);
      }
    }
  }
  tensor.memory.upload();
}

// The rows of K or V scattered over a pool of pages, everything else NaN.
struct Pool {
  Tensor tensor;  // (page, slot, head, dim)
  std::vector<int32_t> table;
  int64_t stride;

  Pool(const Tensor& rows, const std::vector<int32_t>& lengths, int64_t page_size, uint32_t seed)
      : tensor(pages(lengths, page_size) + 2, page_size, rows.heads, rows.dims),
        stride((*std::ranges::max_element(lengths) + page_size - 1) / page_size + 1) {
    table.assign(lengths.size() * static_cast<size_t>(stride), 1 << 30);  // no page
    std::vector<int32_t> order(static_cast<size_t>(tensor.batch));
    for (size_t i = 0; i < order.size(); ++i) {
      order[i] = static_cast<int32_t>(i);
    }
    std::mt19937 random(seed);
    std::ranges::shuffle(order, random);
    const auto row_bytes = static_cast<size_t>(rows.heads * rows.dims * 2);
    size_t next = 0;
    for (size_t b = 0; b < lengths.size(); ++b) {
      for (int64_t t = 0; t < lengths[b]; ++t) {
        int32_t& page = table[b * static_cast<size_t>(stride) + static_cast<size_t>(t / page_size)];
        if (t % page_size == 0) {
          page = order[next++];
        }
        const auto from = static_cast<size_t>(static_cast<int64_t>(b) * rows.tokens + t) * row_bytes;
        const auto to = static_cast<size_t>(page * page_size + t % page_size) * row_bytes;
        std::memcpy(tensor.memory.host() + to, rows.memory.bytes().data() + from, row_bytes);
      }
    }
    tensor.memory.upload();
  }
  static int64_t pages(const std::vector<int32_t>& lengths, int64_t page_size) {
    int64_t count = 0;
    for (const int32_t length : lengths) {
      count += (length + page_size - 1) / page_size;
    }
    return count;
  }
};

// A NaN in the first K/V head's row of a token of every sequence.
void put_nan(Tensor& tensor, int64_t token) {
  for (int64_t b = 0; b < tensor.batch; ++b) {
    std::memset(tensor.memory.host() + (b * tensor.tokens + token) * tensor.heads * tensor.dims * 2, 0xff, 2);
  }
  tensor.memory.upload();
}

// Custom bits of (sequence, head or all of them, token, key), and NaN over the keys that they hide from everybody.
struct Bits {
  Mirror memory;
  tessera_bit_mask layout{};  // without data

  Bits(const Case& c, Tensor& k, Tensor& v, uint32_t seed) : memory(bytes(c)) {
    layout.stride_row = row_bytes(c);
    layout.stride_head = c.modifiers.mask_per_head ? layout.stride_row * c.seqlen_q : 0;
    layout.stride_batch = layout.stride_row * c.seqlen_q * heads(c);
    layout.num_keys = c.modifiers.mask_keys;
    std::mt19937 random(seed);
    for (size_t b = 0; b < c.lengths.size(); ++b) {
      const int64_t length = c.lengths[b];
      const int64_t covered = layout.num_keys < 0 ? length : std::min(length, layout.num_keys);
      for (int64_t key = 0; key < covered; ++key) {
        bool seen = false;
        for (int64_t row = 0; row < heads(c) * c.seqlen_q; ++row) {
          const bool bit = random() % 8 < c.modifiers.seen_of_8;
          uint8_t& byte =
              memory.host()[static_cast<int64_t>(b) * layout.stride_batch + row * layout.stride_row + key / 8];
          const uint32_t place = 1U << (key % 8);
          byte = static_cast<uint8_t>(bit ? byte | place : byte & ~place);
          seen |= bit;
        }
        if (!seen) {
          hide(k, static_cast<int64_t>(b), length - covered + key);
          hide(v, static_cast<int64_t>(b), length - covered + key);
        }
      }
    }
    memory.upload();
    k.memory.upload();
    v.memory.upload();
  }

 private:
  static int64_t row_bytes(const Case& c) {
    const int64_t longest = *std::ranges::max_element(c.lengths);
    return ((c.modifiers.mask_keys < 0 ? longest : c.modifiers.mask_keys) + 7) / 8;
  }
  static int64_t heads(const Case& c) { return c.modifiers.mask_per_head ? c.heads_q : 1; }
  static size_t bytes(const Case& c) {
    return static_cast<size_t>(row_bytes(c) * c.seqlen_q * heads(c)) * c.lengths.size() + 1;
  }
  static void hide(Tensor& tensor, int64_t b, int64_t key) {
    const int64_t row = tensor.heads * tensor.dims * 2;
    std::memset(tensor.memory.host() + (b * tensor.tokens + key) * row, 0xff, static_cast<size_t>(row));
  }
};

// The bytes of O and LSE that the oracle writes; kernels of equal head dim and dtype share them.
using Bytes = std::pair<std::vector<uint8_t>, std::vector<uint8_t>>;
std::map<std::string, Bytes>& oracle_bytes() {
  static std::map<std::string, Bytes> bytes;
  return bytes;
}

// Runs the kernel twice over the same scratch, and the oracle. `blocks` limits the grid, 0 does not; `page_size` 0:
// no pages.
void expect_oracle_bytes(const Case& any, const DecodeEntry& entry, int blocks, int64_t page_size) {
  const Case c = for_kernel(any, entry);
  const std::string name = describe(c, entry);
  SCOPED_TRACE(fmt::format("{}, {} blocks, pages of {}", name, blocks, page_size));
  const auto batch = static_cast<int64_t>(c.lengths.size());
  const int64_t longest = *std::ranges::max_element(c.lengths);
  const int64_t tokens = longest + 3;  // NaN rows behind every sequence
  std::mt19937 random(static_cast<uint32_t>(c.seqlen_q * 7919 + longest * 13 + c.heads_q));
  Tensor q(batch, c.seqlen_q, c.heads_q, qk_dims(c, entry));
  Tensor k(batch, tokens, c.heads_kv, qk_dims(c, entry));
  Tensor v(batch, tokens, c.heads_kv, v_dims(c, entry));
  Tensor o(batch, c.seqlen_q + 1, c.heads_q, v_dims(c, entry), c.wide_output ? 4 : 2);
  fill(q, std::vector<int32_t>(c.lengths.size(), static_cast<int32_t>(c.seqlen_q)), entry.bf16, c.values, false,
       random);
  fill(k, c.lengths, entry.bf16, c.values, true, random);
  fill(v, c.lengths, entry.bf16, c.values == Values::kTiny ? Values::kTiny : Values::kNormal, false, random);
  if (c.stray_nan) {
    put_nan(k, 2);
    put_nan(v, 5);
  }
  std::unique_ptr<Bits> bits;
  if (c.modifiers.mask) {
    bits = std::make_unique<Bits>(c, k, v, 11);
  }
  Mirror slopes(static_cast<size_t>(c.heads_q) * sizeof(float));
  for (int64_t h = 0; h < c.heads_q; ++h) {
    reinterpret_cast<float*>(slopes.host())[h] = std::exp2(-0.7F * static_cast<float>(h + 1));
  }
  slopes.upload();
  Mirror lengths(c.lengths.size() * sizeof(int32_t));
  std::memcpy(lengths.host(), c.lengths.data(), c.lengths.size() * sizeof(int32_t));
  lengths.upload();
  Mirror positions(c.lengths.size() * sizeof(int32_t));
  for (size_t b = 0; b < c.lengths.size(); ++b) {
    reinterpret_cast<int32_t*>(positions.host())[b] = c.lengths[b] - static_cast<int32_t>(c.seqlen_q);
  }
  positions.upload();
  // LSE, then row_max_log2 and row_sum.
  const int64_t scalars = batch * c.heads_q * (c.seqlen_q + 1);
  Mirror lse(static_cast<size_t>(3 * scalars) * sizeof(float));
  Mirror sinks(static_cast<size_t>(c.heads_q) * sizeof(float));
  for (int64_t h = 0; h < c.heads_q; ++h) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr float kSinks[] = {0.3F, 21.7F, -kInfinity, kInfinity, -90.0F};
    reinterpret_cast<float*>(sinks.host())[h] = kSinks[h % 5];
  }
  sinks.upload();

  DecodeProblem problem;
  problem.dtype = entry.bf16 ? TESSERA_BF16 : TESSERA_F16;
  problem.q = q.view(c.seqlen_q);
  problem.k = k.view(c.ragged ? tokens : longest);
  problem.v = v.view(c.ragged ? tokens : longest);
  problem.o = o.view(c.seqlen_q);
  problem.seqlen_k = longest;
  if (c.ragged) {
    problem.seqlens_k = static_cast<const int32_t*>(lengths.device());
  }
  std::unique_ptr<Pool> k_pool;
  std::unique_ptr<Pool> v_pool;
  std::unique_ptr<Mirror> table;
  if (page_size > 0) {
    k_pool = std::make_unique<Pool>(k, c.lengths, page_size, 7);
    v_pool = std::make_unique<Pool>(v, c.lengths, page_size, 7);
    table = std::make_unique<Mirror>(k_pool->table.size() * sizeof(int32_t));
    std::memcpy(table->host(), k_pool->table.data(), table->bytes().size());
    table->upload();
    problem.k = k_pool->tensor.view(page_size);
    problem.v = v_pool->tensor.view(page_size);
    problem.page_table = static_cast<const int32_t*>(table->device());
    problem.page_table_stride = k_pool->stride;
  }
  problem.causal = c.causal;
  problem.softmax_scale = 1.0F / std::sqrt(static_cast<float>(q.dims));
  if (entry.segments) {  // what it would be without, too
    problem.q_positions = static_cast<const int32_t*>(positions.device());
  }
  problem.softcap = c.modifiers.softcap;
  problem.alibi_slopes = c.modifiers.alibi ? static_cast<const float*>(slopes.device()) : nullptr;
  if (bits != nullptr) {
    problem.mask = bits->layout;
    problem.mask.data = static_cast<const uint8_t*>(bits->memory.device());
  }
  problem.lse = {static_cast<float*>(lse.device()), c.heads_q * (c.seqlen_q + 1), 1, c.seqlen_q + 1};
  problem.window_left = c.window_left;
  problem.sinks = c.sinks ? static_cast<const float*>(sinks.device()) : nullptr;
  problem.wide_output = c.wide_output;
  if (c.unnormalized) {
    problem.unnormalized = true;
    problem.row_max = problem.row_sum = problem.lse;
    problem.row_max.data += scalars;
    problem.row_sum.data += 2 * scalars;
  }
  const Mirror scratch(decode_scratch_bytes(entry, problem));
  problem.scratch = scratch.device();

  if (!oracle_bytes().contains(name)) {
    tessera_fmha_params params{};
    params.struct_size = sizeof params;
    params.dtype = problem.dtype;
    params.o_dtype = c.wide_output ? TESSERA_F32 : problem.dtype;
    params.head_dim_qk = static_cast<int32_t>(q.dims);
    params.head_dim_v = static_cast<int32_t>(v.dims);
    params.num_heads_q = static_cast<int32_t>(c.heads_q);
    params.num_heads_kv = static_cast<int32_t>(c.heads_kv);
    params.batch = batch;
    params.seqlen_q = c.seqlen_q;
    params.q = q.host_view();
    params.o = o.host_view();
    params.num_segments = 1;
    tessera_kv_segment& segment = params.segments[0];
    segment.k = k.host_view();
    segment.v = v.host_view();
    segment.seqlen_k = longest;
    segment.seqlens_k = c.lengths.data();
    segment.causal = c.causal ? 1 : 0;
    segment.window_left = c.window_left;
    segment.window_right = -1;
    params.softmax_scale = problem.softmax_scale;
    params.softcap = problem.softcap;
    params.alibi_slopes = c.modifiers.alibi ? reinterpret_cast<const float*>(slopes.host()) : nullptr;
    if (bits != nullptr) {
      segment.mask = bits->layout;
      segment.mask.data = bits->memory.host();
    }
    params.lse_natural_no_sink = {reinterpret_cast<float*>(lse.host()), problem.lse.stride_batch, 1,
                                  problem.lse.stride_head};
    params.sinks = c.sinks ? reinterpret_cast<const float*>(sinks.host()) : nullptr;
    if (c.unnormalized) {
      params.output_mode = TESSERA_OUTPUT_UNNORMALIZED;
      params.row_max_log2 = params.row_sum = params.lse_natural_no_sink;
      params.row_max_log2.data += scalars;
      params.row_sum.data += 2 * scalars;
    }
    const Status oracle =
        oracle_fmha(Arithmetic::kHopperK16F25, params, static_cast<int>(std::thread::hardware_concurrency()));
    ASSERT_TRUE(oracle.ok()) << oracle.text();
    oracle_bytes()[name] = {o.memory.bytes(), lse.bytes()};
  }
  // Of a case with a stray NaN, the bytes of the other heads.
  const auto compared = [&](std::vector<uint8_t> bytes, int64_t rows, int64_t row_bytes) {
    for (int64_t at = 0; c.stray_nan && at < static_cast<int64_t>(bytes.size()); at += rows * row_bytes) {
      std::memset(bytes.data() + at, 0, static_cast<size_t>(rows / c.heads_kv * row_bytes));
    }
    return bytes;
  };
  const int64_t o_row = v.dims * (c.wide_output ? 4 : 2);
  const int64_t lse_row = (c.seqlen_q + 1) * 4;
  const Bytes want = {compared(oracle_bytes()[name].first, c.heads_q, o_row),
                      compared(oracle_bytes()[name].second, c.heads_q, lse_row)};
  for (int run = 0; run < 2; ++run) {
    ASSERT_EQ(cudaMemset(o.memory.device(), kPoison, o.memory.bytes().size()), cudaSuccess);
    ASSERT_EQ(cudaMemset(lse.device(), kPoison, lse.bytes().size()), cudaSuccess);
    const Status status = run_decode(entry, problem, blocks, nullptr);
    ASSERT_TRUE(status.ok()) << status.text();
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess) << cudaGetErrorString(cudaGetLastError());
    const std::vector<uint8_t> got = compared(o.memory.download(), c.heads_q, o_row);
    EXPECT_TRUE(got == want.first) << "O, run " << run << ": "
                                   << first_difference(got, want.first, c.wide_output ? 4 : 2);
    const std::vector<uint8_t> got_lse = compared(lse.download(), c.heads_q, lse_row);
    EXPECT_TRUE(got_lse == want.second) << "LSE, row max, row sum, run " << run << ": "
                                        << first_difference(got_lse, want.second, 4);
  }
}

class DecodeBytes : public testing::TestWithParam<DecodeEntry> {
 protected:
  void SetUp() override {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "NO CUDA DEVICE: the kernel's bytes are not compared here";
    }
  }

  void check(const std::vector<Case>& cases) {
    for (const Case& c : cases) {
      if (HasFatalFailure()) {
        return;
      }
      expect_oracle_bytes(c, GetParam(), 0, 0);
      for (const int64_t page_size : {1, 16, 48, 300}) {
        expect_oracle_bytes(c, GetParam(), 0, page_size);
      }
    }
  }
};

TEST_P(DecodeBytes, OneGranule) {
  check({{1, 1, 1, false, Values::kNormal, {128}, false},
         {4, 1, 1, false, Values::kNormal, {64}, false},
         {8, 2, 1, false, Values::kWide, {1, 127, 33, 16}},
         {4, 1, 1, false, Values::kTiny, {15, 17}}});
}

TEST_P(DecodeBytes, ANanOfOneHeadStaysThere) {
  Case c{8, 4, 1, false, Values::kNormal, {100, 2100}};
  c.stray_nan = true;
  check({c});
}

TEST_P(DecodeBytes, LengthsAroundGranulesAndRounds) {
  check({{4, 1, 1, false, Values::kNormal, {129, 255, 256, 257, 383, 385, 1023, 1024, 1025}},
         {8, 2, 1, false, Values::kWide, {1152, 1300, 1537, 1921, 2047, 2048}},
         {4, 1, 1, false, Values::kRising, {2048, 2000}}});
}

TEST_P(DecodeBytes, ChunksAndTheirChain) {
  check({{4, 1, 1, false, Values::kNormal, {4096, 4096}, false},
         {8, 2, 1, false, Values::kWide, {2049, 4097, 5000, 6143}},
         {4, 2, 1, false, Values::kRising, {2176, 8192, 3}},
         {4, 1, 1, false, Values::kTiny, {4500}}});
}

TEST_P(DecodeBytes, SuperchunksAndTheirChain) {
  check({{4, 1, 1, false, Values::kNormal, {32768}, false}, {2, 1, 1, false, Values::kRising, {35000, 66000, 100}}});
}

TEST_P(DecodeBytes, SeveralTokensUnderACausalMask) {
  check({{4, 2, 4, true, Values::kNormal, {700, 2050, 4, 2048}},
         {4, 1, 2, true, Values::kWide, {129, 2049, 1}},
         {8, 1, 2, true, Values::kNormal, {130, 5000}},
         {4, 4, 16, true, Values::kRising, {20, 2060, 9}},
         {4, 1, 4, false, Values::kNormal, {333, 2500}}});
}

TEST_P(DecodeBytes, WindowsThatBeginInAnyChunk) {
  check({{4, 1, 1, false, Values::kNormal, {100, 2500, 4200, 7}, true, 300},
         {4, 2, 3, true, Values::kRising, {2100, 4096, 6200}, true, 2047},
         {4, 1, 2, true, Values::kWide, {35000}, false, 4000}});
}

TEST_P(DecodeBytes, SinksStatesAndWideOutput) {
  check({{10, 2, 1, false, Values::kNormal, {0, 5, 2300}, true, -1, true},
         {5, 1, 2, true, Values::kWide, {130, 4100}, true, -1, true, true},
         {4, 1, 1, false, Values::kRising, {2049, 0, 128}, true, -1, false, true, true},
         {4, 1, 1, false, Values::kNormal, {9000}, false, 3000, false, true, true}});
}

TEST_P(DecodeBytes, RowsInSeveralTiles) {
  check({{24, 1, 1, false, Values::kNormal, {400, 2100, 1}},
         {14, 2, 5, true, Values::kWide, {130, 3, 2049}},
         {64, 1, 1, false, Values::kRising, {300}}});
}

TEST_P(DecodeBytes, SequencesWithoutKeys) {
  check({{4, 1, 1, false, Values::kNormal, {0, 5, 0}}, {4, 1, 2, true, Values::kNormal, {1, 0, 300}}});
}

// Few launches that reach every role and the chain of chunks: what tools/gpu_check gives to the memory checkers.
TEST_P(DecodeBytes, FewLaunches) {
  const Case c{4, 2, 2, true, Values::kNormal, {130, 0, 2100}};
  for (const int64_t page_size : {0, 16}) {
    expect_oracle_bytes(c, GetParam(), 0, page_size);
  }
}

TEST_P(DecodeBytes, AnyGridAndManySequences) {
  std::vector<int32_t> lengths(70);
  std::mt19937 random(5);
  for (size_t i = 0; i < lengths.size(); ++i) {
    lengths[i] = static_cast<int32_t>(random() % 400 + (i % 23 == 0 ? 2100 : 0));
  }
  const std::vector<Case> cases = {{4, 2, 1, false, Values::kNormal, lengths},
                                   {4, 1, 1, false, Values::kWide, {300, 2200, 4100}}};
  check(cases);
  if (GetParam().cluster > 1) {
    return;  // they have a cluster for every unit
  }
  for (const int blocks : {1, 5}) {
    for (const Case& c : cases) {
      expect_oracle_bytes(c, GetParam(), blocks, 0);
      expect_oracle_bytes(c, GetParam(), blocks, 16);
    }
  }
}

class ModifiedDecodeBytes : public DecodeBytes {};

TEST_P(ModifiedDecodeBytes, Softcap) {
  check({{4, 1, 1, false, Values::kNormal, {100, 2050, 0, 7}, true, -1, false, false, false, {.softcap = 20.0F}},
         {8, 2, 3, true, Values::kWide, {300, 4200}, true, 129, true, false, false, {.softcap = 1.0F}},
         {4, 2, 1, false, Values::kRising, {2049, 128}, true, -1, false, true, true, {.softcap = 50.0F}}});
}

TEST_P(ModifiedDecodeBytes, Alibi) {
  check({{4, 1, 1, false, Values::kNormal, {100, 2050, 0, 7}, true, -1, false, false, false, {.alibi = true}},
         {10,
          2,
          5,
          true,
          Values::kWide,
          {300, 4200, 3},
          true,
          -1,
          false,
          false,
          false,
          {.softcap = 30.0F, .alibi = true}}});
}

TEST_P(ModifiedDecodeBytes, TreesOfDraftedTokens) {
  check({{4,
          1,
          4,
          false,
          Values::kNormal,
          {4, 130, 2050, 2048},
          true,
          -1,
          false,
          false,
          false,
          {.mask = true, .mask_keys = 4}},
         {4,
          4,
          16,
          true,
          Values::kWide,
          {16, 20, 2060, 9},
          true,
          -1,
          true,
          false,
          false,
          {.mask = true, .mask_keys = 16, .mask_per_head = true}},
         {8,
          2,
          7,
          true,
          Values::kNormal,
          {1, 129, 4100},
          true,
          60,
          false,
          false,
          false,
          {.softcap = 20.0F, .alibi = true, .mask = true, .mask_keys = 40, .seen_of_8 = 3}}});
}

TEST_P(ModifiedDecodeBytes, BitsOverAllKeysHideNan) {
  check({{4, 1, 1, false, Values::kNormal, {500, 2500, 0, 33}, true, -1, false, false, false, {.mask = true}},
         {4, 1, 1, false, Values::kNormal, {2200}, false, -1, false, true, true, {.mask = true, .seen_of_8 = 0}},
         {6,
          2,
          2,
          true,
          Values::kRising,
          {4500, 127},
          true,
          -1,
          false,
          false,
          false,
          {.mask = true, .mask_per_head = true, .seen_of_8 = 1}},
         {24, 1, 1, false, Values::kWide, {700}, true, -1, false, false, false, {.mask = true, .mask_keys = 333}}});
}

TEST_P(ModifiedDecodeBytes, NothingIsModified) {
  check({{4, 1, 1, false, Values::kNormal, {100, 2050, 0, 7}}, {8, 2, 3, true, Values::kWide, {300, 4200}, true, 129}});
}

class TwoHeadDimsDecodeBytes : public DecodeBytes {};

TEST_P(TwoHeadDimsDecodeBytes, AnyMultipleOf8) {
  const int64_t qk = GetParam().head_dim;
  const int64_t v = GetParam().value_dim;
  const int64_t least = qk == 192 ? 136 : qk == 256 ? 200 : qk > 256 ? 264 : 8;  // R0: another granule below
  for (const auto& [a, b] :
       {std::pair{qk, v - 8}, {least, v}, {(qk + least) / 16 * 8, int64_t{8}}, {qk, int64_t{24}}}) {
    check({{4, 1, 1, false, Values::kNormal, {100, 2050, 0, 7}, true, -1, true, false, false, {}, a, b},
           {8, 2, 3, true, Values::kWide, {300, 4200}, true, 129, false, true, true, {}, a, b}});
  }
}

std::string kernel_name(const testing::TestParamInfo<DecodeEntry>& entry) {
  return entry.param.name;
}
std::vector<DecodeEntry> kernels(bool (*wanted)(const DecodeEntry&)) {
  std::vector<DecodeEntry> all;
  for (const auto& file : kDecodeFiles) {
    std::ranges::copy_if(file(), std::back_inserter(all), wanted);
  }
  return all;
}
std::vector<DecodeEntry> every_kernel() {
  return kernels([](const DecodeEntry&) { return true; });
}
std::vector<DecodeEntry> modified_kernels() {
  return kernels([](const DecodeEntry& entry) { return entry.modified; });
}
std::vector<DecodeEntry> kernels_of_two_head_dims() {
  return kernels([](const DecodeEntry& entry) { return entry.modified || entry.head_dim != entry.value_dim; });
}
INSTANTIATE_TEST_SUITE_P(Kernels, ModifiedDecodeBytes, testing::ValuesIn(modified_kernels()), kernel_name);
INSTANTIATE_TEST_SUITE_P(Kernels, TwoHeadDimsDecodeBytes, testing::ValuesIn(kernels_of_two_head_dims()), kernel_name);
INSTANTIATE_TEST_SUITE_P(Kernels, DecodeBytes, testing::ValuesIn(every_kernel()), kernel_name);

}  // namespace
}  // namespace tessera::sm90
