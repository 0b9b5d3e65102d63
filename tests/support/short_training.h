// A training of a few steps on the bundled digits, the same in every run.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "plimsoll/error.h"
#include "plimsoll/train.h"

namespace plimsoll::testing {

inline TrainOptions short_training(const std::string& model) {
  TrainOptions options{.model = model, .data = "digits", .memory = 512_MiB};
  options.schedule.lr = 0.05;
  options.threads = 1;  // a busy machine makes spinning teams of threads many times slower
  options.costs = "estimated";
  options.exact = true;
  options.evaluate_every = 0;
  return options;
}

// Throws what train throws, and Error(infeasible) where no plan fits.
inline DoneEvent run_training(const TrainOptions& options, const TrainListener& listener = {}) {
  auto result = train(options, listener);
  if (auto* infeasible = std::get_if<Infeasible>(&result)) throw Error(ErrorCode::infeasible, to_text(*infeasible));
  return std::get<DoneEvent>(std::move(result));
}

}  // namespace plimsoll::testing
