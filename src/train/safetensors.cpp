#include "train/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "plimsoll/error.h"

namespace plimsoll {
namespace {

constexpr std::string_view kMetadata = "__metadata__";

[[noreturn]] void corrupt(const std::string& file_name, const std::string& what) {
  throw Error(ErrorCode::corrupt_file, fmt::format("{}: {}", file_name, what));
}

// Takes the header's JSON as a stream of events, so that a name that comes twice is seen and no tree is built.
class HeaderReader {
 public:
  HeaderReader(SafetensorsHeader& header, const std::string& file_name) : header_(header), file_name_(file_name) {}

  bool null() { return wrong("null"); }
  bool boolean(bool) { return wrong("a boolean"); }
  bool number_integer(int64_t) { return wrong("a negative number"); }
  bool number_float(double, const std::string&) { return wrong("a number that is not whole"); }
  bool binary(std::vector<uint8_t>&) { return wrong("binary data"); }
  bool number_unsigned(uint64_t value) {
    if (place_ == Place::shape) {
      if (value > uint64_t{1} << 48) return fail("has a dimension of {}", value);
      entry_.shape.push_back(static_cast<int64_t>(value));
      if (entry_.shape.size() > 64) return fail("has more than {} dimensions", 64);
      return true;
    }
    if (place_ == Place::offsets) {
      if (offsets_.size() == 2) return fail("has more than {} data_offsets", 2);
      if (value > uint64_t{1} << 60) return fail("has an offset of {}", value);
      offsets_.push_back(static_cast<int64_t>(value));
      return true;
    }
    return wrong("a number");
  }
  bool string(std::string& value) {
    if (place_ == Place::metadata) {
      if (!header_.metadata.emplace(key_, value).second) return fail("has the key '{}' twice", key_);
      return true;
    }
    if (place_ == Place::tensor && key_ == "dtype") {
      if (safetensors_dtype_bytes(value) == 0) return fail("has the unknown dtype '{}'", value);
      entry_.dtype = value;
      return true;
    }
    return wrong("a text");
  }
  bool start_object(size_t) {
    if (place_ == Place::outside)
      place_ = Place::top;
    else if (place_ == Place::top && name_ == kMetadata)
      place_ = Place::metadata;
    else if (place_ == Place::top)
      place_ = Place::tensor;
    else
      return wrong("an object");
    return true;
  }
  bool key(std::string& key) {
    if (place_ == Place::top) {
      if (!names_.insert(key).second) corrupt(file_name_, fmt::format("header: '{}' comes twice", key));
      name_ = key;
      entry_ = {.name = key};
      offsets_.clear();
      seen_.clear();
    } else {
      if (place_ == Place::tensor && key != "dtype" && key != "shape" && key != "data_offsets") {
        return fail("has the field '{}'; expected dtype, shape and data_offsets", key);
      }
      if (place_ == Place::tensor && !seen_.insert(key).second) return fail("has the field '{}' twice", key);
      key_ = key;
    }
    return true;
  }
  bool end_object() {
    if (place_ == Place::tensor) finish_tensor();
    place_ = place_ == Place::top ? Place::done : Place::top;
    return true;
  }
  bool start_array(size_t) {
    if (place_ == Place::tensor && key_ == "shape")
      place_ = Place::shape;
    else if (place_ == Place::tensor && key_ == "data_offsets")
      place_ = Place::offsets;
    else
      return wrong("a list");
    return true;
  }
  bool end_array() {
    place_ = Place::tensor;
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) {
    std::string_view why = error.what();
    if (const size_t begin = why.find("] "); begin != std::string_view::npos) why.remove_prefix(begin + 2);
    corrupt(file_name_, fmt::format("header: not valid JSON at byte {}: {}", 7 + position, why));
  }

 private:
  enum class Place : uint8_t { outside, top, metadata, tensor, shape, offsets, done };

  template <class... Values>
  bool fail(fmt::format_string<Values...> what, Values&&... values) {
    corrupt(file_name_, fmt::format("header: '{}' {}", name_, fmt::format(what, std::forward<Values>(values)...)));
  }
  bool wrong(std::string_view found) {
    switch (place_) {
      case Place::outside:
      case Place::done: corrupt(file_name_, fmt::format("header: is {}; expected an object", found));
      case Place::top: return fail("is {}; expected an object", found);
      case Place::metadata: return fail("has {} for '{}'; expected a text", found, key_);
      case Place::tensor: return fail("has {} for {}", found, key_);
      case Place::shape: return fail("has {} in shape; expected whole numbers", found);
      case Place::offsets: return fail("has {} in data_offsets; expected whole numbers", found);
    }
    return false;
  }
  void finish_tensor() {
    if (seen_.size() != 3)
      fail("lacks {}", !seen_.count("dtype") ? "dtype" : !seen_.count("shape") ? "shape" : "data_offsets");
    if (offsets_.size() != 2) fail("has {} data_offsets; expected 2", offsets_.size());
    int64_t bytes = safetensors_dtype_bytes(entry_.dtype);
    for (int64_t d : entry_.shape) {
      if (__builtin_mul_overflow(bytes, d, &bytes)) fail("is too large: {}", to_string(entry_.shape));
    }
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    if (entry_.end - entry_.begin != bytes) {
      fail("has bytes [{}, {}); expected {} bytes for {} {}", entry_.begin, entry_.end, bytes, entry_.dtype,
           to_string(entry_.shape));
    }
    header_.entries.push_back(std::move(entry_));
  }

  SafetensorsHeader& header_;
  const std::string& file_name_;
  Place place_ = Place::outside;
  std::string name_, key_;  // at the top, and inside
  std::set<std::string> names_, seen_;
  SafetensorsEntry entry_;
  std::vector<int64_t> offsets_;
};

void check_offsets(std::vector<SafetensorsEntry>& entries, int64_t data_bytes, const std::string& file_name) {
  std::sort(entries.begin(), entries.end(), [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  int64_t at = 0;
  std::string_view before = "the header";
  for (const SafetensorsEntry& entry : entries) {
    if (entry.begin != at) {
      corrupt(file_name, fmt::format("header: '{}' begins at byte {} of the data; expected {}, where {} ends ({})",
                                     entry.name, entry.begin, at, before, entry.begin < at ? "overlap" : "hole"));
    }
    at = entry.end;
    before = entry.name;
  }
  if (at != data_bytes) {
    corrupt(file_name, fmt::format("has {} bytes of data; expected {}, as its header says", data_bytes, at));
  }
}

}  // namespace

int64_t safetensors_dtype_bytes(std::string_view dtype) {
  static const std::map<std::string_view, int64_t> kBytes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"I16", 2}, {"U16", 2}, {"F16", 2},
      {"BF16", 2}, {"I32", 4}, {"U32", 4}, {"F32", 4},     {"I64", 8},     {"U64", 8}, {"F64", 8}};
  const auto found = kBytes.find(dtype);
  return found == kBytes.end() ? 0 : found->second;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t data_bytes, const std::string& file_name) {
  SafetensorsHeader header;
  HeaderReader reader(header, file_name);
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  check_offsets(header.entries, data_bytes, file_name);
  header.data_begin = 8 + static_cast<int64_t>(json.size());
  return header;
}

SafetensorsHeader read_safetensors_header(const InputFile& file) {
  const std::string name = file.path().string();
  if (file.size() < 10) corrupt(name, fmt::format("has {} bytes; expected a safetensors file", file.size()));
  std::byte length_bytes[8];
  file.read(0, length_bytes);
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) length = length << 8 | static_cast<uint64_t>(length_bytes[i]);
  const auto most = static_cast<uint64_t>(std::min(kLargestSafetensorsHeader, file.size() - 8));
  if (length < 2 || length > most) {
    corrupt(name, fmt::format("says that its header has {} bytes; expected 2..{}: not a safetensors file, or cut off",
                              length, most));
  }
  std::string json(length, '\0');
  file.read(8, std::as_writable_bytes(std::span(json)));
  return parse_safetensors_header(json, file.size() - 8 - static_cast<int64_t>(length), name);
}

std::string make_safetensors_header(std::span<SafetensorsEntry> entries,
                                    const std::map<std::string, std::string, std::less<>>& metadata) {
  constexpr size_t kAlignment = 64;
  const auto quoted = [](const std::string& text) {
    try {
      return nlohmann::json(text).dump();
    } catch (const nlohmann::json::exception&) {
      throw Error(ErrorCode::invalid_input, "a checkpoint's names and texts must be UTF-8");
    }
  };
  std::string json = "{" + quoted(std::string(kMetadata)) + ":{";
  for (const auto& [key, value] : metadata) {
    json += fmt::format("{}{}:{}", json.back() == '{' ? "" : ",", quoted(key), quoted(value));
  }
  json += "}";
  int64_t at = 0;
  std::set<std::string_view> names{kMetadata};
  for (SafetensorsEntry& entry : entries) {
    if (!names.insert(entry.name).second) {
      throw Error(ErrorCode::invalid_input, fmt::format("a checkpoint cannot hold '{}' twice", entry.name));
    }
    entry.begin = at;
    entry.end = at += element_count(entry.shape) * safetensors_dtype_bytes(entry.dtype);
    json += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", quoted(entry.name),
                        entry.dtype, fmt::join(entry.shape, ","), entry.begin, entry.end);
  }
  json += "}";
  json.append((kAlignment - (json.size() + 8) % kAlignment) % kAlignment, ' ');
  std::string head;
  for (int i = 0; i < 8; ++i) head += static_cast<char>(json.size() >> (8 * i));
  return head + json;
}

}  // namespace plimsoll
