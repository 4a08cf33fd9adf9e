// What long work says on a stderr that is no terminal: gtest catches it in a file.
#include "cli/console.h"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <thread>

namespace tessera::cli {
namespace {

std::string said(bool enabled, double pace_seconds, int updates) {
  testing::internal::CaptureStderr();
  {
    ProgressLine line("perf", enabled, pace_seconds);
    for (int i = 0; i < updates; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      line.update(0.25 * i, "work");
    }
    line.clear();
  }
  return testing::internal::GetCapturedStderr();
}

TEST(ProgressLine, SaysAPlainLineAtItsPaceWhereStderrIsNoTerminal) {
  EXPECT_EQ(said(true, 0.01, 3), "perf: 0 %, work\nperf: 25 %, work\nperf: 50 %, work\n");
  EXPECT_EQ(said(true, 3600, 3), "");
}

TEST(ProgressLine, SaysNothingIfNotEnabled) {
  EXPECT_EQ(said(false, 0.01, 3), "");
}

}  // namespace
}  // namespace tessera::cli
