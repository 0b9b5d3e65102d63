#include "train/beginning.h"

#include <fmt/format.h>

#include <algorithm>

#include "autodiff/optimizers.h"
#include "kernels/workspace_limits.h"
#include "plimsoll/network_file.h"
#include "plimsoll/ops.h"
#include "train/given_plan.h"
#include "train/ranks.h"
#include "train/resume.h"
#include "train/training_loop.h"

namespace plimsoll {

void check_names(const TrainOptions& options) {
  check(options.schedule);
  check(options.optimizer);
  check_choices(options.policy, options.placement);
  if (options.resume && options.plan) {
    throw Error(ErrorCode::invalid_input,
                "--resume and --plan: a resumed training repeats its own kernels; give one of them");
  }
  if (options.resume && options.weights) {
    throw Error(ErrorCode::invalid_input,
                "--resume and --weights: a resumed training has its weights from the checkpoint; give one of them");
  }
}

void check_length(const TrainOptions& options, const DataInfo& data) {
  const int64_t batches = data.train_count / options.batch;
  if (batches < 1) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("data '{}' has {} training samples, too few for a batch of {}: lower --batch", data.name,
                            data.train_count, options.batch));
  }
  const int64_t per_epoch = steps_for(batches, options.optimizer.accumulate);
  const int64_t most_epochs = INT64_MAX / per_epoch, warmup = options.schedule.warmup_epochs;
  const int64_t by_epochs = std::min(options.epochs > 0 ? options.epochs : 1, most_epochs) * per_epoch;
  const int64_t steps = options.steps > 0 && options.epochs == 0 ? options.steps
                        : options.steps > 0                      ? std::min(options.steps, by_epochs)
                                                                 : by_epochs;
  if (options.resume || warmup == 0 || (warmup <= most_epochs && warmup * per_epoch <= steps)) return;
  throw Error(
      ErrorCode::invalid_input,
      fmt::format("--warmup-epochs {}: an epoch has {} steps and the training {} in all, so the warm-up would not "
                  "end; lower it, or raise --{}",
                  warmup, per_epoch, steps, options.steps > 0 ? "steps" : "epochs"));
}

void check_fed_by_data(const Network& network) {
  const Graph& graph = network.graph;
  for (TensorId id : graph.inputs) {
    const Tensor& tensor = graph.tensor(id);
    if (tensor.role != Role::input) continue;
    if (id == network.data && (tensor.dtype == DType::f32 || is_language_model(network))) continue;
    if (id == network.labels && tensor.dtype == DType::i32) continue;
    throw Error(
        ErrorCode::invalid_input,
        fmt::format("{} wants an input '{}' ({} {}), which no data set gives: those give images (f32) and a label "
                    "of each (i32). `plan`, `compare` and `max` do without data; train it from Python",
                    graph.name, tensor.name, to_string(tensor.shape), to_string(tensor.dtype)));
  }
}

void check_values_are_given(const TrainOptions& options) {
  const auto file = network_file_of(options.model);
  if (!file || options.weights || options.resume) return;
  const std::vector<std::string> without = read_network_info(*file).without_values;
  if (without.empty()) return;
  throw Error(
      ErrorCode::invalid_input,
      fmt::format("{} has no values of '{}'{}: give the weights that were exported with "
                  "it (--weights FILE.safetensors)",
                  *file, without[0], without.size() > 1 ? fmt::format(" and {} more", without.size() - 1) : ""));
}

Beginning begin(TrainOptions& options) {
  Beginning beginning;
  if (options.resume) {
    beginning.checkpoint.emplace(*options.resume);
    check_resumable(options, beginning.checkpoint->state(), *options.resume);
    beginning.checkpoint->check_contents();
    options.seed = beginning.checkpoint->state().seed;
  }
  if (options.plan) {
    beginning.plan = load_plan(*options.plan);
    const PlanRequest& request = beginning.plan->request;
    const int planned = request.optimizer.ranks, here = ranks_of(options);
    if (planned != here) {
      const auto of = [](int ranks) { return ranks > 1 ? fmt::format("{} ranks", ranks) : std::string("one process"); };
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{} is a plan for {}, but {} here; {}", options.plan->string(), of(planned),
                              here > 1 ? fmt::format("there are {} ranks", here) : "there is one process",
                              planned > 1 ? fmt::format("start them with `mpirun -n {}`", planned)
                                          : fmt::format("make one with `plimsoll plan --ranks {} --save`", here)));
    }
    const int64_t batch = request.input.batch * planned;
    if (request.model != options.model || batch != options.batch) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{} is a plan for {} with batch {}, not for {} with batch {}", options.plan->string(),
                              request.model, batch, options.model, options.batch));
    }
  }
  return beginning;
}

CompileOptions compile_options(const TrainOptions& options, Bytes budget, const Beginning& beginning,
                               const Session& session, const std::function<void(const std::string&)>& notice) {
  const DeviceInfo& device = session.device->info();
  CompileOptions compile = compile_options_of(options, session, budget);
  if (beginning.plan) pin(compile, *beginning.plan, options, device);
  if (!beginning.checkpoint) return compile;
  const TrainingState& saved = beginning.checkpoint->state();
  if (saved.settings.ranks != ranks_of(options)) {
    notice(fmt::format(
        "{} rank{} before this checkpoint, {} now: kernels are chosen anew for the other parts of a batch, so "
        "results may differ in the last bits",
        saved.settings.ranks, saved.settings.ranks == 1 ? "" : "s", ranks_of(options)));
  } else if (options.zero && *options.zero != saved.settings.zero_stage) {
    notice(fmt::format("ZeRO stage {} before this checkpoint, {} now: kernels are chosen anew",
                       saved.settings.zero_stage, *options.zero));
  } else if (ranks_of(options) > 1 && saved.optimizer.sync_batch_norm != options.optimizer.sync_batch_norm) {
    notice(fmt::format("BatchNorm took the statistics of {} before this checkpoint, and takes those of {} now",
                       saved.optimizer.sync_batch_norm ? "the whole batch" : "each rank's part",
                       options.optimizer.sync_batch_norm ? "the whole batch" : "each rank's part"));
  } else if (saved.device_key == device.key) {
    pin(compile, saved);
  } else {
    notice(other_device_text(saved.device_key, device));
  }
  return compile;
}

std::string unkept_limits(const TrainOptions& options, const Program& program, std::string_view origin) {
  std::string text;
  auto tell = [&](const std::string& what) { text += fmt::format("{}{}", text.empty() ? "" : "; ", what); };
  Bytes most, sum;
  std::string op_of_most;
  bool divided = false;
  const Graph& graph = program.network.graph;
  for (OpId id{0}; id.index < graph.op_count(); ++id.index) {
    const KernelChoice& kernel = program.kernels[id.index];
    divided = divided || !parts_of(kernel.kernel).empty();
    if (counts_in_total(graph.op(id))) sum += kernel.workspace;
    if (kernel.workspace <= most) continue;
    most = kernel.workspace;
    op_of_most = graph.op(id).name;
  }
  if (options.workspace && most > *options.workspace) {
    tell(fmt::format("--workspace {} is not kept: '{}' takes {}", to_string(*options.workspace), op_of_most,
                     to_string(most)));
  }
  if (options.workspace_total && sum > *options.workspace_total) {
    tell(fmt::format("--workspace-total {} is not kept: {} are taken", to_string(*options.workspace_total),
                     to_string(sum)));
  }
  if (options.batch_sizes && (*options.batch_sizes != BatchSizes::undivided || divided)) {
    tell(fmt::format("--batch-sizes {} changes nothing", to_string(*options.batch_sizes)));
  }
  return text.empty() ? text
                      : fmt::format("{}'s kernels are kept, so that results stay exactly the same: {}", origin, text);
}

}  // namespace plimsoll
