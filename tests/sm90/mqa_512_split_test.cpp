// The kernel for one K/V head of dim 512 with tiles whose keys several blocks share: under every cut the bytes of the
// oracle, whatever the lengths on the device are; how many parts are chosen; graphs; packed sequences.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "cuda/graph.h"
#include "kernels/sm90/fmha_mqa_512/mqa_512.h"
#include "registry/sm90_mqa_512_rows.h"
#include "sm90/mqa_512_case.h"

namespace tessera::test {
namespace {

class Mqa512Split : public Mqa512Case {
 protected:
  // Parts of a tile times blocks that walk over them; workspaces of exactly the size that is asked for, full of NaN.
  static void expect_every_cut(const FmhaSpec& spec, const std::optional<Gathered>& gathered = {}) {
    SCOPED_TRACE(to_text(spec));
    const FmhaProblem problem(spec);
    const FmhaOutputs expected = by_oracle(problem, gathered);
    DeviceProblem device(problem, {.keep_lengths = true});
    DeviceArrays lists;
    put_lists(gathered, &device, &lists);
    for (const int parts : {1, 2, 3, 5, 8, 33}) {
      for (const int blocks : {1, 7, 132}) {
        DeviceArrays workspace;
        const size_t bytes = Sm90MqaProblem(device.params, nullptr).workspace_bytes(parts);
        const Sm90MqaProblem call(device.params, workspace.place(nullptr, std::max<size_t>(bytes, 1), true));
        device.reset_outputs();
        const Status status = call.run(parts, blocks, nullptr);
        ASSERT_TRUE(status.ok()) << status.text();
        ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
        EXPECT_EQ(first_difference(problem, expected, device.outputs()), "") << parts << " parts, " << blocks;
        EXPECT_EQ(workspace.damage(), "") << parts << " parts, " << blocks;
      }
    }
    EXPECT_EQ(device.damage(), "");
  }
  static void expect_every_cut_of_lists(const FmhaSpec& spec, size_t segment, int32_t topk) {
    const Lists lists(spec, segment, topk, true, 5);
    expect_every_cut(spec, Gathered{segment, &lists});
  }
};

TEST_P(Mqa512Split, LengthsAroundEndsOfChunks) {
  expect_every_cut(mqa(8, 1, {0, 1, 2047, 2048, 2049, 4095, 4096, 4097, 9000}));
  expect_every_cut(mqa(16, 3, {6300, 2050, 2}));
}

TEST_P(Mqa512Split, BoundsBeyondTheLengths) {
  FmhaSpec spec = mqa(8, 2, {0, 3, 2100, 4500});
  spec.segments[0].bound = 20000;
  expect_every_cut(spec);
  spec.q_bound = 5;
  spec.q_lengths = {2, 0, 1, 2};
  expect_every_cut(spec);
}

TEST_P(Mqa512Split, TurnedOutputs) {
  FmhaSpec spec = mqa(16, 3, {6300, 2050, 2});
  spec.o_rope_dims = 64;
  expect_every_cut(spec);
}

TEST_P(Mqa512Split, SeveralTilesOfAToken) {
  expect_every_cut(mqa(128, 2, {4700}));
  expect_every_cut(mqa(96, 1, {2300, 0}));
}

TEST_P(Mqa512Split, Windows) {
  FmhaSpec spec = mqa(8, 3, {6300, 5000, 100});
  spec.segments[0].window_left = 4000;
  expect_every_cut(spec);
  spec.segments[0].causal = 0;
  spec.segments[0].window_left = 2048;
  spec.segments[0].window_right = 1;
  expect_every_cut(spec);
}

TEST_P(Mqa512Split, Superchunks) {
  expect_every_cut(mqa(2, 1, {67000, 32769}));
}

TEST_P(Mqa512Split, MovingMaxima) {
  FmhaSpec spec = mqa(16, 2, {9000});
  spec.q_amplitude = 200.0F;
  expect_every_cut(spec);
}

TEST_P(Mqa512Split, Segments) {
  FmhaSpec spec = window_and_compressed(24, 2, {18000, 3, 8192, 8196}, 4);
  expect_every_cut(spec);
  std::swap(spec.segments[0], spec.segments[1]);
  expect_every_cut(spec);
  spec.segments[1].window_left = 3000;
  expect_every_cut(spec);
  for (const size_t segment : {0U, 1U}) {
    spec.segments[segment].layout = KvLayout::kPaged;
    spec.segments[segment].page_size = segment == 0 ? 1 : 64;
  }
  expect_every_cut(spec);
}

TEST_P(Mqa512Split, GatheredKeys) {
  expect_every_cut_of_lists(window_and_compressed(64, 1, {9000, 30, 20000}, 2), 1, 4100);
  expect_every_cut_of_lists(mqa(16, 2, {5000, 900}), 0, 2500);
}

TEST_P(Mqa512Split, StatesAndWideOutput) {
  FmhaSpec spec = window_and_compressed(24, 1, {9000, 0, 2100}, 4);
  spec.o_dtype = TESSERA_F32;
  expect_every_cut(spec);
  spec.sinks.clear();
  spec.unnormalized = true;
  expect_every_cut(spec);
}

TEST_P(Mqa512Split, PackedSequences) {
  for (const KvLayout layout : {KvLayout::kBatched, KvLayout::kPacked, KvLayout::kPaged}) {
    for (const int64_t padding : {0, 3}) {
      FmhaSpec spec = mqa(24, 1, {2300, 0, 70, 4097, 130});
      spec.q_lengths = {7, 0, 70, 1, 3};
      spec.packed_q = true;
      spec.slot_padding = padding;
      spec.segments[0].layout = layout;
      expect_every_cut(spec);
    }
  }
  FmhaSpec spec = window_and_compressed(64, 1, {1500, 3, 130}, 4);
  spec.segments[0].layout = KvLayout::kPacked;
  spec.packed_q = true;
  spec.q_lengths = {9, 1, 2};
  for (size_t b = 0; b < 3; ++b) {
    spec.segments[1].q_positions[b] = static_cast<int32_t>(spec.segments[0].lengths[b] - spec.q_lengths[b]);
  }
  check(spec);
  spec.o_dtype = TESSERA_F32;
  spec.sinks.clear();
  spec.unnormalized = true;
  check(spec);
}

TEST_P(Mqa512Split, FewTilesAreCut) {
  const FmhaSpec spec = mqa(64, 1, {9000, 1});
  const FmhaProblem problem(spec);
  const DeviceProblem device(problem);
  EXPECT_GT(Sm90MqaProblem(device.params, nullptr).parts(), 1);
  check(spec);
}

// Lengths that the graph was not captured with, and that make other chunks exist.
TEST_P(Mqa512Split, GraphsOfOtherLengths) {
  const FmhaProblem problem(mqa(16, 1, {7000, 7000, 7000, 7000}));
  DeviceProblem device(problem, {.keep_lengths = true});
  device.params.force_kernel = kMqa;
  ASSERT_EQ(device.make_workspace(), "");
  ASSERT_GT(Sm90MqaProblem(device.params, nullptr).parts(), 1);
  const Stream stream;
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const Graph graph(device, stream.get());
  graph.expect_kernels_only();
  const std::vector<std::vector<int64_t>> lengths = {
      {7000, 7000, 7000, 7000}, {0, 0, 0, 0}, {1, 2048, 2049, 6999}, {4096, 4097, 0, 63}};
  for (const std::vector<int64_t>& now : lengths) {
    const std::vector<int32_t> used(now.begin(), now.end());
    ASSERT_EQ(cudaMemcpy(const_cast<int32_t*>(device.params.segments[0].seqlens_k), used.data(),
                         used.size() * sizeof(int32_t), cudaMemcpyHostToDevice),
              cudaSuccess);
    device.reset_outputs();
    device.fill_workspace(0xff);
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    graph.replay(stream.get());
    const FmhaOutputs replayed = device.outputs();
    const FmhaProblem same(mqa(16, 1, now));
    const FmhaOutputs expected = by_oracle(same, {});
    for (int64_t b = 0; b < 4; ++b) {
      for (int64_t head = 0; head < 16; ++head) {
        EXPECT_TRUE(problem.row(replayed, b, 0, head) == same.row(expected, b, 0, head)) << now[b] << ", " << head;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Mqa512Split,
                         testing::Values(Kind{TESSERA_BF16, 512}, Kind{TESSERA_F16, 512}, Kind{TESSERA_BF16, 576}),
                         kind_name);

// ---- how many parts are chosen, on any machine

sm90::MqaProblem decode_of(int64_t batch, int64_t heads, int64_t keys) {
  sm90::MqaProblem p;
  p.q.heads = p.o.heads = heads;
  p.batch = batch;
  p.seqlen_q = 1;
  p.count = 1;
  p.segments[0].seqlen_k = keys;
  p.segments[0].causal = true;
  return p;
}

int parts_of(const sm90::MqaProblem& problem) {
  return sm90::plan_mqa_512(problem, 132).parts;
}

TEST(Mqa512Parts, FillTheDevice) {
  EXPECT_EQ(parts_of(decode_of(8, 128, 16384)), 8);     // 16 tiles of 8 chunks
  EXPECT_EQ(parts_of(decode_of(1, 64, 1 << 20)), 128);  // 512 chunks, four a block
  EXPECT_GT(parts_of(decode_of(70, 128, 16384)), 1);    // 140 tiles are two rounds for eight of them
}

TEST(Mqa512Parts, NothingIsCutInVain) {
  EXPECT_EQ(parts_of(decode_of(8, 128, 2048)), 1);
  EXPECT_EQ(parts_of(decode_of(8, 128, 0)), 1);
  EXPECT_EQ(parts_of(decode_of(0, 128, 4096)), 1);
  EXPECT_EQ(parts_of(decode_of(66, 128, 16384)), 1);
  EXPECT_EQ(parts_of(decode_of(2000, 128, 16384)), 1);
  // A window beside the keys of one chunk would end little earlier.
  sm90::MqaProblem p = decode_of(8, 128, 16384);
  p.count = 2;
  p.segments[1] = p.segments[0];
  p.segments[0].window_left = 127;
  p.segments[1].gathered = true;
  p.segments[1].topk = 2048;
  EXPECT_EQ(sm90::mqa_512_tile_chunks(p), 3);  // the window may lie over the end of a chunk
  EXPECT_EQ(parts_of(p), 1);
}

TEST(Mqa512Parts, StatesHaveABound) {
  constexpr size_t kStateBytes = 64 * 512 * 4 + 2 * 128 * 16;
  for (const int64_t batch : {1, 8, 33, 34, 70, 200, 1000}) {
    for (const int64_t keys : {4096, 65536, 1 << 20}) {
      const sm90::MqaProblem p = decode_of(batch, 128, keys);
      const int parts = parts_of(p);
      if (parts == 1) continue;
      const size_t states = static_cast<size_t>(2 * batch * (keys / 2048)) * kStateBytes;
      const size_t bytes = sm90::mqa_512_scratch_bytes(p, parts, 132);
      EXPECT_GE(bytes, states);
      EXPECT_LE(bytes, states + 3 * 132 * kStateBytes);
      EXPECT_TRUE(batch <= 33 || states <= size_t{1} << 30) << batch << " x " << keys;
    }
  }
}

// The faster one of two kernels in cells of bench/results/2026-11-30-h200-decode-latent*.json.
TEST(Mqa512Choice, IsWhatWasMeasured) {
  struct Cell {
    int64_t heads, batch, keys;
    bool decode;
  };
  for (const Cell& cell :
       {Cell{8, 1, 1024, true}, Cell{8, 32, 4096, true}, Cell{8, 32, 16384, false}, Cell{16, 8, 16384, true},
        Cell{16, 128, 4096, false}, Cell{64, 8, 4096, true}, Cell{64, 8, 16384, false}, Cell{64, 32, 1024, true},
        Cell{64, 32, 4096, false}, Cell{128, 1, 16384, true}, Cell{128, 8, 4096, true}, Cell{128, 8, 16384, false},
        Cell{128, 32, 1024, false}, Cell{128, 128, 16384, false}}) {
    for (const int64_t dims : {512, 576}) {
      sm90::MqaProblem p = decode_of(cell.batch, cell.heads, cell.keys);
      p.q.dims = dims;
      EXPECT_EQ(sm90::mqa_512_is_slow(p, 132), cell.decode) << cell.heads << ", " << cell.batch << " x " << cell.keys;
    }
  }
}

}  // namespace
}  // namespace tessera::test
