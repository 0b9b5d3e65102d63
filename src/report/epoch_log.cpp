#include "report/epoch_log.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "base/files.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

constexpr std::string_view kColumns =
    "epoch,step,train_loss,train_accuracy,eval_loss,eval_accuracy,lr,seconds,images_per_second,gradient_norm\n";

std::string field(const std::optional<double>& value) { return value ? fmt::format("{:.9g}", *value) : ""; }

}  // namespace

EpochLog::EpochLog(const std::filesystem::path& file, bool append) : path_(file) {
  std::error_code ignored;
  std::string before;
  if (append && std::filesystem::is_regular_file(file, ignored)) before = read_file(file);
  if (!before.empty() && !before.starts_with(kColumns)) {
    throw Error(
        ErrorCode::invalid_input,
        fmt::format("--log-csv {}: it has other columns, so nothing is added to it; name another file", file.string()));
  }
  file_.reset(std::fopen(file.c_str(), before.empty() ? "w" : "a"));
  if (!file_) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("--log-csv {}: cannot be written: {}", file.string(), std::strerror(errno)));
  }
  if (before.empty()) {
    std::fputs(std::string(kColumns).c_str(), file_.get());
  } else if (before.back() != '\n') {  // of a process that was killed while it wrote
    std::fputs("\n", file_.get());
  }
  std::fflush(file_.get());
}

void EpochLog::write(const EpochEvent& e) {
  const std::string line = fmt::format("{},{},{:.9g},{},{},{},{:.9g},{:.3f},{:.6g},{}\n", e.epoch, e.step, e.train_loss,
                                       field(e.train_accuracy), field(e.test_loss), field(e.test_accuracy), e.lr,
                                       e.seconds, e.images_per_second, field(e.gradient_norm));
  if (std::fputs(line.c_str(), file_.get()) >= 0 && std::fflush(file_.get()) == 0) return;
  throw Error(ErrorCode::device_failure,
              fmt::format("--log-csv {}: writing failed: {}", path_.string(), std::strerror(errno)));
}

}  // namespace plimsoll
