#include "plimsoll/train.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>

#include "plimsoll/checkpoint.h"
#include "plimsoll/data.h"
#include "plimsoll/execute.h"
#include "plimsoll/verify.h"
#include "run/plan_file.h"
#include "run/session.h"

namespace plimsoll {
namespace {

constexpr size_t kTimesKept = 4096;           // of the last steps, for the median
constexpr int64_t kStepsToCorrect = 5;        // fewer tell too little about the usual step
constexpr double kPredictionTolerance = 0.1;
constexpr double kHostShare = 0.85;           // of the free memory, when no budget is given
constexpr Bytes kMeasuringRoom = 64_MiB;      // beyond the budget, for buffers while kernels are measured
constexpr Bytes kHostReserve = 512_MiB;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The largest resident size that the process has had, by the kernel's account.
Bytes process_peak() {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with("VmHWM:")) return {std::stoll(line.substr(6)) * 1024};
  }
  return {};
}

ModelInput default_input_of(std::string_view model) {
  const std::string_view stem = model.substr(0, model.find(':'));
  for (const ModelListing& listing : list_models()) {
    if (listing.name == stem || listing.name == model) return listing.default_input;
  }
  return {};
}

// Images that have no size of their own come in the network's size.
std::shared_ptr<const DataSet> open_for(const TrainOptions& options) {
  DataOptions wanted{.channels = 0, .height = options.image_size, .width = options.image_size, .classes = 0, .seed = options.seed};
  const std::string_view kind = std::string_view(options.data).substr(0, options.data.find(':'));
  if (kind == "synthetic" || kind == "images") {
    const ModelInput usual = default_input_of(options.model);
    wanted.channels = usual.channels;
    if (options.image_size == 0) {
      wanted.height = usual.height;
      wanted.width = usual.width;
    }
    wanted.classes = options.classes > 0 ? options.classes : usual.classes;
  }
  return open_data(options.data, wanted);
}

ModelInput input_for(const TrainOptions& options, const DataInfo& data) {
  if (options.classes > 0 && options.classes < data.classes) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("{} has {} classes; {} are too few: raise --num-classes", data.name, data.classes, options.classes));
  }
  return {.batch = options.batch,
          .channels = data.channels,
          .height = data.height,
          .width = data.width,
          .classes = std::max(options.classes, data.classes),
          .training = true};
}

// The tensors of a checkpoint and where they are read from.
class States {
 public:
  States(const Graph& graph, Executor& executor) : graph_(graph), executor_(executor) {
    for (const State& state : graph.states) {
      const Tensor& t = graph.tensor(state.before);
      tensors_.push_back({t.name, t.shape, t.dtype, t.role});
    }
  }
  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }
  TensorSource source() const {
    return [this](size_t i, Bytes offset, std::span<std::byte> into) {
      executor_.read(graph_.states[i].before, offset.count / 4, into);
    };
  }
  std::string sha256() const { return weights_sha256(tensors_, source()); }

  void load(const Checkpoint& checkpoint) {
    checkpoint.check_contents();
    std::vector<std::byte> chunk;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      const size_t from = checkpoint.find(tensors_[i].name, tensors_[i].shape, tensors_[i].dtype);
      const int64_t bytes = tensors_[i].bytes().count;
      for (int64_t at = 0; at < bytes; at += int64_t{1} << 20) {
        chunk.resize(static_cast<size_t>(std::min(int64_t{1} << 20, bytes - at)));
        checkpoint.read(from, {at}, chunk);
        executor_.write(graph_.states[i].before, at / 4, chunk);
      }
    }
  }

 private:
  const Graph& graph_;
  Executor& executor_;
  std::vector<CheckpointTensor> tensors_;
};

template <class T>
void write_scalar(Executor& executor, TensorId id, T value) {
  if (id.valid()) executor.write(id, std::as_bytes(std::span(&value, 1)));
}
float read_scalar(const Executor& executor, TensorId id) {
  float value = 0;
  executor.read(id, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

// A program with its executor, fed with batches.
class Runner {
 public:
  Runner(const Program& program, const Device& device, const ExecuteOptions& options, std::shared_ptr<Arena> arena = nullptr)
      : program_(program), executor_(program.network.graph, program.plan, device, options, std::move(arena)) {
    const Graph& graph = program.network.graph;
    learning_rate_ = graph.find_tensor("learning_rate");
    step_number_ = graph.find_tensor("step_number");
    seed_ = graph.find_tensor("seed");
  }
  Executor& executor() { return executor_; }

  // Returns the seconds of the step itself.
  double run(const Batch& batch, double lr, int64_t step, uint64_t seed) {
    executor_.write(program_.network.data, std::as_bytes(batch.data));
    if (program_.network.labels.valid()) executor_.write(program_.network.labels, std::as_bytes(batch.labels));
    write_scalar(executor_, learning_rate_, static_cast<float>(lr));
    write_scalar(executor_, step_number_, step);
    write_scalar(executor_, seed_, static_cast<int64_t>(seed));
    const double start = now_s();
    executor_.run_step();
    return now_s() - start;
  }
  double loss() const {
    double sum = 0;
    for (const Objective& objective : program_.network.objectives) sum += read_scalar(executor_, objective.loss);
    return sum;
  }
  std::optional<double> correct() const {
    if (!program_.network.correct.valid()) return std::nullopt;
    return read_scalar(executor_, program_.network.correct);
  }

 private:
  const Program& program_;
  Executor executor_;
  TensorId learning_rate_, step_number_, seed_;
};

// The evaluation of a training: its own program in the training's arena, at the largest batch that fits beside the states.
class Evaluation {
 public:
  Evaluation(const TrainOptions& options, ModelInput input, const Program& training, const Device& device, const CostTable& costs,
             const CompileOptions& compile, std::shared_ptr<Arena> arena) {
    input.training = false;
    for (;;) {
      auto result = compile_evaluation(build_model(options.model, input), training, device, costs, compile);
      if (auto* program = std::get_if<Program>(&result)) {
        program_ = std::make_unique<Program>(std::move(*program));
        break;
      }
      if (input.batch == 1) {
        throw Error(ErrorCode::infeasible, fmt::format("the evaluation does not fit the training's {}: {}; set --evaluate-every 0",
                                                       to_string(training.plan.arena), to_text(std::get<Infeasible>(result))));
      }
      input.batch /= 2;
    }
    batch_ = input.batch;
    runner_ = std::make_unique<Runner>(*program_, device, ExecuteOptions{.check_memory = options.check_memory}, std::move(arena));
  }

  struct Result {
    double loss = 0;
    std::optional<double> accuracy;
  };
  Result run(const std::shared_ptr<const DataSet>& data, uint64_t seed) {
    Loader loader(data, {.split = Split::test, .batch = batch_, .seed = seed});
    double loss = 0, correct = 0;
    bool has_correct = true;
    int64_t count = 0;
    for (int64_t i = 0; i < loader.batches_per_epoch(); ++i) {
      const Batch& batch = loader.next();
      runner_->run(batch, 0, 0, seed);
      count += batch.count;
      loss += runner_->loss() * static_cast<double>(batch_);
      if (const auto c = runner_->correct()) {
        correct += *c;
      } else {
        has_correct = false;
      }
    }
    const double n = static_cast<double>(std::max<int64_t>(1, count));
    return {loss / n, has_correct ? std::optional<double>(correct / n) : std::nullopt};
  }

 private:
  std::unique_ptr<Program> program_;
  std::unique_ptr<Runner> runner_;
  int64_t batch_ = 0;
};

bool needs_calibration(const Program& program, const CostTable& costs) {
  const Graph& graph = program.network.graph;
  for (const Step& step : program.plan.steps) {
    if (step.kernel.empty()) continue;
    const auto cost = costs.find_in_step({op_signature(graph, graph.op(step.op)), step.kernel, step.threads});
    if (!cost) return true;
  }
  return false;
}

// The prediction was off: what the last step took, if it was a usual one, predicts better next time.
void correct_costs(Session& session, const Program& program, const Executor& executor, double usual_ms) {
  std::vector<std::vector<double>> times;
  double sum = 0;
  for (const StepRecord& record : executor.records()) {
    times.push_back({record.end_ms - record.start_ms});
    sum += times.back()[0];
  }
  if (std::abs(sum / usual_ms - 1) < kPredictionTolerance) keep_step_times(session, program, std::move(times));
}

Bytes default_budget(const DeviceInfo& device) {
  const int64_t free = device.memory_available.count;
  return {std::max<int64_t>(free / 2, static_cast<int64_t>(static_cast<double>(free) * kHostShare) - kHostReserve.count)};
}

// What must be the same for a resumed run to be the continuation of the saved one.
void check_resumable(const TrainOptions& options, const TrainingState& saved, const std::filesystem::path& file) {
  auto differ = [&](std::string_view what, const std::string& now, const std::string& then) {
    if (now != then) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{} was saved with {} {}, but {} is asked for now", file.string(), what, then, now));
    }
  };
  differ("model", options.model, saved.model);
  differ("batch", fmt::to_string(options.batch), fmt::to_string(saved.batch));
  differ("optimizer", options.optimizer.name, saved.optimizer.name);
  auto kind = [](const std::string& data) { return data.substr(0, data.find(':')); };
  differ("data", kind(options.data), kind(saved.data));
}

}  // namespace

ModelInput training_input(const TrainOptions& options) { return input_for(options, open_for(options)->info()); }

std::variant<DoneEvent, Infeasible> train(const TrainOptions& asked, const TrainListener& listener) {
  TrainOptions options = asked;
  auto notice = [&](const std::string& text) {
    if (listener.notice) listener.notice(text);
  };
  check(options.schedule);
  find_policy(options.policy);
  if (options.resume && options.plan) {
    throw Error(ErrorCode::invalid_input, "--resume and --plan: a resumed training repeats its own kernels; give one of them");
  }
  std::optional<Checkpoint> checkpoint;
  if (options.resume) {
    checkpoint.emplace(*options.resume);
    check_resumable(options, checkpoint->state(), *options.resume);
    checkpoint->check_contents();
    options.seed = checkpoint->state().seed;  // of weights, data, order and dropout: the same run goes on
  }
  const std::shared_ptr<const DataSet> data = open_for(options);
  const ModelInput input = input_for(options, data->info());
  const Network network = build_model(options.model, input);

  Session session = open_session(options.device, options.threads);
  for (const std::string& text : session.notices) notice(text);
  CompileOptions compile{.memory = options.memory ? *options.memory : default_budget(session.device->info()),
                         .policy = options.policy,
                         .placement = options.placement,
                         .optimizer = options.optimizer,
                         .exact = options.exact};
  std::optional<SavedPlan> saved_plan;
  if (checkpoint) {
    const TrainingState& saved = checkpoint->state();
    if (saved.device_key == session.device->info().key) {
      compile.kernels = saved.kernels;
      for (const auto& [name, tag] : saved.state_layouts) compile.state_layouts[name] = {tag};
      compile.family = family_named(saved.layout_family);
    } else {
      notice(fmt::format("the checkpoint is from another device ({}); it goes on with this one's kernels, so results may differ in "
                         "the last bits",
                         saved.device_key));
    }
  } else if (options.plan) {
    saved_plan = load_plan(*options.plan);
    if (saved_plan->request.model != options.model || saved_plan->request.input.batch != options.batch) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{} is a plan for {} with batch {}, not for {} with batch {}", options.plan->string(),
                              saved_plan->request.model, saved_plan->request.input.batch, options.model, options.batch));
    }
    if (saved_plan->plan.device_key != session.device->info().key) {
      throw Error(ErrorCode::invalid_input, fmt::format("{} is a plan for device '{}' ({}), but this is '{}' ({})",
                                                        options.plan->string(), saved_plan->plan.device_name,
                                                        saved_plan->plan.device_key, session.device->info().name,
                                                        session.device->info().key));
    }
    compile.family = saved_plan->family;
    compile.policy = saved_plan->plan.policy;
    if (options.memory && *options.memory < saved_plan->plan.arena) {
      throw Error(ErrorCode::infeasible, fmt::format("{} needs {} but --memory is {}", options.plan->string(),
                                                     to_string(saved_plan->plan.arena), to_string(*options.memory)));
    }
    compile.memory = saved_plan->plan.budget;
    for (const Step& step : saved_plan->plan.steps) compile.kernels[saved_plan->graph.op(step.op).name] = step.kernel;
    for (const State& state : saved_plan->graph.states) {
      const Tensor& t = saved_plan->graph.tensor(state.before);
      compile.state_layouts[t.name] = t.layout;
    }
  }
  const bool measure = options.costs == "measured";
  const BusyMeter busy;
  if (measure && !options.exact && compile.kernels.empty()) {
    // What cannot fit is not worth measuring.
    auto first = compile_training(network, *session.device, session.costs, compile);
    if (auto* infeasible = std::get_if<Infeasible>(&first)) return *infeasible;
    const Bytes room{std::min(compile.memory.count, INT64_MAX - kMeasuringRoom.count) + kMeasuringRoom.count};
    MeasureOptions measuring;
    measuring.memory = room;
    measuring.stop = listener.stop;
    measuring.progress = [&](int done, int total, const std::string& what) {
      if (listener.preparing) listener.preparing(what, done, total);
    };
    const int measured = measure_missing(session, network, compile, measuring);
    if (measured > 0) {
      notice(fmt::format("measured {} kernels; kept in {}", measured, CostDatabase::default_path().string()));
      if (busy.others() > kTooBusy) {
        notice(fmt::format("other processes kept the machine {:.0f} % busy meanwhile, so these times mislead; when it is quiet, measure anew "
                           "with `plimsoll profile {} --batch {} --again`", 100 * busy.others(), options.model, options.batch));
      }
    }
    if (listener.stop && listener.stop()) throw Error(ErrorCode::interrupted, "interrupted before the first step");
  }

  auto compiled = compile_training(network, *session.device, session.costs, compile);
  if (auto* infeasible = std::get_if<Infeasible>(&compiled)) return *infeasible;
  Program program = std::get<Program>(std::move(compiled));
  if (saved_plan) {
    if (saved_plan->plan.graph_fingerprint != program.plan.graph_fingerprint) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{} was made for another graph: '{}' {:016x}, but '{}' here is {:016x}", options.plan->string(),
                              saved_plan->plan.graph_name, saved_plan->plan.graph_fingerprint, program.network.graph.name,
                              program.plan.graph_fingerprint));
    }
    if (const auto violations = verify(program.network.graph, saved_plan->plan, 1); !violations.empty()) {
      throw Error(ErrorCode::invalid_input, fmt::format("{} is not safe: {}", options.plan->string(), violations[0].message));
    }
    program.plan = saved_plan->plan;
  }
  if (measure && !saved_plan && needs_calibration(program, session.costs)) calibrate(session, program);
  const double predicted_ms = program.plan.predicted.step_time_ms;
  if (listener.planned) listener.planned(program, data->info().name);

  const auto runner_of_plan = [&] {
    try {
      return std::make_unique<Runner>(program, *session.device,
                                      ExecuteOptions{.check_memory = options.check_memory, .record_times = true});
    } catch (const Error& error) {
      if (saved_plan) throw Error(ErrorCode::invalid_input, fmt::format("{}: {}", options.plan->string(), error.what()));
      throw;
    }
  }();
  Runner& runner = *runner_of_plan;
  Executor& executor = runner.executor();
  States states(program.network.graph, executor);
  int64_t step = 0, epoch = 0, first_batch = 0;
  uint64_t seed = options.seed;
  if (checkpoint) {
    states.load(*checkpoint);
    step = checkpoint->state().step;
    epoch = checkpoint->state().epoch;
    first_batch = checkpoint->state().batch_in_epoch;
    seed = checkpoint->state().seed;
  } else {
    executor.initialize(seed);
  }

  LoaderOptions loading{.split = Split::train, .batch = options.batch, .seed = seed, .epoch = epoch, .first_batch = first_batch,
                        .threads = options.workers};
  if (options.augment) loading.augmentation = data->info().augmentation;
  Loader loader(data, loading);
  const int64_t per_epoch = loader.batches_per_epoch();
  const int64_t epochs = options.epochs > 0 ? options.epochs : options.steps > 0 ? INT64_MAX / (per_epoch + 1) : 1;
  const int64_t total_steps = options.steps > 0 ? std::min(options.steps, epochs * per_epoch) : epochs * per_epoch;
  const int64_t last_epoch = (total_steps + per_epoch - 1) / per_epoch;

  std::optional<Evaluation> evaluation;
  if (options.evaluate_every > 0 && data->info().test_count > 0 && program.network.labels.valid()) {
    evaluation.emplace(options, input, program, *session.device, session.costs, compile, executor.arena());
  }

  auto save = [&](int64_t at_epoch, int64_t at_batch) {
    TrainingState state{.step = step, .epoch = at_epoch, .batch_in_epoch = at_batch, .seed = seed, .model = options.model,
                        .data = options.data, .batch = options.batch, .optimizer = options.optimizer,
                        .learning_rate = options.schedule.lr, .schedule = options.schedule.name, .total_steps = options.steps,
                        .total_epochs = options.epochs, .policy = options.policy, .placement = options.placement,
                        .budget = program.plan.budget, .exact = options.exact, .device = options.device,
                        .device_key = session.device->info().key, .threads = options.threads,
                        .layout_family = std::string(to_string(program.family)), .kernels = {}, .state_layouts = {},
                        .settings = {}, .weights_sha256 = {}};
    const Graph& graph = program.network.graph;
    for (int32_t i = 0; i < graph.op_count(); ++i) state.kernels[graph.op({i}).name] = program.kernels[static_cast<size_t>(i)].kernel;
    state.settings = {{"image_size", fmt::to_string(options.image_size)},
                      {"classes", fmt::to_string(options.classes)},
                      {"augment", options.augment ? "1" : "0"},
                      {"warmup_epochs", fmt::to_string(options.schedule.warmup_epochs)},
                      {"warmup_lr", fmt::format("{}", options.schedule.warmup_lr)},
                      {"min_lr", fmt::format("{}", options.schedule.min_lr)},
                      {"decay_rate", fmt::format("{}", options.schedule.decay_rate)},
                      {"decay_epochs", fmt::to_string(options.schedule.decay_epochs)}};
    for (const State& s : graph.states) state.state_layouts[graph.tensor(s.before).name] = graph.tensor(s.before).layout.tag;
    save_checkpoint(*options.checkpoint, state, states.tensors(), states.source());
  };

  DoneEvent done{.steps = 0, .epochs = 0, .budget = program.plan.budget};
  done.predicted_step_time_ms = predicted_ms;
  std::vector<double> times;
  times.reserve(kTimesKept);
  size_t times_at = 0;
  double step_seconds = 0;  // of all steps, waiting for data included
  const double begun = now_s();
  bool stopped = false;
  int64_t saved_at_step = -1;
  while (step < total_steps && !stopped) {
    const double epoch_begun = now_s();
    double loss_sum = 0, correct_sum = 0;
    int64_t seen = 0;
    bool has_correct = true;
    int64_t index = first_batch;
    first_batch = 0;
    for (; index < per_epoch && step < total_steps && !stopped; ++index) {
      const double step_begun = now_s();
      const double lr = learning_rate(options.schedule, step, per_epoch, total_steps);
      const Batch& batch = loader.next();
      const double ms = 1000 * runner.run(batch, lr, step, seed);
      loader.release();
      ++step;
      const double loss = runner.loss();
      loss_sum += loss;
      seen += options.batch;
      if (const auto correct = runner.correct()) {
        correct_sum += *correct;
      } else {
        has_correct = false;
      }
      if (times.size() < kTimesKept) {
        times.push_back(ms);
      } else {
        times[times_at++ % kTimesKept] = ms;
      }
      const double seconds = now_s() - step_begun;
      step_seconds += seconds;
      ++done.steps;
      done.loss = loss;
      if (listener.step) {
        listener.step({.step = step, .total_steps = total_steps, .epoch = epoch, .loss = loss, .lr = lr,
                       .step_time_ms = seconds * 1000,
                       .images_per_second = static_cast<double>(options.batch * done.steps) / step_seconds});
      }
      stopped = listener.stop && listener.stop();
      if (!stopped && options.checkpoint && options.checkpoint_every > 0 && step % options.checkpoint_every == 0) {
        const bool end = index + 1 == per_epoch;
        save(end ? epoch + 1 : epoch, end ? 0 : index + 1);
        saved_at_step = step;
      }
    }
    const bool epoch_complete = index == per_epoch;
    if (stopped) {
      if (options.checkpoint) save(epoch_complete ? epoch + 1 : epoch, epoch_complete ? 0 : index);
      saved_at_step = step;
      break;
    }
    EpochEvent event{.epoch = epoch + 1, .epochs = last_epoch, .step = step};
    if (seen > 0) {
      event.train_loss = loss_sum * static_cast<double>(options.batch) / static_cast<double>(seen);
      event.train_accuracy = has_correct ? correct_sum / static_cast<double>(seen) : 0;
    }
    const bool last = step >= total_steps;
    if (evaluation && (last || (epoch + 1) % options.evaluate_every == 0)) {
      const Evaluation::Result result = evaluation->run(data, seed);
      event.test_loss = result.loss;
      event.test_accuracy = done.accuracy = result.accuracy;
    }
    if (options.checkpoint && saved_at_step != step) {
      save(epoch_complete ? epoch + 1 : epoch, epoch_complete ? 0 : index);
      saved_at_step = step;
    }
    event.seconds = now_s() - epoch_begun;
    if (listener.epoch) listener.epoch(event);
    ++epoch;
    ++done.epochs;
  }

  if (evaluation && !stopped && !done.accuracy) done.accuracy = evaluation->run(data, seed).accuracy;  // nothing was left to do

  done.interrupted = stopped;
  done.training_seconds = now_s() - begun;
  done.images_per_second = step_seconds > 0 ? static_cast<double>(done.steps * options.batch) / step_seconds : 0;
  done.step_time_ms = median(std::move(times));
  if (measure && done.steps >= kStepsToCorrect && std::abs(predicted_ms / done.step_time_ms - 1) > kPredictionTolerance) {
    correct_costs(session, program, executor, done.step_time_ms);
  }
  done.peak = executor.measured_peak();
  done.weights_sha256 = states.sha256();
  done.process_peak = process_peak();
  if (listener.recorded) listener.recorded(program, executor.records());
  return done;
}

}  // namespace plimsoll
