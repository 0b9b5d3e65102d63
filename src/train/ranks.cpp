#include "train/ranks.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <future>
#include <utility>

#include "base/no_signals.h"
#include "cost/cost_file.h"
#include "cost/measure.h"
#include "device/cpu/machine.h"
#include "device/cuda/device.h"
#include "passes/passes.h"
#include "plimsoll/checkpoint.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

// What must be equal for the ranks to run the same steps; not the budget, which may differ from machine to machine.
uint64_t identity_of(const Program& program) {
  Plan plan = program.plan;
  plan.budget = {};
  plan.plan_time_ms = 0;
  plan.predicted = {};
  for (TierUse& use : plan.tiers) use.tier = {.name = use.tier.name};
  const std::string text = to_json(plan, program.network.graph);
  return XXH3_64bits_withSeed(text.data(), text.size(), plan.graph_fingerprint);
}

void expect_equal(Communicator& communicator, uint64_t identity) {
  const std::vector<uint64_t> all = communicator.all_gather(identity);
  for (int r = 1; r < communicator.size(); ++r) {
    if (all[r] == all[0]) continue;
    throw Error(
        ErrorCode::internal,
        fmt::format("{} has another plan ({:016x}) than {} ({:016x}), so they would wait for each other; please "
                    "report this",
                    communicator.name(r), all[r], communicator.name(0), all[0]));
  }
}

// What is read next by all ranks together: bytes of a state.
struct Read {
  int64_t state = 0;  // below 0: nothing any more
  int64_t offset = 0, bytes = 0;
  int64_t well = 0;
};

void broadcast(Communicator& communicator, Read& read) {
  communicator.broadcast(std::as_writable_bytes(std::span(&read, 1)));
}

}  // namespace

TrainOptions options_of_rank(TrainOptions options) {
  if (!options.communicator || options.communicator->size() < 2) {
    options.communicator = nullptr;
    return options;
  }
  const Communicator& communicator = *options.communicator;
  const int ranks = communicator.size();
  const auto refuse = [&](ErrorCode code, const std::string& why) { throw Error(code, why); };
  if (options.batch % ranks != 0) {
    const int64_t below = options.batch / ranks * ranks;
    refuse(ErrorCode::invalid_input,
           fmt::format("--batch {} cannot be divided equally among {} ranks; take {}{}", options.batch, ranks,
                       below > 0 ? fmt::format("{} or ", below) : "", below + ranks));
  }
  if (options.device.starts_with("cuda")) {
    const std::vector<int> here = communicator.ranks_here();
    const auto place = std::ranges::find(here, communicator.rank()) - here.begin();
    options.device = cuda::device_of_rank(options.device, static_cast<int>(place));
  } else if (options.device != "cpu") {
    refuse(ErrorCode::unsupported,
           fmt::format("--device {}: several ranks train on cpu and cuda only", options.device));
  }
  if (options.inter_op != 1)
    refuse(ErrorCode::unsupported, "--inter-op: with several ranks, steps run one after another; leave it out");
  if (!communicator.is_first()) {  // the first saves, and gives the others its plan
    options.checkpoint.reset();
    options.plan.reset();
  }
  options.optimizer.ranks = ranks;
  return options;
}

int threads_of(const TrainOptions& options) {
  if (options.threads != 0 || options.intra_op != 0 || !options.communicator) return options.threads;
  if (!options.communicator->shares_processors()) return 0;
  return std::max(1, cpu::usable_processors() / static_cast<int>(options.communicator->ranks_here().size()));
}

int neighbours_of(const TrainOptions& options) {
  return options.communicator && shares_cores(options.device)
             ? static_cast<int>(options.communicator->ranks_here().size()) - 1
             : 0;
}

MeasuringTogether::MeasuringTogether(const TrainOptions& options)
    : ranks_(ranks_of(options) > 1 ? options.communicator.get() : nullptr),
      has_neighbours_(neighbours_of(options) > 0) {}

void MeasuringTogether::tell(const std::string& what) {
  if (ranks_ != nullptr && has_neighbours_) ranks_->broadcast(what);
}

void MeasuringTogether::end() noexcept {
  Communicator* const ranks = std::exchange(ranks_, nullptr);
  if (ranks == nullptr || ranks->is_over()) return;
  try {
    ranks->broadcast(std::string());
  } catch (const Error&) {  // a rank that is gone; the next message tells
  }
}

void measure_beside(Communicator& ranks, const Session& session, const Network& network, const CompileOptions& options,
                    const MeasureOptions& measure) {
  const std::vector<int> here = ranks.ranks_here();
  const bool is_neighbour = std::ranges::find(here, 0) != here.end();
  std::optional<KernelLoad> load;
  std::string what = ranks.broadcast(std::string());
  while (!what.empty()) {
    std::future<std::string> next;
    {
      const NoSignals quiet;
      next = std::async(std::launch::async, [&] { return ranks.broadcast(std::string()); });
    }
    const auto is_over = [&] { return next.wait_for(std::chrono::seconds(0)) == std::future_status::ready; };
    if (is_neighbour) {
      if (!load)
        load.emplace(make_training_step(network, options.optimizer, options.fusion).graph, *session.device, measure);
      load->run(what, is_over);
    }
    what = next.get();
  }
}

bool together(Communicator* communicator, const std::function<bool()>& action) {
  if (communicator == nullptr) return action();
  enum Outcome : int32_t { done, refused, threw };
  int32_t mine = done;
  std::string text;
  ErrorCode code{};
  std::exception_ptr thrown;
  const auto fail = [&](ErrorCode its_code, const std::exception& error) {
    mine = threw;
    code = its_code;
    text = error.what();
    thrown = std::current_exception();
  };
  try {
    if (!action()) mine = refused;
  } catch (const RankFailed&) {
    throw;
  } catch (const Error& error) {
    fail(error.code(), error);
  } catch (const std::exception& error) {
    fail(ErrorCode::device_failure, error);
  }
  const std::vector<int32_t> all = communicator->all_gather(mine);
  const auto first = std::ranges::find(all, threw);
  if (first == all.end()) return std::ranges::find(all, refused) == all.end();
  const int rank = static_cast<int>(first - all.begin());
  communicator->broadcast(std::as_writable_bytes(std::span(&code, 1)), rank);
  text = communicator->broadcast(std::move(text), rank);
  if (thrown) std::rethrow_exception(thrown);
  throw Error(code, fmt::format("{}: {}", communicator->name(rank), text));
}

void send_plan(Communicator& communicator, const PlanRequest& request, const Program* program) {
  communicator.broadcast(program != nullptr ? to_json(request, *program) : std::string());
}

std::optional<SavedPlan> receive_plan(Communicator& communicator) {
  const std::string text = communicator.broadcast(std::string());
  if (text.empty()) return std::nullopt;
  return saved_plan_from_json(text);
}

void check_same_plan(Communicator& communicator, const Program& program) {
  expect_equal(communicator, identity_of(program));
}

CostTable common_costs(Communicator& communicator, const CostTable& mine, const DeviceInfo& device) {
  const bool gives = communicator.is_first();
  const std::string text = communicator.broadcast(gives ? costs_to_json(mine, device) : std::string());
  return costs_from_json(text, "the costs of " + communicator.name(0), device);
}

void check_same_collectives(Communicator& communicator, const Program& program) {
  const Graph& graph = program.network.graph;
  const std::vector<Step>& steps = program.plan->steps;
  std::string text = to_string(graph.tensor(program.network.data).shape);
  for (const Step& step : steps) {
    if (graph.op(step.op).type->is_collective) text += "\n" + graph.op(step.op).name;
  }
  for (const Collective& collective : program.plan->collectives) {
    text += "\ntogether:";
    for (const StepIndex s : collective.steps) text += "\n" + graph.op(steps[s].op).name;
  }
  expect_equal(communicator, XXH3_64bits(text.data(), text.size()));
}

TensorSource shared_source(Communicator& communicator, const TrainingStep& step) {
  return [&communicator, source = step.state_source()](size_t i, Bytes offset, std::span<std::byte> into) {
    Read read{.state = static_cast<int64_t>(i), .offset = offset.count, .bytes = std::ssize(into)};
    broadcast(communicator, read);
    source(i, offset, into);
  };
}

void end_reads(Communicator& communicator, bool well) {
  Read end{.state = -1, .well = well ? 1 : 0};
  broadcast(communicator, end);
}

bool serve_reads(Communicator& communicator, const TrainingStep& step) {
  const TensorSource source = step.state_source();
  std::vector<std::byte> bytes;
  for (Read read;;) {
    broadcast(communicator, read);
    if (read.state < 0) return read.well != 0;
    bytes.resize(read.bytes);
    source(read.state, {read.offset}, bytes);
  }
}

bool first_saves(Communicator& communicator, bool mine) {
  std::byte saves{static_cast<uint8_t>(mine ? 1 : 0)};
  communicator.broadcast(std::span(&saves, 1));
  return saves != std::byte{0};
}

std::string common_weights_sha256(Communicator& communicator, TrainingStep& step) {
  const std::string mine = step.weights_sha256();
  const uint64_t hash = XXH3_64bits(mine.data(), mine.size());
  const std::vector<uint64_t> all = communicator.all_gather(hash);
  for (int r = 1; r < communicator.size(); ++r) {
    if (all[r] == all[0]) continue;
    throw Error(ErrorCode::internal, fmt::format("the weights of {} are not those of {}; please report this",
                                                 communicator.name(r), communicator.name(0)));
  }
  return mine;
}

BatchReport sum_of(Communicator& communicator, const BatchReport& mine) {
  const std::vector<BatchReport> all = communicator.all_gather(mine);
  BatchReport sum = all[0];
  for (size_t r = 1; r < all.size(); ++r) {
    sum.loss += all[r].loss;
    sum.correct += all[r].correct;
    sum.has_correct &= all[r].has_correct;
    sum.stop |= all[r].stop;
    sum.save |= all[r].save;
  }
  sum.loss /= static_cast<double>(all.size());
  return sum;
}

}  // namespace plimsoll
