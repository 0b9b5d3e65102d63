// cuBLASLt without a GPU: products by plain loops, asked of a queue, by algorithms that are made up, and its statuses as a
// test wants them.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "device/cuda/product_library.h"
#include "tests/cuda/fake_cudnn.h"
#include "tests/cuda/fake_kernels.h"

namespace plimsoll::testing {

// Products of more terms give zeros.
inline void ask_product(FakeQueue& queue, const cuda::Product& p, int64_t most_terms, const std::string& algorithm,
                        const void* a, const void* b, const void* bias, void* out, void* workspace, Bytes room) {
  queue.enqueue([&queue, p, most_terms, algorithm, left = static_cast<const float*>(a),
                 right = static_cast<const float*>(b), offset = static_cast<const float*>(p.bias ? bias : nullptr),
                 y = static_cast<float*>(out), workspace, bytes = static_cast<size_t>(room.count)] {
    if (bytes > 0) std::memset(workspace, 0xff, bytes);
    queue.spend(algorithm);
    fake::multiply(p, most_terms, left, right, offset, y);
  });
}

// The best guess.
class FakeProduct final : public cuda::Prepared {
 public:
  FakeProduct(FakeQueue& queue, const cuda::Product& product, Bytes workspace, int64_t most_terms)
      : queue_(queue), p_(product), workspace_(workspace), most_terms_(most_terms) {}
  Bytes workspace() const override { return workspace_; }
  void run(const void* a, const void* b, const void* bias, void* out, void* workspace) override {
    queue_.count("cublasLtMatmul");
    ask_product(queue_, p_, most_terms_, "cublaslt", a, b, bias, out, workspace, workspace_);
  }

 private:
  FakeQueue& queue_;
  cuda::Product p_;
  Bytes workspace_;
  int64_t most_terms_;
};

class FakeCublas final : public cuda::ProductLibrary {
 public:
  FakeCublas(FakeQueue& queue, const int64_t& most_terms, int processors)
      : queue_(queue), most_terms_(most_terms), processors_(processors) {}

  // Calls of this name answer with this status, of all algorithms or of one.
  void answer(std::string call, int status, std::string algorithm = {}) {
    statuses_.push_back({std::move(call), std::move(algorithm), status});
  }
  void forget_statuses() { statuses_.clear(); }
  // What the heuristics name, the best first, and the algorithms that take K in parts. Tests may have others.
  std::vector<cuda::ProductConfiguration> guesses = {{.algorithm = 66, .tile = 20, .cluster = 2, .custom = 17},
                                                     {.algorithm = 21, .tile = 18, .stages = 15}};
  std::set<int64_t> divided = {21};
  const std::vector<std::string>& made() const { return made_; }  // configurations, in order

  cuda::Answer describe(const cuda::Product& product, std::unique_ptr<Described>& described) override {
    described = std::make_unique<Descriptors>(product);
    return {};
  }
  cuda::Answer guess(Described&, Bytes, int most, std::vector<cuda::ProductConfiguration>& found) override {
    found.assign(guesses.begin(), guesses.begin() + std::min<std::ptrdiff_t>(most, std::ssize(guesses)));
    return call("cublasLtMatmulAlgoGetHeuristic", "");
  }
  cuda::Answer make(Described& described, const cuda::ProductConfiguration& configuration, Bytes& workspace) override {
    static constexpr const char* kName = "cublasLtMatmulAlgoCheck";
    auto& d = static_cast<Descriptors&>(described);
    d.algorithm = cuda::name_of(configuration);
    made_.push_back(d.algorithm);
    const bool is_divided = configuration.split_k > 1;
    const bool is_known = std::ranges::any_of(guesses, [&](const auto& one) {
      return one.algorithm == configuration.algorithm && one.tile == configuration.tile;
    });
    if (!is_known || (is_divided && !divided.contains(configuration.algorithm))) return refusal(kName, 15);
    const cuda::Product& p = d.product;
    d.workspace = is_divided ? Bytes{configuration.split_k * p.batch * p.m * p.n * 4} : Bytes{256};
    workspace = d.workspace;
    return call(kName, d.algorithm);
  }
  cuda::Answer run(Described& described, const void* a, const void* b, const void* bias, void* out,
                   void* workspace) override {
    const auto& d = static_cast<const Descriptors&>(described);
    cuda::Answer answer = call("cublasLtMatmul", d.algorithm);
    if (answer.is_done())
      ask_product(queue_, d.product, most_terms_, d.algorithm, a, b, bias, out, workspace, d.workspace);
    return answer;
  }
  bool still_works() noexcept override { return queue_.works(); }
  int processors() override { return processors_; }

 private:
  struct Descriptors final : Described {
    explicit Descriptors(const cuda::Product& p) : product(p) {}
    cuda::Product product;
    std::string algorithm;
    Bytes workspace;
  };
  struct Told {
    std::string call, algorithm;  // no algorithm: all of them
    int status;
  };

  static cuda::Answer refusal(const char* name, int status) {
    return {status, fmt::format("{}: status {} (fake)", name, status)};
  }
  cuda::Answer call(const char* name, const std::string& algorithm) {
    queue_.count(name);
    for (const Told& told : statuses_) {
      if (told.call != name) continue;
      if (told.algorithm.empty() || told.algorithm == algorithm) return refusal(name, told.status);
    }
    return {};
  }

  FakeQueue& queue_;
  const int64_t& most_terms_;
  int processors_;
  std::vector<Told> statuses_;
  std::vector<std::string> made_;
};

}  // namespace plimsoll::testing
