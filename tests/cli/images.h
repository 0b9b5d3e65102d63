// Image files that tests make.
#pragma once

#include <gtest/gtest.h>
#include <spng.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <vector>

namespace plimsoll::testing {

// A PNG of one colour.
inline void write_png(const std::filesystem::path& file, uint8_t red, uint8_t green, uint8_t blue, int side = 40) {
  std::vector<uint8_t> pixels;
  for (int i = 0; i < side * side; ++i) pixels.insert(pixels.end(), {red, green, blue});
  spng_ctx* encoder = spng_ctx_new(SPNG_CTX_ENCODER);
  spng_set_option(encoder, SPNG_ENCODE_TO_BUFFER, 1);
  spng_ihdr header{};
  header.width = header.height = static_cast<uint32_t>(side);
  header.color_type = SPNG_COLOR_TYPE_TRUECOLOR;
  header.bit_depth = 8;
  spng_set_ihdr(encoder, &header);
  ASSERT_EQ(spng_encode_image(encoder, pixels.data(), pixels.size(), SPNG_FMT_PNG, SPNG_ENCODE_FINALIZE), 0);
  size_t size = 0;
  int error = 0;
  void* bytes = spng_get_png_buffer(encoder, &size, &error);
  std::filesystem::create_directories(file.parent_path());
  std::ofstream(file, std::ios::binary).write(static_cast<const char*>(bytes), static_cast<std::streamsize>(size));
  ::free(bytes);
  spng_ctx_free(encoder);
}

}  // namespace plimsoll::testing
