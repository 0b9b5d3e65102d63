// Runs one kernel of one case on a device and judges it against the reference kernel.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "plimsoll/device.h"
#include "tests/conformance/case.h"

namespace plimsoll::conformance {

// A built case with the value of every tensor, in row-major order, by the reference kernels.
struct Subject {
  Graph graph;
  OpId op;
  std::vector<std::vector<std::byte>> values;  // by tensor
};
Subject build_subject(const Case& one, uint64_t seed);

struct Outcome {
  std::vector<std::string> failures;  // empty: conforms
  int runs = 0;
  bool refused = false;  // cuDNN does not run what it offered: nothing was judged
};

// Judges `spec`, whose layouts must be real ones: right values, nothing written beside the outputs and the workspace,
// inputs left alone, padding zero, the same bits on every run, in place as out of place, state outputs left out, other
// thread counts.
Outcome judge(const Device& device, const Subject& subject, const KernelSpec& spec);

// The spec with "any layout" replaced by what a layout pass could put there; several where it leaves a choice.
std::vector<KernelSpec> with_real_layouts(const Subject& subject, const KernelSpec& spec, LayoutFamily family);

}  // namespace plimsoll::conformance
