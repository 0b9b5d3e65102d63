// Optimizers that are written as formulas, against plain loops that were written from PyTorch's documentation.
#include "autodiff/update_rules.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <functional>
#include <set>

#include "autodiff/optimizers.h"
#include "plimsoll/autodiff.h"
#include "plimsoll/ops.h"
#include "tests/support/error_text.h"
#include "tests/support/interpreter.h"

namespace plimsoll {
namespace {

using ::testing::ElementsAre;
using testing::error_text;
using ::testing::HasSubstr;

constexpr double kRate = 0.1;
constexpr int kSteps = 8;
constexpr int64_t kElements = 3;

double gradient_of(int step, int64_t element) { return std::sin(1 + 2.7 * step + 1.3 * static_cast<double>(element)); }
double first_value(int64_t element) { return 1 - 0.75 * static_cast<double>(element); }

OptimizerOptions options_of(const std::string& name, const OptimizerSettings& settings) {
  OptimizerOptions options{.name = name, .momentum = 0, .settings = settings};
  options.settings["maximize"] = settings.contains("maximize") ? settings.at("maximize") : 0;  // so that it has some
  return options;
}

// One parameter of float64, updated by the graph's ops.
class Updated {
 public:
  explicit Updated(const OptimizerOptions& options, bool scaled = false, const Shape& shape = {kElements})
      : options_(options) {
    w_ = graph_.add_source("w", shape, DType::f64, Role::parameter);
    gradient_ = graph_.add_source("g", shape, DType::f64, Role::input);
    rate_ = graph_.add_source("learning_rate", {}, DType::f64, Role::hyperparameter);
    if (scaled) scale_ = graph_.add_source("scale", {}, DType::f64, Role::hyperparameter);
    append_update(graph_, w_, gradient_, options, rate_, {}, scale_);
    check(graph_);
    values_.emplace(graph_);
    for (int64_t i = 0; i < element_count(shape); ++i) (*values_)[w_].set(i, first_value(i));
    for (const State& state : graph_.states) {
      if (state.before == w_) continue;
      const Tensor& t = graph_.tensor(state.before);
      for (int64_t i = 0; i < element_count(t.shape); ++i) (*values_)[state.before].set(i, t.init.mean);
    }
  }
  void step(int number, double scale = 1) {
    const OptimizerSettings settings = all_settings(options_);
    const UpdateMoment moment{kRate, number + 1};
    for (const auto& [name, value] : update_rule(options_.name).factors(settings, moment)) {
      const TensorId id = graph_.find_tensor(factor_name("learning_rate", name));
      if (id.valid()) (*values_)[id].set(0, value);
    }
    const int64_t elements = element_count(graph_.tensor(w_).shape);
    for (int64_t i = 0; i < elements; ++i) (*values_)[gradient_].set(i, gradient_of(number, i));
    if (scale_.valid()) (*values_)[scale_].set(0, scale);
    interpret(graph_, *values_);
    advance_states(graph_, *values_);
  }
  double weight(int64_t i) { return (*values_)[w_].at(i); }
  std::vector<std::string> states() const {
    std::vector<std::string> names;
    for (const State& state : graph_.states) names.push_back(graph_.tensor(state.before).name);
    return names;
  }
  const Graph& graph() const { return graph_; }
  double value(std::string_view state, int64_t i) { return (*values_)[graph_.find_tensor(std::string(state))].at(i); }
  std::vector<double> all() {
    std::vector<double> result;
    for (const State& state : graph_.states) {
      const int64_t elements = element_count(graph_.tensor(state.before).shape);
      for (int64_t i = 0; i < elements; ++i) result.push_back((*values_)[state.before].at(i));
    }
    return result;
  }

 private:
  Graph graph_;
  const OptimizerOptions options_;
  TensorId w_, gradient_, rate_, scale_;
  std::optional<Values> values_;
};

// The update number t, from 1, of one element: given are its value, its gradient and what it keeps.
using Kept = std::array<double, 4>;
using ByHand = std::function<double(const OptimizerSettings&, double t, double w, double g, Kept&)>;

double decayed(const OptimizerSettings& s, double w, double g) {
  return (s.at("maximize") != 0 ? -g : g) + s.at("weight_decay") * w;
}
double kept_by_decay(const OptimizerSettings& s, double w) {
  return s.at("decoupled_weight_decay") != 0 ? w - kRate * s.at("weight_decay") * w : w;
}
double gradient_of_adams(const OptimizerSettings& s, double w, double g) {
  if (s.at("decoupled_weight_decay") == 0) return decayed(s, w, g);
  return s.at("maximize") != 0 ? -g : g;
}

double sgd(const OptimizerSettings& s, double t, double w, double g, Kept& k) {
  g = decayed(s, w, g);
  const double mu = s.at("momentum");
  if (mu != 0) {
    k[0] = t == 1 ? g : mu * k[0] + (1 - s.at("dampening")) * g;
    g = s.at("nesterov") != 0 ? g + mu * k[0] : k[0];
  }
  return w - kRate * g;
}

double adam(const OptimizerSettings& s, double t, double w, double g, Kept& k) {
  const double b1 = s.at("beta1"), b2 = s.at("beta2");
  g = gradient_of_adams(s, w, g);
  w = kept_by_decay(s, w);
  k[0] = b1 * k[0] + (1 - b1) * g;
  k[1] = b2 * k[1] + (1 - b2) * g * g;
  k[2] = std::max(k[2], k[1]);
  const double m = k[0] / (1 - std::pow(b1, t)), v = (s.at("amsgrad") != 0 ? k[2] : k[1]) / (1 - std::pow(b2, t));
  return w - kRate * m / (std::sqrt(v) + s.at("eps"));
}

double rmsprop(const OptimizerSettings& s, double, double w, double g, Kept& k) {
  const double alpha = s.at("alpha");
  g = decayed(s, w, g);
  k[0] = alpha * k[0] + (1 - alpha) * g * g;
  double size = k[0];
  if (s.at("centered") != 0) {
    k[1] = alpha * k[1] + (1 - alpha) * g;
    size -= k[1] * k[1];
  }
  const double step = g / (std::sqrt(size) + s.at("eps"));
  if (s.at("momentum") == 0) return w - kRate * step;
  k[2] = s.at("momentum") * k[2] + step;
  return w - kRate * k[2];
}

double adagrad(const OptimizerSettings& s, double t, double w, double g, Kept& k) {
  if (t == 1) k[0] = s.at("initial_accumulator_value");
  g = decayed(s, w, g);
  k[0] += g * g;
  return w - kRate / (1 + (t - 1) * s.at("lr_decay")) * g / (std::sqrt(k[0]) + s.at("eps"));
}

double adadelta(const OptimizerSettings& s, double, double w, double g, Kept& k) {
  const double rho = s.at("rho"), eps = s.at("eps");
  g = decayed(s, w, g);
  k[0] = rho * k[0] + (1 - rho) * g * g;
  const double step = std::sqrt(k[1] + eps) / std::sqrt(k[0] + eps) * g;
  k[1] = rho * k[1] + (1 - rho) * step * step;
  return w - kRate * step;
}

double adamax(const OptimizerSettings& s, double t, double w, double g, Kept& k) {
  const double b1 = s.at("beta1");
  g = decayed(s, w, g);
  k[0] = b1 * k[0] + (1 - b1) * g;
  k[1] = std::max(s.at("beta2") * k[1], std::abs(g) + s.at("eps"));
  return w - kRate / (1 - std::pow(b1, t)) * k[0] / k[1];
}

double nadam(const OptimizerSettings& s, double t, double w, double g, Kept& k) {
  const double b1 = s.at("beta1"), b2 = s.at("beta2");
  const auto mu = [&](double i) { return b1 * (1 - 0.5 * std::pow(0.96, i * s.at("momentum_decay"))); };
  g = gradient_of_adams(s, w, g);
  w = kept_by_decay(s, w);
  k[2] = (t == 1 ? 1 : k[2]) * mu(t);
  k[0] = b1 * k[0] + (1 - b1) * g;
  k[1] = b2 * k[1] + (1 - b2) * g * g;
  const double m = mu(t + 1) * k[0] / (1 - k[2] * mu(t + 1)) + (1 - mu(t)) * g / (1 - k[2]);
  return w - kRate * m / (std::sqrt(k[1] / (1 - std::pow(b2, t))) + s.at("eps"));
}

double radam(const OptimizerSettings& s, double t, double w, double g, Kept& k) {
  const double b1 = s.at("beta1"), b2 = s.at("beta2"), left = 1 - std::pow(b2, t);
  g = gradient_of_adams(s, w, g);
  w = kept_by_decay(s, w);
  k[0] = b1 * k[0] + (1 - b1) * g;
  k[1] = b2 * k[1] + (1 - b2) * g * g;
  const double m = k[0] / (1 - std::pow(b1, t)), most = 2 / (1 - b2) - 1;
  const double length = most - 2 * t * std::pow(b2, t) / left;
  if (length <= 5) return w - kRate * m;
  const double r = std::sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length));
  return w - kRate * m * r * std::sqrt(left) / (std::sqrt(k[1]) + s.at("eps"));
}

double lion(const OptimizerSettings& s, double, double w, double g, Kept& k) {
  const double b1 = s.at("beta1"), b2 = s.at("beta2");
  g = s.at("maximize") != 0 ? -g : g;
  w -= kRate * s.at("weight_decay") * w;
  const double step = b1 * k[0] + (1 - b1) * g;
  k[0] = b2 * k[0] + (1 - b2) * g;
  return w - kRate * (step > 0 ? 1 : -1);
}

struct RuleCase {
  std::string name;
  OptimizerSettings settings;
  ByHand by_hand;
  std::vector<std::string> states;
};

std::vector<RuleCase> rule_cases() {
  const std::vector<std::string> of_adam{"w", "w.exp_avg", "w.exp_avg_sq"};
  return {
      {"sgd", {{"dampening", 0.3}}, sgd, {"w"}},
      {"sgd", {{"momentum", 0.9}, {"dampening", 0.3}, {"weight_decay", 0.1}}, sgd, {"w", "w.momentum"}},
      {"sgd", {{"momentum", 0.9}, {"nesterov", 1}, {"maximize", 1}}, sgd, {"w", "w.momentum"}},
      {"adam", {{"amsgrad", 1}, {"beta2", 0.5}}, adam, {"w", "w.exp_avg", "w.exp_avg_sq", "w.max_exp_avg_sq"}},
      {"adam", {{"maximize", 1}, {"weight_decay", 0.1}, {"eps", 0.01}}, adam, of_adam},
      {"adamw", {{"maximize", 1}, {"weight_decay", 0.1}, {"beta1", 0.7}}, adam, of_adam},
      {"rmsprop", {}, rmsprop, {"w", "w.square_avg"}},
      {"rmsprop",
       {{"alpha", 0.8}, {"eps", 1e-3}, {"weight_decay", 0.1}, {"maximize", 1}},
       rmsprop,
       {"w", "w.square_avg"}},
      {"rmsprop",
       {{"centered", 1}, {"momentum", 0.9}},
       rmsprop,
       {"w", "w.square_avg", "w.grad_avg", "w.momentum_buffer"}},
      {"adagrad", {}, adagrad, {"w", "w.sum"}},
      {"adagrad",
       {{"lr_decay", 0.1}, {"weight_decay", 0.1}, {"initial_accumulator_value", 0.5}, {"maximize", 1}},
       adagrad,
       {"w", "w.sum"}},
      {"adadelta", {}, adadelta, {"w", "w.square_avg", "w.acc_delta"}},
      {"adadelta",
       {{"rho", 0.7}, {"eps", 1e-3}, {"weight_decay", 0.1}, {"maximize", 1}},
       adadelta,
       {"w", "w.square_avg", "w.acc_delta"}},
      {"adamax", {}, adamax, {"w", "w.exp_avg", "w.exp_inf"}},
      {"adamax", {{"beta2", 0.5}, {"weight_decay", 0.1}, {"maximize", 1}}, adamax, {"w", "w.exp_avg", "w.exp_inf"}},
      {"nadam", {}, nadam, of_adam},
      {"nadam", {{"momentum_decay", 0.1}, {"weight_decay", 0.1}, {"maximize", 1}}, nadam, of_adam},
      {"nadam", {{"weight_decay", 0.1}, {"decoupled_weight_decay", 1}}, nadam, of_adam},
      {"radam", {}, radam, of_adam},
      {"radam", {{"beta2", 0.9}, {"weight_decay", 0.1}, {"maximize", 1}}, radam, of_adam},
      {"radam", {{"weight_decay", 0.1}, {"decoupled_weight_decay", 1}}, radam, of_adam},
      {"lion", {}, lion, {"w", "w.exp_avg"}},
      {"lion", {{"beta1", 0.6}, {"beta2", 0.7}, {"weight_decay", 0.1}, {"maximize", 1}}, lion, {"w", "w.exp_avg"}},
  };
}

double root_mean_square(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return std::sqrt(sum / static_cast<double>(values.size()));
}

// Both Adafactors by plain loops over `outer` matrices of `n` rows and `m` columns; of a vector n is 0.
struct AdafactorByHand {
  const OptimizerSettings& s;
  const bool fairseq;
  int64_t outer, n, m;
  std::vector<double> w, rows, columns, squares, mean = {};

  void step(int number) {
    const double t = number + 1, rest = std::pow(t, s.at("beta2_decay")), size = root_mean_square(w);
    double rate = fairseq ? kRate : std::min(kRate, 1 / std::sqrt(t));
    if (fairseq && s.at("relative_step") != 0)
      rate = std::min(s.at("warmup_init") != 0 ? 1e-6 * t : 1e-2, 1 / std::sqrt(t));
    const double decay = s.at("weight_decay") * (fairseq ? 1 : kRate);
    if (!fairseq || s.at("scale_parameter") != 0) rate *= std::max(s.at("eps2"), size);
    std::vector<double> g(w.size()), change(w.size());
    for (size_t i = 0; i < w.size(); ++i)
      g[i] = (s.at("maximize") != 0 ? -1 : 1) * gradient_of(number, static_cast<int64_t>(i));
    const double added = fairseq ? s.at("eps1") : 0;
    const auto estimate = [&](size_t i) {
      if (n == 0) return squares[i];
      const int64_t o = static_cast<int64_t>(i) / (n * m), r = static_cast<int64_t>(i) / m,
                    c = static_cast<int64_t>(i) % m;
      double whole = 0;
      for (int64_t k = 0; k < n; ++k) whole += rows[static_cast<size_t>(o * n + k)] / static_cast<double>(n);
      if (!fairseq) whole = std::max(whole, s.at("eps1"));
      return rows[static_cast<size_t>(r)] * columns[static_cast<size_t>(o * m + c)] / whole;
    };
    for (int64_t r = 0; r < outer * n; ++r) {
      double sum = 0;
      for (int64_t c = 0; c < m; ++c)
        sum += g[static_cast<size_t>(r * m + c)] * g[static_cast<size_t>(r * m + c)] + added;
      double& row = rows[static_cast<size_t>(r)];
      row += rest * (sum / static_cast<double>(m) - row);
    }
    for (int64_t k = 0; k < (n == 0 ? 0 : outer * m); ++k) {
      double sum = 0;
      for (int64_t r = 0; r < n; ++r) {
        const double value = g[static_cast<size_t>((k / m * n + r) * m + k % m)];
        sum += value * value + added;
      }
      double& column = columns[static_cast<size_t>(k)];
      column += rest * (sum / static_cast<double>(n) - column);
    }
    for (size_t i = 0; i < squares.size(); ++i) squares[i] += rest * (g[i] * g[i] + added - squares[i]);
    for (size_t i = 0; i < w.size(); ++i)
      change[i] = g[i] / std::sqrt(fairseq ? estimate(i) : std::max(estimate(i), s.at("eps1") * s.at("eps1")));
    const double clip = std::max(1.0, root_mean_square(change) / s.at("clip_threshold"));
    const double momentum = fairseq ? s.at("momentum") : 0;
    mean.resize(w.size());
    for (size_t i = 0; i < w.size(); ++i) {
      change[i] *= rate / clip;
      mean[i] = momentum * mean[i] + (1 - momentum) * change[i];
      w[i] -= decay * (fairseq ? rate : 1) * w[i] + mean[i];
    }
  }
};

TEST(UpdateRules, AdafactorsKnowMatricesByRowsAndColumns) {
  const std::vector<std::pair<std::string, OptimizerSettings>> cases = {
      {"adafactor", {}},
      {"adafactor",
       {{"weight_decay", 0.1},
        {"clip_threshold", 1.5},
        {"beta2_decay", -0.5},
        {"eps1", 0.3},
        {"eps2", 5},
        {"maximize", 1}}},
      {"fairseq_adafactor", {}},
      {"fairseq_adafactor", {{"scale_parameter", 1}, {"relative_step", 1}, {"weight_decay", 0.1}}},
      {"fairseq_adafactor",
       {{"momentum", 0.9}, {"relative_step", 1}, {"warmup_init", 1}, {"eps1", 0.2}, {"clip_threshold", 0.5}}},
      {"fairseq_adafactor", {{"scale_parameter", 1}, {"momentum", 0.5}, {"eps2", 4}, {"maximize", 1}}},
  };
  for (const auto& [name, given] : cases) {
    for (const Shape& shape : {Shape{3}, Shape{}, Shape{2, 3}, Shape{3, 1}, Shape{2, 2, 3}, Shape{2, 2, 3, 2}}) {
      const OptimizerOptions options = options_of(name, given);
      const OptimizerSettings settings = all_settings(options);
      SCOPED_TRACE(fmt::format("{} with {} settings of {}", name, given.size(), to_string(shape)));
      Updated updated(options, false, shape), scaled(options, true, shape);
      const auto count = static_cast<size_t>(element_count(shape));
      const int64_t m = shape.size() > 1 ? shape.back() : element_count(shape),
                    n = shape.size() > 1 ? shape.end()[-2] : 0;
      const int64_t outer = n == 0 ? 1 : element_count(shape) / (n * m);
      AdafactorByHand by_hand{.s = settings,
                              .fairseq = name != "adafactor",
                              .outer = outer,
                              .n = n,
                              .m = m,
                              .w = {},
                              .rows = std::vector<double>(static_cast<size_t>(outer * n)),
                              .columns = std::vector<double>(static_cast<size_t>(n == 0 ? 0 : outer * m)),
                              .squares = std::vector<double>(n == 0 ? count : 0)};
      for (size_t i = 0; i < count; ++i) by_hand.w.push_back(first_value(static_cast<int64_t>(i)));
      for (int step = 0; step < kSteps; ++step) {
        const std::vector<double> before = scaled.all();
        scaled.step(step, -1);
        EXPECT_EQ(scaled.all(), before) << "there is nothing to update yet";
        updated.step(step);
        scaled.step(step, 1);
        EXPECT_EQ(scaled.all(), updated.all());
        by_hand.step(step);
        for (size_t i = 0; i < count; ++i)
          ASSERT_NEAR(updated.weight(static_cast<int64_t>(i)), by_hand.w[i], 1e-10)
              << "step " << step << " element " << i;
      }
    }
  }
}

TEST(UpdateRules, AdafactorsUpdateNoPieces) {
  for (const std::string name : {"adafactor", "fairseq_adafactor"}) {
    EXPECT_TRUE(updates_whole_parameters({.name = name}));
    EXPECT_THAT(error_text(ErrorCode::unsupported,
                           [&] { check(OptimizerOptions{.name = name, .ranks = 2, .sharding = {.stage = 1}}); }),
                HasSubstr("--zero 0"));
  }
  EXPECT_FALSE(updates_whole_parameters({.name = "adamw"}));
}

TEST(UpdateRules, GiveWhatPyTorchsDocumentationSays) {
  for (const RuleCase& one : rule_cases()) {
    const OptimizerOptions options = options_of(one.name, one.settings);
    const OptimizerSettings settings = all_settings(options);
    SCOPED_TRACE(fmt::format("{} with {} settings", one.name, one.settings.size()));
    Updated updated(options);
    EXPECT_EQ(updated.states(), one.states);
    for (int64_t i = 0; i < kElements; ++i) ASSERT_EQ(updated.weight(i), first_value(i));
    std::array<double, kElements> expected{};
    std::array<Kept, kElements> kept{};
    for (int64_t i = 0; i < kElements; ++i) expected[i] = first_value(i);
    for (int step = 0; step < kSteps; ++step) {
      updated.step(step);
      for (int64_t i = 0; i < kElements; ++i) {
        expected[i] = one.by_hand(settings, step + 1, expected[i], gradient_of(step, i), kept[i]);
        ASSERT_NEAR(updated.weight(i), expected[i], 1e-12) << "step " << step;
      }
    }
  }
}

// As SgdUpdate and AdamUpdate do, where gradients are summed over batches.
TEST(UpdateRules, LeaveAllAsItIsWhereTheScaleIsBelowZero) {
  for (const RuleCase& one : rule_cases()) {
    SCOPED_TRACE(one.name);
    const OptimizerOptions options = options_of(one.name, one.settings);
    Updated plain(options), scaled(options, true);
    for (int step = 0; step < 2; ++step) {
      const std::vector<double> before = scaled.all();
      scaled.step(step, -1);
      EXPECT_EQ(scaled.all(), before);
      plain.step(step);
      scaled.step(step, 1);
      EXPECT_EQ(scaled.all(), plain.all());
    }
  }
}

// Not to numbers that are too small for 32 bits to be normal.
TEST(UpdateRules, MomentsFadeToZero) {
  for (const auto& [name, settings, state] : std::vector<std::tuple<std::string, OptimizerSettings, std::string>>{
           {"sgd", {{"momentum", 0.9}, {"dampening", 0.1}}, "w.momentum"},
           {"adam", {{"amsgrad", 1}}, "w.exp_avg"},
           {"nadam", {}, "w.exp_avg"},
           {"radam", {}, "w.exp_avg"},
           {"adamax", {}, "w.exp_avg"},
           {"lion", {{"beta2", 0.9}}, "w.exp_avg"},
           {"rmsprop", {{"momentum", 0.9}}, "w.momentum_buffer"},
           {"fairseq_adafactor", {{"momentum", 0.9}}, "w.exp_avg"}}) {
    SCOPED_TRACE(name);
    Updated updated(options_of(name, settings), true);
    updated.step(0);
    EXPECT_NE(updated.value(state, 1), 0);
    for (int step = 1; step < 1000; ++step) updated.step(step, 0);
    EXPECT_EQ(updated.value(state, 1), 0);
  }
}

TEST(UpdateRules, EveryOpLiesWhereItsStateDoesButForWhatSeveralRead) {
  for (const RuleCase& one : rule_cases()) {
    const Updated updated(options_of(one.name, one.settings));
    size_t overwrite = 0;
    for (const Op& op : updated.graph().ops()) {
      EXPECT_EQ(op.type->name, "PointwiseUpdate");
      const bool behind = op.name == "w.exp_avg/update" && one.name == "lion";  // the parameter's old value is gone
      EXPECT_EQ(updated.graph().tensor(op.inputs[0]).name, behind ? "w.exp_avg" : "w");
      for (const InPlace& pair : op.type->in_place(updated.graph(), op)) overwrite += pair.required ? 1 : 0;
    }
    EXPECT_EQ(overwrite, one.states.size()) << one.name;
  }
}

TEST(UpdateRules, PlainSgdAndAdamHaveOpsOfTheirOwn) {
  for (const std::string name : {"sgd", "adam", "adamw"}) EXPECT_FALSE(goes_by_rule({.name = name}));
  EXPECT_TRUE(goes_by_rule({.name = "sgd", .settings = {{"dampening", 0.1}}}));
  EXPECT_TRUE(goes_by_rule({.name = "rmsprop"}));
}

TEST(UpdateRules, TellWhichSettingsThereAre) {
  EXPECT_THAT(error_text(ErrorCode::invalid_input, [] { check_settings({.name = "rmsprob"}); }), HasSubstr("rmsprop"));
  EXPECT_EQ(error_text(ErrorCode::invalid_input,
                       [] {
                         check_settings({.name = "adadelta", .settings = {{"alpha", 0.5}}});
                       }),
            "--alpha is no setting of adadelta; it has --rho, --eps, --weight-decay, --maximize");
  EXPECT_EQ(error_text(ErrorCode::invalid_input,
                       [] {
                         check_settings({.name = "rmsprop", .settings = {{"alpha", 1.5}}});
                       }),
            "--alpha 1.5: a number from 0 to 1 is expected");
  EXPECT_EQ(error_text(ErrorCode::invalid_input,
                       [] {
                         check_settings({.name = "sgd", .nesterov = true, .settings = {{"dampening", 0.5}}});
                       }),
            "--nesterov has no --dampening; leave one of them out");
  EXPECT_EQ(error_text(ErrorCode::invalid_input,
                       [] {
                         check_settings({.name = "nadam", .settings = {{"beta1", 1}}});
                       }),
            "--beta1 1: a number from 0 to below 1 is expected");
  EXPECT_EQ(error_text(ErrorCode::invalid_input,
                       [] {
                         check_settings({.name = "adafactor", .settings = {{"beta2_decay", 0.5}}});
                       }),
            "--beta2-decay 0.5: a number from -1000000000 to 0 is expected");
  EXPECT_THAT(error_text(ErrorCode::invalid_input,
                         [] {
                           check_settings({.name = "fairseq_adafactor", .settings = {{"warmup_init", 1}}});
                         }),
              HasSubstr("--relative-step"));
}

TEST(UpdateRules, EverySettingIsKnown) {
  std::set<std::string_view> used;
  for (const std::string& name : optimizer_names()) {
    for (const auto& [setting, usual] : update_rule(name).usual) {
      EXPECT_LE(usual, setting_of_optimizers(setting).most);
      EXPECT_GE(usual, setting_of_optimizers(setting).least);
      used.insert(setting);
    }
  }
  EXPECT_EQ(used.size(), settings_of_optimizers().size());
}

TEST(UpdateRules, ProductOfMuMayBeGiven) {
  const UpdateRule& rule = update_rule("nadam");
  const OptimizerSettings settings = all_settings({.name = "nadam"});
  UpdateMoment moment{kRate, 2};
  const Factors counted = rule.factors(settings, moment);
  moment.mu_product = 0.9 * (1 - 0.5 * std::pow(0.96, 0.004));
  EXPECT_EQ(rule.factors(settings, moment), counted);
  moment.mu_product = 0.25;
  EXPECT_NE(rule.factors(settings, moment), counted);
}

TEST(UpdateRules, NumbersMayChangeAndFormsMayNot) {
  const OptimizerSettings usual = all_settings({.name = "rmsprop"});
  EXPECT_TRUE(same_form(usual, all_settings({.name = "rmsprop", .settings = {{"alpha", 0.5}, {"eps", 1}}})));
  EXPECT_FALSE(same_form(usual, all_settings({.name = "rmsprop", .settings = {{"momentum", 0.5}}})));
  EXPECT_FALSE(same_form(usual, all_settings({.name = "rmsprop", .settings = {{"centered", 1}}})));
  EXPECT_FALSE(same_form(usual, all_settings({.name = "adagrad"})));
}

// The step as a whole: groups have factors of their own.
TEST(UpdateRules, GroupsHaveFactorsOfTheirOwn) {
  Network network;
  Graph& g = network.graph;
  const TensorId a = g.add_source("a", {4}, DType::f32, Role::parameter);
  const TensorId b = g.add_source("b", {4}, DType::f32, Role::parameter);
  const TensorId sum =
      g.output(g.add_op("Pointwise", "mul", "mul", {a, b}, {{"expression", std::string("mul(x0,x1)")}}));
  const TensorId loss = g.output(
      g.add_op("Reduce", "loss", "loss", {sum},
               {{"function", std::string("sum")}, {"dims", std::vector<int64_t>{0}}, {"keep_dims", int64_t{0}}}));
  network.objectives = {{loss, {a, b}}};
  const Network step = make_training_network(
      network,
      {.name = "rmsprop", .groups = {{.parameters = {"a"}, .settings = {{"alpha", 0.5}}}, {.parameters = {"b"}}}});
  check(step.graph);
  for (const char* name : {"learning_rate", "learning_rate/alpha", "learning_rate.1", "learning_rate.1/alpha"})
    EXPECT_TRUE(step.graph.find_tensor(name).valid()) << name;
  EXPECT_FALSE(step.graph.find_tensor("step_number").valid());
  EXPECT_EQ(step.graph.op(step.graph.find_op("a/update")).attributes.real("alpha"), 0.5);
  EXPECT_EQ(step.graph.op(step.graph.find_op("b/update")).attributes.real("alpha"), 0.99);
}

}  // namespace
}  // namespace plimsoll
