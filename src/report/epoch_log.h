// A training's epochs as a table: a line an epoch, written as soon as the epoch is over.
#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>

#include "plimsoll/train.h"

namespace plimsoll {

class EpochLog {
 public:
  // `append`: go on with the table that is there. Throws Error(invalid_input) when the file cannot be written, and when
  // it has other columns.
  EpochLog(const std::filesystem::path& file, bool append);
  // Throws Error(device_failure) when it cannot be written.
  void write(const EpochEvent& epoch);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace plimsoll
