#include "device/cuda/product_library.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace plimsoll::cuda {
namespace {

struct ProductField {
  std::string_view name;
  int64_t ProductConfiguration::*value;
  int64_t unset;
};
constexpr ProductField kProductFields[] = {
    {"algo", &ProductConfiguration::algorithm, -1},    {"tile", &ProductConfiguration::tile, 0},
    {"stages", &ProductConfiguration::stages, 0},      {"inner", &ProductConfiguration::inner, 0},
    {"cluster", &ProductConfiguration::cluster, 0},    {"swizzle", &ProductConfiguration::swizzle, 0},
    {"custom", &ProductConfiguration::custom, 0},      {"splitk", &ProductConfiguration::split_k, 1},
    {"reduction", &ProductConfiguration::reduction, 0}};

// Sums of parts in full precision, added in a fixed order: CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE.
constexpr int64_t kByWorkspace = 2;
constexpr int64_t kParts[] = {2, 3, 4, 6, 8, 12, 16};
constexpr int64_t kTile = 128, kLeastPart = 256;

// cuBLAS's numbers.
bool is_refused(const Answer& answer) { return answer.status == 7 || answer.status == 8 || answer.status == 15; }
bool went_wrong(const Answer& answer) { return answer.status == 3 || answer.status == 13 || answer.status == 14; }

// False where cuBLASLt does not do it for this one. What else is wrong is thrown.
bool is_accepted(const Answer& answer) {
  if (answer.is_done()) return true;
  if (is_refused(answer) || went_wrong(answer)) return false;
  throw Error(ErrorCode::device_failure, answer.text);
}

int64_t tiles_of(const Product& p) { return p.batch * ((p.m + kTile - 1) / kTile) * ((p.n + kTile - 1) / kTile); }

class ProductListing {
 public:
  ProductListing(ProductLibrary& library, const Product& product, Bytes most)
      : library_(library), product_(product), most_(most) {}

  std::vector<ProductAlgorithm> list() {
    std::vector<ProductConfiguration> guessed;
    if (!is_accepted(library_.describe(product_, described_)) ||
        !is_accepted(library_.guess(*described_, most_, kMostGuesses, guessed)) || guessed.empty())
      return {};
    best_ = name_of(guessed.front());
    for (const ProductConfiguration& configuration : guessed) take(configuration);
    if (tiles_of(product_) >= 2 * library_.processors()) return std::move(list_);
    for (const ProductConfiguration& whole : guessed) {
      if (split(whole)) break;
    }
    return std::move(list_);
  }

 private:
  bool split(ProductConfiguration configuration) {
    if (configuration.split_k > 1) return false;
    bool any = false;
    configuration.reduction = kByWorkspace;
    for (const int64_t parts : kParts) {
      configuration.split_k = parts;
      if (product_.k / parts >= kLeastPart && take(configuration)) any = true;
    }
    return any;
  }

  // What is listed was made from what is in its name.
  bool take(const ProductConfiguration& configuration) {
    const std::string name = name_of(configuration);
    const auto is_known = [&](const ProductAlgorithm& a) { return a.name == name; };
    if (name == best_ || std::any_of(list_.begin(), list_.end(), is_known)) return false;
    Bytes workspace;
    if (!is_accepted(library_.make(*described_, configuration, workspace)) || workspace > most_) return false;
    list_.push_back({.name = name, .workspace = workspace});
    return true;
  }

  ProductLibrary& library_;
  const Product& product_;
  Bytes most_;
  std::unique_ptr<ProductLibrary::Described> described_;
  std::string best_;
  std::vector<ProductAlgorithm> list_;
};

class ProductByName final : public Prepared {
 public:
  ProductByName(ProductLibrary& library, const Product& product, const ProductAlgorithm& algorithm)
      : library_(library), name_(algorithm.name) {
    const std::optional<ProductConfiguration> configuration = parse_product_algorithm(name_);
    if (!configuration) refuse("this is no name of one");
    require(library_.describe(product, described_));
    require(library_.make(*described_, *configuration, workspace_));
    if (workspace_ > algorithm.workspace) refuse(fmt::format("it asks for {} bytes of workspace", workspace_.count));
  }

  Bytes workspace() const override { return workspace_; }
  void run(const void* a, const void* b, const void* bias, void* out, void* workspace) override {
    const Answer answer = library_.run(*described_, a, b, bias, out, workspace);
    if (answer.is_done()) return;
    if (went_wrong(answer) && !library_.still_works()) throw Error(ErrorCode::device_failure, answer.text);
    require(answer);
  }

 private:
  void require(const Answer& answer) const {
    if (!is_accepted(answer)) refuse(answer.text);
  }
  [[noreturn]] void refuse(const std::string& why) const {
    throw Error(ErrorCode::unsupported, "cuBLASLt does not run the algorithm " + name_ + " after all: " + why);
  }

  ProductLibrary& library_;
  std::string name_;
  std::unique_ptr<ProductLibrary::Described> described_;
  Bytes workspace_;
};

}  // namespace

std::string name_of(const ProductConfiguration& configuration) {
  std::string name;
  for (const ProductField& field : kProductFields) {
    const int64_t value = configuration.*field.value;
    if (value != field.unset) name += fmt::format("{}{}{}", name.empty() ? "" : "_", field.name, value);
  }
  return name;
}

std::optional<ProductConfiguration> parse_product_algorithm(std::string_view name) {
  ProductConfiguration made;
  std::string_view rest = name;
  for (const ProductField& field : kProductFields) {
    const std::string before = (&field == kProductFields ? "" : "_") + std::string(field.name);
    if (!rest.starts_with(before)) continue;
    const char* const number = rest.data() + before.size();
    const char* const stop = rest.data() + rest.size();
    const auto [end, error] = std::from_chars(number, stop, made.*field.value);
    if (error != std::errc{}) return std::nullopt;
    rest = {end, stop};
  }
  if (!rest.empty() || name_of(made) != name) return std::nullopt;
  return made;
}

std::vector<ProductAlgorithm> list_algorithms(ProductLibrary& library, const Product& product, Bytes workspace) {
  return ProductListing(library, product, workspace).list();
}

std::unique_ptr<Prepared> prepare_algorithm(ProductLibrary& library, const Product& product,
                                            const ProductAlgorithm& algorithm) {
  return std::make_unique<ProductByName>(library, product, algorithm);
}

}  // namespace plimsoll::cuda
