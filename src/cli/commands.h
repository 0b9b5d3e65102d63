// One file a command: each adds its sub-command to the app and returns its exit code when it is the one chosen.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "cores/core_options.h"
#include "device/tier/tier.h"
#include "plimsoll/autodiff.h"
#include "plimsoll/bytes.h"
#include "plimsoll/cost_graph.h"
#include "plimsoll/device.h"
#include "plimsoll/error.h"
#include "plimsoll/kernels.h"
#include "plimsoll/models.h"
#include "plimsoll/network_file.h"
#include "plimsoll/process_memory.h"

namespace plimsoll {
struct CompileOptions;
struct Infeasible;
struct Plan;
struct Program;
struct Session;
}  // namespace plimsoll

namespace plimsoll::cli {

// What the process returns; design.md.
enum ExitCode { kDone = 0, kBadInput = 2, kInfeasible = 3, kFailure = 4, kInterrupted = 5 };
int exit_code(ErrorCode code);

using Run = std::function<int()>;
Run add_train(CLI::App& app);
Run add_eval(CLI::App& app);
Run add_predict(CLI::App& app);
Run add_serve_memory(CLI::App& app);
Run add_plan(CLI::App& app);
Run add_verify(CLI::App& app);
Run add_profile(CLI::App& app);
Run add_compare(CLI::App& app);
Run add_max(CLI::App& app);
Run add_reproduce(CLI::App& app);
Run add_place(CLI::App& app);
Run add_convolutions(CLI::App& app);
Run add_heaps(CLI::App& app);
Run add_models(CLI::App& app);
Run add_policies(CLI::App& app);
Run add_devices(CLI::App& app);

// The flags that choose the network, the device and the memory, shared by train, plan and profile.
struct CommonFlags {
  std::string model;
  int64_t batch = 0;
  std::optional<std::string> memory, host_memory, spill, peer, remote_memory;
  std::string memory_is = "arena";
  std::string policy = "auto", placement = "offline", device = "cpu", optimizer,
              json;  // optimizer: empty: the network's usual one
  int threads = 0;
  int ranks = 1;  // that are planned for
  std::string inter_op = "1", intra_op = "auto";
  std::optional<std::string> strategies;
  int climb_interval = 0;
  std::string layer_model = "native";
  int64_t image_size = 0, classes = 0;
  std::optional<double> momentum;  // nothing: 0.9 of sgd, 0 of rmsprop
  OptimizerSettings settings;      // that were given, but for those with a flag of their own here
  double weight_decay = 0, clip_grad_norm = 0;
  int64_t accumulate = 1;
  bool nesterov = false, exact = false, sync_batch_norm = false;
  bool takes_share = false;  // --memory may be one for a network as well
  std::vector<std::string> freeze;
  std::string zero_name = "auto";
  std::optional<std::string> workspace, workspace_total, batch_sizes_name;

  void add_to(CLI::App& command, bool model_required);
  void add_memory_is_to(CLI::App& command);
  bool means_process() const { return memory_is == "process"; }
  void add_layer_model_to(CLI::App& command);
  void add_optimizer_to(CLI::App& command);
  void add_zero_to(CLI::App& command);
  std::optional<int> zero() const;  // nothing: auto
  void add_sharing_to(CLI::App& command);
  CoreRequest core_request() const;
  void add_workspace_to(CLI::App& command);
  std::optional<Bytes> workspace_bytes() const, workspace_total_bytes() const;
  std::optional<BatchSizes> batch_sizes() const;
  OptimizerOptions optimizer_options() const;
  // What was given of the settings that some optimizers have, into the options of this one.
  void set_optimizer(OptimizerOptions& options) const;
  // Throws what is wrong with any of these flags, naming it: before anything is opened, probed or measured. `from_file`:
  // what was not given comes from a checkpoint or a plan.
  void check(bool from_file = false) const;
  bool has_paper_layers() const;  // --layer-model paper; throws on another name
  TierOptions tiers() const;      // --host-memory, --spill, --peer and --remote-memory
  // --memory; else what a device with memory of its own has, as `train` takes it, and no limit where it is the host's.
  Bytes budget(const Device& device) const;
  std::optional<Bytes> memory_bytes() const;  // nothing when the flag was not given; throws naming the flag
  // What a network is built for: `of`, else --batch, else as many as is usual for it.
  ModelInput input(int64_t of = 0) const;
  // --memory may be a share, "80%", of what keeping everything takes.
  bool is_share() const { return memory && memory->ends_with('%'); }
  Bytes share_of(Bytes keeping_everything) const;  // throws naming the flag
};

// What the flags say of compiling for the session's device. `process`: what the process takes beside the arena, where
// --memory is of the whole process.
CompileOptions compile_options(const CommonFlags& flags, const Session& session,
                               const std::optional<ProcessMemory>& process = {});

// The network's own training step, or with --layer-model paper the papers' layers of it; `states`: with weights and the
// batch.
std::variant<Program, Infeasible> compile_step(const CommonFlags& flags, const Network& network, const Session& session,
                                               const CompileOptions& options, bool states = false);

// The graph of costs that --graph names, for a batch of that size (0: its own). Throws Error(invalid_input) that names a flag
// which says nothing of such a graph.
CostGraph open_cost_graph(const CommonFlags& flags, int64_t batch);
// The device that --device names, whose tiers a plan of such a graph may use, with the graph's costs.
Session open_costs_session(const CommonFlags& flags, const CostGraph& costs);
// What the flags say of planning for it.
CompileOptions compile_options(const CommonFlags& flags, const Session& session, const CostGraph& costs);

// What `train` would take beside its arena for this network; `data`: as --data says, empty: synthetic images.
ProcessMemory process_of(const CommonFlags& flags, const Network& network, const std::string& data = {});
// The same where --memory is of the whole process; else nothing.
std::optional<ProcessMemory> stated_process(const CommonFlags& flags, const Network& network,
                                            const std::string& data = {});
// What is left for probing in a process of that size.
Bytes probing_room(const CommonFlags& flags);
// The plan, or why there is none: of the process, where --memory is of it.
std::variant<Program, Infeasible> within_process(std::variant<Program, Infeasible> result, const CommonFlags& flags,
                                                 const std::optional<ProcessMemory>& process);
// Adds what is known of the process to a plan's object.
void add_process(nlohmann::json& object, const ProcessMemory& process, const Plan& plan, bool stated);
// A line of a plan's text.
std::string process_text(const ProcessMemory& process, const Plan& plan, bool stated);

// Writes JSON lines to the file that --json names, or to standard output for "-". Does nothing without the flag.
class JsonLines {
 public:
  explicit JsonLines(const std::string& target);
  ~JsonLines();
  void write(const nlohmann::json& object);
  void stop();  // nothing more is written
  bool to_stdout() const { return to_stdout_; }
  bool active() const { return file_ != nullptr; }

 private:
  std::FILE* file_ = nullptr;
  bool to_stdout_ = false, begun_ = false;
};

// Data for a model that was named without data: the digits where the network takes 8x8 images, else synthetic images.
// For a language model the bundled text where its vocabulary is that of bytes.
inline constexpr std::string_view kDefaultData = "digits", kDefaultText = "text";
std::string data_for(const std::string& model, int64_t batch);

// Throws Error(invalid_input) that names the flag when a file could not be written there: before the work, not after
// it.
void check_writable(std::string_view flag, const std::string& file);
void check_is_no_stream(std::string_view flag, const std::string& file);  // "-" is not standard output here

// Throws Error(invalid_input) that names both flags where what is written would lie in place of another output, or of
// what is read.
struct NamedFile {
  std::string_view flag;
  std::string file;  // empty: not given; "-": standard output
};
void check_apart(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs);
// What --data or MODEL reads: "bytes:FILE", "graph:FILE" and the like; no file where a name alone is given.
NamedFile file_read_by(std::string_view flag, std::string_view value);

// "plimsoll: <text>" on standard error. Where that cannot be written there is nobody to tell, and it is no failure.
void complain(std::string_view text);

// A line for people: standard output, or standard error when JSON has standard output.
void say(const JsonLines& json, std::string_view text);

}  // namespace plimsoll::cli
