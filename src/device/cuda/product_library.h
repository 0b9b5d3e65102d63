// What is asked of cuBLASLt for a product of matrices beside its best guess: further configurations of its algorithms.
// Its calls stand behind ProductLibrary: in the module they are cuBLASLt's (module/cublas.cpp), in tests they answer as
// they are told. A configuration is made again from its name alone, whose numbers are those of one version of cuBLASLt:
//
//   algo21_tile18_stages15                        algorithm 21, with a tile (cublasLtMatmulTile_t) and stages
//   algo21_tile18_stages15_splitk4_reduction2     K in 4 parts, whose sums are added by way of the workspace
//
//   status                          listing                    making one again, or running it
//   7, 8, 15  asked, not supported  this one is left out       Error(unsupported): this one is refused
//   3, 13, 14 it went wrong         this one is left out       Error(unsupported) where the queue still works, else device_failure
//   others    cuBLASLt              Error(device_failure)      the same
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "device/cuda/convolution_library.h"
#include "device/cuda/door.h"

namespace plimsoll::cuda {

// By cuBLASLt's numbers; what is not set is not in the name.
struct ProductConfiguration {
  int64_t algorithm = 0, tile = 0, stages = 0, inner = 0, cluster = 0, swizzle = 0, custom = 0;
  int64_t split_k = 1, reduction = 0;
};
std::string name_of(const ProductConfiguration& configuration);
// Nothing where it is no such name.
std::optional<ProductConfiguration> parse_product_algorithm(std::string_view name);

class ProductLibrary {
 public:
  // The descriptors of one product, and the algorithm that was made for it last.
  class Described {
   public:
    virtual ~Described() = default;
  };

  virtual ~ProductLibrary() = default;
  virtual Answer describe(const Product& product, std::unique_ptr<Described>& described) = 0;
  // What its heuristics say, the best first, with at most this workspace.
  virtual Answer guess(Described& described, Bytes workspace, int most, std::vector<ProductConfiguration>& found) = 0;
  virtual Answer make(Described& described, const ProductConfiguration& configuration, Bytes& workspace) = 0;
  // As Prepared::run, by the algorithm that was made.
  virtual Answer run(Described& described, const void* a, const void* b, const void* bias, void* out,
                     void* workspace) = 0;
  // Whether the queue does what it is asked, after a call that failed; false while it is captured.
  virtual bool still_works() noexcept = 0;
  virtual int processors() = 0;  // the GPU's
};

// How many its heuristics are asked for, the best guess among them.
inline constexpr int kMostGuesses = 8;
// Those behind the best guess, each made from its name, and then the best with K in parts, where the output has too few
// tiles for all processors.
std::vector<ProductAlgorithm> list_algorithms(ProductLibrary& library, const Product& product, Bytes workspace);
// By the name, with at most the workspace that it says. Throws Error(unsupported) where it does not run after all. The
// library outlives it.
std::unique_ptr<Prepared> prepare_algorithm(ProductLibrary& library, const Product& product,
                                            const ProductAlgorithm& algorithm);

}  // namespace plimsoll::cuda
