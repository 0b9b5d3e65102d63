#include "report/event_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "plimsoll/error.h"

namespace plimsoll {
namespace {

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82f63b78U : 0U);
    table[i] = value;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

template <class Number>
void put_little_endian(std::string& to, Number value) {
  for (size_t i = 0; i < sizeof(Number); ++i) to += static_cast<char>((value >> (8 * i)) & 255);
}

void put_varint(std::string& to, uint64_t value) {
  for (; value >= 128; value >>= 7) to += static_cast<char>((value & 127) | 128);
  to += static_cast<char>(value);
}

// A field's number and how it is encoded; protobuf.dev/programming-guides/encoding.
enum class WireType : uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };
void put_tag(std::string& to, uint32_t field, WireType wire) {
  put_varint(to, (field << 3) | static_cast<uint32_t>(wire));
}

void put_bytes(std::string& to, uint32_t field, std::string_view bytes) {
  put_tag(to, field, WireType::bytes);
  put_varint(to, bytes.size());
  to += bytes;
}
void put_double(std::string& to, uint32_t field, double value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  put_tag(to, field, WireType::fixed64);
  put_little_endian(to, bits);
}
void put_float(std::string& to, uint32_t field, float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  put_tag(to, field, WireType::fixed32);
  put_little_endian(to, bits);
}

double wall_time_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t value = ~0U;
  for (char c : bytes) value = kCrcTable[(value ^ static_cast<unsigned char>(c)) & 255] ^ (value >> 8);
  return ~value;
}

uint32_t masked_crc32c(std::string_view bytes) {
  const uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

std::string scalar_event(double wall_time, int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const Scalar& scalar : scalars) {
    std::string value;
    put_bytes(value, 1, scalar.tag);
    put_float(value, 2, static_cast<float>(scalar.value));
    put_bytes(summary, 1, value);
  }
  std::string event;
  put_double(event, 1, wall_time);
  put_tag(event, 2, WireType::varint);
  put_varint(event, static_cast<uint64_t>(step));
  put_bytes(event, 5, summary);
  return event;
}

std::string version_event(double wall_time) {
  std::string event;
  put_double(event, 1, wall_time);
  put_bytes(event, 3, "brain.Event:2");
  return event;
}

std::string event_record(std::string_view event) {
  std::string length;
  put_little_endian(length, static_cast<uint64_t>(event.size()));
  std::string record = length;
  put_little_endian(record, masked_crc32c(length));
  record += event;
  put_little_endian(record, masked_crc32c(event));
  return record;
}

EventFile::EventFile(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const double now = wall_time_now();
  char host[256] = {};
  if (error || ::gethostname(host, sizeof(host) - 1) != 0) std::strcpy(host, "localhost");
  path_ = folder / fmt::format("events.out.tfevents.{:010}.{}.{}.0", static_cast<int64_t>(now), host, ::getpid());
  file_.reset(std::fopen(path_.c_str(), "wb"));
  if (!file_) {
    throw Error(ErrorCode::invalid_input, fmt::format("--tensorboard {}: cannot be written to: {}", folder.string(),
                                                      error ? error.message() : std::strerror(errno)));
  }
  write_record(version_event(now));
}

void EventFile::write(int64_t step, std::span<const Scalar> scalars) {
  if (!scalars.empty()) write_record(scalar_event(wall_time_now(), step, scalars));
}

void EventFile::write_record(const std::string& event) {
  const std::string record = event_record(event);
  if (std::fwrite(record.data(), 1, record.size(), file_.get()) == record.size() && std::fflush(file_.get()) == 0)
    return;
  throw Error(ErrorCode::device_failure,
              fmt::format("--tensorboard {}: writing failed: {}", path_.string(), std::strerror(errno)));
}

}  // namespace plimsoll
