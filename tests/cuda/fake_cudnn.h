// cuDNN without a GPU: its operations by plain loops, asked of a queue, and its statuses as a test wants them. Engines are
// made up; which there are, and what each notes of itself, is a table.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "device/cuda/convolution_library.h"
#include "tests/cuda/fake_kernels.h"

namespace plimsoll::testing {

// The door, as the libraries see it.
class FakeQueue {
 public:
  virtual ~FakeQueue() = default;
  virtual void count(const char* call) = 0;  // it was made; throws where it is to fail
  virtual void enqueue(std::function<void()> work) = 0;
  virtual void spend(const std::string& algorithm) = 0;  // while the queue's work is done
  virtual bool works() noexcept = 0;
};

class FakeCudnn final : public cuda::ConvolutionLibrary {
 public:
  using Pass = cuda::Convolution::Pass;

  FakeCudnn(FakeQueue& queue, Bytes memory, uint64_t seed) : queue_(queue), memory_(memory), random_(seed) {}

  // Calls whose names begin so answer with this status, of all algorithms or of one.
  void answer(std::string call, int status, std::string algorithm = {}) {
    statuses_.push_back({std::move(call), std::move(algorithm), status});
  }
  void forget_statuses() { statuses_.clear(); }
  // No algorithm takes a convolution where a tensor has more elements.
  void limit_elements(int64_t most) { most_elements_ = most; }
  // What the algorithm asks for, whatever the convolution.
  void asks_for(const std::string& algorithm, uint64_t workspace) { workspaces_[algorithm] = workspace; }

  cuda::Answer describe(const cuda::Convolution& c, bool tf32, std::unique_ptr<Described>& described) override {
    described = std::make_unique<Descriptors>(c, tf32);
    return call("cudnnSetConvolution2dDescriptor", "");
  }
  // The first is one that no rule should take for the best because it stands there.
  cuda::Answer guess(const Described& described, std::vector<Candidate>& found) override {
    const auto& d = static_cast<const Descriptors&>(described);
    static constexpr const char* kNames[] = {"cudnnGetConvolutionForwardAlgorithm_v7",
                                             "cudnnGetConvolutionBackwardDataAlgorithm_v7",
                                             "cudnnGetConvolutionBackwardFilterAlgorithm_v7"};
    const cuda::Answer answer = call(kNames[static_cast<size_t>(d.convolution.pass)], "");
    if (!answer.is_done()) return answer;
    if (d.tf32) {
      found = {{.name = "implicit_precomp_gemm", .number = 1, .deterministic = true, .tensor_cores = true}};
    } else {
      found = every(d.convolution.pass);
    }
    return answer;
  }
  std::vector<Candidate> every(Pass pass) override {
    std::vector<Candidate> list = {{.name = "fft", .number = 4, .deterministic = true},
                                   {.name = "implicit_precomp_gemm", .number = 1, .deterministic = true},
                                   {.name = "implicit_gemm", .number = 0, .deterministic = true}};
    if (pass != Pass::forward) list.push_back({.name = "algo_0", .number = 3, .deterministic = false});
    return list;
  }
  cuda::Answer workspace(const Described& described, int number, uint64_t& bytes) override {
    const auto& d = static_cast<const Descriptors&>(described);
    const cuda::Convolution& c = d.convolution;
    static constexpr const char* kNames[] = {"cudnnGetConvolutionForwardWorkspaceSize",
                                             "cudnnGetConvolutionBackwardDataWorkspaceSize",
                                             "cudnnGetConvolutionBackwardFilterWorkspaceSize"};
    const char* const name = kNames[static_cast<size_t>(c.pass)];
    if (std::max(c.x_elements(), c.y_elements()) > most_elements_) return refusal(name, 3002);
    const std::string algorithm = name_of(number);
    const auto known = workspaces_.find(algorithm);
    const int64_t a_row = number == 4 ? 3000 : number == 1 ? (d.tf32 ? 500 : 1000) : 0;
    bytes = known != workspaces_.end() ? known->second : static_cast<uint64_t>(c.n * a_row);
    return call(name, algorithm);
  }
  cuda::Answer run(const Described& described, int number, const void* a, const void* b, void* out, void* workspace,
                   uint64_t bytes) override {
    const cuda::Convolution& c = static_cast<const Descriptors&>(described).convolution;
    static constexpr const char* kNames[] = {"cudnnConvolutionForward", "cudnnConvolutionBackwardData",
                                             "cudnnConvolutionBackwardFilter"};
    const std::string algorithm = name_of(number);
    cuda::Answer answer = call(kNames[static_cast<size_t>(c.pass)], algorithm);
    if (answer.is_done()) compute(c, algorithm, algorithm != "algo_0", a, b, nullptr, false, out, workspace, bytes);
    return answer;
  }

  // An engine with what it notes of itself, and its workspace for each image.
  struct FakeEngine {
    cuda::EngineConfiguration configuration;
    uint64_t row_bytes = 0;
    bool forward_alone = false;
  };
  // What heuristics name, the best first. Tests may have others.
  std::vector<FakeEngine> engines = {
      {{.number = 51, .knobs = {{2, 1}, {13, 0}}, .fused = true, .tensor_cores = true}, 400, true},
      {{.number = 44, .knobs = {{2, 4}, {18, 0}}, .fused = true}, 0, true},
      {{.number = 67, .knobs = {{2, 5}, {12, -1}}, .tensor_cores = true}, 600},
      {{.number = 70, .knobs = {{2, 4}}}, 700},
      {{.number = 25, .knobs = {{2, 2}}, .deterministic = false}, 800},
      {{.number = 12, .knobs = {}, .winograd = true}, 900}};
  // What fallback heuristics name.
  std::vector<FakeEngine> fallback_engines = {{{.number = 1, .knobs = {}}, 100}};
  void leave_out_engines() { engines.clear(), fallback_engines.clear(); }
  const std::vector<std::string>& planned() const { return planned_; }  // configurations, in order

  cuda::Answer guess_engines(const cuda::Convolution& c, bool fused, bool fallback,
                             std::vector<cuda::EngineConfiguration>& found) override {
    cuda::Answer answer =
        call(fallback ? "cudnnBackendFinalize(ENGINEHEUR, FALLBACK)" : "cudnnBackendFinalize(ENGINEHEUR)", "");
    if (!answer.is_done()) return answer;
    for (const FakeEngine& engine : fallback ? fallback_engines : engines) {
      if (engine.configuration.fused == fused && takes(engine, c)) found.push_back(engine.configuration);
    }
    return answer;
  }
  cuda::Answer plan(const cuda::Convolution& c, const cuda::EngineConfiguration& configuration,
                    std::unique_ptr<Planned>& planned) override {
    static constexpr const char* kName = "cudnnBackendFinalize(EXECUTION_PLAN)";
    const std::string name = cuda::name_of(configuration);
    planned_.push_back(name);
    const FakeEngine* known = find(configuration);
    if (known == nullptr || !takes(*known, c)) return refusal("cudnnBackendFinalize(ENGINECFG)", 3000);
    if (std::max(c.x_elements(), c.y_elements()) > most_elements_) return refusal(kName, 3002);
    auto made = std::make_unique<PlannedHere>();
    made->configuration = known->configuration;
    made->convolution = c;
    const auto asked = workspaces_.find(name);
    made->workspace = asked != workspaces_.end() ? asked->second : static_cast<uint64_t>(c.n) * known->row_bytes;
    planned = std::move(made);
    return call(kName, name);
  }
  cuda::Answer run(Planned& planned, const void* a, const void* b, const void* bias, void* out,
                   void* workspace) override {
    const auto& p = static_cast<PlannedHere&>(planned);
    const std::string name = cuda::name_of(p.configuration);
    cuda::Answer answer = call("cudnnBackendExecute", name);
    const bool fused = p.configuration.fused;
    if (answer.is_done()) {
      compute(p.convolution, name, p.configuration.deterministic, a, b, fused ? bias : nullptr,
              fused && p.convolution.relu, out, workspace, p.workspace);
    }
    return answer;
  }
  bool still_works() noexcept override { return queue_.works(); }
  Bytes memory() override { return memory_; }

 private:
  struct Descriptors final : Described {
    Descriptors(const cuda::Convolution& c, bool rounds) : convolution(c), tf32(rounds) {}
    cuda::Convolution convolution;
    bool tf32;
  };
  struct PlannedHere final : Planned {
    cuda::Convolution convolution;
  };
  struct Told {
    std::string call, algorithm;  // no algorithm: all of them
    int status;
  };

  static std::string name_of(int number) {
    return number == 4 ? "fft" : number == 1 ? "implicit_precomp_gemm" : number == 0 ? "implicit_gemm" : "algo_0";
  }
  static cuda::Answer refusal(const char* name, int status) {
    return {status, fmt::format("{}: status {} (fake)", name, status)};
  }
  cuda::Answer call(const char* name, const std::string& algorithm) {
    queue_.count(name);
    for (const Told& told : statuses_) {
      if (!std::string_view(name).starts_with(told.call)) continue;
      if (told.algorithm.empty() || told.algorithm == algorithm) return refusal(name, told.status);
    }
    return {};
  }
  static bool takes(const FakeEngine& engine, const cuda::Convolution& c) {
    return c.pass == Pass::forward || !engine.forward_alone;
  }
  const FakeEngine* find(const cuda::EngineConfiguration& asked) const {
    for (const auto* list : {&engines, &fallback_engines}) {
      for (const FakeEngine& engine : *list) {
        const cuda::EngineConfiguration& known = engine.configuration;
        if (known.number == asked.number && known.knobs == asked.knobs && known.fused == asked.fused) return &engine;
      }
    }
    return nullptr;
  }
  void compute(const cuda::Convolution& c, const std::string& algorithm, bool deterministic, const void* a,
               const void* b, const void* bias, bool relu, void* out, void* workspace, uint64_t bytes) {
    auto* y = static_cast<float*>(out);
    const auto *p = static_cast<const float*>(a), *q = static_cast<const float*>(b),
               *offset = static_cast<const float*>(bias);
    queue_.enqueue([=, this] {
      if (bytes > 0) std::memset(workspace, 0xff, bytes);
      queue_.spend(algorithm);
      fake::convolve(c, p, q, offset, relu, y);
      if (!deterministic) *y = std::nextafter(*y, random_() % 2 == 0 ? 1e9F : -1e9F);
    });
  }

  FakeQueue& queue_;
  Bytes memory_;
  std::mt19937_64 random_;
  std::vector<Told> statuses_;
  std::vector<std::string> planned_;
  std::map<std::string, uint64_t> workspaces_;
  int64_t most_elements_ = INT64_MAX;
};

}  // namespace plimsoll::testing
