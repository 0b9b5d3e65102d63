#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <tuple>

#include "autodiff/optimizers.h"
#include "autodiff/update_rules.h"
#include "base/files.h"
#include "base/names.h"
#include "base/texts.h"
#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/interrupts.h"
#include "papers/layer_model.h"
#include "plimsoll/remote_memory.h"
#include "plimsoll/verify.h"
#include "train/process_memory.h"
#include "train/session.h"
#include "train/training_data.h"

namespace plimsoll::cli {

int exit_code(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_input:
    case ErrorCode::unsupported:
    case ErrorCode::corrupt_file: return kBadInput;
    case ErrorCode::infeasible: return kInfeasible;
    case ErrorCode::interrupted: return kInterrupted;
    case ErrorCode::device_failure:
    case ErrorCode::internal: return kFailure;
  }
  return kFailure;
}

void CommonFlags::add_to(CLI::App& command, bool model_required) {
  auto* model_option = command
                           .add_option("MODEL", model,
                                       "Network, with options in its name: resnet50, resnet:6-32-788-6, "
                                       "densenet:depth=40,growth=40. `plimsoll models` lists them")
                           ->check(not_empty());
  command
      .add_option_function<std::string>(
          "--graph", [this](const std::string& file) { model = graph_name(file); },
          "Network from a file instead of MODEL, as `plimsoll.export` of the Python package writes it; with --weights FILE "
          "it is trained from those weights")
      ->type_name("FILE")
      ->check(not_empty())
      ->excludes(model_option);
  if (model_required) {
    command.parse_complete_callback([this] {
      if (model.empty()) throw CLI::RequiredError("MODEL (or --graph FILE)");
    });
  }
  command.add_option("-b,--batch,--batch-size", batch, "Images a step")->check(whole_number(1, 1 << 20));
  command
      .add_option("--memory", memory, "Bytes that a training step may use, parameters included: 512MiB, 1.5GiB, 800MB")
      ->type_name("SIZE");
  add_memory_is_to(command);
  command
      .add_option(
          "--host-memory", host_memory,
          "Memory beside --memory that tensors may be moved to while they wait: 4GiB (default: none; of a simulated device, as much as is wanted)")
      ->type_name("SIZE");
  command
      .add_option(
          "--spill", spill,
          "Folder on disk that tensors may be moved to while they wait, and how much of it (default: what is free, less a tenth)")
      ->type_name("DIR[:SIZE]");
  command
      .add_option(
          "--peer", peer,
          "Another GPU whose memory tensors may be moved to while they wait, and how much of it (default: what is free there): cuda:1=8GiB")
      ->type_name("DEVICE[=SIZE]");
  command
      .add_option(
          "--remote-memory", remote_memory,
          "Memory of other processes (plimsoll serve-memory, under mpirun) that tensors may be moved to while they "
          "wait: 16GiB; each rank takes so much")
      ->type_name("SIZE");
  command.add_option("--policy", policy, "How memory is planned; `plimsoll policies` lists them")
      ->capture_default_str();
  command.add_option("--placement", placement, "How tensors get their offsets: offline, first_fit, best_fit, gtbm")
      ->capture_default_str();
  command.add_option("--device", device, "Where it runs; `plimsoll devices` lists them")->capture_default_str();
  command.add_option("--threads", threads, "Threads to compute with (default: all cores)")
      ->check(whole_number(1, 4096));
  command
      .add_option("--image-size", image_size, "Height and width of the images (default: the data's, or the network's)")
      ->check(whole_number(1, 1 << 16));
  command.add_option("--num-classes", classes, "Classes (default: the data's, or the network's)")
      ->check(whole_number(1, 1 << 24));
  command.add_flag(
      "--exact", exact,
      "Choose kernels by a fixed rule, so that neither the budget nor measured times change a bit of the "
      "result; the threads of an op (--intra-op, else --threads) still do, since sums are divided among them");
  command.add_option("--json", json, "Write JSON, one object a line, to FILE, or to standard output for '-'")
      ->type_name("FILE")
      ->check(not_empty());
}

void CommonFlags::add_memory_is_to(CLI::App& command) {
  command
      .add_option("--memory-is", memory_is,
                  "What --memory is of: arena, which is planned to the byte and holds all tensors and workspaces; "
                  "process: all that the process takes, libraries, batches and --host-memory included")
      ->type_name("arena|process")
      ->capture_default_str()
      ->check(CLI::IsMember({"arena", "process"}));
}

void CommonFlags::add_layer_model_to(CLI::App& command) {
  command
      .add_option(
          "--layer-model", layer_model,
          "native: the network's own ops; paper: the layer model of the papers' tables, without weights and inputs")
      ->capture_default_str();
}

bool CommonFlags::has_paper_layers() const {
  if (layer_model == "paper") return true;
  if (layer_model == "native") return false;
  throw Error(ErrorCode::invalid_input, unknown_name("--layer-model", layer_model, {"native", "paper"}));
}

void CommonFlags::add_optimizer_to(CLI::App& command) {
  command.add_option("--optimizer,--opt", optimizer,
                     fmt::format("{} (default: sgd, and adamw for transformers)", fmt::join(optimizer_names(), ", ")));
  command
      .add_option("--momentum", momentum, "Momentum of sgd (default: 0.9), rmsprop and fairseq_adafactor (default: 0)")
      ->check(number(0, 1));
  command.add_option("--weight-decay", weight_decay, "L2 penalty (adamw: decoupled)")
      ->capture_default_str()
      ->check(number());
  command.add_flag("--nesterov", nesterov, "Nesterov momentum for sgd");
  for (const SettingOfOptimizers& setting : settings_of_optimizers()) {
    std::string flag = fmt::format("--{}", setting.name);
    std::ranges::replace(flag, '_', '-');
    const std::string name(setting.name), what(setting.what);
    if (command.get_option_no_throw(flag) != nullptr) continue;  // it has a field of its own
    if (setting.is_form) {
      command.add_flag_callback(
          flag, [this, name] { settings[name] = 1; }, what);
    } else {
      command
          .add_option_function<double>(
              flag, [this, name](double value) { settings[name] = value; }, what)
          ->type_name("NUMBER")
          ->check(number(setting.least, setting.most));
    }
  }
  command
      .add_option("--freeze", freeze,
                  "Leave parameters of these names as they are, 'layer1.*' or 'conv1.weight'; may be given again")
      ->type_name("PATTERN")
      ->allow_extra_args(false)
      ->check(not_empty());
  command
      .add_option("--clip-grad-norm", clip_grad_norm,
                  "Scale the gradients down where the norm of all of them together is above this")
      ->check(positive_number());
  command
      .add_option(
          "--accumulate,--grad-accum-steps", accumulate,
          "Batches of a step: it updates once, by the mean of their gradients, as a batch so many times as "
          "large would, but for BatchNorm's statistics, which are of each batch. Steps, --steps, learning rates "
          "and --checkpoint-every count updates; the last step of an epoch takes the batches that are left")
      ->type_name("N")
      ->capture_default_str()
      ->check(whole_number(1, kMostAccumulated));
  command.add_flag("--sync-batch-norm", sync_batch_norm,
                   "With several ranks: BatchNorm takes mean and variance of the whole batch, as "
                   "torch.nn.SyncBatchNorm, not of each rank's part; the ranks wait for each other at every layer");
}

void CommonFlags::add_zero_to(CLI::App& command) {
  command
      .add_option("--zero", zero_name,
                  "What several ranks divide among them, as ZeRO's stages: 0 nothing; 1 optimizer states; 2 sums of "
                  "gradients (--accumulate), too; 3 parameters, too. auto: what fits and is "
                  "predicted fastest")
      ->type_name("auto|0|1|2|3")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "0", "1", "2", "3"}));
}

std::optional<int> CommonFlags::zero() const {
  return zero_name == "auto" ? std::nullopt : std::optional(std::stoi(zero_name));
}

void CommonFlags::add_sharing_to(CLI::App& command) {
  command
      .add_option("--inter-op", inter_op,
                  "Ops that run at once, at most; auto: chosen by measured times, with the threads of each op")
      ->type_name("N|auto")
      ->capture_default_str()
      ->check(count_or_auto(kMostThreads));
  command.add_option("--intra-op", intra_op, "Threads of every op (auto: all of --threads, divided by --inter-op)")
      ->type_name("N|auto")
      ->capture_default_str()
      ->check(count_or_auto(kMostThreads));
  command
      .add_option(
          "--strategies", strategies,
          "What --inter-op auto may do: 1 a thread count for each op; 2 one for all ops of a type; 3 ops side by side; 4 small ops "
          "on the cores' second hardware threads (default: all that the machine can: 1,2,3,4)")
      ->type_name("LIST");
  command
      .add_option(
          "--climb-interval", climb_interval,
          "Between the thread counts that --inter-op auto measures (default: a sixteenth of the cores, at least 1)")
      ->type_name("N")
      ->check(whole_number(1, kMostThreads));
}

CoreRequest CommonFlags::core_request() const {
  auto count = [](const std::string& text) { return text == "auto" ? 0 : std::stoi(text); };
  CoreRequest options{.threads = threads,
                      .inter_op = count(inter_op),
                      .intra_op = count(intra_op),
                      .strategies = {},
                      .climb_interval = climb_interval};
  if (!strategies) return options;
  try {
    options.strategies = strategies_named(*strategies);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("--strategies: {}", error.what()));
  }
  return options;
}

OptimizerOptions CommonFlags::optimizer_options() const {
  OptimizerOptions options{.name = optimizer.empty() ? usual_optimizer(model) : optimizer,
                           .nesterov = nesterov,
                           .weight_decay = weight_decay,
                           .freeze = freeze,
                           .clip_grad_norm = clip_grad_norm,
                           .accumulate = accumulate,
                           .sync_batch_norm = sync_batch_norm};
  set_optimizer(options);
  return options;
}

void CommonFlags::set_optimizer(OptimizerOptions& options) const {
  const bool is_adam = options.name == "adam" || options.name == "adamw";
  if (momentum && options.name == "sgd") {
    options.momentum = *momentum;
  } else if (momentum) {
    options.settings["momentum"] = *momentum;
  }
  for (const auto& [name, value] : settings) {
    if (is_adam && name == "beta1") {
      options.beta1 = value;
    } else if (is_adam && name == "beta2") {
      options.beta2 = value;
    } else if (is_adam && name == "eps") {
      options.epsilon = value;
    } else {
      options.settings[name] = value;
    }
  }
}

void CommonFlags::check(bool from_file) const {
  check_choices(policy, placement);
  if (!from_file || !optimizer.empty()) plimsoll::check(optimizer_options());  // else the file says which it is
  if (has_paper_layers() && accumulate > 1) {
    throw Error(ErrorCode::invalid_input,
                "--accumulate: the papers' layer model knows no accumulation; leave out --layer-model paper");
  }
  core_request();
  if (!takes_share || !is_share()) memory_bytes();
  if (is_share() && means_process())
    throw Error(ErrorCode::invalid_input, "--memory: a share is of the arena; leave out --memory-is process");
  if (means_process() && !from_file) check_memory_is_process(device, memory.has_value());
  if (means_process() && has_paper_layers()) {
    throw Error(ErrorCode::invalid_input,
                "--memory-is process: the papers' layer model is planned, never run; leave out --layer-model paper");
  }
  tiers();
  workspace_bytes();
  workspace_total_bytes();
  batch_sizes();
  if (image_size > 0 && !model.empty() && token_task(model).tokens) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("--image-size: {} takes no images; its option context says how long a window is", model));
  }
  if (classes > 0 && !model.empty() && token_task(model).tokens) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("--num-classes: {} names tokens; its option vocab says how many there are", model));
  }
}

namespace {

// "0", "0MiB": no workspace is a wish, no memory a slip.
bool is_nothing(const std::string& text) {
  try {
    return parse_bytes(text).count == 0;
  } catch (const Error&) {
    return false;
  }
}

constexpr Bytes kTensor = 64_B;  // no tensor in the arena takes less
constexpr Bytes kSlot = 4_KiB;   // and in a tier

// `least`: what is less and has no unit is a slip.
std::optional<Bytes> bytes_of(std::string_view flag, const std::optional<std::string>& text, Bytes least = kTensor) {
  if (!text) return std::nullopt;
  try {
    const Bytes bytes = parse_bytes(*text);
    if (bytes.count <= 0) throw Error(ErrorCode::invalid_input, fmt::format("'{}' is no memory at all", *text));
    const bool has_unit = std::isdigit(static_cast<unsigned char>(text->back())) == 0 && text->back() != '.';
    if (!has_unit && bytes < least) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("'{0}' without a unit is {1}, too little for any tensor; say {0}GiB or {0}MiB", *text,
                              bytes.count == 1 ? "1 byte" : fmt::format("{} bytes", bytes.count)));
    }
    return bytes;
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", flag, error.what()));
  }
}

}  // namespace

void CommonFlags::add_workspace_to(CLI::App& command) {
  command
      .add_option(
          "--workspace", workspace,
          "The most workspace that any op may use: 64MiB (default: what is free at its step). Where no kernels keep it, there is no plan")
      ->type_name("SIZE");
  command
      .add_option("--workspace-total", workspace_total,
                  "The most that the workspaces of all convolutions and fully connected layers add up to")
      ->type_name("SIZE");
  command.add_option(
      "--batch-sizes", batch_sizes_name,
      "Parts that an op's batch may be divided into: undivided, powerOfTwo, all (default: powerOfTwo, where measured or simulated)");
}

std::optional<Bytes> CommonFlags::workspace_bytes() const {
  if (workspace && is_nothing(*workspace)) return 0_B;
  return bytes_of("--workspace", workspace);
}
std::optional<Bytes> CommonFlags::workspace_total_bytes() const {
  if (workspace_total && is_nothing(*workspace_total)) return 0_B;
  return bytes_of("--workspace-total", workspace_total);
}
std::optional<BatchSizes> CommonFlags::batch_sizes() const {
  if (!batch_sizes_name) return std::nullopt;
  try {
    return batch_sizes_named(*batch_sizes_name);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("--batch-sizes: {}", error.what()));
  }
}

std::optional<Bytes> CommonFlags::memory_bytes() const {
  if (!is_share()) return bytes_of("--memory", memory);
  throw Error(ErrorCode::invalid_input,
              fmt::format("--memory {}: a share is taken by `plan`, and by `compare` with a --graph of costs only; say "
                          "how many bytes, as in 512MiB",
                          *memory));
}

Bytes CommonFlags::share_of(Bytes keeping_everything) const {
  double percent = 0;
  const char* const end = memory->data() + memory->size() - 1;
  const auto [stop, error] = std::from_chars(memory->data(), end, percent);
  if (error != std::errc() || stop != end || !(percent > 0 && percent <= 1000)) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("--memory: '{}' is no share: more than 0 % and at most 1000 %, as in 80%", *memory));
  }
  return std::max(Bytes{static_cast<int64_t>(static_cast<double>(keeping_everything.count) * percent / 100)}, 1_B);
}

Bytes CommonFlags::budget(const Device& device) const {
  if (takes_share && is_share()) return {INT64_MAX};  // until what it is a share of is known
  return memory_bytes().value_or(device.info().own_memory ? device.info().memory_available : Bytes{INT64_MAX});
}

ModelInput CommonFlags::input(int64_t of) const {
  return {.batch = of > 0      ? of
                   : batch > 0 ? batch
                               : usual_input(model).batch,
          .height = image_size,
          .width = image_size,
          .classes = classes};
}

std::variant<Program, Infeasible> compile_step(const CommonFlags& flags, const Network& network, const Session& session,
                                               const CompileOptions& options, bool states) {
  return flags.has_paper_layers()
             ? compile_layers(network, {.weights = states, .input = states}, *session.device, session.costs, options)
             : compile_training(network, *session.device, session.costs, options);
}

CompileOptions compile_options(const CommonFlags& flags, const Session& session,
                               const std::optional<ProcessMemory>& process) {
  CompileOptions options{.policy = flags.policy,
                         .placement = flags.placement,
                         .tiers = session.tiers,
                         .optimizer = flags.optimizer_options(),
                         .exact = flags.exact,
                         .feeding = session.feeding};
  options.memory = process ? arena_within(*process, flags.memory_bytes().value()) : flags.budget(*session.device);
  options.workspace = flags.workspace_bytes().value_or(Bytes{INT64_MAX});
  options.workspace_total = flags.workspace_total_bytes();
  options.batch_sizes = flags.batch_sizes();
  options.zero = flags.zero();
  return options;
}

namespace {

// Problems whose unit of memory is not the byte.
void complain_of_rounding(const Graph& graph) {
  constexpr double kMuch = 1.01;
  double stated = 0, rounded = 0;
  for (const Tensor& tensor : graph.tensors()) {
    stated += static_cast<double>(tensor.bytes().count);
    rounded += static_cast<double>(align_up(tensor.bytes(), kStayAlignment).count);
  }
  if (rounded <= kMuch * stated) return;
  complain(
      fmt::format("a plan rounds sizes up to {} bytes, which makes them {:.0f} % larger here; where the unit of the "
                  "file is not the byte, multiply its sizes",
                  kStayAlignment, 100 * (rounded / stated - 1)));
}

}  // namespace

CostGraph open_cost_graph(const CommonFlags& flags, int64_t batch) {
  const CommonFlags none;
  const std::pair<std::string_view, bool> unfit[] = {{"--memory-is process", flags.means_process()},
                                                     {"--layer-model", flags.layer_model != none.layer_model},
                                                     {"--optimizer", !flags.optimizer.empty()},
                                                     {"--momentum", flags.momentum.has_value()},
                                                     {"--optimizer's settings", !flags.settings.empty()},
                                                     {"--weight-decay", flags.weight_decay != 0},
                                                     {"--nesterov", flags.nesterov},
                                                     {"--freeze", !flags.freeze.empty()},
                                                     {"--clip-grad-norm", flags.clip_grad_norm != 0},
                                                     {"--accumulate", flags.accumulate != 1},
                                                     {"--sync-batch-norm", flags.sync_batch_norm},
                                                     {"--ranks", flags.ranks != 1},
                                                     {"--zero", flags.zero_name != none.zero_name},
                                                     {"--threads", flags.threads != 0},
                                                     {"--inter-op", flags.inter_op != none.inter_op},
                                                     {"--intra-op", flags.intra_op != none.intra_op},
                                                     {"--strategies", flags.strategies.has_value()},
                                                     {"--image-size", flags.image_size != 0},
                                                     {"--num-classes", flags.classes != 0},
                                                     {"--workspace", flags.workspace || flags.workspace_total},
                                                     {"--batch-sizes", flags.batch_sizes_name.has_value()},
                                                     {"--exact", flags.exact}};
  for (const auto& [flag, given] : unfit) {
    if (!given) continue;
    throw Error(ErrorCode::invalid_input,
                fmt::format("{}: '{}' holds a graph of costs only, in which there is nothing to choose but the plan; "
                            "leave the flag out",
                            flag, *network_file_of(flags.model)));
  }
  check_choices(flags.policy, flags.placement);
  if (!flags.is_share()) flags.memory_bytes();
  flags.tiers();
  CostGraph costs = read_cost_graph(*network_file_of(flags.model), batch);
  if (flags.is_share()) flags.share_of({});
  complain_of_rounding(costs.graph);
  return costs;
}

Session open_costs_session(const CommonFlags& flags, const CostGraph& costs) {
  const TierOptions tiers = flags.tiers();
  Session session;
  if (tiers.host_memory || tiers.spill || tiers.peer || tiers.remote_memory) {
    session = open_session(flags.device, flags.threads, tiers);  // which knows how fast they are
  } else {
    session.device = open_device(flags.device);
    session.tiers = session.device->info().tiers;
  }
  session.costs = costs_of(costs);
  return session;
}

CompileOptions compile_options(const CommonFlags& flags, const Session& session, const CostGraph& costs) {
  return {.memory = flags.is_share() ? flags.share_of(keeping_everything(costs))
                                     : flags.memory_bytes().value_or(Bytes{INT64_MAX}),
          .policy = flags.policy,
          .placement = flags.placement,
          .tiers = session.tiers,
          .as_listed = true,
          .name_minimum = true};
}

ProcessMemory process_of(const CommonFlags& flags, const Network& network, const std::string& data) {
  const CoreOptions cores = core_options(flags.device, flags.core_request(), flags.exact);
  ProcessUse use{.memory_is = flags.means_process() ? MemoryIs::process : MemoryIs::arena,
                 .threads = std::max(cores.cores, cores.intra_op),
                 .ranks = flags.ranks,
                 .tiers = flags.tiers()};
  if (!data.empty()) {
    const auto set = open_training_data({.model = flags.model, .data = data, .image_size = flags.image_size});
    use.data = data_bytes(*set);
    use.decoders = data.starts_with("images") ? use.workers : 0;
  }
  return process_memory(network, use);
}

std::optional<ProcessMemory> stated_process(const CommonFlags& flags, const Network& network, const std::string& data) {
  if (!flags.means_process()) return std::nullopt;
  return process_of(flags, network, data);
}

Bytes probing_room(const CommonFlags& flags) {
  if (!flags.means_process()) return {INT64_MAX};
  return std::max(flags.memory_bytes().value() - program_memory(), 0_B);
}

std::variant<Program, Infeasible> within_process(std::variant<Program, Infeasible> result, const CommonFlags& flags,
                                                 const std::optional<ProcessMemory>& process) {
  if (!process) return result;
  const Bytes stated = flags.memory_bytes().value();
  if (auto* infeasible = std::get_if<Infeasible>(&result)) return of_process(std::move(*infeasible), *process, stated);
  if (auto refused = refused_by_planning(std::get<Program>(result), *process, stated)) return std::move(*refused);
  return result;
}

void add_process(nlohmann::json& object, const ProcessMemory& process, const Plan& plan, bool stated) {
  const ProcessMemory memory = with_plan(process, plan);
  nlohmann::json kinds;
  for (const auto& [what, bytes] : memory.kinds()) kinds[std::string(what)] = bytes.count;
  object["memory_is"] = stated ? "process" : "arena";
  object["process_bytes"] = memory.with(plan.arena).count;
  object["beside_arena_bytes"] = memory.beside().count;
  object["beside_arena"] = std::move(kinds);
  object["before_first_step_bytes"] = memory.before().count;
}

std::string process_text(const ProcessMemory& process, const Plan& plan, bool stated) {
  const ProcessMemory memory = with_plan(process, plan);
  std::string text = fmt::format("  {:<10} at most {}: beside the arena {}", "process",
                                 to_string(memory.with(plan.arena)), to_text(memory));
  if (memory.before() > plan.arena + memory.beside())
    text += fmt::format("; before the first step {}", to_string(memory.before()));
  if (plan.budget.count != INT64_MAX && plan.budget > plan.arena) {
    text += fmt::format("; where kernels must be timed first, up to {} for that",
                        to_string(memory.with(stated ? plan.budget : std::max(plan.budget, kMeasuringRoom))));
  }
  return text + "\n";
}

TierOptions CommonFlags::tiers() const {
  TierOptions options{.host_memory = bytes_of("--host-memory", host_memory, kSlot),
                      .spill = {},
                      .spill_size = {},
                      .peer = {},
                      .peer_size = {},
                      .remote_memory = bytes_of("--remote-memory", remote_memory, kLeastRemoteMemory)};
  if (options.remote_memory && *options.remote_memory < kLeastRemoteMemory) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("--remote-memory: {} are too few for a tier: {} at least",
                            to_string(*options.remote_memory), to_string(kLeastRemoteMemory)));
  }
  if (spill) parse_spill(*spill, options);
  if (peer) parse_peer(*peer, options);
  return options;
}

JsonLines::JsonLines(const std::string& target) {
  if (target.empty()) return;
  if (target == "-") {
    file_ = stdout;
    to_stdout_ = true;
    return;
  }
  // What is there stays until there is something to write: a command that is refused has no result.
  const int file = ::open(target.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
  file_ = file < 0 ? nullptr : ::fdopen(file, "w");
  if (!file_)
    throw Error(ErrorCode::invalid_input, fmt::format("--json: cannot write '{}': {}", target, std::strerror(errno)));
}

JsonLines::~JsonLines() { stop(); }

void JsonLines::stop() {
  if (file_ && !to_stdout_) std::fclose(file_);
  file_ = nullptr;
}

void JsonLines::write(const nlohmann::json& object) {
  if (!file_) return;
  const std::string line = object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (!to_stdout_ && !begun_) std::ignore = ::ftruncate(::fileno(file_), 0);  // a pipe or a device has no length
  begun_ = true;
  errno = 0;
  std::fwrite(line.data(), 1, line.size(), file_);
  if (std::fflush(file_) != 0 || std::ferror(file_) != 0) {
    if (to_stdout_ && errno == EPIPE) return note_output_closed();
    throw Error(ErrorCode::device_failure, fmt::format("--json: writing failed: {}", std::strerror(errno)));
  }
}

void check_is_no_stream(std::string_view flag, const std::string& file) {
  if (file != "-") return;
  throw Error(ErrorCode::invalid_input,
              fmt::format("{} -: standard output takes --json only; a file of that name is ./-", flag));
}

void check_apart(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs) {
  namespace fs = std::filesystem;
  const auto same = [](const std::string& a, const std::string& b) {
    if (a.empty() || b.empty() || a == "-" || b == "-") return false;
    std::error_code error;
    if (fs::equivalent(a, b, error) && !error) return !fs::is_character_file(a, error);
    const auto canonical = [&](const std::string& file) { return fs::weakly_canonical(fs::absolute(file), error); };
    return canonical(a) == canonical(b) && !error && !fs::exists(a, error);
  };
  for (size_t i = 0; i < outputs.size(); ++i) {
    for (size_t j = i + 1; j < outputs.size(); ++j) {
      if (!same(outputs[i].file, outputs[j].file)) continue;
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{} and {} name the same file '{}'", outputs[i].flag, outputs[j].flag, outputs[j].file));
    }
    for (const NamedFile& input : inputs) {
      if (!same(outputs[i].file, input.file)) continue;
      throw Error(ErrorCode::invalid_input, fmt::format("{} {}: would be written over what {} reads", outputs[i].flag,
                                                        outputs[i].file, input.flag));
    }
  }
}

NamedFile file_read_by(std::string_view flag, std::string_view value) {
  const size_t kind = value.find(':');
  return {flag, kind == std::string_view::npos ? std::string() : std::string(value.substr(kind + 1))};
}

void check_writable(std::string_view flag, const std::string& file) {
  if (file.empty()) return;
  check_is_no_stream(flag, file);
  namespace fs = std::filesystem;
  const fs::path path(file), folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  std::error_code ignored;
  std::string problem;
  if (fs::is_directory(path, ignored))
    problem = "it is a folder";
  else if (!fs::is_directory(folder, ignored))
    problem = fmt::format("there is no folder '{}'", folder.string());
  if (!problem.empty())
    throw Error(ErrorCode::invalid_input, fmt::format("{}: cannot write '{}': {}", flag, file, problem));
  try {
    const AtomicFile begun(path);  // only this tells; what was begun is removed, and an old file stays
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", flag, error.what()));
  }
}

namespace {

// Words and messages that are longer than any of ours were written by somebody else; their beginning tells. What would
// steer a terminal is no text.
std::string readable(std::string_view text) {
  constexpr size_t kLongestWord = 400, kLongestText = 4000;
  std::string shorter;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of(" \n", begin), text.size());
    shorter += cut_text(text.substr(begin, end - begin), kLongestWord);
    if (end < text.size()) shorter += text[end];
    begin = end + 1;
  }
  for (char& letter : shorter) {
    if (std::iscntrl(static_cast<unsigned char>(letter)) != 0 && letter != '\n') letter = '?';
  }
  return cut_text(shorter, kLongestText);
}

}  // namespace

void complain(std::string_view text) {
  const std::string line = fmt::format("plimsoll: {}\n", readable(text));
  std::fwrite(line.data(), 1, line.size(), stderr);
}

void say(const JsonLines& json, std::string_view text) {
  std::FILE* out = json.to_stdout() ? stderr : stdout;
  errno = 0;
  std::fwrite(text.data(), 1, text.size(), out);
  if (text.empty() || text.back() != '\n') std::fputc('\n', out);
  const bool failed = std::fflush(out) != 0 || std::ferror(out) != 0;
  if (failed && errno == EPIPE && out == stdout) note_output_closed();
}

}  // namespace plimsoll::cli
