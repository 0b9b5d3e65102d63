// Hardware counters of this process and of the threads that it starts later, where the kernel gives them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace plimsoll::bench {

class Counters {
 public:
  static constexpr std::array<const char*, 5> kNames = {"instructions", "cycles", "last-level misses",
                                                        "last-level accesses", "L1 reads that hit"};

  Counters();  // before the first thread is started
  ~Counters();
  const std::string& why_not() const { return why_not_; }  // empty: all are there
  void start();
  std::array<double, kNames.size()> stop();

 private:
  std::vector<int> files_;
  std::string why_not_;
};

}  // namespace plimsoll::bench
