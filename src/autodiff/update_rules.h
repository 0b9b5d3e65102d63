// The optimizers that are written as formulas, one entry of a table each: all of PyTorch's that Plimsoll knows, with all
// their settings. For the plain forms of SGD and Adam there are ops of their own (ops/update.cpp), which are faster.
//
//   before a step, on the host    settings, learning rate, number of the update ──> factors, in double
//   in the step, an element each  parameter, gradient, states, factors ──> next states, next parameter
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autodiff/update_formulas.h"

namespace plimsoll {

// A setting of some optimizers, by PyTorch's name; of `betas` the two are "beta1" and "beta2".
struct SettingOfOptimizers {
  std::string_view name, what;
  double most = 1e9;
  bool is_form = false;  // yes or no; it says which formulas there are, so a step is compiled with it
  double least = 0;
  bool is_below = false;  // `most`, which it is at most else
};
std::span<const SettingOfOptimizers> settings_of_optimizers();
const SettingOfOptimizers& setting_of_optimizers(std::string_view name);

// What the factors of one update follow from, beside the settings.
struct UpdateMoment {
  double learning_rate = 0;
  int64_t number = 1;      // of the update, from 1
  double mu_product = -1;  // nadam's, as the update before left it; below 0: as these settings would have made it
};
using Factors = std::vector<std::pair<std::string_view, double>>;

struct UpdateRule {
  std::string_view name;
  double learning_rate;                                    // PyTorch's default
  std::vector<std::pair<std::string_view, double>> usual;  // its settings, with PyTorch's defaults
  Factors (*factors)(const OptimizerSettings&, const UpdateMoment&);
  Term (*formulas)(Formulas&);  // the parameter's next value; the states' are appended
  bool of_whole = false;        // updates_whole_parameters

  bool has(std::string_view setting) const;
};

// By PyTorch's name in small letters. Throws Error(invalid_input) with the nearest.
const UpdateRule& update_rule(std::string_view name);
std::vector<std::string> optimizer_names();

// Whether the optimizer is updated by its rule, not by SgdUpdate or AdamUpdate.
bool goes_by_rule(const OptimizerOptions& options);
// All settings of its rule: as the options say, or PyTorch's defaults.
OptimizerSettings all_settings(const OptimizerOptions& options);
// Throws Error(invalid_input) on a name that is not known, with the nearest, on settings that the optimizer has not, and on
// values that they cannot have.
void check_settings(const OptimizerOptions& options);
// Whether a step that was compiled with the one may go on with the other: momentum may not come or go, a form not change.
bool same_form(const OptimizerSettings& a, const OptimizerSettings& b);

}  // namespace plimsoll
