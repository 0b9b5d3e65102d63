// What is asked of cuDNN for a convolution, and what its answers mean. Its calls stand behind ConvolutionLibrary: in the module
// they are cuDNN's (module/cudnn.cpp), in tests they answer as they are told. cuDNN has two ways to a convolution: fixed
// functions with an algorithm each, and engines of its graph API. An algorithm here is one of either.
//
//   status          listing algorithms                     making one again, or running it
//   1xxx  cuDNN     ends it: Error(device_failure)         the same
//   2xxx  asked     this one is left out                   Error(unsupported): this one is refused
//   3xxx  no kernel this one is left out                   Error(unsupported)
//   4xxx, 5xxx      this one is left out                   Error(unsupported) where the queue still works, else device_failure
//
// A cuDNN that is broken (a driver too old, another architecture, a part that is missing) says 3005 to 3009 to everything.
// So where a convolution gets no algorithm, and none got any before, a plain one is asked for: if that gets none either, the
// listing ends with Error(device_failure).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "device/cuda/convolution_engines.h"
#include "device/cuda/door.h"

namespace plimsoll::cuda {

// What a call came to.
struct Answer {
  int status = 0;    // cuDNN's number; 0: done
  std::string text;  // where it is not done: the call and why
  bool is_done() const { return status == 0; }
};

class ConvolutionLibrary {
 public:
  // The descriptors of one convolution.
  class Described {
   public:
    virtual ~Described() = default;
  };
  struct Candidate {
    std::string name;
    int number = 0;
    bool deterministic = false, tensor_cores = false;
  };

  virtual ~ConvolutionLibrary() = default;
  virtual Answer describe(const Convolution& convolution, bool tf32, std::unique_ptr<Described>& described) = 0;
  // What its heuristics say, the best first.
  virtual Answer guess(const Described& described, std::vector<Candidate>& found) = 0;
  // All algorithms: the heuristics leave out some that run.
  virtual std::vector<Candidate> every(Convolution::Pass pass) = 0;
  virtual Answer workspace(const Described& described, int number, uint64_t& bytes) = 0;
  // As Prepared::run; `bytes` of workspace, as workspace() told.
  virtual Answer run(const Described& described, int number, const void* a, const void* b, void* out, void* workspace,
                     uint64_t bytes) = 0;

  // An engine's configuration for one convolution, with what the engine notes of itself; ready to run.
  class Planned {
   public:
    virtual ~Planned() = default;
    EngineConfiguration configuration;
    uint64_t workspace = 0;
  };
  // What its heuristics say, the best first; `fallback`: those that run, by no order, where the others may not.
  virtual Answer guess_engines(const Convolution& convolution, bool fused, bool fallback,
                               std::vector<EngineConfiguration>& found) = 0;
  virtual Answer plan(const Convolution& convolution, const EngineConfiguration& configuration,
                      std::unique_ptr<Planned>& planned) = 0;
  // Where it ran with the same pointers before, nothing is allocated.
  virtual Answer run(Planned& planned, const void* a, const void* b, const void* bias, void* out, void* workspace) = 0;

  // Whether the queue does what it is asked, after a call that failed; false while it is captured.
  virtual bool still_works() noexcept = 0;
  virtual Bytes memory() = 0;  // the GPU's

  bool has_offered = false;  // any algorithm, to any convolution
};

// The best guess first, the fixed functions before the engines; none where cuDNN takes the convolution by none. What needs
// more workspace than the GPU has memory is left out. Of engines, those that cuDNN's heuristics name first, so many of each
// precision, and those that add the bias before those that do not. Without engines that round to less than TF32, and
// without those that compile a kernel.
inline constexpr int kMostEngines = 10;
std::vector<ConvolutionAlgorithm> list_algorithms(ConvolutionLibrary& library, const Convolution& convolution,
                                                  bool tf32);
// One of these. Throws Error(unsupported) where it does not run after all. The library outlives it.
std::unique_ptr<Prepared> prepare_convolution(ConvolutionLibrary& library, const Convolution& convolution,
                                              const ConvolutionAlgorithm& algorithm);

}  // namespace plimsoll::cuda
