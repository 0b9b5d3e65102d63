// Kernels that run by blocks of rows, what they make of a block lying in their workspace. Each length of a block is a kernel,
// "rows=256", of its own time and workspace, named as on the CPU. Products are cuBLASLt's.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "device/cuda/kernels.h"

namespace plimsoll::cuda {

// So every block begins at a multiple of 256 bytes, whatever the width.
inline constexpr int64_t kFewestRows = 64, kMostRows = 4096;
// Up to here a block may have all rows, beside which shorter ones leave a small rest.
inline constexpr int64_t kMostAtOnce = 4 * kMostRows;

struct RowBlocks {
  int64_t rows = 1, length = 1, last = 1;  // last: of the last block
  bool tf32 = false;
};
// Throws Error(unsupported) where the device has no such kernel.
RowBlocks row_blocks(const Context& context, const Op& op, std::string_view kernel, int64_t rows);

// kFewestRows, `times` as many, and so on, and all rows where these are few enough. The longest of which a block has at most
// `usual` bytes goes first.
std::vector<int64_t> block_lengths(int64_t rows, int64_t bytes_of_row, int64_t usual, int64_t times);

// A kernel for each length, all tensors row-major, those on tensor cores first, and for each name in `further`. The first length
// is exact: blocks of other lengths sum a weight gradient in another order.
std::vector<KernelSpec> specs_by_rows(const Context& context, const Graph& graph, const Op& op,
                                      const std::vector<int64_t>& lengths,
                                      std::unique_ptr<Kernel> (*make)(const Context&, const Graph&, const Op&,
                                                                      std::string_view kernel),
                                      const std::vector<std::string>& further = {});

// Where parts of a workspace begin.
class WorkspaceParts {
 public:
  int64_t place(Bytes bytes) {
    const int64_t begin = at_;
    at_ += (bytes.count + 255) / 256 * 256;
    return begin;
  }
  int64_t place_floats(int64_t count) { return place({count * static_cast<int64_t>(sizeof(float))}); }
  Bytes bytes() const { return {at_}; }

 private:
  int64_t at_ = 0;
};

// How sums over the columns of so many rows are cut, which begin `stride` elements apart.
Pieces column_pieces(int64_t rows, int64_t columns, int64_t stride);

// One product for whole blocks and one for the last block, where it is smaller.
class BlockProduct {
 public:
  template <class Shapes>  // shapes(rows) -> Product
  bool make(Door& door, const RowBlocks& blocks, const Shapes& shapes) {
    const auto prepare = [&](int64_t rows) {
      Product product = shapes(rows);
      product.tf32 = blocks.tf32;
      return door.prepare(product, kMostWorkspaceOfBlock);
    };
    whole_ = prepare(blocks.length);
    if (blocks.last != blocks.length) last_ = prepare(blocks.last);
    return whole_ && (blocks.last == blocks.length || last_);
  }
  Bytes workspace() const {
    return std::max(whole_ ? whole_->workspace() : Bytes{}, last_ ? last_->workspace() : Bytes{});
  }
  void run(bool last, const float* a, const float* b, const float* bias, float* out, void* workspace) const {
    (last && last_ ? *last_ : *whole_).run(a, b, bias, out, workspace);
  }

 private:
  static constexpr Bytes kMostWorkspaceOfBlock = 32_MiB;
  std::unique_ptr<Prepared> whole_, last_;
};

}  // namespace plimsoll::cuda
