// Scaled dot product attention as torch.nn.functional.scaled_dot_product_attention defines it, masks, dropout and
// grouped queries included. What lives between forward and backward is one number a query, the logarithm of the sum of
// its exponentials, from which the backward pass makes the probabilities again: no tensor of queries x keys.
//
//   forward    q[...,L,E], k[...,S,E], v[...,S,Ev], more       ->  y[...,L,Ev], log_sum[...,L]
//   backward   q, k, v, dy, log_sum, more                      ->  dq, dk, dv[, dmask]
//   more       [mask][, documents][, step_number, seed]
//
// With "causal" query l attends to keys 0..l; "window_left" and "window_right" say how many keys before and behind l, of
// which there are all where they are absent. A mask holds besides. It broadcasts, so that one of [batch, 1, 1, S] says
// which keys are padding. With the attribute "documents" there are ids, i32 [B, S] or [1, S], for the B rows of
// q[B,...,S,E]: a query attends to keys of its own id alone, as where several texts lie in a row.
//
// With "softcap" c, scores are c * tanh(scale * q k' / c) before the mask is added (Gemma 2, 2024, section 2).
//
// A query that may attend to no key has y = 0, and infinity as its log_sum. With "blind" it attends to all keys alike (attention.h). Dropout draws by the row-major index of
// [..., L, S], so that the backward pass drops alike. With q' and k' the rows of a head:
//
//   p = exp(scale * q k' + mask - log_sum)    d = dropped p    dv = d' dy    dd = dy v'    dp = dropped dd
//   ds = p * (dp - sum over keys of p * dp)   dq = scale * ds k    dk = scale * ds' q    dmask = ds
//
// where dq and dk are of ds times what tanh lets through, 1 - tanh^2, if scores are capped.
#include "ops/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <utility>

#include "base/random.h"
#include "ops/families.h"
#include "ops/reference.h"

namespace plimsoll {
namespace {

constexpr double kNothing = -std::numeric_limits<double>::infinity();

int64_t from_end(const Shape& shape, size_t i) { return shape[shape.size() - i]; }

[[noreturn]] void throw_unequal(const Tensor& a, const Tensor& b, std::string_view what) {
  throw Error(ErrorCode::invalid_input, fmt::format("'{}' is {} and '{}' is {}: {}", a.name, to_string(a.shape), b.name,
                                                    to_string(b.shape), what));
}

// The query heads of each head of k.
int64_t head_groups(const Attributes& attributes, const Tensor& q, const Tensor& k) {
  const Shape queries(q.shape.begin(), q.shape.end() - 2), keys(k.shape.begin(), k.shape.end() - 2);
  if (queries == keys) return 1;
  if (attributes.integer("enable_gqa", 0) == 0 || queries.size() != keys.size()) {
    throw_unequal(q, k,
                  "what stands before the last two dimensions must be equal (broadcast it by Expand), or with "
                  "enable_gqa a multiple in the last of them");
  }
  const size_t last = queries.size() - 1;
  const bool same = std::equal(queries.begin(), queries.end() - 1, keys.begin());
  if (!same || keys[last] == 0 || queries[last] % keys[last] != 0) {
    throw_unequal(q, k,
                  "with enable_gqa the heads of the first are a multiple of the second's, and what stands before "
                  "them is equal");
  }
  return queries[last] / keys[last];
}

Attention::Mask read_mask(const Tensor& q, const Tensor& k, const Tensor& mask) {
  if (mask.dtype != DType::u8 && mask.dtype != q.dtype) {
    throw Error(ErrorCode::invalid_input, fmt::format("the mask '{}' is {}; u8, or {} as '{}' is expected", mask.name,
                                                      to_string(mask.dtype), to_string(q.dtype), q.name));
  }
  Shape whole = q.shape;
  whole.back() = from_end(k.shape, 2);
  std::vector<int64_t> strides(whole.size());
  bool fits = mask.shape.size() <= whole.size();
  for (size_t i = 1, stride = 1; fits && i <= mask.shape.size(); ++i) {
    const int64_t size = from_end(mask.shape, i);
    fits = size == 1 || size == from_end(whole, i);
    strides[whole.size() - i] = size == 1 ? 0 : static_cast<int64_t>(stride);
    stride *= static_cast<size_t>(size);
  }
  if (!fits) {
    throw Error(ErrorCode::invalid_input, fmt::format("the mask '{}' is {}, which does not broadcast to {}", mask.name,
                                                      to_string(mask.shape), to_string(whole)));
  }
  return {.present = true,
          .bytes = mask.dtype == DType::u8,
          .sizes = {whole.begin(), whole.end() - 2},
          .strides = {strides.begin(), strides.end() - 2},
          .to_row = strides[strides.size() - 2],
          .to_column = strides.back()};
}

// Finds the rows of ids.
void read_documents(Attention& a, const Tensor& q, const Tensor& documents) {
  const int64_t rows = documents.shape.size() == 2 ? documents.shape[0] : 0;
  const bool fits = a.queries == a.keys && q.shape.size() > 2 && (rows == 1 || rows == q.shape[0]) &&
                    documents.shape[1] == a.keys && documents.dtype == DType::i32;
  if (!fits) {
    throw Error(
        ErrorCode::invalid_input,
        fmt::format(
            "'{}', the documents, is {} {}, and '{}' is {} with {} keys; i32 of 1 or as many rows, with an id for "
            "each query and its key, is expected",
            documents.name, to_string(documents.dtype), to_string(documents.shape), q.name, to_string(q.shape),
            a.keys));
  }
  a.heads_of_documents = a.query_heads() / rows;
}

// How many keys before or behind its own place a query attends to.
int64_t read_reach(const Attributes& attributes, std::string_view name) {
  const int64_t reach = attributes.integer(name, Attention::kEvery);
  if (reach >= 0) return std::min(reach, Attention::kEvery);
  throw Error(ErrorCode::invalid_input, fmt::format("{} is {}; 0 or more is expected", name, reach));
}

Shape log_sum_shape(const Tensor& q) { return {q.shape.begin(), q.shape.end() - 1}; }
Shape result_shape(const Tensor& q, const Tensor& v) {
  Shape shape = q.shape;
  shape.back() = v.shape.back();
  return shape;
}

bool has_documents(const Attributes& attributes) { return attributes.integer("documents", 0) != 0; }
// Whether there is a mask among so many inputs behind those that are always there.
bool has_mask(const Attributes& attributes, size_t optional) {
  return (optional - (has_documents(attributes) ? 1 : 0)) % 2 == 1;
}
bool wants_mask_gradient(const Attributes& attributes) { return attributes.integer("mask_gradient", 0) != 0; }

std::vector<TensorSpec> infer_attention(const Attributes& attributes, std::span<const Tensor* const> in) {
  expect_inputs(in, 3, 7);
  read_attention(attributes, in, 3);
  return {{result_shape(*in[0], *in[2]), in[0]->dtype}, {log_sum_shape(*in[0]), in[0]->dtype}};
}

std::vector<TensorSpec> infer_attention_backward(const Attributes& attributes, std::span<const Tensor* const> in) {
  expect_inputs(in, 5, 9);
  const Attention a = read_attention(attributes, in, 5);
  const auto expect = [](const Tensor& tensor, const Shape& shape) {
    if (tensor.shape == shape) return;
    throw Error(ErrorCode::invalid_input,
                fmt::format("'{}' is {}; {} is expected", tensor.name, to_string(tensor.shape), to_string(shape)));
  };
  expect(*in[3], result_shape(*in[0], *in[2]));
  expect(*in[4], log_sum_shape(*in[0]));
  for (size_t i : {3, 4}) expect_same_dtype(*in[0], *in[i]);
  std::vector<TensorSpec> out;
  for (size_t i = 0; i < 3; ++i) out.push_back({in[i]->shape, in[i]->dtype});
  if (!wants_mask_gradient(attributes)) return out;
  if (!a.mask.present || a.mask.bytes) {
    throw Error(ErrorCode::invalid_input, "mask_gradient is set, but there is no mask that is added to the scores");
  }
  const Tensor& mask = *in[static_cast<size_t>(a.mask_at)];
  out.push_back({mask.shape, mask.dtype});
  return out;
}

std::vector<TensorId> attention_gradient(Graph& graph, OpId id, std::span<const TensorId> dy,
                                         const std::vector<bool>& wanted) {
  const Op op = graph.op(id);
  std::vector<TensorId> result(op.inputs.size());
  if (!dy[0].valid()) return result;
  std::vector<TensorId> inputs(op.inputs.begin(), op.inputs.begin() + 3);
  inputs.insert(inputs.end(), {dy[0], op.outputs[1]});
  inputs.insert(inputs.end(), op.inputs.begin() + 3, op.inputs.end());
  Attributes attributes = op.attributes;
  // One of bytes says what is seen, and no more.
  const bool mask_wanted =
      has_mask(op.attributes, op.inputs.size() - 3) && wanted[3] && graph.tensor(op.inputs[3]).dtype != DType::u8;
  if (mask_wanted) attributes.set("mask_gradient", int64_t{1});
  const OpId back = add_backward(graph, "AttentionBackward", id, "backward", inputs, std::move(attributes));
  for (size_t i = 0; i < 3; ++i) {
    if (wanted[i]) result[i] = graph.output(back, i);
  }
  if (mask_wanted) result[3] = graph.output(back, 3);
  return result;
}

// The views as tensors, to read the shapes by the same rule as infer does.
Attention attention_of(const Op& op, std::span<const TensorView> in, size_t first_optional) {
  std::vector<Tensor> tensors(in.size());
  std::vector<const Tensor*> pointers;
  for (size_t i = 0; i < in.size(); ++i) {
    tensors[i].shape = in[i].shape;
    tensors[i].dtype = in[i].dtype;
    pointers.push_back(&tensors[i]);
  }
  return read_attention(op.attributes, pointers, first_optional);
}

// One query head's rows, in doubles.
class Head {
 public:
  Head(const Attention& a, std::span<const TensorView> in, int64_t head) : a_(a), in_(in), head_(head) {
    if (a.step_at < 0) return;
    const auto numbers = [&](int at) {
      const TensorView& view = in[static_cast<size_t>(at)];
      return std::span(static_cast<const int64_t*>(view.data), static_cast<size_t>(element_count(view.shape)));
    };
    stream_ = stream_of(numbers(a.seed_at), numbers(a.step_at)[0], a.salt, a.scores());
  }
  int64_t query(int64_t l) const { return (head_ * a_.queries + l) * a_.width; }
  int64_t result(int64_t l) const { return (head_ * a_.queries + l) * a_.value_width; }
  int64_t key(int64_t s) const { return (head_ / a_.groups * a_.keys + s) * a_.width; }
  int64_t value(int64_t s) const { return (head_ / a_.groups * a_.keys + s) * a_.value_width; }
  int64_t log_sum(int64_t l) const { return head_ * a_.queries + l; }
  int64_t mask(int64_t l, int64_t s) const {
    return a_.mask.offset(head_) + l * a_.mask.to_row + s * a_.mask.to_column;
  }
  double product(int64_t l, int64_t s) const {
    double sum = 0;
    for (int64_t e = 0; e < a_.width; ++e) sum += load(in_[0], query(l) + e) * load(in_[1], key(s) + e);
    return sum * a_.scale;
  }
  // What a change of the product changes of the score.
  double slope(int64_t l, int64_t s) const {
    if (a_.softcap == 0) return 1;
    const double bent = std::tanh(product(l, s) / a_.softcap);
    return 1 - bent * bent;
  }
  double score(int64_t l, int64_t s) const {
    if (!a_.sees(l, s) || document(l) != document(s)) return kNothing;
    double sum = product(l, s);
    if (a_.softcap != 0) sum = a_.softcap * std::tanh(sum / a_.softcap);
    if (!a_.mask.present) return sum;
    const double mask_value = load(in_[static_cast<size_t>(a_.mask_at)], mask(l, s));
    if (a_.mask.bytes) return mask_value != 0 ? sum : kNothing;
    return sum + mask_value;
  }
  // 1 / keys, of a query that may attend to no key.
  double alike() const { return 1 / static_cast<double>(a_.keys); }
  // What is left of a probability.
  double kept(int64_t l, int64_t s, double p) const {
    if (a_.dropout == 0) return p;
    const int64_t i = (head_ * a_.queries + l) * a_.keys + s;
    return stream_.bits(i) >= dropout_threshold(a_.dropout) ? p / (1 - a_.dropout) : 0;
  }

 private:
  int32_t document(int64_t i) const {
    if (a_.documents_at < 0) return 0;
    return static_cast<const int32_t*>(in_[static_cast<size_t>(a_.documents_at)].data)[a_.documents_of(head_) + i];
  }

  const Attention& a_;
  std::span<const TensorView> in_;
  int64_t head_;
  RandomStream stream_;
};

// Of a query: its largest score, and the probability of a key that has it.
std::pair<double, double> top_and_share(const Head& head, int64_t l, int64_t keys) {
  double top = kNothing, sum = 0;
  for (int64_t s = 0; s < keys; ++s) top = std::max(top, head.score(l, s));
  for (int64_t s = 0; s < keys; ++s) sum += std::exp(head.score(l, s) - top);
  return {top, 1 / sum};
}

void run_attention(const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
  const Attention a = attention_of(op, in, 3);
  std::vector<double> scores(static_cast<size_t>(a.keys));
  for (int64_t h = 0; h < a.query_heads(); ++h) {
    const Head head(a, in, h);
    for (int64_t l = 0; l < a.queries; ++l) {
      double top = kNothing, sum = 0;
      for (int64_t s = 0; s < a.keys; ++s) {
        scores[static_cast<size_t>(s)] = head.score(l, s);
        top = std::max(top, scores[static_cast<size_t>(s)]);
      }
      for (double score : scores) sum += top == kNothing ? 0 : std::exp(score - top);
      const double log_sum = top == kNothing ? -kNothing : top + std::log(sum);
      store(out[1], head.log_sum(l), log_sum);
      const bool alike = top == kNothing && a.blind != Attention::Blind::zero;
      for (int64_t e = 0; e < a.value_width; ++e) {
        double y = 0;
        for (int64_t s = 0; s < a.keys && (alike || top != kNothing); ++s) {
          const double p = alike ? head.alike() : std::exp(scores[static_cast<size_t>(s)] - top) / sum;
          y += head.kept(l, s, p) * load(in[2], head.value(s) + e);
        }
        store(out[0], head.result(l) + e, y);
      }
    }
  }
}

void run_attention_backward(const Op& op, std::span<const TensorView> in, std::span<const TensorView> out) {
  const Attention a = attention_of(op, in, 5);
  std::vector<std::vector<double>> sums;
  for (const TensorView& view : out) sums.emplace_back(static_cast<size_t>(element_count(view.shape)));
  const auto add = [&](size_t output, int64_t i, double term) { sums[output][static_cast<size_t>(i)] += term; };
  std::vector<double> p(static_cast<size_t>(a.keys)), dp(p.size());
  for (int64_t h = 0; h < a.query_heads(); ++h) {
    const Head head(a, in, h);
    for (int64_t l = 0; l < a.queries; ++l) {
      double dot = 0;
      double log_sum = load(in[4], head.log_sum(l)), share = 1;
      if (log_sum < Attention::kLost) std::tie(log_sum, share) = top_and_share(head, l, a.keys);
      const bool alike = log_sum == -kNothing && a.blind != Attention::Blind::zero;
      for (int64_t s = 0; s < a.keys; ++s) {
        const auto i = static_cast<size_t>(s);
        p[i] = alike ? head.alike() : share * std::exp(head.score(l, s) - log_sum);
        double dd = 0;
        for (int64_t e = 0; e < a.value_width; ++e) {
          const double dy = load(in[3], head.result(l) + e);
          dd += dy * load(in[2], head.value(s) + e);
          add(2, head.value(s) + e, head.kept(l, s, p[i]) * dy);
        }
        dp[i] = head.kept(l, s, dd);
        dot += p[i] * dp[i];
      }
      if (alike && a.blind == Attention::Blind::alike) continue;
      for (int64_t s = 0; s < a.keys; ++s) {
        const auto i = static_cast<size_t>(s);
        const double ds = p[i] * (dp[i] - dot), to_product = a.scale * ds * head.slope(l, s);
        for (int64_t e = 0; e < a.width; ++e) {
          add(0, head.query(l) + e, to_product * load(in[1], head.key(s) + e));
          add(1, head.key(s) + e, to_product * load(in[0], head.query(l) + e));
        }
        if (out.size() > 3) add(3, head.mask(l, s), ds);
      }
    }
  }
  for (size_t o = 0; o < out.size(); ++o) {
    for_each_element(out[o], [&](int64_t i) { store(out[o], i, sums[o][static_cast<size_t>(i)]); });
  }
}

Work attention_work(const Graph& graph, const Op& op, double products) {
  const Shape &q = graph.tensor(op.inputs[0]).shape, &k = graph.tensor(op.inputs[1]).shape;
  const int64_t queries = from_end(q, 2), keys = from_end(k, 2);
  const int64_t left = read_reach(op.attributes, "window_left");
  const int64_t right = op.attributes.integer("causal", 0) != 0 ? 0 : read_reach(op.attributes, "window_right");
  int64_t seen = 0;  // by the queries of a head
  for (int64_t l = 0; l < queries; ++l) {
    seen += std::max<int64_t>(0, std::min(keys - 1, l + right) - std::max<int64_t>(0, l - left) + 1);
  }
  const double scores = static_cast<double>(element_count(q) / (q.back() * queries)) * static_cast<double>(seen);
  const double of_score = op.attributes.real("softcap", 0) != 0 ? 50 : 20;
  return {scores * (products * 2 * static_cast<double>(q.back()) + of_score),
          static_cast<double>((bytes_of(graph, op.inputs) + bytes_of(graph, op.outputs)).count)};
}

}  // namespace

int64_t Attention::Mask::offset(int64_t query_head) const {
  int64_t result = 0;
  for (size_t d = sizes.size(); d-- > 0;) {
    result += query_head % sizes[d] * strides[d];
    query_head /= sizes[d];
  }
  return result;
}

Attention read_attention(const Attributes& attributes, std::span<const Tensor* const> in, size_t first_optional) {
  const Tensor &q = *in[0], &k = *in[1], &v = *in[2];
  for (const Tensor* tensor : {&q, &k, &v}) {
    if (tensor->shape.size() < 2 || element_count(tensor->shape) == 0) {
      throw Error(ErrorCode::invalid_input,
                  fmt::format("'{}' is {}; two or more dimensions are expected, none of them 0", tensor->name,
                              to_string(tensor->shape)));
    }
    expect_same_dtype(q, *tensor);
  }
  Attention a;
  a.groups = head_groups(attributes, q, k);
  a.queries = from_end(q.shape, 2), a.keys = from_end(k.shape, 2);
  a.width = q.shape.back(), a.value_width = v.shape.back();
  a.heads = element_count(k.shape) / (a.keys * from_end(k.shape, 1));
  if (k.shape.back() != a.width) throw_unequal(q, k, "their last dimensions must be equal");
  if (!std::equal(k.shape.begin(), k.shape.end() - 1, v.shape.begin(), v.shape.end() - 1)) {
    throw_unequal(k, v, "all but their last dimensions must be equal");
  }
  a.scale = attributes.real("scale", 1 / std::sqrt(static_cast<double>(a.width)));
  a.softcap = attributes.real("softcap", 0);
  if (!(a.softcap >= 0) || std::isinf(a.softcap)) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("softcap is {}; a number above 0 is expected, or 0 for none", a.softcap));
  }
  const int64_t blind = attributes.integer("blind", 0);
  if (blind < 0 || blind > 2) {
    throw Error(ErrorCode::invalid_input, fmt::format("blind is {}; 0, 1 or 2 is expected", blind));
  }
  a.blind = static_cast<Attention::Blind>(blind);
  a.left = read_reach(attributes, "window_left");
  a.right = attributes.integer("causal", 0) != 0 ? 0 : read_reach(attributes, "window_right");
  a.dropout = attributes.real("dropout", 0);
  a.salt = static_cast<uint32_t>(attributes.integer("salt", 0));
  if (!(a.dropout >= 0 && a.dropout < 1)) {
    throw Error(ErrorCode::invalid_input, fmt::format("dropout is {}; the share that falls lies in [0, 1)", a.dropout));
  }
  const size_t optional = in.size() - first_optional;
  size_t next = first_optional;
  if (optional < (has_documents(attributes) ? 1 : 0)) {
    throw Error(ErrorCode::invalid_input, "documents is set; their ids are expected as an input behind the mask");
  }
  if (has_mask(attributes, optional)) {
    a.mask_at = static_cast<int>(next);
    a.mask = read_mask(q, k, *in[next++]);
  }
  if (has_documents(attributes)) {
    a.documents_at = static_cast<int>(next);
    read_documents(a, q, *in[next++]);
  }
  const size_t further = in.size() - next;
  if (further != 0 && further != 2) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("{} inputs; documents are taken where the attribute of that name is set", in.size()));
  }
  if (further == 2) {
    a.step_at = static_cast<int>(in.size()) - 2, a.seed_at = a.step_at + 1;
    expect_counter(*in[in.size() - 2]);
    expect_seed(*in[in.size() - 1]);
  } else if (a.dropout > 0) {
    throw Error(ErrorCode::invalid_input,
                fmt::format("dropout is {}; step_number and seed are expected as the last inputs", a.dropout));
  }
  if (a.dropout > 0 && a.scores() > int64_t{1} << 34) {
    throw Error(ErrorCode::unsupported, fmt::format("{} scores are more than the 2^34 draws of a stream", a.scores()));
  }
  return a;
}

std::vector<OpType> attention_ops() {
  OpType forward{
      .name = "AttentionForward",
      .infer = infer_attention,
      .gradient = attention_gradient,
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return attention_work(graph, op, 2); },
      .reference = run_attention,
  };
  OpType backward{
      .name = "AttentionBackward",
      .infer = infer_attention_backward,
      .gradient = {},
      .in_place = [](const Graph&, const Op&) { return std::vector<InPlace>{}; },
      .work = [](const Graph& graph, const Op& op) { return attention_work(graph, op, 5); },
      .reference = run_attention_backward,
  };
  return of_kind(LayerKind::fully_connected, {std::move(forward), std::move(backward)});
}

}  // namespace plimsoll
