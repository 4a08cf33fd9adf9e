// Split-KV on the GPU: states of chunk ranges merged in order equal the unsplit call, and the merge kernels give the
// oracle's bytes (R8, R9).
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "cuda/harness.h"
#include "fmha/conformance.h"
#include "oracle/oracle.h"

namespace tessera::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// States of (num_states, rows, heads, dim), `padding` NaN elements after every O row, and room for the result.
struct Merge {
  static constexpr int32_t kPositions = 11;
  int64_t num_states, rows;
  int32_t heads, dim;
  int64_t padding;
  std::vector<float> o_states, max_states, sum_states, sinks, lse, row_max, row_sum;
  std::vector<float> rope_cos, rope_sin;  // empty: off
  std::vector<int32_t> rope_positions;
  std::vector<uint8_t> o;
  tessera_dtype dtype = TESSERA_BF16;
  tessera_dtype o_dtype = TESSERA_BF16;
  bool unnormalized = false;

  Merge(int64_t states, int64_t rows_in, int32_t heads_in, int32_t dim_in, int64_t padding_in = 0)
      : num_states(states), rows(rows_in), heads(heads_in), dim(dim_in), padding(padding_in) {
    const size_t scalars = static_cast<size_t>(states * rows * heads);
    o_states.assign(scalars * static_cast<size_t>(dim + padding), std::numeric_limits<float>::quiet_NaN());
    max_states.assign(scalars, -kInf);
    sum_states.assign(scalars, 0.0F);
    o.assign(static_cast<size_t>(rows * heads * (dim + padding)) * 4, 0xff);
    lse.assign(static_cast<size_t>(rows * heads), 7.0F);
    row_max = row_sum = lse;
  }

  float* state(int64_t slot, int64_t row, int64_t head) {
    return &o_states[static_cast<size_t>(((slot * rows + row) * heads + head) * (dim + padding))];
  }

  tessera_merge_params params() {
    tessera_merge_params p{};
    p.struct_size = sizeof(p);
    p.dtype = dtype;
    p.o_dtype = unnormalized ? TESSERA_F32 : o_dtype;
    p.head_dim_qk = p.head_dim_v = dim;
    p.num_heads_q = heads;
    p.num_rows = rows;
    p.num_states = num_states;
    const int64_t row = dim + padding;
    p.o_states = {o_states.data(), rows * heads * row, heads * row, row, 1};
    p.row_max_log2_states = {max_states.data(), rows * heads, heads, 1};
    p.row_sum_states = {sum_states.data(), rows * heads, heads, 1};
    p.sinks = sinks.empty() ? nullptr : sinks.data();
    if (!rope_cos.empty()) {
      const auto pairs = static_cast<int64_t>(rope_cos.size()) / kPositions;
      p.o_rope = {rope_cos.data(), rope_sin.data(), rope_positions.data(), kPositions, static_cast<int32_t>(2 * pairs)};
    }
    p.output_mode = unnormalized ? TESSERA_OUTPUT_UNNORMALIZED : TESSERA_OUTPUT_NORMALIZED;
    p.o = {o.data(), 0, heads * row, row, 1};
    p.lse_natural_no_sink = {lse.data(), 0, heads, 1};
    if (unnormalized) {
      p.row_max_log2 = {row_max.data(), 0, heads, 1};
      p.row_sum = {row_sum.data(), 0, heads, 1};
    }
    return p;
  }

  // R12 of the last `dims` dims.
  void turn(int32_t dims) {
    for (int32_t i = 0; i < kPositions * dims / 2; ++i) {
      rope_cos.push_back(std::cos(static_cast<float>(i)));
      rope_sin.push_back(std::sin(static_cast<float>(i)));
    }
    for (int64_t n = 0; n < rows; ++n) rope_positions.push_back(static_cast<int32_t>(n * 5 % kPositions));
  }

  // The merge on the GPU; the results come back into this object.
  void run(const std::string& kernel) {
    tessera_merge_params p = params();
    DeviceArrays arrays;
    const auto place = [&](auto& vector, bool written) {
      return arrays.place(vector.data(), vector.size() * sizeof(vector[0]), written);
    };
    p.o_states.data = place(o_states, false);
    p.row_max_log2_states.data = static_cast<float*>(place(max_states, false));
    p.row_sum_states.data = static_cast<float*>(place(sum_states, false));
    if (!sinks.empty()) p.sinks = static_cast<float*>(place(sinks, false));
    if (!rope_cos.empty()) {
      p.o_rope.cos_table = static_cast<float*>(place(rope_cos, false));
      p.o_rope.sin_table = static_cast<float*>(place(rope_sin, false));
      p.o_rope.positions = static_cast<int32_t*>(place(rope_positions, false));
    }
    p.o.data = place(o, true);
    p.lse_natural_no_sink.data = static_cast<float*>(place(lse, true));
    if (unnormalized) {
      p.row_max_log2.data = static_cast<float*>(place(row_max, true));
      p.row_sum.data = static_cast<float*>(place(row_sum, true));
    }
    p.device = TESSERA_DEVICE_CUDA;
    p.force_kernel = kernel.c_str();
    const Stream stream;
    const tessera_stream where{nullptr, stream.get()};
    tessera_error error{};
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    ASSERT_EQ(tessera_fmha_merge(&p, &where, &error), TESSERA_OK) << error.text;
    ASSERT_EQ(cudaStreamSynchronize(stream.get()), cudaSuccess);
    ASSERT_EQ(arrays.damage(), "");
    arrays.read_back(o.data(), o.data());
    arrays.read_back(lse.data(), lse.data());
    if (!unnormalized) return;
    arrays.read_back(row_max.data(), row_max.data());
    arrays.read_back(row_sum.data(), row_sum.data());
  }
};

bool same_bytes(const Merge& a, const Merge& b) {
  const auto same = [](const std::vector<float>& x, const std::vector<float>& y) {
    return std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
  };
  return a.o == b.o && same(a.lse, b.lse) && same(a.row_max, b.row_max) && same(a.row_sum, b.row_sum);
}

using CudaMerge = CudaTest;

TEST_F(CudaMerge, APositionOutsideTheTablesMakesNanOfItsDims) {
  Merge merge(1, 3, 1, 100, 0);
  merge.o_dtype = TESSERA_F32;
  std::ranges::fill(merge.max_states, 2.0F);
  std::ranges::fill(merge.sum_states, 1.5F);
  std::ranges::fill(merge.o_states, 0.25F);
  merge.turn(64);
  merge.rope_positions = {-1, 3, Merge::kPositions};
  merge.run("sm80_merge");
  for (size_t row = 0; row < 3; ++row) {
    for (size_t d = 0; d < 100; ++d) {
      float value = 0.0F;
      std::memcpy(&value, &merge.o[(row * 100 + d) * sizeof(float)], sizeof(float));
      EXPECT_EQ(std::isnan(value), row != 1 && d >= 36) << row << " " << d;
    }
  }
}

TEST_F(CudaMerge, EveryKernelEqualsTheOracle) {
  int compared = 0;
  for (const tessera_dtype dtype : {TESSERA_F16, TESSERA_BF16}) {
    for (const bool unnormalized : {false, true}) {
      for (const int32_t dim : {1, 24, 64, 100, 256, 576, 1024}) {
        Merge merge(5, 70, 3, dim, dim % 3);
        merge.dtype = dtype;
        merge.o_dtype = dim == 100 ? TESSERA_F32 : dtype;
        merge.unnormalized = unnormalized;
        if (!unnormalized && dim != 24) merge.sinks = {0.5F, -kInf, 3.0F};
        if (!unnormalized && dim % 2 == 0) merge.turn(dim == 24 ? 24 : 64);
        for (size_t i = 0; i < merge.max_states.size(); ++i) {
          if (i % 7 == 3) continue;  // empty: its O stays NaN
          merge.max_states[i] = static_cast<float>(static_cast<int>(i * 37 % 151) - 75);
          merge.sum_states[i] = 1.0F + static_cast<float>(i % 13) * 0.37F;
          float* o = &merge.o_states[i * static_cast<size_t>(dim + merge.padding)];
          for (int32_t d = 0; d < dim; ++d) o[d] = std::sin(static_cast<float>(i * 31 + static_cast<size_t>(d))) * 3.0F;
        }
        Merge expected = merge;
        const Status status = oracle_merge(Arithmetic::kHopperK16F25, expected.params());
        ASSERT_TRUE(status.ok()) << status.text();
        for (const std::string& kernel : cuda_kernels(TESSERA_OP_MERGE, true)) {
          Merge actual = merge;
          actual.run(kernel);
          EXPECT_TRUE(same_bytes(actual, expected)) << kernel << " dim " << dim << " state " << unnormalized;
          ++compared;
        }
      }
    }
  }
  fmt::print("[ TALLY    ] merge f16+bf16 random compared {} refused 0\n", compared);
}

TEST_F(CudaMerge, EmptyStatesGiveZeroAndMinusInfinity) {
  for (const std::string& kernel : cuda_kernels(TESSERA_OP_MERGE, true)) {
    Merge merge(2, 1, 1, 64);
    merge.run(kernel);
    EXPECT_EQ(merge.o, [] {
      std::vector<uint8_t> o(64 * 4, 0xff);
      std::fill(o.begin(), o.begin() + 64 * 2, uint8_t{0});
      return o;
    }());
    EXPECT_EQ(merge.lse[0], -kInf);
  }
}

TEST_F(CudaMerge, ManyRows) {
  Merge merge(2, 70000, 1, 4);
  for (size_t i = 0; i < merge.max_states.size(); ++i) {
    merge.max_states[i] = static_cast<float>(i % 5);
    merge.sum_states[i] = 1.0F;
    std::fill_n(&merge.o_states[i * 4], 4, static_cast<float>(i % 97));
  }
  Merge expected = merge;
  ASSERT_TRUE(oracle_merge(Arithmetic::kHopperK16F25, expected.params()).ok());
  for (const std::string& kernel : cuda_kernels(TESSERA_OP_MERGE, true)) {
    Merge actual = merge;
    actual.run(kernel);
    EXPECT_TRUE(same_bytes(actual, expected)) << kernel;
  }
}

FmhaSpec long_decode(tessera_dtype dtype, int64_t keys) {
  FmhaSpec spec;
  spec.dtype = spec.o_dtype = dtype;
  spec.heads_q = 4;
  spec.heads_kv = 2;
  spec.segments.emplace_back();
  spec.segments[0].causal = 1;
  return one_sequence(spec, 2, keys);
}

TEST_F(CudaMerge, RangesMergedInOrderEqualTheWhole) {
  struct Split {
    int64_t keys;
    std::vector<std::pair<int64_t, int64_t>> ranges;  // of chunks
  };
  const Split splits[] = {{3 * 2048 + 100, {{0, 1}, {1, 2}, {2, 3}, {3, 4}}},
                          {6 * 2048 - 1, {{0, 4}, {4, 5}, {5, 6}}},
                          {35 * 2048 + 3, {{0, 16}, {16, 32}, {32, 48}}}};
  for (const tessera_dtype dtype : {TESSERA_F16, TESSERA_BF16}) {
    for (const Split& split : splits) {
      const FmhaSpec whole = long_decode(dtype, split.keys);
      Merge merge(static_cast<int64_t>(split.ranges.size()), 2, 4, 64);
      merge.dtype = merge.o_dtype = dtype;
      for (size_t slot = 0; slot < split.ranges.size(); ++slot) {
        FmhaSpec part = whole;
        part.unnormalized = true;
        part.o_dtype = TESSERA_F32;
        part.chunk_begin = split.ranges[slot].first;
        part.chunk_end = split.ranges[slot].second;
        const std::vector<RowBytes> rows = cuda_rows("", part, 0);
        ASSERT_EQ(rows.size(), 8u);
        for (size_t r = 0; r < 8; ++r) {
          const size_t at = slot * 8 + r;
          std::memcpy(&merge.o_states[at * 64], rows[r].o.data(), rows[r].o.size());
          merge.max_states[at] = rows[r].row_max;
          merge.sum_states[at] = rows[r].row_sum;
        }
      }
      const std::vector<RowBytes> expected = cuda_rows("", whole, 0);
      for (const std::string& kernel : cuda_kernels(TESSERA_OP_MERGE, true)) {
        Merge merged = merge;
        merged.run(kernel);
        for (size_t r = 0; r < 8; ++r) {
          EXPECT_EQ(std::memcmp(&merged.o[r * 128], expected[r].o.data(), 128), 0) << kernel << " " << split.keys;
          EXPECT_EQ(std::memcmp(&merged.lse[r], &expected[r].lse, 4), 0) << kernel << " " << split.keys;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::test
