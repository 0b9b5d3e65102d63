// The safetensors container (huggingface.co/docs/safetensors): 8 bytes of header length, little endian; the header,
// JSON that gives each tensor's dtype, shape and place; the tensors' bytes without holes.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "plimsoll/graph.h"

namespace plimsoll {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F32"
  Shape shape;
  int64_t begin = 0, end = 0;  // bytes after the header
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // in the order of their bytes
  std::map<std::string, std::string, std::less<>> metadata;
  int64_t data_begin = 0;  // in the file
};

inline constexpr int64_t kLargestSafetensorsHeader = 100'000'000;  // as the reference implementation

int64_t safetensors_dtype_bytes(std::string_view dtype);  // 0 for an unknown one

// Reads and judges a header: JSON and UTF-8, names once, sizes that agree with dtype and shape, offsets that fill
// `data_bytes` exactly, no holes, no overlaps. Throws Error(corrupt_file) with the file, the place and what was
// expected.
SafetensorsHeader parse_safetensors_header(std::string_view json, int64_t data_bytes, const std::string& file_name);
SafetensorsHeader read_safetensors_header(const InputFile& file);

// The first bytes of a file with these tensors, one after the other: the length and the header, padded to a multiple
// of 64. Sets begin and end of the entries. Throws Error(invalid_input) on a name that is not UTF-8 or comes twice.
std::string make_safetensors_header(std::span<SafetensorsEntry> entries,
                                    const std::map<std::string, std::string, std::less<>>& metadata);

}  // namespace plimsoll
