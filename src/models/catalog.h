// The networks behind build_model: each function stands in the file of its network and builds it from a request in
// which every field is filled in and every option is known.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "plimsoll/models.h"

namespace plimsoll {

// The options in a model's name, as text; the functions read them, with the option's name in every complaint.
class ModelOptions {
 public:
  void set(const std::string& name, std::string value) { values_[name] = std::move(value); }
  bool has(std::string_view name) const { return values_.find(name) != values_.end(); }
  int64_t integer(std::string_view name, int64_t otherwise, int64_t least, int64_t most) const;
  double fraction(std::string_view name, double otherwise) const;  // at least 0, below 1
  // "256-128": numbers of at least 1, as many as `count` (0: any)
  std::vector<int64_t> list(std::string_view name, std::vector<int64_t> otherwise, size_t count = 0) const;

 private:
  std::map<std::string, std::string, std::less<>> values_;
};

// "resnet:6-32-788-6", taken apart.
struct ModelName {
  std::string_view kind;  // "resnet"
  ModelOptions options;
};
// Throws Error(invalid_input) for a network or an option that there is not, with the nearest, and for one without a
// value.
ModelName parse_model_name(std::string_view name);

struct ModelRequest {
  std::string name;       // as the user wrote it: the graph's name
  std::string_view kind;  // the entry's name: "resnet50"
  ModelInput input;
  ModelOptions options;
};

Network build_mlp(const ModelRequest& request);  // simple.cpp
Network build_lenet(const ModelRequest& request);
Network build_alexnet(const ModelRequest& request);  // alexnet.cpp
Network build_vgg(const ModelRequest& request);      // vgg.cpp
Network build_resnet(const ModelRequest& request);   // resnet.cpp
Network build_cifar_resnet(const ModelRequest& request);
Network build_inception3(const ModelRequest& request);  // inception3.cpp
Network build_inception4(const ModelRequest& request);  // inception4.cpp
Network build_densenet(const ModelRequest& request);    // densenet.cpp
Network build_cifar_densenet(const ModelRequest& request);
Network build_dcgan(const ModelRequest& request);  // dcgan.cpp
Network build_gpt2(const ModelRequest& request);   // gpt2.cpp
Network build_llama(const ModelRequest& request);  // llama.cpp
Network build_bert(const ModelRequest& request);   // bert.cpp
Network build_vit(const ModelRequest& request);    // vit.cpp

}  // namespace plimsoll
