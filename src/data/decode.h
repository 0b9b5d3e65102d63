// JPEG and PNG files as 8-bit RGB.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "plimsoll/data.h"

namespace plimsoll {

inline constexpr int64_t kMostDecodedPixels = 100'000'000;
// An image that is decoded to no more of them takes what ProcessMemory::data counts for a thread that decodes.
inline constexpr int64_t kCountedPixels = 12'000'000;

// Decodes the bytes of a file. A JPEG that is larger on both sides comes scaled down in the frequency domain to not
// less than `smallest_side` (0: full size), in a fraction of the time and memory. The label is left alone. Throws
// Error(corrupt_file) that names the file and the decoder's complaint, also when the data ends early;
// Error(unsupported) for another format and for images of more than 100 million pixels, or of more than `most_pixels`
// once scaled down.
void decode_image(std::string_view bytes, const std::string& file_name, int64_t smallest_side, Image& image,
                  int64_t most_pixels = kMostDecodedPixels);

// The same of a file of at most kLargestImageFile. A large PNG is read as it is decoded.
void decode_image_file(const std::filesystem::path& file, int64_t smallest_side, Image& image,
                       int64_t most_pixels = kMostDecodedPixels);

}  // namespace plimsoll
