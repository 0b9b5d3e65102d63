#include "device/cuda/convolution_library.h"

#include <algorithm>

namespace plimsoll::cuda {
namespace {

using Candidate = ConvolutionLibrary::Candidate;
using Described = ConvolutionLibrary::Described;

// Of the convolution or the algorithm, which others may do without: no other than these classes are.
bool is_of_this_one(const Answer& answer) { return answer.status >= 2000 && answer.status < 6000; }
// cuDNN took it up, and it went wrong.
bool has_failed(const Answer& answer) { return answer.status >= 4000 && answer.status < 6000; }

// False where cuDNN does not do it for this one. What else is wrong is thrown.
bool is_taken(const Answer& answer) {
  if (answer.is_done()) return true;
  if (is_of_this_one(answer)) return false;
  throw Error(ErrorCode::device_failure, answer.text);
}

bool pads_both_sides_alike(const Convolution& c) { return c.top == c.bottom && c.left == c.right; }
bool is_too_large(const Convolution& c) { return std::max(c.n * c.c * c.h * c.w, c.n * c.k * c.oh * c.ow) > INT32_MAX; }

// Why there is none is kept in `refusal`.
class Listing {
 public:
  Listing(ConvolutionLibrary& library, const Convolution& convolution) : library_(library), convolution_(convolution) {}

  void add(bool tf32) {
    std::unique_ptr<Described> described;
    if (!takes(library_.describe(convolution_, tf32, described))) return;
    std::vector<Candidate> guessed;
    if (takes(library_.guess(*described, guessed))) take(guessed, *described, tf32);
    if (!tf32) take(library_.every(convolution_.pass), *described, tf32);
  }

  std::vector<ConvolutionAlgorithm> list;
  std::string refusal;

 private:
  bool takes(const Answer& answer) {
    if (is_taken(answer)) return true;
    refusal = answer.text;
    return false;
  }

  // Without TF32 the descriptors allow nothing but full multiply-adds, whatever the heuristics call them.
  void take(const std::vector<Candidate>& from, const Described& described, bool tf32) {
    for (const Candidate& candidate : from) {
      if (tf32 && !candidate.tensor_cores) continue;
      const bool known = std::any_of(list.begin(), list.end(), [&](const ConvolutionAlgorithm& a) {
        return a.number == candidate.number && a.tf32 == tf32;
      });
      uint64_t bytes = 0;
      if (known || !takes(library_.workspace(described, candidate.number, bytes))) continue;
      if (bytes > static_cast<uint64_t>(library_.memory().count)) continue;
      list.push_back({.name = candidate.name,
                      .number = candidate.number,
                      .tf32 = tf32,
                      .deterministic = candidate.deterministic,
                      .workspace = {static_cast<int64_t>(bytes)}});
    }
  }

  ConvolutionLibrary& library_;
  const Convolution& convolution_;
};

// Throws where cuDNN runs nothing at all.
void probe(ConvolutionLibrary& library) {
  const Convolution plain{.n = 1,
                          .c = 8,
                          .h = 8,
                          .w = 8,
                          .k = 8,
                          .oh = 8,
                          .ow = 8,
                          .r = 3,
                          .s = 3,
                          .top = 1,
                          .left = 1,
                          .bottom = 1,
                          .right = 1};
  Listing listing(library, plain);
  listing.add(false);
  library.has_offered = !listing.list.empty();
  if (library.has_offered) return;
  throw Error(ErrorCode::device_failure,
              "cuDNN runs no convolution on this GPU, not even a plain one: " + listing.refusal +
                  "; install a whole cuDNN 9 that fits the GPU and its driver, and set LD_LIBRARY_PATH to its folder");
}

class CudnnConvolution final : public Prepared {
 public:
  CudnnConvolution(ConvolutionLibrary& library, const Convolution& convolution, const ConvolutionAlgorithm& algorithm)
      : library_(library), number_(algorithm.number), name_(algorithm.name) {
    require(library_.describe(convolution, algorithm.tf32, described_));
    require(library_.workspace(*described_, number_, workspace_));
    if (workspace_ > static_cast<uint64_t>(library_.memory().count)) {
      throw Error(ErrorCode::unsupported,
                  "cuDNN asks for " + std::to_string(workspace_) + " bytes of workspace for the algorithm " + name_);
    }
  }

  Bytes workspace() const override { return {static_cast<int64_t>(workspace_)}; }

  void run(const void* a, const void* b, const void*, void* out, void* workspace) override {
    const Answer answer = library_.run(*described_, number_, a, b, out, workspace, workspace_);
    if (answer.is_done()) return;
    if (has_failed(answer) && !library_.still_works()) throw Error(ErrorCode::device_failure, answer.text);
    require(answer);
  }

 private:
  void require(const Answer& answer) const {
    if (is_taken(answer)) return;
    throw Error(ErrorCode::unsupported, "cuDNN does not run the algorithm " + name_ + " after all: " + answer.text);
  }

  ConvolutionLibrary& library_;
  int number_;
  std::string name_;
  std::unique_ptr<Described> described_;
  uint64_t workspace_ = 0;
};

}  // namespace

std::vector<ConvolutionAlgorithm> list_algorithms(ConvolutionLibrary& library, const Convolution& convolution,
                                                  bool tf32) {
  if (!pads_both_sides_alike(convolution) || is_too_large(convolution)) return {};
  Listing listing(library, convolution);
  if (tf32) listing.add(true);
  listing.add(false);
  library.has_offered = library.has_offered || !listing.list.empty();
  if (!library.has_offered) probe(library);
  return std::move(listing.list);
}

std::unique_ptr<Prepared> prepare_convolution(ConvolutionLibrary& library, const Convolution& convolution,
                                              const ConvolutionAlgorithm& algorithm) {
  return std::make_unique<CudnnConvolution>(library, convolution, algorithm);
}

}  // namespace plimsoll::cuda
