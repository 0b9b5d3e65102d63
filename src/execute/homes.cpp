#include "execute/homes.h"

#include <fmt/format.h>

namespace plimsoll {
namespace {

template <class Action>
auto naming(const Tensor& tensor, const Action& action) {
  try {
    return action();
  } catch (const Error& error) {
    throw Error(error.code(),
                fmt::format("'{}' ({}) outside the arena: {}", tensor.name, to_string(tensor.bytes()), error.what()));
  }
}

}  // namespace

Homes::Homes(const Graph& graph, const Plan& plan, std::span<const std::shared_ptr<Tier>> tiers) : graph_(graph) {
  if (plan.homes.empty()) return;
  homes_.resize(graph.tensor_count());
  channels_.resize(tiers.size());
  for (const Home& home : plan.homes) {
    const size_t tier = home.tier;
    if (!channels_[tier]) channels_[tier] = tiers[tier]->open_channel();
    homes_[home.tensor] = {&tiers[tier]->slot(home.slot, graph.tensor(home.tensor).bytes()), channels_[tier].get()};
  }
  for (const State& state : graph.states) {
    homes_[state.after] = homes_[state.before];
  }
}

void Homes::write(TensorId id, int64_t size, int64_t first, std::span<const std::byte> elements) {
  const Tensor& tensor = graph_.tensor(id);
  const Place& home = homes_[id];
  naming(tensor, [&] {
    if (tensor.layout.is_plain()) {
      flush();
      home.channel->write(*home.slot, first * size, elements);
      return;
    }
    hold(id);
    const int64_t count = static_cast<int64_t>(elements.size()) / size;
    scatter_elements(tensor.shape, tensor.layout, size, first, count, elements.data(), storage_.data());
    changed_ = true;
    if (first + count == element_count(tensor.shape)) flush();
  });
}

void Homes::read(TensorId id, int64_t size, int64_t first, std::span<std::byte> elements) {
  const Tensor& tensor = graph_.tensor(id);
  const Place& home = homes_[id];
  naming(tensor, [&] {
    if (tensor.layout.is_plain()) {
      flush();
      home.channel->read(*home.slot, first * size, elements);
      return;
    }
    hold(id);
    const int64_t count = static_cast<int64_t>(elements.size()) / size;
    gather_elements(tensor.shape, tensor.layout, size, first, count, storage_.data(), elements.data());
    if (first + count == element_count(tensor.shape)) flush();
  });
}

void Homes::hold(TensorId id) {
  if (held_ == id) return;
  flush();
  const Place& home = homes_[id];
  storage_.assign(graph_.tensor(id).bytes().count, std::byte{0});  // padding is zero
  bool written = false;
  for (const uint8_t known : home.slot->known) written = written || known != 0;
  if (written) home.channel->read(*home.slot, storage_.data());
  held_ = id;
}

void Homes::flush() {
  if (!held_.valid()) return;
  const Place& home = homes_[held_];
  if (changed_) home.channel->write(*home.slot, storage_.data());
  held_ = {};
  changed_ = false;
  storage_ = {};
}

}  // namespace plimsoll
