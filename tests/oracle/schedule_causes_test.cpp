// Which dependences on a schedule move the bits of an attention row, and which do not: every cause by itself, in a
// model (schedule_model.h) whose default is the contract. The test prints what it counts.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "base/numeric_types.h"
#include "oracle/oracle.h"
#include "oracle/schedule_model.h"

namespace tessera {
namespace {

constexpr int kRows = 96;
constexpr int kKeys = 600;  // no multiple of a tile
constexpr float kAmplitude = 6.0F;

const ScheduleProblem& causal_problem() {
  static const ScheduleProblem problem(kRows, kKeys, true, kAmplitude);
  return problem;
}

const ScheduleProblem& full_problem() {
  static const ScheduleProblem problem(kRows, kKeys, false, kAmplitude);
  return problem;
}

struct Difference {
  size_t fp32;  // elements of O with other bits
  size_t fp16;  // the same behind the rounding to fp16
  double largest;
};

Difference compare(const std::vector<float>& a, const std::vector<float>& b) {
  Difference d{};
  for (size_t i = 0; i < a.size(); ++i) {
    d.fp32 += bits_of(a[i]) != bits_of(b[i]);
    d.fp16 += f32_to_f16(a[i]) != f32_to_f16(b[i]);
    const double distance = std::abs(double{a[i]} - double{b[i]});
    d.largest = std::isnan(distance) ? distance : std::fmax(d.largest, distance);
  }
  return d;
}

// B against A on `problem`, with a line of the table.
Difference moved(const std::string& cause, const ScheduleProblem& problem, const ScheduleModel& a,
                 const ScheduleModel& b) {
  const std::vector<float> expected = problem.run(a);
  const Difference d = compare(expected, problem.run(b));
  std::printf("| %s | %zu of %zu | %zu | %.1e |\n", cause.c_str(), d.fp32, expected.size(), d.fp16, d.largest);
  return d;
}

std::vector<float> oracle(const ScheduleProblem& problem) {
  std::vector<float> out(static_cast<size_t>(problem.rows()) * ScheduleProblem::kDim);
  constexpr int64_t kDim = ScheduleProblem::kDim;
  const auto tensor = [](const void* data, int64_t tokens) {
    return tessera_tensor{const_cast<void*>(data), tokens * kDim, kDim, kDim, 1};
  };
  tessera_fmha_params p{};
  p.struct_size = sizeof(p);
  p.dtype = TESSERA_F16;
  p.o_dtype = TESSERA_F32;
  p.head_dim_qk = p.head_dim_v = kDim;
  p.num_heads_q = p.num_heads_kv = 1;
  p.batch = 1;
  p.seqlen_q = problem.rows();
  p.q = tensor(problem.q().data(), problem.rows());
  p.o = tensor(out.data(), problem.rows());
  p.num_segments = 1;
  p.segments[0].k = tensor(problem.k().data(), problem.keys());
  p.segments[0].v = tensor(problem.v().data(), problem.keys());
  p.segments[0].seqlen_k = problem.keys();
  p.segments[0].causal = problem.causal() ? 1 : 0;
  p.segments[0].window_left = p.segments[0].window_right = -1;
  p.softmax_scale = 1.0F / std::sqrt(static_cast<float>(kDim));
  const Status status = oracle_fmha(Arithmetic::kHopperK16F25, p, 1);
  EXPECT_TRUE(status.ok()) << status.text();
  return out;
}

TEST(ScheduleCauses, TheModelIsTheOracle) {
  for (const ScheduleProblem* problem : {&causal_problem(), &full_problem()}) {
    EXPECT_EQ(compare(oracle(*problem), problem->run({})).fp32, 0U);
  }
}

// ---------------------------------------------------------------- what moves no bit

TEST(ScheduleCauses, TilesOfKeysMoveNothingWhenTheMaxIsCutAtGranules) {
  for (const int tile : {16, 32, 128}) {
    EXPECT_EQ(
        moved("K/V tile 64 -> " + std::to_string(tile) + ", max per granule", causal_problem(), {}, {.kv_tile = tile})
            .fp32,
        0U);
  }
}

TEST(ScheduleCauses, StagesMoveNothing) {
  for (const int stages : {2, 3}) {
    EXPECT_EQ(
        moved("stages 1 -> " + std::to_string(stages) + ", one order of sums", causal_problem(), {}, {.stages = stages})
            .fp32,
        0U);
  }
}

TEST(ScheduleCauses, QueryTilesMoveNothing) {
  for (const int tile : {16, 48, 128}) {
    EXPECT_EQ(moved("Q tile 64 -> " + std::to_string(tile), causal_problem(), {}, {.q_tile = tile}).fp32, 0U);
  }
  // Not with a max per tile either: a tile that a row does not see changes nothing of it.
  const ScheduleModel exact{.max_rule = MaxRule::kExactTile};
  ScheduleModel narrow = exact;
  narrow.q_tile = 48;
  EXPECT_EQ(moved("Q tile 64 -> 48, exact max per K/V tile", causal_problem(), exact, narrow).fp32, 0U);
}

TEST(ScheduleCauses, StaleValuesOfWeightZeroMoveNothing) {
  EXPECT_EQ(moved("tail of V stale, weight 0", full_problem(), {}, {.tail = Tail::kStaleValues}).fp32, 0U);
}

TEST(ScheduleCauses, ACausalMaskHidesAStaleTail) {
  EXPECT_EQ(
      moved("tail of K stale and not masked by length, causal", causal_problem(), {}, {.tail = Tail::kStaleKeys}).fp32,
      0U);
}

// ---------------------------------------------------------------- what moves bits

TEST(ScheduleCauses, AMaxPerTileMovesBitsWithTheTile) {
  const ScheduleModel a{.max_rule = MaxRule::kExactTile};
  for (const int tile : {32, 128}) {
    EXPECT_GT(moved("K/V tile 64 -> " + std::to_string(tile) + ", exact max per tile", causal_problem(), a,
                    {.kv_tile = tile, .max_rule = MaxRule::kExactTile})
                  .fp32,
              0U);
  }
  EXPECT_GT(moved("K/V tile 64 -> 128, lazy whole-number max per tile", causal_problem(), {.max_rule = MaxRule::kTile},
                  {.kv_tile = 128, .max_rule = MaxRule::kTile})
                .fp32,
            0U);
}

TEST(ScheduleCauses, AMaxThatRowsShareMovesBitsWithTheQueryTile) {
  EXPECT_GT(moved("Q tile 64 -> 48, rows of a tile take their new max together", causal_problem(),
                  {.max_of_q_tile = true}, {.q_tile = 48, .max_of_q_tile = true})
                .fp32,
            0U);
}

TEST(ScheduleCauses, AnAccumulatorPerStageMovesBits) {
  for (const int stages : {2, 3}) {
    EXPECT_GT(moved("stages 1 -> " + std::to_string(stages) + ", an accumulator for each", causal_problem(),
                    {.accumulator_per_stage = true}, {.stages = stages, .accumulator_per_stage = true})
                  .fp32,
              0U);
  }
}

TEST(ScheduleCauses, AStaleTailThatCountsMovesBitsWithStagesAndTiles) {
  const ScheduleModel stale{.tail = Tail::kStaleKeys};
  EXPECT_GT(moved("tail of K stale and not masked, against masked", full_problem(), {}, stale).fp32, 0U);
  EXPECT_GT(moved("the same, stages 1 -> 2", full_problem(), stale, {.stages = 2, .tail = Tail::kStaleKeys}).fp32, 0U);
  EXPECT_GT(moved("the same, K/V tile 64 -> 32", full_problem(), stale, {.kv_tile = 32, .tail = Tail::kStaleKeys}).fp32,
            0U);
}

TEST(ScheduleCauses, NanInTheTailOfVReachesEveryElement) {
  const Difference d = moved("tail of V is NaN, weight 0", full_problem(), {}, {.tail = Tail::kNanValues});
  EXPECT_EQ(d.fp32, static_cast<size_t>(kRows) * ScheduleProblem::kDim);
}

TEST(ScheduleCauses, AnotherContractionMovesBits) {
  EXPECT_GT(moved("exp2's argument: fma -> product and sum", causal_problem(), {}, {.contracted = false}).fp32, 0U);
}

}  // namespace
}  // namespace tessera
