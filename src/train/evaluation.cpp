#include "train/evaluation.h"

#include <fmt/format.h>

#include <algorithm>

#include "cores/share_cores.h"
#include "plimsoll/ops.h"
#include "train/ranks.h"
#include "train/rehearse.h"

namespace plimsoll {

std::shared_ptr<void> pin_batches(Loader& loader, const Device& device,
                                  const std::function<void(const std::string&)>& notice) {
  try {
    return device.pin(loader.buffer());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::device_failure) throw;
    if (notice)
      notice(fmt::format("batches are copied to the device more slowly, from memory that is not pinned: {}",
                         error.what()));
    return nullptr;
  }
}

Evaluation::Evaluation(std::string_view model, ModelInput input, const Program& training, const Device& device,
                       const CostTable& costs, const CompileOptions& compile, const ExecuteOptions& options,
                       const Memory& memory, const CoreOptions& cores)
    : device_(device) {
  input.training = false;
  for (Refusals refused;;) {
    auto result = compile_evaluation(build_model(model, input), training, device, costs, compile);
    if (auto* program = std::get_if<Program>(&result)) {
      const Graph& graph = program->network.graph;
      program->plan = check_plan(graph, uniform({graph, device, costs, cores}, program->plan));
      step_ = std::make_unique<TrainingStep>(std::move(*program), device, options, memory);
      if (!device.info().asynchronous) break;
      if (rehearse(step_->executor(), refused).empty()) break;  // now rather than after an epoch
      step_.reset();
      continue;
    }
    const Infeasible& infeasible = std::get<Infeasible>(result);
    if (!infeasible.flag.empty())
      throw Error(ErrorCode::infeasible, fmt::format("evaluation: {}; or set --evaluate-every 0", to_text(infeasible)));
    if (input.batch == 1) {
      throw Error(ErrorCode::infeasible,
                  fmt::format("the evaluation does not fit the training's {} (--evaluate-every 0 trains without): {}",
                              to_string(training.plan->arena), to_text(infeasible)));
    }
    input.batch /= 2;
  }
  batch_ = input.batch;
  has_collectives_ =
      std::ranges::any_of(step_->program().network.graph.ops(), [](const Op& op) { return op.type->is_collective; });
}

Evaluation::Result Evaluation::run(const std::shared_ptr<const DataSet>& data, uint64_t seed, Communicator* ranks) {
  const Network& network = step_->program().network;
  Loader loader(data, {.split = Split::test,
                       .batch = batch_,
                       .part = ranks != nullptr ? ranks->rank() : 0,
                       .parts = ranks != nullptr ? ranks->size() : 1,
                       .seed = seed,
                       .padding_label = padding_label(network),
                       .channels_last = step_->takes_channels_last()});
  const auto pinned = pin_batches(loader, device_);
  step_->start_at(0, seed);
  if (ranks != nullptr && has_collectives_) check_same_collectives(*ranks, step_->program());
  double loss = 0, correct = 0;
  bool has_correct = true;
  int64_t count = 0;
  for (int64_t i = 0; i < loader.batches_per_epoch(); ++i) {
    const Batch& batch = loader.next();
    const int64_t counted = batch.count;
    const bool alone = ranks == nullptr || !has_collectives_;
    if (counted == 0 && alone) continue;  // the other ranks have what is left of the test set
    step_->feed(batch);
    count += counted;
    loader.release();
    step_->run(0);
    if (counted == 0) continue;
    loss += step_->loss() * rows_of_loss(network, batch_, counted);
    if (const auto c = step_->correct()) {
      correct += *c;
    } else {
      has_correct = false;
    }
  }
  if (ranks != nullptr) {
    struct Part {
      double loss, correct;
      int64_t count;
    };
    const std::vector<Part> all = ranks->all_gather(Part{loss, correct, count});
    loss = correct = 0;
    count = 0;
    for (const Part& part : all) {
      loss += part.loss;
      correct += part.correct;
      count += part.count;
    }
  }
  const double n = static_cast<double>(std::max<int64_t>(1, count));
  return {loss / n, has_correct ? std::optional<double>(correct / n) : std::nullopt};
}

}  // namespace plimsoll
