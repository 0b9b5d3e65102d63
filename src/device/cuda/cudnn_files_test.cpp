#include "device/cuda/cudnn_files.h"

#include <gtest/gtest.h>

#include <vector>

namespace plimsoll::cuda {
namespace {

TEST(CudnnFiles, OfTwoFoldersAreNamedWithWhatToSet) {
  const std::vector<std::string> loaded = {"/usr/lib/libc.so.6", "/opt/cuda/lib64/libcudnn.so.9",
                                           "/venv/cudnn/lib/libcudnn_graph.so.9", "/venv/cudnn/lib/libcudnn_ops.so.9"};
  EXPECT_EQ(
      why_cudnn_is_mixed(loaded, "9.26.0", "9.19.0"),
      "parts of cuDNN are loaded from /opt/cuda/lib64 (libcudnn.so.9) and from /venv/cudnn/lib (libcudnn_graph.so.9, "
      "libcudnn_ops.so.9): set LD_LIBRARY_PATH=/opt/cuda/lib64 or to another folder with all of one cuDNN 9 (it "
      "says that it is 9.26.0; this program was built with 9.19.0)");
}

TEST(CudnnFiles, OfOneFolderAreNoReason) {
  const std::vector<std::string> loaded = {"/usr/lib/libc.so.6", "/opt/lib/libcudnn.so.9",
                                           "/opt/lib/libcudnn_ops.so.9"};
  EXPECT_EQ(why_cudnn_is_mixed(loaded, "9.26.0", "9.19.0"), "");
  EXPECT_EQ(why_cudnn_is_mixed({}, "9.26.0", "9.19.0"), "");
}

}  // namespace
}  // namespace plimsoll::cuda
