// Random choices for test problems, the same on every machine for a seed.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <random>

namespace tessera::test {

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  // An integer in [low, high].
  int64_t in(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool one_in(int64_t n) { return in(1, n) == 1; }
  template <class T>
  T of(std::initializer_list<T> values) {
    return *(values.begin() + in(0, static_cast<int64_t>(values.size()) - 1));
  }
  uint64_t bits() { return random_(); }

 private:
  std::mt19937_64 random_;
};

}  // namespace tessera::test
