// Offsets beyond 32 bits: rows lie 2^32 elements apart in memory that is reserved but almost nowhere touched, so an
// offset cut to 32 bits reaches other bytes (E4, E9, E10, E16, E22 of the list of cases).
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "fmha/conformance.h"

namespace tessera::test {
namespace {

constexpr int64_t kApart = int64_t{1} << 32;      // elements
constexpr int64_t kMaskApart = int64_t{1} << 28;  // bytes, the widest stride of a mask: row 16 lies at 2^32

// Zeros without memory behind them until they are written.
class Reservation {
 public:
  explicit Reservation(size_t bytes) : bytes_(bytes) {
    address_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~Reservation() {
    if (good()) munmap(address_, bytes_);
  }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;
  bool good() const { return address_ != MAP_FAILED; }
  char* data() const { return static_cast<char*>(address_); }

 private:
  size_t bytes_;
  void* address_;
};

// One array of a call, with extents and strides in elements (of a mask: bytes) of `width` bytes each. The innermost run
// of `dim` elements is contiguous.
struct Array {
  void** data;
  int64_t* strides[3];  // batch, token, head
  int64_t extents[3];
  int64_t dim;
  int64_t width;

  char* at(const int64_t (&index)[3]) const {
    int64_t offset = 0;
    for (int axis = 0; axis < 3; ++axis) offset += index[axis] * *strides[axis];
    return static_cast<char*>(*data) + offset * width;
  }

  template <class Visit>
  void for_each_row(const Visit& visit) const {
    for (int64_t b = 0; b < extents[0]; ++b) {
      for (int64_t n = 0; n < extents[1]; ++n) {
        for (int64_t h = 0; h < extents[2]; ++h) visit({b, n, h});
      }
    }
  }
};

// Copies `from` to where neighbours along `axis` are `apart` elements away; the array then describes the copy.
std::unique_ptr<Reservation> spread(const Array& array, int axis, int64_t apart) {
  int64_t last = array.dim;
  for (int a = 0; a < 3; ++a) last += (array.extents[a] - 1) * (a == axis ? apart : *array.strides[a]);
  auto memory = std::make_unique<Reservation>(static_cast<size_t>(last * array.width));
  if (!memory->good()) return memory;
  std::vector<char> rows;
  const size_t row_bytes = static_cast<size_t>(array.dim * array.width);
  array.for_each_row([&](const int64_t(&index)[3]) {
    const char* row = array.at(index);
    rows.insert(rows.end(), row, row + row_bytes);
  });
  *array.data = memory->data();
  *array.strides[axis] = apart;
  size_t next = 0;
  array.for_each_row([&](const int64_t(&index)[3]) {
    std::memcpy(array.at(index), rows.data() + next, row_bytes);
    next += row_bytes;
  });
  return memory;
}

Array array_of(tessera_tensor* t, int64_t batch, int64_t tokens, int64_t heads, int64_t dim, int64_t width) {
  return {&t->data, {&t->stride_batch, &t->stride_token, &t->stride_head}, {batch, tokens, heads}, dim, width};
}

Array array_of(tessera_row_scalars* s, int64_t batch, int64_t tokens, int64_t heads) {
  return {reinterpret_cast<void**>(&s->data),
          {&s->stride_batch, &s->stride_token, &s->stride_head},
          {batch, tokens, heads},
          1,
          4};
}

Array array_of(tessera_bit_mask* m, int64_t batch, int64_t tokens, int64_t heads, int64_t bytes) {
  // The mask is read only; Array writes to copies.
  return {const_cast<void**>(reinterpret_cast<const void**>(&m->data)),
          {&m->stride_batch, &m->stride_row, &m->stride_head},
          {batch, tokens, heads},
          bytes,
          1};
}

// Copies rows back from a spread array into the one that it was before.
void collect(const Array& spread_out, const Array& compact) {
  compact.for_each_row([&](const int64_t(&index)[3]) {
    std::memcpy(compact.at(index), spread_out.at(index), static_cast<size_t>(compact.dim * compact.width));
  });
}

TEST(WideStrides, RowsOfEveryTensorFourGigaElementsApart) {
  FmhaSpec spec;
  spec.dtype = TESSERA_BF16;
  spec.head_dim_qk = spec.head_dim_v = 24;
  spec.heads_q = spec.heads_kv = 2;
  spec.unnormalized = true;
  spec.q_lengths = {2, 2};
  spec.segments.emplace_back();
  spec.segments[0].lengths = {3, 3};
  const FmhaProblem problem(spec);
  const FmhaOutputs expected = run_oracle(problem);
  for (const std::string& kernel : available_kernels(TESSERA_OP_FMHA)) {
    for (int axis = 0; axis < 3; ++axis) {
      FmhaOutputs out = problem.make_outputs();
      tessera_fmha_params compact = problem.params(&out);
      tessera_fmha_params p = compact;
      p.force_kernel = kernel.c_str();
      const auto outputs = [](tessera_fmha_params* q) {
        return std::vector<Array>{array_of(&q->o, 2, 2, 2, 24, 4), array_of(&q->lse_natural_no_sink, 2, 2, 2),
                                  array_of(&q->row_max_log2, 2, 2, 2), array_of(&q->row_sum, 2, 2, 2)};
      };
      std::vector<Array> arrays = outputs(&p);
      arrays.push_back(array_of(&p.q, 2, 2, 2, 24, 2));
      arrays.push_back(array_of(&p.segments[0].k, 2, 3, 2, 24, 2));
      arrays.push_back(array_of(&p.segments[0].v, 2, 3, 2, 24, 2));
      std::vector<std::unique_ptr<Reservation>> memory;
      for (const Array& array : arrays) {
        memory.push_back(spread(array, axis, kApart));
        if (!memory.back()->good()) GTEST_SKIP() << "this machine does not reserve that much address space";
      }
      const Workspace workspace(1 << 20);
      tessera_error error{};
      ASSERT_EQ(tessera_fmha_run(&p, workspace.data(), workspace.bytes(), nullptr, &error), TESSERA_OK) << error.text;
      const std::vector<Array> before = outputs(&compact);
      for (size_t i = 0; i < before.size(); ++i) collect(arrays[i], before[i]);
      EXPECT_EQ(first_difference(problem, expected, out), "") << kernel << ", axis " << axis;
    }
  }
}

TEST(WideStrides, E9_E10_E22_MaskRowsBeyondFourGigabytes) {
  for (int axis = 0; axis < 3; ++axis) {
    FmhaSpec spec;
    spec.head_dim_qk = spec.head_dim_v = 8;
    const int64_t n = 18;  // the last two lie beyond 2^32 bytes
    spec.q_lengths.assign(axis == 0 ? n : 1, axis == 1 ? n : 1);
    spec.heads_q = spec.heads_kv = axis == 2 ? static_cast<int32_t>(n) : 1;
    spec.segments.emplace_back();
    spec.segments[0].lengths.assign(spec.q_lengths.size(), 40);
    spec.segments[0].mask = spec.segments[0].mask_per_head = true;
    const FmhaProblem problem(spec);
    const FmhaOutputs expected = run_oracle(problem);
    for (const std::string& kernel : available_kernels(TESSERA_OP_FMHA)) {
      FmhaOutputs out = problem.make_outputs();
      tessera_fmha_params p = problem.params(&out);
      p.force_kernel = kernel.c_str();
      const std::unique_ptr<Reservation> memory =
          spread(array_of(&p.segments[0].mask, p.batch, p.seqlen_q, p.num_heads_q, 40 / 8), axis, kMaskApart);
      if (!memory->good()) GTEST_SKIP() << "this machine does not reserve that much address space";
      const Workspace workspace(1 << 20);
      tessera_error error{};
      ASSERT_EQ(tessera_fmha_run(&p, workspace.data(), workspace.bytes(), nullptr, &error), TESSERA_OK) << error.text;
      EXPECT_EQ(first_difference(problem, expected, out), "") << kernel << ", axis " << axis;
    }
  }
}

TEST(WideStrides, StatesOfAMergeFourGigaElementsApart) {
  constexpr int64_t kStates = 2;
  constexpr int64_t kRows = 2;
  constexpr int64_t kHeads = 2;
  constexpr int64_t kDim = 5;
  std::vector<float> o_states, maxima, sums;
  for (int64_t i = 0; i < kStates * kRows * kHeads; ++i) {
    maxima.push_back(static_cast<float>(i % 3));
    sums.push_back(1.0f + static_cast<float>(i));
    for (int64_t d = 0; d < kDim; ++d) o_states.push_back(static_cast<float>(i * 10 + d));
  }
  std::vector<float> o(kRows * kHeads * kDim, 7.0f);
  std::vector<float> lse(kRows * kHeads, 7.0f);
  tessera_merge_params compact{};
  compact.struct_size = sizeof(compact);
  compact.head_dim_qk = compact.head_dim_v = kDim;
  compact.num_heads_q = kHeads;
  compact.num_rows = kRows;
  compact.num_states = kStates;
  compact.o_states = {o_states.data(), kRows * kHeads * kDim, kHeads * kDim, kDim, 1};
  compact.row_max_log2_states = {maxima.data(), kRows * kHeads, kHeads, 1};
  compact.row_sum_states = {sums.data(), kRows * kHeads, kHeads, 1};
  compact.o = {o.data(), 0, kHeads * kDim, kDim, 1};
  compact.lse_natural_no_sink = {lse.data(), 0, kHeads, 1};
  for (const std::string& kernel : available_kernels(TESSERA_OP_MERGE)) {
    compact.force_kernel = kernel.c_str();
    ASSERT_EQ(tessera_fmha_merge(&compact, nullptr, nullptr), TESSERA_OK);
    const std::vector<float> expected_o = o;
    const std::vector<float> expected_lse = lse;
    for (int axis = 0; axis < 3; ++axis) {
      tessera_merge_params p = compact;
      std::vector<Array> arrays = {array_of(&p.o, 1, kRows, kHeads, kDim, 4),
                                   array_of(&p.lse_natural_no_sink, 1, kRows, kHeads),
                                   array_of(&p.o_states, kStates, kRows, kHeads, kDim, 4),
                                   array_of(&p.row_max_log2_states, kStates, kRows, kHeads),
                                   array_of(&p.row_sum_states, kStates, kRows, kHeads)};
      std::vector<std::unique_ptr<Reservation>> memory;
      for (const Array& array : arrays) {
        memory.push_back(spread(array, axis, kApart));
        if (!memory.back()->good()) GTEST_SKIP() << "this machine does not reserve that much address space";
      }
      ASSERT_EQ(tessera_fmha_merge(&p, nullptr, nullptr), TESSERA_OK);
      o.assign(o.size(), 7.0f);
      lse.assign(lse.size(), 7.0f);
      collect(arrays[0], array_of(&compact.o, 1, kRows, kHeads, kDim, 4));
      collect(arrays[1], array_of(&compact.lse_natural_no_sink, 1, kRows, kHeads));
      EXPECT_EQ(o, expected_o) << kernel << ", axis " << axis;
      EXPECT_EQ(lse, expected_lse) << kernel << ", axis " << axis;
    }
  }
}

}  // namespace
}  // namespace tessera::test
