#include "autodiff/update_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "base/names.h"
#include "plimsoll/error.h"

namespace plimsoll {
namespace {

constexpr SettingOfOptimizers kSettings[] = {
    {"momentum", "Momentum", 1},
    {"dampening", "Dampening of sgd's momentum: what a gradient counts less in it"},
    {"nesterov", "Nesterov momentum", 1, true},
    {"alpha", "Smoothing constant of rmsprop", 1},
    {"centered", "rmsprop: divide by the deviation of the gradients, not by their size", 1, true},
    {"rho", "Smoothing constant of adadelta", 1},
    {"beta1", "The first of the Adams' and lion's betas", 1, false, 0, true},
    {"beta2", "The second of the Adams' and lion's betas", 1, false, 0, true},
    {"eps", "Added to what is divided by"},
    {"amsgrad", "adam, adamw: never divide by less than before", 1, true},
    {"lr_decay", "adagrad: what the learning rate decays by"},
    {"initial_accumulator_value", "adagrad: what the sums of squares begin with"},
    {"momentum_decay", "nadam: what its momentum decays by"},
    {"weight_decay", "L2 penalty"},
    {"decoupled_weight_decay", "adam, nadam, radam: weight decay as adamw's", 1, true},
    {"maximize", "Go up the gradient", 1, true},
    {"beta2_decay", "The Adafactors: the exponent by which the mean of squares forgets less and less", 0, false, -1e9},
    {"eps1", "The Adafactors: the least mean square of gradients"},
    {"eps2", "The Adafactors: the least size of a parameter that a step is measured by"},
    {"clip_threshold", "The Adafactors: the most root mean square of a step, before the learning rate"},
    {"scale_parameter", "fairseq_adafactor: measure steps by the parameter's root mean square", 1, true},
    {"relative_step", "fairseq_adafactor: follow the number of the step instead of the learning rate", 1, true},
    {"warmup_init", "fairseq_adafactor: begin with small steps, with --relative-step", 1, true},
};

double of(const OptimizerSettings& s, std::string_view name) { return s.find(name)->second; }

// A moment whose gradient stays away ends among the numbers that are too small to be normal, which take a processor many times
// as long: it is zero then.
Term fading(Formulas& f, Term moment) {
  const Term least = f.number(std::numeric_limits<float>::min());
  return where(f.call(Function::lt, abs(moment), least), f.number(0), moment);
}

// The gradient with the weight decay that is added to it.
Term decayed_gradient(Formulas& f) { return f.gradient() + f["weight_decay"] * f.parameter(); }

Factors sgd_factors(const OptimizerSettings& s, const UpdateMoment& m) {
  const double dampening = m.number == 1 ? 0 : of(s, "dampening");  // the first gradient is the momentum
  return {{"learning_rate", m.learning_rate},
          {"weight_decay", of(s, "weight_decay")},
          {"momentum", of(s, "momentum")},
          {"rest", 1 - dampening}};
}
Term sgd(Formulas& f) {
  Term g = decayed_gradient(f);
  if (f.has("momentum")) {
    Term velocity = f.state("momentum");
    velocity = f.next(velocity, fading(f, f["momentum"] * velocity + f["rest"] * g));
    g = f.has("nesterov") ? g + f["momentum"] * velocity : velocity;
  }
  return f.parameter() - f["learning_rate"] * g;
}

// What Adam and its kin have in common.
struct Moments {
  Term gradient, mean, square;
  Term parameter;  // with its weight decay, where that is decoupled
};
Term gradient_of_adams(Formulas& f) { return f.has("decoupled_weight_decay") ? f.gradient() : decayed_gradient(f); }
Term parameter_of_adams(Formulas& f) {
  return f.has("decoupled_weight_decay") ? f["keep"] * f.parameter() : f.parameter();
}
Term next_mean(Formulas& f, Term g) {
  const Term mean = f.state("exp_avg");
  return f.next(mean, fading(f, mean + f["rest1"] * (g - mean)));
}
Moments moments(Formulas& f) {
  const Term g = gradient_of_adams(f), mean = next_mean(f, g), square = f.state("exp_avg_sq");
  return {.gradient = g,
          .mean = mean,
          .square = f.next(square, f["beta2"] * square + f["rest2"] * g * g),
          .parameter = parameter_of_adams(f)};
}
Factors factors_of_adams(const OptimizerSettings& s, const UpdateMoment& m, double learning_rate) {
  const double decay = of(s, "weight_decay");
  return {{"learning_rate", learning_rate},
          {"weight_decay", decay},
          {"keep", 1 - m.learning_rate * decay},
          {"rest1", 1 - of(s, "beta1")},
          {"beta2", of(s, "beta2")},
          {"rest2", 1 - of(s, "beta2")},
          {"eps", of(s, "eps")}};
}
double power(const OptimizerSettings& s, std::string_view beta, const UpdateMoment& m) {
  return std::pow(of(s, beta), static_cast<double>(m.number));
}

Factors adam_factors(const OptimizerSettings& s, const UpdateMoment& m) {
  Factors factors = factors_of_adams(s, m, m.learning_rate / (1 - power(s, "beta1", m)));
  factors.emplace_back("correction", std::sqrt(1 - power(s, "beta2", m)));
  return factors;
}
Term adam(Formulas& f) {
  const Moments m = moments(f);
  Term square = m.square;
  if (f.has("amsgrad")) {
    const Term most = f.state("max_exp_avg_sq");
    square = f.next(most, max(most, m.square));
  }
  return m.parameter - f["learning_rate"] * (m.mean / (sqrt(square) / f["correction"] + f["eps"]));
}

Factors rmsprop_factors(const OptimizerSettings& s, const UpdateMoment& m) {
  return {{"learning_rate", m.learning_rate},
          {"weight_decay", of(s, "weight_decay")},
          {"alpha", of(s, "alpha")},
          {"rest", 1 - of(s, "alpha")},
          {"eps", of(s, "eps")},
          {"momentum", of(s, "momentum")}};
}
Term rmsprop(Formulas& f) {
  const Term g = decayed_gradient(f);
  Term square = f.state("square_avg");
  square = f.next(square, f["alpha"] * square + f["rest"] * g * g);
  Term size = square;
  if (f.has("centered")) {
    Term mean = f.state("grad_avg");
    mean = f.next(mean, mean + f["rest"] * (g - mean));
    size = square - mean * mean;
  }
  Term step = g / (sqrt(size) + f["eps"]);
  if (f.has("momentum")) {
    const Term velocity = f.state("momentum_buffer");
    step = f.next(velocity, fading(f, f["momentum"] * velocity + step));
  }
  return f.parameter() - f["learning_rate"] * step;
}

Factors adagrad_factors(const OptimizerSettings& s, const UpdateMoment& m) {
  const double before = static_cast<double>(m.number - 1);
  return {{"learning_rate", m.learning_rate / (1 + before * of(s, "lr_decay"))},
          {"weight_decay", of(s, "weight_decay")},
          {"eps", of(s, "eps")}};
}
Term adagrad(Formulas& f) {
  const Term g = decayed_gradient(f);
  Term sum = f.state("sum", f.setting("initial_accumulator_value"));
  sum = f.next(sum, sum + g * g);
  return f.parameter() - f["learning_rate"] * (g / (sqrt(sum) + f["eps"]));
}

Factors adadelta_factors(const OptimizerSettings& s, const UpdateMoment& m) {
  return {{"learning_rate", m.learning_rate},
          {"weight_decay", of(s, "weight_decay")},
          {"rho", of(s, "rho")},
          {"rest", 1 - of(s, "rho")},
          {"eps", of(s, "eps")}};
}
Term adadelta(Formulas& f) {
  const Term g = decayed_gradient(f);
  Term square = f.state("square_avg");
  square = f.next(square, f["rho"] * square + f["rest"] * g * g);
  const Term steps = f.state("acc_delta");
  // Both the parameter and this state overwrite what it is made from.
  const Term step = f.computed("step", sqrt(steps + f["eps"]) / sqrt(square + f["eps"]) * g);
  f.next(steps, f["rho"] * steps + f["rest"] * step * step);
  return f.parameter() - f["learning_rate"] * step;
}

Factors adamax_factors(const OptimizerSettings& s, const UpdateMoment& m) {
  return factors_of_adams(s, m, m.learning_rate / (1 - power(s, "beta1", m)));
}
Term adamax(Formulas& f) {
  const Term g = decayed_gradient(f), mean = next_mean(f, g);
  Term most = f.state("exp_inf");
  most = f.next(most, max(f["beta2"] * most, abs(g) + f["eps"]));
  return f.parameter() - f["learning_rate"] * (mean / most);
}

double nadam_mu(const OptimizerSettings& s, double number) {
  return of(s, "beta1") * (1 - 0.5 * std::pow(0.96, number * of(s, "momentum_decay")));
}
Factors nadam_factors(const OptimizerSettings& s, const UpdateMoment& m) {
  const double number = static_cast<double>(m.number), mu = nadam_mu(s, number), next = nadam_mu(s, number + 1);
  double product = m.mu_product;
  if (product < 0) {
    product = 1;
    for (double i = 1; i < number && product > 1e-30; ++i) product *= nadam_mu(s, i);  // of less, 1 - product is 1
  }
  product *= mu;
  Factors factors = factors_of_adams(s, m, m.learning_rate * (1 - mu) / (1 - product));
  factors.emplace_back("mean_rate", m.learning_rate * next / (1 - product * next));
  factors.emplace_back("correction", 1 - power(s, "beta2", m));
  return factors;
}
Term nadam(Formulas& f) {
  const Moments m = moments(f);
  const Term size = sqrt(m.square / f["correction"]) + f["eps"];
  return m.parameter - f["learning_rate"] * (m.gradient / size) - f["mean_rate"] * (m.mean / size);
}

Factors radam_factors(const OptimizerSettings& s, const UpdateMoment& m) {
  const double beta2 = of(s, "beta2"), power2 = power(s, "beta2", m), rest = 1 - power2;
  const double most = 2 / (1 - beta2) - 1, length = most - 2 * static_cast<double>(m.number) * power2 / rest;
  const bool adaptive = length > 5;
  double rate = m.learning_rate / (1 - power(s, "beta1", m));
  if (adaptive) {
    const double above = (length - 4) * (length - 2) * most, below = (most - 4) * (most - 2) * length;
    rate *= std::sqrt(above / below) * std::sqrt(rest);
  }
  Factors factors = factors_of_adams(s, m, rate);
  factors.emplace_back("adaptive", adaptive ? 1 : 0);
  return factors;
}
Term radam(Formulas& f) {
  const Moments m = moments(f);
  const Term size = where(f["adaptive"], sqrt(m.square) + f["eps"], f.number(1));
  return m.parameter - f["learning_rate"] * (m.mean / size);
}

Factors lion_factors(const OptimizerSettings& s, const UpdateMoment& m) {
  return {{"learning_rate", m.learning_rate},
          {"keep", 1 - m.learning_rate * of(s, "weight_decay")},
          {"rest1", 1 - of(s, "beta1")},
          {"rest2", 1 - of(s, "beta2")}};
}
// Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023.
Term lion(Formulas& f) {
  const Term g = f.gradient(), mean = f.state("exp_avg");
  f.next_behind(mean, fading(f, mean + f["rest2"] * (g - mean)));
  return f["keep"] * f.parameter() - f["learning_rate"] * sign(mean + f["rest1"] * (g - mean));
}

// Shazeer and Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", 2018: of a matrix the mean of squares
// is known by its rows and by its columns alone.
struct Factored {
  Shape rows, columns;
  size_t last, before;  // the dimensions of columns and rows
};
std::optional<Factored> factored(const Shape& shape) {
  if (shape.size() < 2) return std::nullopt;
  Factored result{shape, shape, shape.size() - 1, shape.size() - 2};
  result.rows[result.last] = 1;
  result.columns[result.before] = 1;
  return result;
}
struct FactoredSquares {
  Term rows, columns, mean_of_rows;
};
// The next means of the gradient's squares, to each of which `least` is added, in the two states of these names.
FactoredSquares next_squares(Formulas& f, const Factored& by, Term least, std::string_view rows,
                             std::string_view columns) {
  const auto next = [&](std::string_view name, const Shape& shape, size_t dimension, std::string_view mean) {
    const Term before = f.state(name, shape), now = f.mean_of_squares(mean, dimension) + least;
    return f.next(before, before + f["rest"] * (now - before));
  };
  FactoredSquares result;
  result.rows = next(rows, by.rows, by.last, "mean_of_columns");
  result.columns = next(columns, by.columns, by.before, "mean_of_rows");
  result.mean_of_rows = f.mean("mean_of_squares", result.rows, by.before);
  return result;
}
double forgotten(const OptimizerSettings& s, const UpdateMoment& m) {
  return std::pow(static_cast<double>(m.number), of(s, "beta2_decay"));
}
// By how much the step is too long.
Term excess(Formulas& f, Term step) {
  return max(f.number(1), f.root_mean_square("step_size", step) / f["clip_threshold"]);
}

Factors adafactor_factors(const OptimizerSettings& s, const UpdateMoment& m) {
  return {{"learning_rate", std::min(m.learning_rate, 1 / std::sqrt(static_cast<double>(m.number)))},
          {"keep", 1 - m.learning_rate * of(s, "weight_decay")},
          {"rest", forgotten(s, m)},
          {"eps1", of(s, "eps1")},
          {"least_square", of(s, "eps1") * of(s, "eps1")},
          {"eps2", of(s, "eps2")},
          {"clip_threshold", of(s, "clip_threshold")}};
}
// As torch.optim.Adafactor.
Term adafactor(Formulas& f) {
  const Term g = f.gradient(), size = max(f["eps2"], f.root_mean_square("size", f.parameter()));
  Term squares;
  if (const auto by = factored(f.shape())) {
    const FactoredSquares mean = next_squares(f, *by, f.number(0), "row_var", "col_var");
    squares = mean.rows / max(mean.mean_of_rows, f["eps1"]) * mean.columns;
  } else {
    const Term before = f.state("variance");
    squares = f.next(before, before + f["rest"] * (g * g - before));
  }
  const Term step = f.computed("step", g / sqrt(max(squares, f["least_square"])));
  const Term rate = f.computed("rate", f["learning_rate"] * size / excess(f, step));
  return f["keep"] * f.parameter() - rate * step;
}

Factors fairseq_adafactor_factors(const OptimizerSettings& s, const UpdateMoment& m) {
  const auto number = static_cast<double>(m.number);
  double rate = m.learning_rate;
  if (of(s, "relative_step") != 0) {
    const double most = of(s, "warmup_init") != 0 ? 1e-6 * number : 1e-2;
    rate = std::min(most, 1 / std::sqrt(number));
  }
  return {{"learning_rate", rate},
          {"weight_decay", of(s, "weight_decay")},
          {"rest", forgotten(s, m)},
          {"rest1", 1 - of(s, "momentum")},
          {"eps1", of(s, "eps1")},
          {"eps2", of(s, "eps2")},
          {"clip_threshold", of(s, "clip_threshold")}};
}
// As fairseq's, and so Transformers' own.
Term fairseq_adafactor(Formulas& f) {
  const Term g = f.gradient();
  Term rate = f["learning_rate"];
  if (f.has("scale_parameter"))
    rate = f.computed("relative_rate", rate * max(f["eps2"], f.root_mean_square("size", f.parameter())));
  Term step;
  if (const auto by = factored(f.shape())) {
    const FactoredSquares mean = next_squares(f, *by, f["eps1"], "exp_avg_sq_row", "exp_avg_sq_col");
    const Term rows = f.computed("rows", sqrt(mean.rows / mean.mean_of_rows));
    step = g / (rows * sqrt(mean.columns));
  } else {
    const Term before = f.state("exp_avg_sq");
    step = g / sqrt(f.next(before, before + f["rest"] * (g * g + f["eps1"] - before)));
  }
  step = f.computed("step", step);
  const Term clipped = f.computed("rate", rate / excess(f, step));
  Term change = clipped * step;
  if (f.has("momentum")) {
    const Term before = f.state("exp_avg");
    change = f.next(before, fading(f, before + f["rest1"] * (change - before)));
  }
  return f.parameter() - f["weight_decay"] * rate * f.parameter() - change;
}

std::vector<UpdateRule> all_rules() {
  using Usual = std::vector<std::pair<std::string_view, double>>;
  const auto with = [](Usual usual, const Usual& more = {}) {
    usual.insert(usual.end(), more.begin(), more.end());
    usual.emplace_back("weight_decay", 0);
    usual.emplace_back("maximize", 0);
    return usual;
  };
  constexpr double kEpsilon = std::numeric_limits<float>::epsilon();
  const Usual adams{{"beta1", 0.9}, {"beta2", 0.999}, {"eps", 1e-8}};
  return {
      {"sgd", 1e-3, with({{"momentum", 0}, {"dampening", 0}, {"nesterov", 0}}), sgd_factors, sgd},
      {"adam", 1e-3, with(adams, {{"amsgrad", 0}, {"decoupled_weight_decay", 0}}), adam_factors, adam},
      {"adamw", 1e-3, with(adams, {{"amsgrad", 0}, {"decoupled_weight_decay", 1}}), adam_factors, adam},
      {"rmsprop", 1e-2, with({{"alpha", 0.99}, {"eps", 1e-8}, {"momentum", 0}, {"centered", 0}}), rmsprop_factors,
       rmsprop},
      {"adagrad", 1e-2, with({{"lr_decay", 0}, {"initial_accumulator_value", 0}, {"eps", 1e-10}}), adagrad_factors,
       adagrad},
      {"adadelta", 1, with({{"rho", 0.9}, {"eps", 1e-6}}), adadelta_factors, adadelta},
      {"adamax", 2e-3, with(adams), adamax_factors, adamax},
      {"nadam", 2e-3, with(adams, {{"momentum_decay", 4e-3}, {"decoupled_weight_decay", 0}}), nadam_factors, nadam},
      {"radam", 1e-3, with(adams, {{"decoupled_weight_decay", 0}}), radam_factors, radam},
      {"lion", 1e-4, with({{"beta1", 0.9}, {"beta2", 0.99}}), lion_factors, lion},
      {"adafactor", 1e-2, with({{"beta2_decay", -0.8}, {"eps1", kEpsilon}, {"eps2", 1e-3}, {"clip_threshold", 1}}),
       adafactor_factors, adafactor, true},
      {"fairseq_adafactor", 1e-3,
       with({{"momentum", 0},
             {"beta2_decay", -0.8},
             {"eps1", 1e-30},
             {"eps2", 1e-3},
             {"clip_threshold", 1},
             {"scale_parameter", 0},
             {"relative_step", 0},
             {"warmup_init", 0}}),
       fairseq_adafactor_factors, fairseq_adafactor, true},
  };
}

const std::vector<UpdateRule>& rules() {
  static const std::vector<UpdateRule> kRules = all_rules();
  return kRules;
}

bool is_adam(std::string_view name) { return name == "adam" || name == "adamw"; }

}  // namespace

std::span<const SettingOfOptimizers> settings_of_optimizers() { return kSettings; }

const SettingOfOptimizers& setting_of_optimizers(std::string_view name) {
  const auto found = std::ranges::find(kSettings, name, &SettingOfOptimizers::name);
  if (found == std::end(kSettings)) throw Error(ErrorCode::internal, "no optimizer has such a setting");
  return *found;
}

bool UpdateRule::has(std::string_view setting) const {
  return std::ranges::any_of(usual, [&](const auto& one) { return one.first == setting; });
}

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const UpdateRule& rule : rules()) names.emplace_back(rule.name);
  return names;
}

const UpdateRule& update_rule(std::string_view name) {
  const auto found = std::ranges::find(rules(), name, &UpdateRule::name);
  if (found == rules().end()) throw Error(ErrorCode::invalid_input, unknown_name("optimizer", name, optimizer_names()));
  return *found;
}

bool goes_by_rule(const OptimizerOptions& options) {
  return !options.settings.empty() || (options.name != "sgd" && !is_adam(options.name));
}

bool updates_whole_parameters(const OptimizerOptions& options) { return update_rule(options.name).of_whole; }

OptimizerSettings all_settings(const OptimizerOptions& options) {
  OptimizerSettings result;
  for (const auto& [name, usual] : update_rule(options.name).usual) result.emplace(name, usual);
  result["weight_decay"] = options.weight_decay;
  if (options.name == "sgd") {
    result["momentum"] = options.momentum;
    result["nesterov"] = options.nesterov ? 1 : 0;
  } else if (is_adam(options.name)) {
    result["beta1"] = options.beta1;
    result["beta2"] = options.beta2;
    result["eps"] = options.epsilon;
  }
  for (const auto& [name, value] : options.settings) result[name] = value;
  return result;
}

bool same_form(const OptimizerSettings& a, const OptimizerSettings& b) {
  return a.size() == b.size() && std::ranges::all_of(a, [&](const auto& setting) {
           const auto other = b.find(setting.first);
           if (other == b.end()) return false;
           if (setting.first != "momentum" && !setting_of_optimizers(setting.first).is_form) return true;
           return (setting.second != 0) == (other->second != 0);
         });
}

void check_settings(const OptimizerOptions& options) {
  const UpdateRule& rule = update_rule(options.name);
  const auto flag = [](std::string_view name) {
    std::string text = fmt::format("--{}", name);
    std::ranges::replace(text, '_', '-');
    return text;
  };
  for (const auto& [name, value] : options.settings) {
    if (!rule.has(name)) {
      std::vector<std::string> flags;
      for (const auto& [own, usual] : rule.usual) flags.push_back(flag(own));
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{} is no setting of {}; it has {}", flag(name), rule.name, fmt::join(flags, ", ")));
    }
    const SettingOfOptimizers& setting = setting_of_optimizers(name);
    if (!(value >= setting.least && value <= setting.most) || (setting.is_below && value == setting.most)) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{} {}: a number from {} to {}{} is expected", flag(name), value, setting.least,
                              setting.is_below ? "below " : "", setting.most));
    }
  }
  for (const auto& [name, value] : {std::pair{"beta1", options.beta1}, {"beta2", options.beta2}}) {
    if (is_adam(options.name) && !(value >= 0 && value < 1)) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("{} {}: a number from 0 to below 1 is expected", flag(name), value));
    }
  }
  if (!goes_by_rule(options)) return;
  const OptimizerSettings settings = all_settings(options);
  const auto is_on = [&](std::string_view name) { return rule.has(name) && settings.find(name)->second != 0; };
  if (is_on("warmup_init") && !is_on("relative_step"))
    throw Error(ErrorCode::invalid_input, "--warmup-init needs --relative-step; add it, or leave --warmup-init out");
  if (is_on("nesterov") && is_on("dampening"))
    throw Error(ErrorCode::invalid_input, "--nesterov has no --dampening; leave one of them out");
}

}  // namespace plimsoll
