// A progress bar on standard error: redrawn in place on a terminal, a plain line now and then elsewhere.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <thread>

#include "base/clock.h"

namespace plimsoll::cli {

class Progress {
 public:
  explicit Progress(bool enabled = true);
  ~Progress();
  // "label  37%|#####     | 370/1000 [00:12<00:21, 30.1 step/s] extra"
  void update(const std::string& label, int64_t done, int64_t total, const std::string& extra);
  void clear();   // takes the bar away, for a line of output; the next update draws it again
  void finish();  // leaves the last state of the bar as a line on a terminal; nothing elsewhere

 private:
  bool enabled_, terminal_, open_ = false;
  std::string label_;
  Clock::time_point begun_, drawn_;
  int64_t begun_at_ = 0;
};

// Says what takes so long, where it takes more than a second: a line on standard error.
class SlowNotice {
 public:
  explicit SlowNotice(std::string what);
  ~SlowNotice();
  SlowNotice(const SlowNotice&) = delete;
  SlowNotice& operator=(const SlowNotice&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable over_;
  bool done_ = false;
  std::thread thread_;
};

// 3725 s -> "1:02:05", 65 s -> "01:05".
std::string clock_text(double seconds);

}  // namespace plimsoll::cli
