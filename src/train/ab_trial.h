// Runs a program's training steps in turns as they were chosen to share the cores and one op after another with all threads, and goes
// on with what was faster: what is measured in the training itself has the last word over what was predicted.
//
//   chosen w c c c c | serial w s s s s | chosen ... | serial ... | chosen ... | serial ...     w warms up and does not count
#pragma once

#include <string>
#include <vector>

#include "plimsoll/compile.h"
#include "plimsoll/cost.h"

namespace plimsoll {

class AbTrial {
 public:
  // The program as it was chosen. Both must outlive it.
  AbTrial(Program& program, const CostTable& costs);

  // After a step, with its time. True: turn() has something to do, for which no executor may be using the program's plan.
  bool sees(double step_ms);
  // Changes the program to the other way, or, at the end, to the faster one; then returns a line for the user if that is not the one
  // that was chosen.
  std::string turn();
  bool over() const { return over_; }

 private:
  struct How {
    int threads = 0;
    Affinity affinity = Affinity::close;
  };
  void run_as_chosen();
  double median_ms(bool chosen) const;

  Program& program_;
  const CostTable& costs_;
  std::vector<How> chosen_;  // by step
  int inter_op_ = 1;
  Prediction predicted_;
  std::vector<double> chosen_ms_, serial_ms_;
  bool serial_now_ = false, over_ = false;
  int block_ = 0, in_block_ = 0;
};

}  // namespace plimsoll
