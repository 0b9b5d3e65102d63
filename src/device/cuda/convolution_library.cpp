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

// What the fixed functions are asked for.
bool is_flat_and_padded_alike(const Convolution& c) { return !c.deep && c.top == c.bottom && c.left == c.right; }
bool is_too_large(const Convolution& c) { return std::max(c.x_elements(), c.y_elements()) > INT32_MAX; }

// By windows above 3 x 3 Winograd's transforms have so many points that a result is wrong in its third digit.
bool is_accurate_by_winograd(const Convolution& c) { return std::max(c.r, c.s) <= 3; }
// Of weight gradients, engine 17 is as wrong by such windows, and does not note that it is Winograd's (cuDNN 9.19 on an H200,
// 4 x 48 x 7 x 7 by 5 x 5).
constexpr int64_t kUnnotedWinograd = 17;
bool is_by_winograd(const EngineConfiguration& configuration, const Convolution& c) {
  return configuration.winograd ||
         (configuration.number == kUnnotedWinograd && c.pass == Convolution::Pass::backward_weights);
}

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

  void add_engines(bool tf32) {
    if (convolution_.bias) ask_engines(true, false, tf32);
    ask_engines(false, false, tf32);
    if (full_engines_ == 0) ask_engines(false, true, tf32);
  }

  std::vector<ConvolutionAlgorithm> list;
  std::string refusal;

 private:
  void ask_engines(bool fused, bool fallback, bool tf32) {
    std::vector<EngineConfiguration> guessed;
    if (!takes(library_.guess_engines(convolution_, fused, fallback, guessed))) return;
    for (const EngineConfiguration& configuration : guessed) {
      int& count = configuration.tensor_cores ? tf32_engines_ : full_engines_;
      if (configuration.compiles || configuration.less_than_tf32 || (configuration.tensor_cores && !tf32)) continue;
      if (is_by_winograd(configuration, convolution_) && !is_accurate_by_winograd(convolution_)) continue;
      if (count < kMostEngines && take(configuration)) ++count;
    }
  }

  // What is listed was made from what is in its name.
  bool take(const EngineConfiguration& configuration) {
    const std::string name = name_of(configuration);
    std::unique_ptr<ConvolutionLibrary::Planned> planned;
    if (std::any_of(list.begin(), list.end(), [&](const ConvolutionAlgorithm& a) { return a.name == name; }))
      return false;
    if (!takes(library_.plan(convolution_, configuration, planned))) return false;
    if (planned->workspace > static_cast<uint64_t>(library_.memory().count)) return false;
    list.push_back({.name = name,
                    .tf32 = configuration.tensor_cores,
                    .deterministic = configuration.deterministic,
                    .fused = configuration.fused,
                    .workspace = {static_cast<int64_t>(planned->workspace)}});
    return true;
  }

  bool takes(const Answer& answer) {
    if (is_taken(answer)) return true;
    refusal = answer.text;
    return false;
  }

  // Without TF32 the descriptors allow nothing but full multiply-adds, whatever the heuristics call them.
  void take(const std::vector<Candidate>& from, const Described& described, bool tf32) {
    for (const Candidate& candidate : from) {
      if (tf32 && !candidate.tensor_cores) continue;
      if (candidate.name.starts_with("winograd") && !is_accurate_by_winograd(convolution_)) continue;
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
  int tf32_engines_ = 0, full_engines_ = 0;
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
  listing.add_engines(false);
  library.has_offered = !listing.list.empty();
  if (library.has_offered) return;
  throw Error(ErrorCode::device_failure,
              "cuDNN runs no convolution on this GPU, not even a plain one: " + listing.refusal +
                  "; install a whole cuDNN 9 that fits the GPU and its driver, and set LD_LIBRARY_PATH to its folder");
}

class CudnnConvolution : public Prepared {
 public:
  CudnnConvolution(ConvolutionLibrary& library, std::string name) : library_(library), name_(std::move(name)) {}
  Bytes workspace() const override { return {static_cast<int64_t>(workspace_)}; }

 protected:
  void refuse(const std::string& why) const {
    throw Error(ErrorCode::unsupported, "cuDNN does not run the algorithm " + name_ + " after all: " + why);
  }
  void require(const Answer& answer) const {
    if (!is_taken(answer)) refuse(answer.text);
  }
  void require_run(const Answer& answer) const {
    if (answer.is_done()) return;
    if (has_failed(answer) && !library_.still_works()) throw Error(ErrorCode::device_failure, answer.text);
    require(answer);
  }
  void set_workspace(uint64_t bytes) {
    workspace_ = bytes;
    if (bytes <= static_cast<uint64_t>(library_.memory().count)) return;
    throw Error(ErrorCode::unsupported,
                "cuDNN asks for " + std::to_string(bytes) + " bytes of workspace for the algorithm " + name_);
  }

  ConvolutionLibrary& library_;
  std::string name_;
  uint64_t workspace_ = 0;
};

class FixedFunction final : public CudnnConvolution {
 public:
  FixedFunction(ConvolutionLibrary& library, const Convolution& convolution, const ConvolutionAlgorithm& algorithm)
      : CudnnConvolution(library, algorithm.name), number_(algorithm.number) {
    require(library_.describe(convolution, algorithm.tf32, described_));
    uint64_t bytes = 0;
    require(library_.workspace(*described_, number_, bytes));
    set_workspace(bytes);
  }

  void run(const void* a, const void* b, const void*, void* out, void* workspace) override {
    require_run(library_.run(*described_, number_, a, b, out, workspace, workspace_));
  }

 private:
  int number_;
  std::unique_ptr<Described> described_;
};

class EngineRunner final : public CudnnConvolution {
 public:
  EngineRunner(ConvolutionLibrary& library, const Convolution& convolution, const ConvolutionAlgorithm& algorithm,
               const EngineConfiguration& configuration)
      : CudnnConvolution(library, algorithm.name) {
    require(library_.plan(convolution, configuration, planned_));
    const EngineConfiguration& made = planned_->configuration;
    if (name_of(made) != name_ || made.tensor_cores != algorithm.tf32 || made.less_than_tf32) {
      const char* const precision = made.less_than_tf32 ? "less precision than TF32"
                                    : made.tensor_cores ? "TF32"
                                                        : "no TF32";
      refuse("this engine is '" + name_of(made) + "' with " + precision + " here");
    }
    set_workspace(planned_->workspace);
  }

  void run(const void* a, const void* b, const void* bias, void* out, void* workspace) override {
    require_run(library_.run(*planned_, a, b, bias, out, workspace));
  }

 private:
  std::unique_ptr<ConvolutionLibrary::Planned> planned_;
};

}  // namespace

std::vector<ConvolutionAlgorithm> list_algorithms(ConvolutionLibrary& library, const Convolution& convolution,
                                                  bool tf32) {
  if (is_too_large(convolution)) return {};
  Listing listing(library, convolution);
  if (is_flat_and_padded_alike(convolution)) {
    if (tf32) listing.add(true);
    listing.add(false);
  }
  listing.add_engines(tf32);
  library.has_offered = library.has_offered || !listing.list.empty();
  if (!library.has_offered) probe(library);
  return std::move(listing.list);
}

std::unique_ptr<Prepared> prepare_convolution(ConvolutionLibrary& library, const Convolution& convolution,
                                              const ConvolutionAlgorithm& algorithm) {
  const std::optional<EngineConfiguration> engine = parse_engine(algorithm.name);
  if (engine) return std::make_unique<EngineRunner>(library, convolution, algorithm, *engine);
  return std::make_unique<FixedFunction>(library, convolution, algorithm);
}

}  // namespace plimsoll::cuda
