// How long the division of one workspace total among all ops of a network takes: JSON, one object a line.
//
//   ninja -C build wd_solver_bench && build/bench/micro/wd_solver_bench [NETWORK BATCH]
//
// Instances: as many variables (configurations on the fronts) as the paper's ResNet-50 has, 562 over 53 convolutions
// with three kernels each; ten thousand in few and in many ops; and one where time and workspace are tied to each
// other, which no price tells apart. With a network, also that of its convolutions, measured at powers of two (minutes
// the first time; the benchmark database keeps it). Each at several totals between what must be and what would be had;
// every answer is checked.
#include <cstdio>
#include <string>

#include "base/clock.h"
#include "base/statistics.h"
#include "plimsoll/kernels.h"
#include "plimsoll/models.h"
#include "tests/support/random_candidates.h"
#include "train/session.h"

namespace plimsoll {
namespace {

using Fronts = std::vector<std::vector<Configuration>>;

struct Instance {
  std::string name;
  Fronts fronts;
};

size_t variables(const Fronts& fronts) {
  size_t count = 0;
  for (const auto& front : fronts) count += front.size();
  return count;
}

// Fronts of random candidates until so many variables are there; the last one is cut.
Fronts fronts_with(std::mt19937& random, size_t ops, size_t wanted) {
  Fronts fronts = likely_fronts(random, static_cast<int>(ops), 64, 5, BatchSizes::power_of_two);
  while (variables(fronts) > wanted) {
    auto& largest = *std::max_element(fronts.begin(), fronts.end(),
                                      [](const auto& a, const auto& b) { return a.size() < b.size(); });
    largest.erase(largest.begin() + static_cast<std::ptrdiff_t>(largest.size() / 2));
  }
  return fronts;
}

// As networks are: few different ops, each several times.
Fronts repeated(std::mt19937& random, const Fronts& different, size_t ops) {
  Fronts fronts;
  for (size_t i = 0; i < ops; ++i)
    fronts.push_back(i < different.size() ? different[i] : different[random() % different.size()]);
  return fronts;
}

Fronts tied_fronts(std::mt19937& random, int ops, int points) {
  Fronts fronts(ops);
  for (auto& front : fronts) {
    for (int i = 0; i < points; ++i) {
      const int64_t bytes = static_cast<int64_t>(random() % (1 << 20));
      front.push_back(
          {{}, static_cast<double>((1 << 21) - bytes + static_cast<int64_t>(random() % 64)) / 1024, Bytes{bytes}});
    }
  }
  return fronts;
}

std::vector<Instance> instances(unsigned seed) {
  std::mt19937 random(seed);
  return {{"562 variables, 159 ops", fronts_with(random, 159, 562)},
          {"562 variables, 159 ops, 60 different", repeated(random, fronts_with(random, 60, 212), 159)},
          {"10000 variables, 1000 ops", curved_fronts(random, 1000, 10)},
          {"10000 variables, 150 ops", curved_fronts(random, 150, 67)},
          {"10000 variables, 1000 ops, 100 different", repeated(random, curved_fronts(random, 100, 10), 1000)},
          {"10000 variables, 1000 ops, time tied to workspace", tied_fronts(random, 1000, 10)}};
}

// Three kernels for every convolution of the network, as the paper counts them.
Instance of_network(const std::string& model, int64_t batch) {
  Session session = open_session("cpu", 0);
  const std::vector<Convolution> convolutions = convolutions_of(build_model(model, {.batch = batch}).graph);
  MeasureOptions options{.seconds_per_kernel = 0.05, .batches = BatchSizes::power_of_two};
  options.progress = [](int done, int total, const std::string& what) {
    if (done % 50 == 0) std::fprintf(stderr, "measuring %d/%d %s\n", done, total, what.c_str());
  };
  if (measure_convolutions(convolutions, *session.device, session.costs, options) > 0)
    session.database->save(session.costs);
  Instance instance{model + ", batch " + std::to_string(batch) + ", measured", {}};
  for (const Convolution& convolution : convolutions) {
    for (ConvolutionPass pass : kConvolutionPasses) {
      instance.fronts.emplace_back();
      for (ConvolutionChoice& choice :
           convolution_front(convolution, pass, *session.device, session.costs, options.batches)) {
        instance.fronts.back().push_back(std::move(choice.configuration));
      }
    }
  }
  return instance;
}

void check(const Fronts& fronts, const WorkspaceDivision& division, Bytes total) {
  double ms = 0;
  Bytes bytes;
  for (size_t k = 0; k < fronts.size(); ++k) {
    ms += fronts[k][division.chosen[k]].time_ms;
    bytes += fronts[k][division.chosen[k]].workspace;
  }
  if (bytes > total || ms != division.time_ms || division.lower_bound_ms > ms * (1 + 1e-9)) {
    std::fputs("wd_solver_bench: a wrong answer\n", stderr);
    std::exit(1);
  }
}

void measure(const Instance& instance, unsigned seed, double share) {
  Bytes least, most;
  for (const auto& front : instance.fronts) {
    const auto smaller = [](const Configuration& a, const Configuration& b) { return a.workspace < b.workspace; };
    const auto faster = [](const Configuration& a, const Configuration& b) { return a.time_ms < b.time_ms; };
    least += std::min_element(front.begin(), front.end(), smaller)->workspace;
    most += std::min_element(front.begin(), front.end(), faster)->workspace;
  }
  const Bytes total = least + Bytes{static_cast<int64_t>(share * static_cast<double>((most - least).count))};
  std::vector<double> times;
  WorkspaceDivision division;
  double spent = 0;
  for (int run = 0; run < 15 && (run < 3 || spent < 1000); ++run) {
    const Stopwatch watch;
    division = *divide_workspace(instance.fronts, total);
    times.push_back(watch.ms());
    spent += times.back();
  }
  check(instance.fronts, division, total);
  std::printf(
      "{\"instance\": \"%s\", \"seed\": %u, \"ops\": %zu, \"variables\": %zu, \"share\": %g, \"solve_ms\": %.4f, \"spread_ms\": %.4f, "
      "\"exact\": %s, \"time_ms\": %.6f, \"lower_bound_ms\": %.6f, \"total_bytes\": %lld, \"used_bytes\": %lld}\n",
      instance.name.c_str(), seed, instance.fronts.size(), variables(instance.fronts), share, median(times),
      2 * half_interquartile_distance(times), division.exact ? "true" : "false", division.time_ms,
      division.lower_bound_ms, static_cast<long long>(total.count), static_cast<long long>(division.workspace.count));
  std::fflush(stdout);
}

}  // namespace
}  // namespace plimsoll

int main(int argc, char** argv) {
  if (argc == 3) {
    const plimsoll::Instance instance = plimsoll::of_network(argv[1], std::stoll(argv[2]));
    for (double share : {0.05, 0.2, 0.5, 0.8}) plimsoll::measure(instance, 0, share);
  }
  for (unsigned seed = 1; seed <= 3; ++seed) {
    for (const auto& instance : plimsoll::instances(seed)) {
      for (double share : {0.05, 0.2, 0.5, 0.8}) plimsoll::measure(instance, seed, share);
    }
  }
}
