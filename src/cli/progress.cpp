#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/no_signals.h"
#include "base/texts.h"

namespace plimsoll::cli {
namespace {
constexpr int kBarWidth = 20;
constexpr double kTerminalSeconds = 0.1, kPlainSeconds = 10;
}  // namespace

std::string clock_text(double seconds) {
  const int64_t s = static_cast<int64_t>(std::clamp(seconds, 0.0, 3.6e6));
  if (s >= 3600) return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{:02}:{:02}", s / 60, s % 60);
}

Progress::Progress(bool enabled) : enabled_(enabled), terminal_(::isatty(STDERR_FILENO) == 1) {}
Progress::~Progress() { finish(); }

void Progress::update(const std::string& label, int64_t done, int64_t total, const std::string& extra) {
  if (!enabled_) return;
  const auto now = Clock::now();
  if (label != label_) {
    finish();
    label_ = label;
    begun_ = drawn_ = now;
    begun_at_ = done;
    if (!terminal_) return;
  }
  const bool last = done >= total;
  const double since = std::chrono::duration<double>(now - drawn_).count();
  if (!last && since < (terminal_ ? kTerminalSeconds : kPlainSeconds)) return;
  if (last && !terminal_ && since < kPlainSeconds) return;
  drawn_ = now;
  const double elapsed = std::chrono::duration<double>(now - begun_).count();
  const double rate = elapsed > 0 ? static_cast<double>(done - begun_at_) / elapsed : 0;
  const double left = rate > 0 ? static_cast<double>(total - done) / rate : 0;
  const double share = total > 0 ? std::clamp(static_cast<double>(done) / static_cast<double>(total), 0.0, 1.0) : 0;
  const int filled = static_cast<int>(share * kBarWidth);
  const std::string text =
      fmt::format("{} {:3.0f}%|{}{}| {}/{} [{}<{}, {}/s] {}", label, share * 100, std::string(filled, '#'),
                  std::string(kBarWidth - filled, ' '), done, total, clock_text(elapsed),
                  rate > 0 ? clock_text(left) : "?", number_text(rate), extra);
  if (terminal_) {
    std::fputs(("\r\033[K" + text).c_str(), stderr);
  } else {
    std::fputs((text + "\n").c_str(), stderr);
  }
  std::fflush(stderr);
  open_ = terminal_;
}

void Progress::clear() {
  if (!open_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  open_ = false;
  drawn_ = {};
}

void Progress::finish() {
  if (open_) std::fputs("\n", stderr);
  open_ = false;
  label_.clear();
}

SlowNotice::SlowNotice(std::string what) {
  const NoSignals no_signals;
  thread_ = std::thread([this, what = std::move(what)] {
    std::unique_lock lock(mutex_);
    if (over_.wait_for(lock, std::chrono::seconds(1), [this] { return done_; })) return;
    std::fputs((what + " ...\n").c_str(), stderr);
  });
}

SlowNotice::~SlowNotice() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  over_.notify_all();
  thread_.join();
}

}  // namespace plimsoll::cli
