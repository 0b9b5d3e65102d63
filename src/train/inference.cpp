#include "train/inference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/clock.h"
#include "cores/core_options.h"
#include "plimsoll/checkpoint.h"
#include "plimsoll/models.h"
#include "train/evaluation.h"
#include "train/process_memory.h"
#include "train/rehearse.h"
#include "train/resume.h"
#include "train/training_data.h"

namespace plimsoll {
namespace {

CompileOptions compile_options(const InferenceRequest& request, const Session& session) {
  const TrainOptions& options = request.options;
  return {
      .memory = options.memory ? *options.memory : default_budget(*session.device, options.host_memory.value_or(0_B)),
      .policy = options.policy,
      .placement = options.placement,
      .tiers = session.tiers,
      .exact = options.exact};
}

// Kernels that the device's library refuses when it is asked are offered no more.
std::unique_ptr<TrainingStep> step_that_runs(const Session& session, const Network& network,
                                             const CompileOptions& compile, std::optional<Infeasible>& infeasible) {
  for (Refusals refused;;) {
    auto result = compile_inference(network, *session.device, session.costs, compile);
    if (auto* none = std::get_if<Infeasible>(&result)) {
      infeasible = std::move(*none);
      return nullptr;
    }
    give_memory_back();  // that planning took
    auto step = std::make_unique<TrainingStep>(
        std::get<Program>(std::move(result)), *session.device,
        ExecuteOptions{.spill = session.spill, .peer = session.peer, .remote = session.remote});
    if (!session.device->info().asynchronous) return step;
    if (rehearse(step->executor(), refused).empty()) return step;
  }
}

[[noreturn]] void stop_assessing(const Assessment& result, const DataSet& data) {
  throw Error(ErrorCode::interrupted,
              fmt::format("interrupted after {} of {} {}; nothing is told of a part", result.images,
                          data.info().test_count, result.language ? "windows" : "images"));
}

}  // namespace

InferenceRequest request_of(const WeightsFile& file) {
  InferenceRequest request;
  request.options.model.clear();
  request.options.data.clear();
  if (!file.is_checkpoint()) return request;
  const Checkpoint checkpoint(file.name());
  const TrainingState& state = checkpoint.state();
  checkpoint.check_contents();
  try {
    request.options = saved_options(state);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", file.name(), error.what()));
  }
  request.input = state.input;
  return request;
}

Inference::Inference(const InferenceRequest& request, ModelInput input, const WeightsFile& weights, Bytes data,
                     int decoders, const Notice& notice)
    : input_(input) {
  const TrainOptions& options = request.options;
  input_.training = false;
  // What the file lacks is known before anything is planned.
  const WeightsMatch match = match_weights(weights, build_model(options.model, input_), false);
  if (!match.missing.empty()) {
    throw Error(
        ErrorCode::invalid_input,
        fmt::format("{}: lacks {} of the {} tensors of {}, as '{}', so it cannot answer", weights.name(),
                    match.missing.size(), match.missing.size() + match.taken.size(), options.model, match.missing[0]));
  }
  const CoreOptions cores =
      core_options(options.device, {.threads = options.threads, .intra_op = options.intra_op}, options.exact);
  const bool stated = options.memory_is == MemoryIs::process;
  session_ = open_session(options.device, cores.intra_op, tiers_of(options),
                          stated ? std::max(*options.memory - program_memory(), 0_B) : Bytes{INT64_MAX});
  for (const std::string& text : session_.notices) notice(text);
  CompileOptions compile = compile_options(request, session_);
  for (;; input_.batch /= 2) {
    const Network network = build_model(options.model, input_);
    process_ = process_memory(network, {.memory_is = options.memory_is,
                                        .training = false,
                                        .threads = std::max(cores.cores, cores.intra_op),
                                        .workers = options.workers,
                                        .data = data,
                                        .decoders = decoders,
                                        .tiers = tiers_of(options)});
    if (stated) compile.memory = arena_within(process_, *options.memory);
    std::optional<Infeasible> infeasible;
    step_ = step_that_runs(session_, network, compile, infeasible);
    if (stated && step_) infeasible = refused_by_planning(step_->program(), process_, *options.memory);
    if (stated && !step_) infeasible = of_process(*infeasible, process_, *options.memory);
    if (!infeasible) break;
    if (input_.batch == 1) leave_out_batch(infeasible->suggestion);
    if (step_ || request.batch_given || input_.batch == 1) throw Error(ErrorCode::infeasible, to_text(*infeasible));
  }
  stated_ = stated ? *options.memory : with_plan(process_, step_->program().plan).with(arena());
  step_->start_at(0, options.seed);
  take_weights(weights, match, *step_);
  logits_ = logits_of(step_->program().network);
  scores_.resize(static_cast<size_t>((is_language_model(this->network()) ? 1 : input_.batch) * input_.classes));
}

Inference::Answers Inference::run(std::span<const float> data, std::span<const int32_t> labels) {
  step_->feed(data, labels);
  return answers(labels);
}

Inference::Answers Inference::run(const Batch& batch) {
  step_->feed(batch);
  return answers(batch.labels);
}

Inference::Answers Inference::answers(std::span<const int32_t> labels) {
  const auto counted = std::ssize(labels) - std::ranges::count(labels, padding_label());
  step_->run(0);
  step_->executor().read(logits_, std::as_writable_bytes(std::span(scores_)));
  return {.loss_sum = step_->loss() * rows_of_loss(step_->program().network, input_.batch, counted), .logits = scores_};
}

double Inference::loss_sum(const Batch& batch) {
  step_->feed(batch);
  step_->run(0);
  return batch.count == 0 ? 0 : step_->loss() * rows_of_loss(network(), input_.batch, batch.count);
}

std::span<const float> Inference::scores_after(std::span<const int32_t> window, int64_t at) {
  labels_.assign(window.size(), padding_label());
  step_->feed_tokens(window, labels_);
  step_->run(0);
  step_->executor().read(logits_, at * input_.classes, std::as_writable_bytes(std::span(scores_)));
  return scores_;
}

Assessment assess(Inference& network, const std::shared_ptr<const DataSet>& data, uint64_t seed, int workers,
                  const std::function<bool(int64_t done, int64_t total)>& go_on) {
  const Stopwatch watch;
  const int64_t classes = network.classes();
  Loader loader(data, {.split = Split::test,
                       .batch = network.batch(),
                       .seed = seed,
                       .threads = workers,
                       .padding_label = network.padding_label(),
                       .channels_last = network.takes_channels_last()});
  const auto pinned = pin_batches(loader, network.device());
  Assessment result;
  result.language = is_language_model(network.network());
  if (!result.language) result.classes.resize(static_cast<size_t>(classes));
  int64_t right = 0, among_five = 0;
  for (int64_t i = 0; i < loader.batches_per_epoch(); ++i) {
    const Batch& batch = loader.next();
    if (result.language) {
      result.loss += network.loss_sum(batch);
      result.images += batch.count;
      loader.release();
      if (go_on && !go_on(i + 1, loader.batches_per_epoch())) stop_assessing(result, *data);
      continue;
    }
    const std::vector<int32_t> labels(batch.labels.begin(), batch.labels.begin() + batch.count);
    const Inference::Answers answers = network.run(batch);
    loader.release();
    result.loss += answers.loss_sum;
    for (size_t row = 0; row < labels.size(); ++row) {
      const auto scores = answers.logits.subspan(row * static_cast<size_t>(classes), static_cast<size_t>(classes));
      const auto label = static_cast<size_t>(labels[row]);
      // How many classes are thought more likely; of equal scores the first class is the answer, as in training.
      int64_t before = 0;
      size_t best = 0;
      for (size_t c = 0; c < scores.size(); ++c) {
        before += scores[c] > scores[label] || (c < label && scores[c] == scores[label]) ? 1 : 0;
        if (scores[c] > scores[best]) best = c;
      }
      // A score that is no number is above none and below none: then the answer is class 0, and not right.
      const bool is_right = best == label && !std::isnan(scores[label]);
      right += is_right ? 1 : 0;
      among_five += before < 5 && !std::isnan(scores[label]) ? 1 : 0;
      ++result.classes[label].images;
      result.classes[label].right += is_right ? 1 : 0;
      ++result.classes[best].answered;
    }
    result.images += static_cast<int64_t>(labels.size());
    if (go_on && !go_on(i + 1, loader.batches_per_epoch())) stop_assessing(result, *data);
  }
  const double n = static_cast<double>(std::max<int64_t>(1, result.images));
  result.loss /= n;
  result.accuracy = static_cast<double>(right) / n;
  if (classes > 5 && !result.language) result.top5_accuracy = static_cast<double>(among_five) / n;
  result.seconds = watch.seconds();
  return result;
}

std::vector<Guess> best_guesses(std::span<const float> logits, int64_t count) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const size_t kept = std::min(logits.size(), static_cast<size_t>(count));
  // What is no number comes last.
  const auto key = [&](size_t c) { return std::isnan(logits[c]) ? -INFINITY : logits[c]; };
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(kept), order.end(),
                    [&](size_t a, size_t b) { return std::pair(-key(a), a) < std::pair(-key(b), b); });
  double sum = 0;
  const double top = order.empty() ? 0 : key(order[0]);
  for (float logit : logits) sum += std::exp(static_cast<double>(logit) - top);
  std::vector<Guess> guesses;
  for (size_t i = 0; i < kept; ++i) {
    guesses.push_back({.label = static_cast<int64_t>(order[i]), .probability = std::exp(key(order[i]) - top) / sum});
  }
  return guesses;
}

}  // namespace plimsoll
