// How the time of an op falls with its threads on a machine that is not there: Amdahl's law, over a memory that all
// cores share, plus what every further thread costs to start and to wait for.
//
//   T(p) = start + serial * W + max((1 - serial) * W / p, bytes / memory) + (p - 1) * thread
#pragma once

#include "cores/thread_curve.h"
#include "plimsoll/ops.h"

namespace plimsoll {

struct ScalingLaw {
  double gflops_a_core = 0;    // that dense arithmetic reaches
  double gb_per_s_a_core = 0;  // that one core can move
  double memory_gb_per_s = 0;  // that all cores together can
  double serial_share = 0;     // of the work of one thread, that no second one can help with
  double thread_ms = 0;        // a further thread
  double start_ms = 0;         // of an op
};

// Points for 1..most threads, each on a core of its own.
ThreadCurve scaled_curve(const Work& work, const ScalingLaw& law, int most);

// From times measured with one and two threads on a machine whose cores together move `measured_gb_per_s`: the serial
// part and the parallel one follow from the two, the rest from the law. What two threads waited there for memory is not
// serial.
ThreadCurve extended_curve(double one_thread_ms, double two_threads_ms, double bytes, double measured_gb_per_s,
                           const ScalingLaw& law, int most);

// The curve whose shortest time is `best_ms`, with `best_threads`: T(p) = serial + work / p + thread p, where work =
// thread p*^2 follows from the optimum and serial >= 0 from the time. Where the optimum is `most`, work is the least
// that gives it.
ThreadCurve curve_with_optimum(int best_threads, double best_ms, double thread_ms, int most);

}  // namespace plimsoll
