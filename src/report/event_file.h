// TensorBoard's event file: a log of scalars by step, which `tensorboard --logdir DIR` draws.
//
//   record:  u64 length | u32 masked crc32c of the length | `length` bytes | u32 masked crc32c of these
//   bytes:   a protobuf Event { 1: double wall_time, 2: int64 step, 3: string file_version | 5: Summary summary }
//            Summary { 1: Value { 1: string tag, 2: float simple_value } ... }
//
// tensorflow/core/lib/io/record_writer.cc and core/util/event.proto have it; it is all encoded here.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace plimsoll {

uint32_t crc32c(std::string_view bytes);  // Castagnoli's: of "123456789" it is 0xe3069283
uint32_t masked_crc32c(std::string_view bytes);

struct Scalar {
  std::string_view tag;  // "loss/train"
  double value = 0;
};
// One Event, and a record with it.
std::string scalar_event(double wall_time, int64_t step, std::span<const Scalar> scalars);
std::string version_event(double wall_time);
std::string event_record(std::string_view event);

class EventFile {
 public:
  // Begins a file of its own in the folder, which is made where it is not there: a resumed training's goes on where the
  // other ended. Throws Error(invalid_input) when it cannot be written.
  explicit EventFile(const std::filesystem::path& folder);
  // Throws Error(device_failure) when it cannot be written.
  void write(int64_t step, std::span<const Scalar> scalars);
  const std::filesystem::path& path() const { return path_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  void write_record(const std::string& event);
  std::filesystem::path path_;
  std::unique_ptr<std::FILE, Close> file_;
};

}  // namespace plimsoll
