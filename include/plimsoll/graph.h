// The network as data: tensors and ops in SSA form.
//
// A tensor is written once, by one op (or it comes from outside: an input, a parameter, a state). An op reads tensors
// and writes new ones. "Overwriting" is therefore never in the graph itself: an op may *allow* an output to take an
// input's bytes (see ops.h), and a plan decides. A state that lives from step to step has two tensors, the one that a
// training step finds and the one that it leaves:
//
//     w ──┬──> ConvForward ──> ...            states: (w, w.next)   w.next takes w's bytes: the update op demands it
//         └──> SgdUpdate ──> w.next
//
// Shapes are logical and row-major: images are N x C x H x W whatever their layout in memory; layout is a field of its
// own.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "plimsoll/bytes.h"
#include "plimsoll/error.h"

namespace plimsoll {

// An index into one of the graph's lists, typed so that a tensor cannot be taken for an op.
template <class Tag>
struct Id {
  int32_t index = -1;
  bool valid() const { return index >= 0; }
  friend constexpr auto operator<=>(Id, Id) = default;
};
using TensorId = Id<struct TensorTag>;
using OpId = Id<struct OpTag>;

enum class DType : uint8_t { f32, f64, i32, i64, u8, bit };  // bit: eight elements to a byte, in storage order
std::string_view to_string(DType dtype);

using Shape = std::vector<int64_t>;  // {} is a scalar
// The elements that a tensor of a graph may have: sizes, and the sums of a million of them, fit 64 bits.
inline constexpr int64_t kMostElements = int64_t{1} << 40;
int64_t element_count(const Shape& shape);
std::string to_string(const Shape& shape);  // "64x3x224x224"

// Where the elements of a tensor lie, written as oneDNN writes its tags: letters are dimensions from the outermost in,
// a capital one is blocked, and the blocks follow: "abcd" is row-major NCHW, "acdb" channels last, "aBcd16b" 16
// channels innermost, "ABcd16b16a" a weight tile. Empty means row-major of whatever rank. Blocked dimensions are padded
// with zeros up to a multiple of the block.
struct Layout {
  std::string tag;
  bool is_plain() const;  // row-major, however written
  friend auto operator<=>(const Layout&, const Layout&) = default;
};

// What a tensor is for; reports add up memory by it.
enum class Role : uint8_t {
  input,            // a batch of data or labels, written from outside before the step
  hyperparameter,   // written from outside before the step: learning rate, step number
  parameter,        // learnt
  optimizer_state,  // momentum, second moment
  statistic,        // running mean and variance: changed by the forward pass, not learnt
  activation,       // anything else that the forward pass makes
  gradient,         // anything that the backward pass makes
  output,           // read from outside after the step: loss, number of correct answers
};
std::string_view to_string(Role role);

// How a parameter, state or statistic starts: drawn from a counter-based generator keyed by (seed, tensor name).
struct Initializer {
  enum class Kind : uint8_t { constant, normal, uniform } kind = Kind::constant;
  double mean = 0;   // constant: the value; normal: the mean; uniform: the centre
  double scale = 0;  // normal: the standard deviation; uniform: half the width
  friend bool operator==(const Initializer&, const Initializer&) = default;
};
std::string_view to_string(Initializer::Kind kind);

// Where a pass has split a tensor along its first dimension: which rows of the whole this one is. Files and people know
// the whole; only the graph of a step knows blocks.
struct RowBlock {
  std::string whole;  // the whole's name: "fc.weight"; empty: the tensor is no block
  int64_t first = 0;  // its first row is this row of the whole
  int64_t rows = 0;   // of the whole
  bool is_block() const { return !whole.empty(); }
  friend bool operator==(const RowBlock&, const RowBlock&) = default;
};

// A tensor of which every rank of a training has another piece (ZeRO): the elements of the whole in row-major order, cut
// into pieces of one length. Rank r has piece r; behind the whole's last element there are zeros. Files and people know
// the whole.
struct Shard {
  std::string whole;  // the whole's name: "fc.weight"
  Shape shape;        // of the whole
  int64_t ranks = 0;  // 0: the tensor is no shard
  bool is_shard() const { return ranks > 0; }
  friend bool operator==(const Shard&, const Shard&) = default;
};
// The elements of one piece: a multiple of kShardUnit, so that sums over blocks of so many elements do not depend on how a
// tensor is cut.
inline constexpr int64_t kShardUnit = 4096;
int64_t shard_elements(const Shape& whole, int64_t ranks);

struct Tensor {
  std::string name;  // unique in the graph
  Shape shape;
  DType dtype = DType::f32;
  Role role = Role::activation;
  Layout layout;
  OpId producer;     // invalid: comes from outside
  Initializer init;  // for parameters, optimizer states and statistics
  RowBlock block;    // for states of split layers; named "fc.weight[0:512]"
  Shard shard;       // for states that are divided among ranks; named "fc.weight[/4]"

  Bytes bytes() const;  // storage, with the layout's padding
};
Bytes storage_bytes(const Shape& shape, DType dtype, const Layout& layout);
int64_t storage_elements(const Shape& shape, const Layout& layout);
// The position, counted in elements from the start of the storage, of every element in row-major order.
std::vector<int64_t> storage_offsets(const Shape& shape, const Layout& layout);
// Copies elements [first, first + count) in row-major order from a dense run into their places in the storage, or back.
// Padding is not touched. `element_bytes` is 1, 4 or 8 (bits cannot be copied so).
void scatter_elements(const Shape& shape, const Layout& layout, int64_t element_bytes, int64_t first, int64_t count,
                      const std::byte* from, std::byte* storage);
void gather_elements(const Shape& shape, const Layout& layout, int64_t element_bytes, int64_t first, int64_t count,
                     const std::byte* storage, std::byte* to);

using Attribute = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>>;

// Named settings of an op: "stride", "padding", "epsilon". Ordered, so that it prints and hashes the same way always.
class Attributes {
 public:
  Attributes() = default;
  Attributes(std::initializer_list<std::pair<const std::string, Attribute>> items) : items_(items) {}

  void set(const std::string& name, Attribute value) { items_[name] = std::move(value); }
  bool has(std::string_view name) const;
  // The value, or the default given; throws Error(invalid_input) on a value of another type, and, without a default, on
  // an absent one.
  int64_t integer(std::string_view name) const;
  int64_t integer(std::string_view name, int64_t otherwise) const;
  double real(std::string_view name) const;  // an integer counts as a real
  double real(std::string_view name, double otherwise) const;
  const std::string& text(std::string_view name) const;
  std::string text(std::string_view name, std::string_view otherwise) const;
  const std::vector<int64_t>& integers(std::string_view name) const;
  std::vector<int64_t> integers(std::string_view name, std::vector<int64_t> otherwise) const;
  std::vector<double> reals(std::string_view name) const;  // integers count as reals
  std::vector<double> reals(std::string_view name, std::vector<double> otherwise) const;

  const std::map<std::string, Attribute, std::less<>>& items() const { return items_; }
  friend bool operator==(const Attributes&, const Attributes&) = default;

 private:
  std::map<std::string, Attribute, std::less<>> items_;
};

enum class Phase : uint8_t { forward, backward, update };
std::string_view to_string(Phase phase);

struct OpType;  // ops.h: everything known about one kind of op

struct Op {
  const OpType* type = nullptr;  // registered, lives for ever
  std::string name;              // unique in the graph: "conv1/forward"
  std::string layer;             // the layer it came from: "conv1"; fused ops join them: "bn1+relu1"
  Phase phase = Phase::forward;
  OpId forward;  // backward ops: the forward op that this one differentiates, where there is one
  std::vector<TensorId> inputs;
  std::vector<TensorId> outputs;
  Attributes attributes;
};

// A state that lives from one training step to the next: found as `before`, left as `after`, in the same bytes.
struct State {
  TensorId before;
  TensorId after;  // equal to before where this step does not change it
};

class Graph {
 public:
  std::string name;  // "resnet50"

  // Declares a tensor that comes from outside. Throws Error(invalid_input) on a name already taken.
  TensorId add_source(std::string name, Shape shape, DType dtype, Role role, Initializer init = {});
  // Adds an op: checks the inputs, infers the outputs' shapes by the op type's rule, names them "<name>:<i>" unless
  // output_names gives better ones, and returns the op. Throws Error(invalid_input) that names the op and the shapes.
  OpId add_op(std::string_view type, std::string name, std::string layer, std::vector<TensorId> inputs,
              Attributes attributes = {}, Phase phase = Phase::forward, std::vector<std::string> output_names = {});

  // A graph from its lists as they are, for readers: only names are checked here (Error(invalid_input) on one that is
  // there twice); the rest is check's.
  static Graph from_parts(std::string name, std::vector<Tensor> tensors, std::vector<Op> ops);

  const Tensor& tensor(TensorId id) const { return tensors_[id.index]; }
  Tensor& tensor(TensorId id) { return tensors_[id.index]; }
  const Op& op(OpId id) const { return ops_[id.index]; }
  Op& op(OpId id) { return ops_[id.index]; }
  std::span<const Tensor> tensors() const { return tensors_; }
  std::span<const Op> ops() const { return ops_; }
  int32_t tensor_count() const { return static_cast<int32_t>(tensors_.size()); }
  int32_t op_count() const { return static_cast<int32_t>(ops_.size()); }
  TensorId output(OpId id, size_t i = 0) const { return op(id).outputs.at(i); }
  TensorId find_tensor(std::string_view name) const;  // invalid when there is none
  OpId find_op(std::string_view name) const;

  // For every tensor, the ops that read it, in the order of the op list, each once.
  std::vector<std::vector<OpId>> readers() const;

  std::vector<TensorId> inputs;   // written from outside before each step (roles input and hyperparameter)
  std::vector<TensorId> outputs;  // must be in the arena when the step ends (role output)
  std::vector<State> states;      // parameters, optimizer states, statistics; in the order of a checkpoint

 private:
  std::vector<Tensor> tensors_;
  std::vector<Op> ops_;
  std::map<std::string, TensorId, std::less<>> tensor_names_;
  std::map<std::string, OpId, std::less<>> op_names_;
};

// A state as files and people know it: one tensor, or the blocks of rows that make it up.
struct WholeState {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
  Role role = Role::parameter;
  std::vector<TensorId> parts;  // in the order of their rows: their elements are the whole's, one after the other
};
// In the order of the states, a split one at the place of its first block. Throws Error(invalid_input) that names the
// whole when blocks overlap, leave rows out or do not belong together.
std::vector<WholeState> whole_states(const Graph& graph);
std::string block_name(const RowBlock& block, int64_t rows);  // "fc.weight[0:512]"
std::string shard_name(const Shard& shard);                   // "fc.weight[/4]"
// The name by which files and people know a state, or the one that it is a part of; and the shape of all ranks' pieces.
const std::string& whole_name(const Tensor& state);
const Shape& whole_shape(const Tensor& state);

// Every structural rule: inputs exist and are written before they are read in some order (no cycle), names are unique,
// states pair tensors of one size and the blocks of each make a whole, outputs exist. Throws Error(invalid_input) that
// names the first offender.
void check(const Graph& graph);

// A number that is equal for equal graphs (ops, shapes, attributes, layouts, names) and, but for chance, only for them.
uint64_t fingerprint(const Graph& graph);

std::string to_text(const Graph& graph);       // one line an op, for people and for tests
std::string to_json(const Graph& graph);       // reads back to an equal graph
Graph graph_from_json(std::string_view json);  // throws Error(corrupt_file) with the place

}  // namespace plimsoll
