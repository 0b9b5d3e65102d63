// plimsoll._core: training steps for Python. What torch is, this module does not know: it takes a network's file as text, and
// arrays by the buffer protocol and DLPack.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <regex>

#include "arrays.h"
#include "base/files.h"
#include "fallback.h"
#include "plimsoll/network_file.h"
#include "ranks.h"
#include "report/explain.h"
#include "report/html.h"
#include "report/report.h"
#include "staging.h"
#include "train/network_step.h"
#include "train/resume.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace plimsoll::python {
namespace {

using nlohmann::json;
using ReadOnlyArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using WritableArray = nb::ndarray<nb::c_contig, nb::device::cpu>;
using NumpyArray = nb::ndarray<nb::numpy>;

constexpr size_t kPieceOfState = 16 << 20;

// The library's messages name the command line's flags; here they are arguments.
std::string with_arguments(const std::string& text) {
  static const std::regex kBatch("--batch\\b"), kFlag("--([a-z]+)(?:-([a-z]+))?(?:-([a-z]+))?");
  std::string result;
  const std::string named = std::regex_replace(text, kBatch, "the batch size");
  size_t copied = 0;
  for (std::sregex_iterator it(named.begin(), named.end(), kFlag), end; it != end; ++it) {
    result += named.substr(copied, it->position() - copied) + (*it)[1].str();
    for (size_t part : {2, 3}) result += (*it)[part].matched ? "_" + (*it)[part].str() : "";
    result += "=";
    copied = it->position() + it->length();
  }
  return result + named.substr(copied);
}

// A plan that does not fit, on its way to a Python exception with fields.
struct InfeasibleError : std::exception {
  explicit InfeasibleError(const Infeasible& infeasible)
      : InfeasibleError(infeasible_json(infeasible), with_arguments(to_text(infeasible))) {}
  InfeasibleError(json told_, std::string text_) : told(std::move(told_)), text(std::move(text_)) {}
  const char* what() const noexcept override { return text.c_str(); }
  json told;
  std::string text;
};

std::span<const std::byte> bytes_of(const ReadOnlyArray& array) {
  return {static_cast<const std::byte*>(array.data()), array.nbytes()};
}

NumpyArray to_array(StateTensor tensor) {
  auto held = std::make_unique<StateTensor>(std::move(tensor));
  std::vector<size_t> shape(held->shape.begin(), held->shape.end());
  void* data = held->elements.data();
  const nb::dlpack::dtype type = dlpack_of(held->dtype);
  nb::capsule owner(held.release(), [](void* p) noexcept { delete static_cast<StateTensor*>(p); });
  return NumpyArray(data, shape.size(), shape.data(), owner, nullptr, type);
}

ParameterGroup group_from(const json& j) {
  return {.parameters = {},
          .momentum = j.value("momentum", 0.0),
          .nesterov = j.value("nesterov", false),
          .weight_decay = j.value("weight_decay", 0.0),
          .beta1 = j.value("beta1", 0.9),
          .beta2 = j.value("beta2", 0.999),
          .epsilon = j.value("epsilon", 1e-8),
          .settings = j.value("settings", OptimizerSettings()),
          .behind = j.value("behind", int64_t{0}),
          .mu_product = j.value("mu_product", -1.0)};
}

// The options are a JSON object: sizes as texts ("4GiB"), and groups as PyTorch has them.
TrainOptions options_from(const json& j) {
  TrainOptions options;
  options.model.clear();
  const auto bytes = [&](const char* name) -> std::optional<Bytes> {
    if (!j.contains(name) || j[name].is_null()) return std::nullopt;
    if (j[name].is_number_integer()) return Bytes{j[name].get<int64_t>()};
    return parse_bytes(j[name].get<std::string>());
  };
  options.memory = bytes("memory");
  options.host_memory = bytes("host_memory");
  options.memory_is = j.value("memory_is", "arena") == "process" ? MemoryIs::process : MemoryIs::arena;
  if (j.contains("spill") && !j["spill"].is_null()) {
    TierOptions tiers;
    parse_spill(j["spill"].get<std::string>(), tiers);
    options.spill = tiers.spill;
    options.spill_size = tiers.spill_size;
  }
  options.policy = j.value("policy", options.policy);
  options.placement = j.value("placement", options.placement);
  options.device = j.value("device", options.device);
  options.threads = j.value("threads", 0);
  options.exact = j.value("exact", false);
  options.feeds_ahead = j.value("feed_ahead", false);
  options.costs = j.value("costs", "measured");
  options.seed = j.value("seed", uint64_t{0});
  if (j.contains("zero") && !j["zero"].is_null()) options.zero = j["zero"].get<int>();
  OptimizerOptions& optimizer = options.optimizer;
  const json& o = j.at("optimizer");
  optimizer.name = o.at("name");
  optimizer.clip_grad_norm = o.value("clip_grad_norm", 0.0);
  optimizer.accumulate = o.value("accumulate", int64_t{1});
  optimizer.leave_unreached = true;  // as PyTorch does
  optimizer.ranks = j.value("ranks", 1);
  optimizer.sync_batch_norm = o.value("sync_batch_norm", false);
  for (const json& g : o.at("groups")) {
    optimizer.groups.push_back(group_from(g));
    optimizer.groups.back().parameters = g.at("parameters");
  }
  if (!optimizer.groups.empty()) {  // what holds for all is checked by the first's
    const ParameterGroup& first = optimizer.groups[0];
    optimizer.momentum = first.momentum;
    optimizer.nesterov = first.nesterov;
    optimizer.settings = first.settings;
  }
  return options;
}

Bytes held_by(const json& options) { return {options.value("held_bytes", int64_t{0})}; }

// At least so much is taken, for other networks in the same memory.
Bytes arena_of(const json& options) { return {options.value("arena_bytes", int64_t{0})}; }

Network network_of(const std::string& text, bool training = true) { return network_from_json(text, 0, training); }

void expect_dtype(const TrainingStep& step, const std::string& name, const ReadOnlyArray& array) {
  const Graph& graph = step.program().network.graph;
  const TensorId id = graph.find_tensor(name);
  if (!id.valid() || graph.tensor(id).dtype == dtype_of(array.dtype())) return;
  throw Error(ErrorCode::invalid_input, "input '" + name + "' is of " + std::string(to_string(graph.tensor(id).dtype)));
}

// Of several ranks all call it: where it was another one that has too little, its answer, with its name.
[[noreturn]] void refuse(const Infeasible& infeasible, Communicator* ranks) {
  if (ranks == nullptr) throw InfeasibleError(infeasible);
  const bool mine = infeasible.budget.count > 0;
  const std::string told =
      mine ? json{{"told", infeasible_json(infeasible)}, {"text", to_text(infeasible)}}.dump() : std::string();
  const std::vector<std::string> all = ranks->all_gather(told);
  const auto first = std::ranges::find_if(all, [](const std::string& text) { return !text.empty(); });
  if (first == all.end()) throw Error(ErrorCode::internal, "no rank has too little memory, and yet no plan fits");
  const json answer = json::parse(mine ? told : *first);
  const int rank = static_cast<int>(first - all.begin());
  const std::string whose = mine || rank == 0 ? "" : ranks->name(rank) + ": ";
  throw InfeasibleError(answer.at("told"), whose + with_arguments(answer.at("text")));
}

size_t number_of(const std::variant<size_t, Infeasible>& added, Communicator* ranks) {
  if (const auto* infeasible = std::get_if<Infeasible>(&added)) refuse(*infeasible, ranks);
  return std::get<size_t>(added);
}

NetworkStepListener listener_of(const nb::object& progress) {
  NetworkStepListener listener;
  // Python tells of a signal once.
  listener.stop = [stopped = std::make_shared<std::atomic<bool>>(false)] {
    if (!*stopped) {
      const nb::gil_scoped_acquire gil;
      if (PyErr_CheckSignals() != 0) *stopped = true;
    }
    return stopped->load();
  };
  listener.preparing = [&progress](const std::string& what, int64_t done, int64_t total) {
    const nb::gil_scoped_acquire gil;
    if (!progress.is_none() && PyErr_Occurred() == nullptr) progress(what, done, total);  // else it was interrupted
  };
  return listener;
}

class Step {
 public:
  // `ranks`: those that train together. `agreed`: a step of before, whose plans are taken; then this rank opens it alone.
  Step(const std::string& network, const std::string& options, const nb::object& progress, const nb::object& ranks,
       const std::string& agreed) {
    const json given = json::parse(options);
    TrainOptions parsed = options_from(given);
    parsed.communicator = communicator_ = communicator_of(ranks);
    const std::optional<Agreement> before =
        agreed.empty() ? std::nullopt : std::optional(agreement_from(json::parse(agreed)));
    const NetworkStepListener listener = listener_of(progress);
    const nb::gil_scoped_release released;
    auto result = NetworkStep::open(network_of(network), parsed, listener, held_by(given), arena_of(given),
                                    before ? &*before : nullptr);
    if (!communicator_ && listener.stop()) throw Error(ErrorCode::interrupted, "interrupted before the first step");
    if (const auto* infeasible = std::get_if<Infeasible>(&result))
      refuse(*infeasible, before ? nullptr : communicator_.get());
    step_ = std::get<std::unique_ptr<NetworkStep>>(std::move(result));
  }

  TrainingStep& step() { return step_->step(); }
  const TrainingStep& step() const { return step_->step(); }

  void feed(const std::string& name, const ReadOnlyArray& array) {
    expect_dtype(step(), name, array);
    has_second_buffer() ? step().feed_next(name, bytes_of(array)) : step().feed(name, bytes_of(array));
  }
  std::string device() const { return step_->session().device->info().name; }
  // How an input lies where it is fed to, as shape and dimensions from the outermost to the innermost; None where the host
  // addresses it anyway, or where no array lies so. `evaluation`: its number, here and below.
  std::optional<std::pair<Shape, std::vector<size_t>>> layout_of(const std::string& name,
                                                                 std::optional<size_t> evaluation) {
    if (step_->session().device->host_addressable()) return std::nullopt;
    const Tensor& input = fed(evaluation).input(name);
    if (const auto order = order_of(input)) return std::pair(input.shape, *order);
    return std::nullopt;
  }
  // Pinned memory, for one input at a time.
  NumpyArray staging(size_t bytes) {
    const std::span<std::byte> room = staging_.room(*step_->session().device, bytes);
    return NumpyArray(room.data(), {bytes}, nb::find(this), {}, nb::dtype<uint8_t>());
  }
  // Elements that lie as the input does: copied by the device alone, where they are pinned.
  void feed_as_it_lies(const std::string& name, const ReadOnlyArray& array, std::optional<size_t> evaluation) {
    TrainingStep& to = fed(evaluation);
    const std::span<const std::byte> bytes = bytes_of(array);
    const nb::gil_scoped_release released;
    to.has_second_buffer() ? to.feed_next_as_it_lies(name, bytes) : to.feed_as_it_lies(name, bytes);
  }
  // The address at which the input lies so, for who writes there by himself; 0 where it is in no arena.
  uintptr_t place_of(const std::string& name, std::optional<size_t> evaluation) {
    TrainingStep& to = fed(evaluation);
    const nb::gil_scoped_release released;
    return reinterpret_cast<uintptr_t>(to.has_second_buffer() ? to.next_place_of(name) : to.place_of(name));
  }
  // Then `feed` is for the step after the one that runs.
  bool has_second_buffer() const { return step().has_second_buffer(); }
  void start(const std::vector<double>& learning_rates, int64_t batches) {
    const nb::gil_scoped_release released;
    step().start(learning_rates, batches);
  }
  double finish() {
    const nb::gil_scoped_release released;
    step().finish();
    return step().loss();
  }
  double run(const std::vector<double>& learning_rates, int64_t batches) {
    const nb::gil_scoped_release released;
    step().run(learning_rates, batches);
    return step().loss();
  }
  void set_group(size_t group, const std::string& settings) {
    step().set_group(group, group_from(json::parse(settings)));
  }
  // What the ranks have agreed on, for a step that takes its place.
  std::string agreement() const {
    const Agreement& agreed = step_->agreement();
    return json{{"latency_us", agreed.link.latency_us},
                {"gb_per_s", agreed.link.gb_per_s},
                {"ranks", agreed.link.ranks},
                {"compute_share", agreed.link.compute_share},
                {"plans", agreed.plans}}
        .dump();
  }
  static Agreement agreement_from(const json& j) {
    return {.link = {.ranks = j.at("ranks"),
                     .latency_us = j.at("latency_us"),
                     .gb_per_s = j.at("gb_per_s"),
                     .compute_share = j.at("compute_share")},
            .plans = j.at("plans")};
  }
  // `agreed`: a shape of the step whose agreement this one has.
  size_t add_shape(const std::string& network, const nb::object& progress, std::optional<size_t> agreed) {
    const NetworkStepListener listener = listener_of(progress);
    const nb::gil_scoped_release released;
    return number_of(step_->add_shape(network_from_json(network, 0, true), listener, agreed),
                     agreed ? nullptr : communicator_.get());
  }
  void forget_shape(size_t number) { step_->forget_shape(number); }
  void forget_evaluation(size_t number) { step_->forget_evaluation(number); }
  void use(size_t shape) { step_->use(shape); }
  int64_t budget_bytes() const { return step_->budget().count; }
  int64_t arena_bytes() const { return step().executor().arena_bytes().count; }
  size_t add_evaluation(const std::string& network) {
    const nb::gil_scoped_release released;
    return number_of(step_->add_evaluation(network_from_json(network, 0, false)),
                     divides_parameters() ? communicator_.get() : nullptr);
  }
  void feed_evaluation(size_t number, const std::string& name, const ReadOnlyArray& array) {
    expect_dtype(step_->evaluation(number), name, array);
    step_->evaluation(number).feed(name, bytes_of(array));
  }
  double evaluate(size_t number) {
    const nb::gil_scoped_release released;
    step_->evaluation(number).run(0);
    return step_->evaluation(number).loss();
  }
  NumpyArray evaluation_output(size_t number, const std::string& name) {
    return to_array(step_->evaluation(number).output(name));
  }
  // Of a divided one, by all ranks together.
  NumpyArray state(const std::string& name) const {
    StateTensor state;
    {
      const nb::gil_scoped_release released;
      state = step().state(name);
    }
    return to_array(std::move(state));
  }
  // The same into an array of the caller's, some of it at a time: a large state is nowhere a second time.
  void read_state(const std::string& name, const WritableArray& array) const {
    const std::span<std::byte> bytes(static_cast<std::byte*>(array.data()), array.nbytes());
    const auto& states = step().states();
    const auto state = std::ranges::find(states, name, &CheckpointTensor::name);
    if (state != states.end() && state->bytes().count != static_cast<int64_t>(bytes.size()))
      throw Error(ErrorCode::invalid_input, "state '" + name + "' has " + std::to_string(state->bytes().count) +
                                                " bytes, the array " + std::to_string(bytes.size()));
    const nb::gil_scoped_release released;
    for (size_t at = 0; at < bytes.size(); at += kPieceOfState)
      step().read_state(name, {static_cast<int64_t>(at)},
                        bytes.subspan(at, std::min(kPieceOfState, bytes.size() - at)));
  }
  // Names of the states that the ranks have divided among them.
  std::vector<std::string> divided() const {
    std::vector<std::string> names;
    if (!communicator_) return names;
    const Graph& graph = step_->first().program().network.graph;
    for (const WholeState& whole : whole_states(graph)) {
      if (std::ranges::any_of(whole.parts, [&](TensorId part) { return graph.tensor(part).shard.is_shard(); }))
        names.push_back(whole.name);
    }
    return names;
  }
  bool divides_parameters() const {
    return communicator_ && step_->first().program().sharding.stage == kMostShardingStage;
  }
  void set_state(const std::string& name, const ReadOnlyArray& array) { step().set_state(name, {0}, bytes_of(array)); }
  // The state itself, or None where it is no plain array.
  std::optional<NumpyArray> state_view(const std::string& name) {
    const std::span<std::byte> bytes = step().state_bytes(name);
    if (bytes.empty()) return std::nullopt;
    const auto& states = step().states();
    const CheckpointTensor& state = *std::ranges::find(states, name, &CheckpointTensor::name);
    const std::vector<size_t> shape(state.shape.begin(), state.shape.end());
    return NumpyArray(bytes.data(), shape.size(), shape.data(), nb::find(this), nullptr, dlpack_of(state.dtype));
  }
  NumpyArray output(const std::string& name) const { return to_array(step().output(name)); }
  std::vector<std::string> states() const {
    std::vector<std::string> names;
    for (const CheckpointTensor& tensor : step().states()) names.push_back(tensor.name);
    return names;
  }
  void start_at(int64_t number, uint64_t seed) { step().start_at(number, seed); }
  int64_t number() const { return step().number(); }
  int64_t accumulated() const { return step().accumulated(); }
  std::optional<double> gradient_norm() const { return step().gradient_norm(); }
  std::string plan() const {
    json told = plan_json(step_->first().program(), std::nullopt);
    told["measured_peak_bytes"] = step_->measured_peak().count;
    return told.dump();
  }
  void report(const std::string& file, const std::string& model, int64_t batch) const {
    write_file_atomically(file,
                          html_report(step_->first().program(), {.model = model,
                                                                 .batch = batch,
                                                                 .device = step_->session().device->info().description,
                                                                 .minimum = std::nullopt,
                                                                 .reason = {}}));
  }
  std::string explain(const std::string& name) const {
    return plimsoll::explain(step_->first().program(), *step_->session().device, step_->session().costs, name);
  }
  std::string weights_sha256() const { return step().weights_sha256(); }

 private:
  TrainingStep& fed(std::optional<size_t> evaluation) { return evaluation ? step_->evaluation(*evaluation) : step(); }

  std::shared_ptr<Communicator> communicator_;
  std::unique_ptr<NetworkStep> step_;
  Staging staging_;  // of its device
};

std::string fits(const std::string& network, const std::string& options) {
  const json given = json::parse(options);
  const TrainOptions parsed = options_from(given);
  const nb::gil_scoped_release released;
  const auto result = plan_network(network_of(network), parsed, held_by(given));
  if (const auto* infeasible = std::get_if<Infeasible>(&result)) return infeasible_json(*infeasible).dump();
  const Program& program = std::get<Program>(result);
  return plan_json(program, program.minimum).dump();
}

}  // namespace
}  // namespace plimsoll::python

NB_MODULE(_core, m) {
  using namespace plimsoll;
  using plimsoll::python::Step;
  nb::set_leak_warnings(false);  // a module's tensors may outlive the interpreter's last look
  static nb::object infeasible_type, error_type, rank_failed_type;
  error_type = nb::exception<Error>(m, "Error", PyExc_RuntimeError);
  rank_failed_type = nb::steal(PyErr_NewException("plimsoll._core.RankFailed", error_type.ptr(), nullptr));
  m.attr("RankFailed") = rank_failed_type;
  // Raised with one argument more than the text: the answer as JSON, for plimsoll.Infeasible.
  infeasible_type = nb::steal(PyErr_NewException("plimsoll._core.InfeasibleAnswer", PyExc_MemoryError, nullptr));
  m.attr("InfeasibleAnswer") = infeasible_type;
  nb::register_exception_translator(
      [](const std::exception_ptr& p, void*) {
        try {
          std::rethrow_exception(p);
        } catch (const plimsoll::python::InfeasibleError& error) {
          PyErr_SetObject(infeasible_type.ptr(), nb::make_tuple(error.text, error.told.dump()).ptr());
        } catch (const RankFailed& error) {
          PyErr_SetString(rank_failed_type.ptr(), plimsoll::python::with_arguments(error.what()).c_str());
        } catch (const Error& error) {
          if (PyErr_Occurred() != nullptr) return;  // Ctrl-C ended it
          PyErr_SetString(error.code() == ErrorCode::interrupted ? PyExc_KeyboardInterrupt : error_type.ptr(),
                          plimsoll::python::with_arguments(error.what()).c_str());
        }
      },
      nullptr);
  nb::class_<Step>(m, "Step")
      .def(nb::init<const std::string&, const std::string&, const nb::object&, const nb::object&, const std::string&>(),
           "network"_a, "options"_a, "progress"_a.none(), "ranks"_a.none() = nb::none(), "agreed"_a = "")
      .def_prop_ro("agreement", &Step::agreement)
      .def_prop_ro("divided", &Step::divided)
      .def_prop_ro("divides_parameters", &Step::divides_parameters)
      .def("feed", &Step::feed)
      .def_prop_ro("device", &Step::device)
      .def("layout_of", &Step::layout_of, "name"_a, "evaluation"_a = nb::none())
      .def("staging", &Step::staging)
      .def("feed_as_it_lies", &Step::feed_as_it_lies, "name"_a, "array"_a, "evaluation"_a = nb::none())
      .def("place_of", &Step::place_of, "name"_a, "evaluation"_a = nb::none())
      .def_prop_ro("has_second_buffer", &Step::has_second_buffer)
      .def("start", &Step::start, "learning_rates"_a, "batches"_a = 0)
      .def("finish", &Step::finish)
      .def("run", &Step::run, "learning_rates"_a, "batches"_a = 0)
      .def("set_group", &Step::set_group)
      .def("add_shape", &Step::add_shape, "network"_a, "progress"_a.none(), "agreed"_a = nb::none())
      .def("forget_shape", &Step::forget_shape)
      .def("forget_evaluation", &Step::forget_evaluation)
      .def("use", &Step::use)
      .def("add_evaluation", &Step::add_evaluation)
      .def("feed_evaluation", &Step::feed_evaluation)
      .def("evaluate", &Step::evaluate)
      .def("evaluation_output", &Step::evaluation_output)
      .def("state", &Step::state)
      .def("read_state", &Step::read_state)
      .def("set_state", &Step::set_state)
      .def("state_view", &Step::state_view)
      .def("output", &Step::output)
      .def_prop_ro("states", &Step::states)
      .def("start_at", &Step::start_at)
      .def_prop_ro("number", &Step::number)
      .def_prop_ro("arena_bytes", &Step::arena_bytes)
      .def_prop_ro("budget_bytes", &Step::budget_bytes)
      .def_prop_ro("accumulated", &Step::accumulated)
      .def_prop_ro("gradient_norm", &Step::gradient_norm)
      .def("plan", &Step::plan)
      .def("report", &Step::report)
      .def("explain", &Step::explain)
      .def("weights_sha256", &Step::weights_sha256);
  plimsoll::python::bind_ranks(m);
  m.def("fits", &plimsoll::python::fits, "network"_a, "options"_a);
  m.def("register_fallback", &plimsoll::python::register_fallback, "call"_a);
}
