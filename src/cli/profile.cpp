// profile: measures kernels ahead of training.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/texts.h"
#include "cli/checks.h"
#include "cli/commands.h"
#include "cli/interrupts.h"
#include "cli/progress.h"
#include "cli/ranks.h"
#include "cost/cost_file.h"
#include "device/collectives.h"
#include "device/cpu/machine.h"
#include "plimsoll/train.h"
#include "plimsoll/verify.h"
#include "report/report.h"
#include "train/ranks.h"
#include "train/session.h"

namespace plimsoll::cli {
namespace {

using nlohmann::json;

struct ProfileFlags : CommonFlags {
  bool again = false;
  std::string data, threads_list, export_to, import_from;
  int64_t every = 1;
  double timeout = static_cast<double>(kDefaultTimeout.count());
};

// "1,2,4"
std::vector<int> thread_counts(const std::string& text) {
  std::vector<int> counts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    int count = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, count);
    if (error != std::errc() || stop != text.data() + end || count < 1 || count > kMostThreads) {
      throw Error(
          ErrorCode::invalid_input,
          fmt::format("--threads-list: '{}' is not a list of numbers from 1 to {}, as in 1,2,4", text, kMostThreads));
    }
    counts.push_back(count);
    begin = end + 1;
  }
  return counts;
}

// What the database has, and what an import gave it.
json share_costs(const ProfileFlags& flags, const std::string& imported, Session& session, const JsonLines& out) {
  json told;
  if (!flags.import_from.empty()) {
    const CostTable others = costs_from_json(imported, flags.import_from, session.device->info());
    const int taken = merge_costs(others, session.costs);
    if (!session.database->rates() && !others.rates().busy) session.database->save(others.rates());
    session.database->save(session.costs);
    told["imported"] = taken;
    say(out, fmt::format("{}: {} costs taken, {} known before", flags.import_from, taken,
                         others.entries().size() + others.in_step_entries().size() - taken));
  }
  return told;
}
void export_costs(const ProfileFlags& flags, const Session& session, const JsonLines& out) {
  if (flags.export_to.empty()) return;
  write_file_atomically(flags.export_to, costs_to_json(session.costs, session.device->info()));
  say(out,
      fmt::format("{}: {} costs of {}", flags.export_to,
                  session.costs.entries().size() + session.costs.in_step_entries().size(), session.device->info().key));
}

// What is measured for: the network as `train` feeds it with --data. Without the flag, as `train` does without it, and
// as it is usually fed, which is what `plan` plans for; the latter stands last.
std::vector<Network> networks_of(const ProfileFlags& flags) {
  std::vector<Network> networks;
  const ModelInput usual = flags.input();
  const std::string data = flags.data.empty() ? data_for(flags.model, usual.batch) : flags.data;
  const TrainOptions training{.model = flags.model,
                              .data = data,
                              .batch = usual.batch,
                              .image_size = flags.image_size,
                              .classes = flags.classes};
  if (flags.data.empty()) {
    try {
      networks.push_back(build_model(flags.model, training_input(training)));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_input) throw;  // images or classes that this data has not
    }
    networks.push_back(build_model(flags.model, usual));
  } else {
    networks.push_back(build_model(flags.model, training_input(training)));
  }
  return networks;
}

// "cuda:0,cuda:1"
std::vector<std::string> names_in(const std::string& list) {
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    names.push_back(list.substr(begin, end - begin));
    if (std::count(names.begin(), names.end(), names.back()) > 1) {
      throw Error(
          ErrorCode::invalid_input,
          fmt::format("--device {}: '{}' is named twice; two measurements on one device would disturb each other", list,
                      names.back()));
    }
    begin = end + 1;
  }
  return names;
}

// The devices that measure beside the session's own, which must be of its kind.
std::vector<std::unique_ptr<Device>> open_beside(const ProfileFlags& flags, const std::vector<std::string>& names,
                                                 const Session& session) {
  std::vector<std::unique_ptr<Device>> others;
  for (size_t i = 1; i < names.size(); ++i) {
    others.push_back(open_device(names[i], flags.threads));
    if (others.back()->info().key == session.device->info().key) continue;
    throw Error(ErrorCode::invalid_input,
                fmt::format("--device {}: '{}' ({}) and '{}' ({}) differ, so each is to be measured alone",
                            flags.device, names[0], session.device->info().key, names[i], others.back()->info().key));
  }
  return others;
}

CompileOptions compile_options_of(const ProfileFlags& flags, const Session& session) {
  CompileOptions options = compile_options(flags, session);
  options.optimizer.ranks = session.device->info().link.ranks;
  return options;
}

// Measures what the database lacks for these networks; returns how much that was. `training`: with the other ranks.
Measured measure_networks(const ProfileFlags& flags, MeasureOptions measuring, Session& session,
                          const std::vector<Network>& networks, const std::vector<std::unique_ptr<Device>>& others,
                          const TrainOptions& training) {
  std::vector<const Device*> beside;
  for (const std::unique_ptr<Device>& other : others) beside.push_back(other.get());
  const CompileOptions options = compile_options_of(flags, session);
  Progress progress;
  measuring.stop = interrupted;
  Measured measured;
  for (const Network& one : networks) {
    MeasuringTogether together(training);
    measuring.progress = [&](int done, int total, const std::string& what) {
      together.tell(what);
      progress.update("measuring kernels", done, total, what);
    };
    const Measured of_one = measure_missing(session, one, options, measuring, beside);
    measured.kernels += of_one.kernels;
    measured.busy += of_one.busy;
    measured.again += of_one.again;
  }
  progress.finish();
  return measured;
}

// What a step is predicted to take by what is known now; `told`: what the JSON line has so far.
int predict(const ProfileFlags& flags, Session& session, const Network& network, const Measured& measured, json told,
            JsonLines& out) {
  auto result = compile_step(flags, network, session, compile_options_of(flags, session));
  auto* program = std::get_if<Program>(&result);
  if (program == nullptr) {
    complain(to_text(std::get<Infeasible>(result)));
    out.write(infeasible_json(std::get<Infeasible>(result)));
    return kInfeasible;
  }
  if (session.device->info().link.ranks < 2) program->plan = calibrate(session, *program);
  if (measured.busy > 0) complain(busy_text(measured, *session.database));
  const int ranks = session.device->info().link.ranks;
  say(out, fmt::format("{}, batch {}{}: {} kernels measured now, {} known; a step is predicted to take {}", flags.model,
                       flags.input().batch, ranks > 1 ? " of each rank" : "", measured.kernels,
                       session.costs.entries().size(), time_text(program->plan->predicted.step_time_ms, 4)));
  export_costs(flags, session, out);
  told.update(
      {{"measured", measured.kernels},
       {"measured_busy", measured.busy},
       {"known", session.costs.entries().size()},
       {"step_time_ms", program->plan->predicted.step_time_ms},
       {"database", session.database->is_kept() ? json(CostDatabase::default_path().string()) : json(nullptr)}});
  out.write(told);
  return kDone;
}

// What ranks measure together, with a device of this process's own.
void check_together(const ProfileFlags& flags) {
  const std::pair<const char*, bool> unfit[] = {{"--export", !flags.export_to.empty()},
                                                {"--import", !flags.import_from.empty()},
                                                {"--threads-list", !flags.threads_list.empty()}};
  for (const auto& [flag, given] : unfit) {
    if (given) throw Error(ErrorCode::unsupported, fmt::format("{}: with one process only; leave mpirun out", flag));
  }
}

// Joins the ranks: what is measured from here on is measured beside theirs.
LinkInfo join(const ProfileFlags& flags, const TrainOptions& training, Session& session) {
  const std::shared_ptr<Wire> wire = open_wire(*session.device, training.communicator);
  const LinkInfo link = open_link(
      session, *wire, Bytes{INT64_MAX}, [](const std::string& text) { complain(text); }, flags.again);
  session.device = with_wire(std::move(session.device), link, wire);
  return link;
}

json link_json(const LinkInfo& link) {
  return {{"ranks", link.ranks},
          {"latency_us", link.latency_us},
          {"gb_per_s", link.gb_per_s},
          {"compute_share", link.compute_share}};
}

// One of several ranks: all measure the link between them; the first measures kernels, while the others of its machine run
// the same beside it.
int profile_together(ProfileFlags flags, const std::shared_ptr<Communicator>& ranks) {
  const bool is_first = ranks->is_first();
  check_together(flags);
  if (!is_first) flags.json.clear();
  JsonLines out(flags.json);
  std::vector<Network> networks;
  TrainOptions training{.model = flags.model, .batch = ranks->size(), .device = flags.device, .threads = flags.threads};
  if (!flags.model.empty()) training.batch = flags.input().batch;
  training.communicator = ranks;
  training = options_of_rank(training);
  if (!flags.model.empty()) {
    flags.batch = own_batch(training);
    networks = networks_of(flags);
  }
  catch_interrupts();
  ranks->set_ending([] { return interrupted(); });
  Session session =
      open_session(training.device, threads_of(training), flags.tiers(), Bytes{INT64_MAX}, neighbours_of(training));
  if (is_first) {
    for (const std::string& notice : session.notices) complain(notice);
  }
  const LinkInfo link = join(flags, training, session);
  const Heartbeat heartbeat(ranks.get());
  const MeasureOptions measuring{
      .batches = flags.batch_sizes().value_or(BatchSizes::undivided), .every = flags.every, .threads = {0}};
  if (!is_first) {
    for (const Network& network : networks)
      measure_beside(*ranks, session, network, compile_options_of(flags, session), measuring);
    return kDone;
  }
  say(out,
      fmt::format("the link between {} ranks: {:.3g} us a message and {:.3g} GB/s; it takes {:.0f} % of the compute "
                  "that it runs beside",
                  link.ranks, link.latency_us, link.gb_per_s, 100 * link.compute_share));
  json told{{"link", link_json(link)}};
  if (networks.empty()) {
    out.write(told);
    return kDone;
  }
  if (flags.again) {
    session.database->forget_sharing();
    session.costs = CostTable(session.costs.rates());
  } else {
    forget_busy_times(session);
  }
  const Measured measured = measure_networks(flags, measuring, session, networks, {}, training);
  if (interrupted()) {
    say(out, fmt::format("interrupted; {} measurements are kept", measured.kernels));
    return kInterrupted;
  }
  return predict(flags, session, networks.back(), measured, std::move(told), out);
}

int run_profile(const ProfileFlags& flags, const std::shared_ptr<Communicator>& ranks) {
  flags.check();
  if (flags.means_process())
    throw Error(ErrorCode::invalid_input, "--memory-is process: profile measures kernels; leave the flag out");
  if (ranks != nullptr) return profile_together(flags, ranks);
  check_apart(
      {{"--json", flags.json}, {"--export", flags.export_to}},
      {{"--import", flags.import_from}, file_read_by("MODEL", flags.model), file_read_by("--data", flags.data)});
  check_writable("--export", flags.export_to);
  const std::vector<int> threads = flags.threads_list.empty() ? std::vector<int>{0} : thread_counts(flags.threads_list);
  if (shares_cores(flags.device)) cpu::require_threads(*std::max_element(threads.begin(), threads.end()));
  const MeasureOptions measuring{
      .batches = flags.batch_sizes().value_or(BatchSizes::undivided), .every = flags.every, .threads = threads};
  JsonLines out(flags.json);
  if (flags.model.empty() && flags.import_from.empty() && flags.export_to.empty()) {
    throw Error(ErrorCode::invalid_input, "profile: name a MODEL to measure, or a file with --import or --export");
  }
  const std::string imported = flags.import_from.empty() ? "" : read_file(flags.import_from);
  std::vector<Network> networks;
  if (!flags.model.empty()) networks = networks_of(flags);
  const std::vector<std::string> names = names_in(flags.device);
  Session session = open_session(names[0], flags.threads, flags.tiers());
  const std::vector<std::unique_ptr<Device>> others = open_beside(flags, names, session);
  for (const std::string& notice : session.notices) complain(notice);
  json told = share_costs(flags, imported, session, out);
  if (networks.empty()) {
    export_costs(flags, session, out);
    told["known"] = session.costs.entries().size();
    out.write(told);
    return kDone;
  }
  if (flags.again) {
    session.database->save(probe_rates(*session.device));
    session.database->forget_sharing();
    session.costs = CostTable(*session.database->rates());
  }
  catch_interrupts();
  if (!flags.again) forget_busy_times(session);
  const Measured measured = measure_networks(flags, measuring, session, networks, others, {});
  if (interrupted()) {
    say(out, fmt::format("interrupted; {} measurements are kept", measured.kernels));
    return kInterrupted;
  }
  return predict(flags, session, networks.back(), measured, std::move(told), out);
}

}  // namespace

Run add_profile(CLI::App& app) {
  auto flags = std::make_shared<ProfileFlags>();
  CLI::App* command = app.add_subcommand("profile", "Measure every kernel that a network could use, ahead of training");
  command->footer(
      "Examples:\n"
      "  plimsoll profile resnet50 --batch 16             `plan` and `train` then choose by measured times\n"
      "  plimsoll profile resnet50 --batch 16 --again     anew, whatever is known\n"
      "  plimsoll profile resnet50 --batch 64 --batch-sizes powerOfTwo      parts of the batch too, for `--workspace`\n"
      "  mpirun -n 2 plimsoll profile --again             the link between the ranks anew; with MODEL kernels as well\n"
      "  plimsoll profile --export costs.json             nothing is measured without MODEL; elsewhere: profile --import costs.json");
  flags->add_to(*command, false);
  command->get_option("--device")
      ->description("Where it runs; several of one kind, cuda:0,cuda:1, share the measuring");
  command
      ->add_option(
          "--data", flags->data,
          "Measure for images as this data gives them, as `train` feeds them: digits, mnist:DIR, synthetic, ... (default: for `train` and `plan` without --data)")
      ->check(not_empty());
  command->add_flag("--again", flags->again, "Measure what the database has already, too");
  flags->add_optimizer_to(*command);
  flags->add_workspace_to(*command);
  command->add_option("--every", flags->every, "With --batch-sizes all: only multiples of this, and powers of two")
      ->check(whole_number(1, 1 << 20));
  command
      ->add_option("--threads-list", flags->threads_list,
                   "Measure with each of these thread counts: 1,2 (default: --threads)")
      ->check(not_empty());
  command
      ->add_option("--export", flags->export_to, "Write what the database knows of this device, for others of its kind")
      ->type_name("FILE")
      ->check(not_empty());
  command->add_option("--import", flags->import_from, "First take what another machine of this kind has exported")
      ->type_name("FILE")
      ->check(not_empty());
  command
      ->add_option("--timeout", flags->timeout,
                   "Seconds after which a rank that does not answer ends all, where mpirun or srun started several")
      ->capture_default_str()
      ->check(positive_number());
  return [flags] {
    return as_rank(flags->timeout,
                   [&](const std::shared_ptr<Communicator>& ranks) { return run_profile(*flags, ranks); });
  };
}

}  // namespace plimsoll::cli
