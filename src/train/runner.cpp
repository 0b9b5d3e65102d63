#include "train/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>

#include "cores/share_cores.h"
#include "train/execute_cores.h"

namespace plimsoll {
namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <class T>
void write_scalar(Executor& executor, TensorId id, T value) {
  if (id.valid()) executor.write(id, std::as_bytes(std::span(&value, 1)));
}
float read_scalar(const Executor& executor, TensorId id) {
  float value = 0;
  executor.read(id, std::as_writable_bytes(std::span(&value, 1)));
  return value;
}

}  // namespace

std::shared_ptr<void> pin_batches(Loader& loader, const Device& device, const std::function<void(const std::string&)>& notice) {
  try {
    return device.pin(loader.buffer());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::device_failure) throw;
    if (notice) notice(fmt::format("batches are copied to the device more slowly, from memory that is not pinned: {}", error.what()));
    return nullptr;
  }
}

Runner::Runner(const Program& program, const Device& device, const ExecuteOptions& options, Memory memory)
    : network_(program.network), device_(device), options_(options), plan_(program.plan) {
  executor_.emplace(network_.graph, plan_, device, with_cores(options, plan_), std::move(memory));
  const Graph& graph = program.network.graph;
  learning_rate_ = graph.find_tensor("learning_rate");
  step_number_ = graph.find_tensor("step_number");
  seed_ = graph.find_tensor("seed");
}

void Runner::swap(const Program& program) {
  Memory memory = executor_->memory();
  executor_.reset();
  plan_ = program.plan;
  executor_.emplace(network_.graph, plan_, device_, with_cores(options_, plan_), std::move(memory));
}

void Runner::feed(const Batch& batch) {
  executor_->write(network_.data, std::as_bytes(batch.data));
  if (network_.labels.valid()) executor_->write(network_.labels, std::as_bytes(batch.labels));
}

double Runner::run(double lr, int64_t step, uint64_t seed) {
  write_scalar(*executor_, learning_rate_, static_cast<float>(lr));
  write_scalar(*executor_, step_number_, step);
  write_scalar(*executor_, seed_, static_cast<int64_t>(seed));
  const double start = now_s();
  executor_->run_step();
  return now_s() - start;
}

double Runner::loss() const {
  double sum = 0;
  for (const Objective& objective : network_.objectives) sum += read_scalar(*executor_, objective.loss);
  return sum;
}

std::optional<double> Runner::correct() const {
  if (!network_.correct.valid()) return std::nullopt;
  return read_scalar(*executor_, network_.correct);
}

Evaluation::Evaluation(std::string_view model, ModelInput input, const Program& training, const Device& device,
                       const CostTable& costs, const CompileOptions& compile, const ExecuteOptions& options,
                       const Memory& memory, const CoreOptions& cores)
    : device_(device) {
  input.training = false;
  std::set<std::pair<std::string, std::string>> refused;  // ops and kernels
  for (;;) {
    auto result = compile_evaluation(build_model(model, input), training, device, costs, compile);
    if (auto* program = std::get_if<Program>(&result)) {
      program_ = std::make_unique<Program>(std::move(*program));
      const Graph& graph = program_->network.graph;
      program_->plan = check_plan(graph, uniform({graph, device, costs, cores}, program_->plan));
      runner_ = std::make_unique<Runner>(*program_, device, options, memory);
      if (device.host_addressable()) break;
      // What the device's library refuses is known only when it is asked: now rather than after an epoch.
      const std::vector<KernelRefused> refusals = runner_->executor().rehearse();
      if (refusals.empty()) break;
      for (const KernelRefused& refusal : refusals) {
        if (!refused.emplace(refusal.op(), refusal.kernel()).second) throw KernelRefused(refusal);  // it is offered all the same
      }
      runner_.reset();
      continue;
    }
    const Infeasible& infeasible = std::get<Infeasible>(result);
    if (!infeasible.flag.empty()) throw Error(ErrorCode::infeasible, fmt::format("evaluation: {}; or set --evaluate-every 0", to_text(infeasible)));
    if (input.batch == 1) {
      throw Error(ErrorCode::infeasible,
                  fmt::format("the evaluation does not fit the training's {}: {}; set --evaluate-every 0",
                              to_string(training.plan->arena), to_text(infeasible)));
    }
    input.batch /= 2;
  }
  batch_ = input.batch;
}

Evaluation::Result Evaluation::run(const std::shared_ptr<const DataSet>& data, uint64_t seed) {
  Loader loader(data, {.split = Split::test, .batch = batch_, .seed = seed});
  const auto pinned = pin_batches(loader, device_);
  double loss = 0, correct = 0;
  bool has_correct = true;
  int64_t count = 0;
  for (int64_t i = 0; i < loader.batches_per_epoch(); ++i) {
    const Batch& batch = loader.next();
    runner_->feed(batch);
    count += batch.count;
    loader.release();
    runner_->run(0, 0, seed);
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

States::States(const Graph& graph, Executor& executor)
    : graph_(graph), executor_(executor), wholes_(whole_states(graph)) {
  for (const WholeState& state : wholes_) tensors_.push_back({state.name, state.shape, state.dtype, state.role});
}

// Calls action(tensor, first element in it, bytes) for each part of state number `i` that has some of `bytes`.
template <class Byte, class Action>
void States::for_each_part(size_t i, Bytes offset, std::span<Byte> bytes, const Action& action) const {
  int64_t at = offset.count;
  for (TensorId part : wholes_[i].parts) {
    const Tensor& tensor = graph_.tensor(part);
    const int64_t size = storage_bytes(tensor.shape, tensor.dtype, {}).count;
    if (at < size && !bytes.empty()) {
      const size_t count = static_cast<size_t>(std::min(size - at, static_cast<int64_t>(bytes.size())));
      action(part, at / (size / element_count(tensor.shape)), bytes.first(count));
      bytes = bytes.subspan(count);
      at += static_cast<int64_t>(count);
    }
    at -= size;
  }
}

TensorSource States::source() const {
  return [this](size_t i, Bytes offset, std::span<std::byte> into) {
    for_each_part(i, offset, into, [&](TensorId part, int64_t first, std::span<std::byte> elements) {
      executor_.read(part, first, elements);
    });
  };
}

std::string States::sha256() const { return weights_sha256(tensors_, source()); }

void States::load(const Checkpoint& checkpoint) {
  checkpoint.check_contents();
  std::vector<std::byte> chunk;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const size_t from = checkpoint.find(tensors_[i].name, tensors_[i].shape, tensors_[i].dtype);
    const int64_t bytes = tensors_[i].bytes().count;
    for (int64_t at = 0; at < bytes; at += int64_t{1} << 20) {
      chunk.resize(static_cast<size_t>(std::min(int64_t{1} << 20, bytes - at)));
      checkpoint.read(from, {at}, chunk);
      for_each_part(i, Bytes{at}, std::span<const std::byte>(chunk),
                    [&](TensorId part, int64_t first, std::span<const std::byte> elements) {
                      executor_.write(part, first, elements);
                    });
    }
  }
}

}  // namespace plimsoll
