#include <xxhash.h>

#include <cstring>

#include "plimsoll/graph.h"
#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

// Every value with its length, so that no two graphs write the same bytes.
class Writer {
 public:
  void number(int64_t value) { append(&value, sizeof value); }
  void real(double value) { append(&value, sizeof value); }
  void text(std::string_view value) {
    number(static_cast<int64_t>(value.size()));
    append(value.data(), value.size());
  }
  void numbers(const std::vector<int64_t>& values) {
    number(static_cast<int64_t>(values.size()));
    for (int64_t v : values) number(v);
  }
  template <class Tag>
  void ids(const std::vector<Id<Tag>>& values) {
    number(static_cast<int64_t>(values.size()));
    for (Id<Tag> id : values) number(id.index);
  }
  uint64_t hash() const { return XXH3_64bits(bytes_.data(), bytes_.size()); }

 private:
  void append(const void* data, size_t size) { bytes_.append(static_cast<const char*>(data), size); }
  std::string bytes_;
};

void write(Writer& to, const Attribute& attribute) {
  to.number(static_cast<int64_t>(attribute.index()));
  std::visit(
      [&](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, int64_t>) to.number(value);
        if constexpr (std::is_same_v<T, double>) to.real(value);
        if constexpr (std::is_same_v<T, std::string>) to.text(value);
        if constexpr (std::is_same_v<T, std::vector<int64_t>>) to.numbers(value);
        if constexpr (std::is_same_v<T, std::vector<double>>) {
          to.number(static_cast<int64_t>(value.size()));
          for (double real : value) to.real(real);
        }
      },
      attribute);
}

}  // namespace

uint64_t fingerprint(const Graph& graph) {
  Writer to;
  to.text("plimsoll graph 1");
  to.text(graph.name);
  to.number(graph.tensor_count());
  for (const Tensor& t : graph.tensors()) {
    to.text(t.name);
    to.numbers(t.shape);
    to.number(static_cast<int64_t>(t.dtype));
    to.number(static_cast<int64_t>(t.role));
    to.text(t.layout.tag);
    to.number(t.producer.index);
    to.number(static_cast<int64_t>(t.init.kind));
    to.real(t.init.mean);
    to.real(t.init.scale);
    if (t.block.is_block()) {
      to.text(t.block.whole);
      to.number(t.block.first);
      to.number(t.block.rows);
    }
    if (t.shard.is_shard()) {
      to.text(t.shard.whole);
      to.numbers(t.shard.shape);
      to.number(t.shard.ranks);
    }
  }
  to.number(graph.op_count());
  for (const Op& op : graph.ops()) {
    to.text(op.type->name);
    to.text(op.name);
    to.text(op.layer);
    to.number(static_cast<int64_t>(op.phase));
    to.number(op.forward.index);
    to.ids(op.inputs);
    to.ids(op.outputs);
    to.number(static_cast<int64_t>(op.attributes.items().size()));
    for (const auto& [name, value] : op.attributes.items()) {
      to.text(name);
      write(to, value);
    }
  }
  to.ids(graph.inputs);
  to.ids(graph.outputs);
  to.number(static_cast<int64_t>(graph.states.size()));
  for (const State& state : graph.states) {
    to.number(state.before.index);
    to.number(state.after.index);
  }
  return to.hash();
}

}  // namespace plimsoll
