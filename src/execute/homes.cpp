#include "execute/homes.h"

#include <fmt/format.h>

#include <algorithm>

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

bool Homes::converts_by_rows(const Layout& layout) { return rows_together(layout) > 0; }

void Homes::write(TensorId id, int64_t size, int64_t first, std::span<const std::byte> elements) {
  const Tensor& tensor = graph_.tensor(id);
  const Place& home = homes_[id];
  naming(tensor, [&] {
    if (tensor.layout.is_plain()) {
      flush();
      home.channel->write(*home.slot, first * size, elements);
      return;
    }
    while (!elements.empty()) {
      hold(id, first);
      const int64_t count =
          std::min(static_cast<int64_t>(elements.size()) / size, window_.first + window_.count - first);
      scatter_elements(window_.shape, tensor.layout, size, first - window_.first, count, elements.data(),
                       storage_.data());
      changed_ = true;
      first += count;
      elements = elements.subspan(count * size);
    }
    if (first == element_count(tensor.shape)) flush();
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
    while (!elements.empty()) {
      hold(id, first);
      const int64_t count =
          std::min(static_cast<int64_t>(elements.size()) / size, window_.first + window_.count - first);
      gather_elements(window_.shape, tensor.layout, size, first - window_.first, count, storage_.data(),
                      elements.data());
      first += count;
      elements = elements.subspan(count * size);
    }
    if (first == element_count(tensor.shape)) flush();
  });
}

void Homes::hold(TensorId id, int64_t element) {
  if (held_ == id && element >= window_.first && element < window_.first + window_.count) return;
  flush();
  window_ = window_holding(graph_.tensor(id), element, kHeldBytes);
  storage_.assign(window_.bytes, std::byte{0});  // padding is zero
  const Place& home = homes_[id];
  const int64_t last = (window_.at + window_.bytes - 1) / kTierPiece;
  bool written = true;  // what never was is zero
  for (int64_t piece = window_.at / kTierPiece; piece <= last; ++piece)
    written = written && home.slot->known[piece] != 0;
  if (written) home.channel->read(*home.slot, window_.at, storage_);
  held_ = id;
}

void Homes::flush() {
  if (!held_.valid()) return;
  const Place& home = homes_[held_];
  if (changed_) home.channel->write(*home.slot, window_.at, storage_);
  held_ = {};
  changed_ = false;
  storage_ = {};
}

}  // namespace plimsoll
