// Single image files, outside any data set, as a trained network is fed with them.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "plimsoll/data.h"

namespace plimsoll {

// How image folders are fed to networks that torchvision has trained: its mean, deviation and crop.
DataInfo imagenet_info(const DataOptions& options);

// The files that are named, and the JPEG and PNG files in folders that are, sorted by name, to any depth; names that
// begin with a dot are left out. Throws Error(invalid_input) on a folder without any, and on one that cannot be listed.
// Whether a file is there is asked when it is read.
std::vector<std::string> list_image_files(const std::vector<std::string>& files_and_folders);

// Reads an image as a test image of `info` is read: `into` has channels x height x width elements. Returns what was
// wrong with the file; empty: nothing. `most_pixels`: as in decode_image.
std::string read_image_file(const std::string& file, const DataInfo& info, std::span<float> into, int64_t most_pixels);

}  // namespace plimsoll
