// Read bandwidth of this machine, for context beside decode rates: a decoded token reads every weight once.
//
//   g++ -std=c++20 -O3 -march=native -pthread memory_bandwidth.cpp -o memory_bandwidth && ./memory_bandwidth
//
// For one and two threads and two sizes (98 MB, a model that may stay in the last-level cache; 2 GiB, one that cannot)
// prints the best of several passes in GB/s (1e9 bytes). Each thread sums its own contiguous share of 64-bit words.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <thread>
#include <vector>

namespace {

constexpr std::size_t kSmallBytes = 98'000'000;
constexpr std::size_t kLargeBytes = std::size_t{2} << 30;
constexpr int kPasses = 7;

std::uint64_t sum_words(const std::uint64_t* words, std::size_t count) {
  std::uint64_t total[32] = {};  // independent sums, so that loads and not additions set the pace
  std::size_t i = 0;
  for (; i + 32 <= count; i += 32) {
    for (std::size_t lane = 0; lane < 32; ++lane) total[lane] += words[i + lane];
  }
  for (; i < count; ++i) total[0] += words[i];
  std::uint64_t sum = 0;
  for (const std::uint64_t part : total) sum += part;
  return sum;
}

// Best rate in GB/s over kPasses reads of all words by n_threads threads; every pass repeats the read often enough to
// last well above the cost of starting threads.
double read_rate(const std::vector<std::uint64_t>& words, std::size_t n_threads, std::uint64_t& sink) {
  const std::size_t bytes = words.size() * sizeof(std::uint64_t);
  const std::size_t repeats = bytes < kLargeBytes ? 20 : 1;
  double best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    std::vector<std::uint64_t> sums(n_threads);
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < n_threads; ++t) {
      threads.emplace_back([&, t] {
        const std::size_t begin = words.size() * t / n_threads;
        const std::size_t end = words.size() * (t + 1) / n_threads;
        for (std::size_t r = 0; r < repeats; ++r) {
          sums[t] += sum_words(words.data() + begin, end - begin);
          asm volatile("" ::: "memory");  // keeps the compiler from reading once and multiplying
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    for (const std::uint64_t sum : sums) sink += sum;
    const double rate = static_cast<double>(bytes * repeats) / elapsed.count() * 1e-9;
    if (rate > best) best = rate;
  }
  return best;
}

}  // namespace

int main() {
  std::uint64_t sink = 0;
  for (const std::size_t bytes : {kSmallBytes, kLargeBytes}) {
    const std::vector<std::uint64_t> words(bytes / sizeof(std::uint64_t), 1);
    for (const std::size_t n_threads : {std::size_t{1}, std::size_t{2}}) {
      std::printf("%11zu bytes, %zu thread(s): %6.1f GB/s\n", bytes, n_threads, read_rate(words, n_threads, sink));
    }
  }
  std::printf("checksum %llu\n", static_cast<unsigned long long>(sink));
  return 0;
}
