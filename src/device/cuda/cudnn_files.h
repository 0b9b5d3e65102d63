// cuDNN is a library of several files that load each other by name. Where two versions are on a machine, files of both may be
// found, and nothing of cuDNN works then.
#pragma once

#include <span>
#include <string>

namespace plimsoll::cuda {

// What is wrong and what to set, where `loaded`, paths of files that this process has loaded, are cuDNN's from more than one
// folder; else empty. `version`: what it says it is; `built_with`: what this program was built with.
std::string why_cudnn_is_mixed(std::span<const std::string> loaded, const std::string& version,
                               const std::string& built_with);

}  // namespace plimsoll::cuda
