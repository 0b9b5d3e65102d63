#include <gtest/gtest.h>

#include "plimsoll/ops.h"

namespace plimsoll {
namespace {

OpType like_first(std::string name) {
  return {.name = std::move(name), .infer = [](const Attributes&, std::span<const Tensor* const> in) {
            return std::vector<TensorSpec>{{in[0]->shape}};
          }};
}

TEST(Registry, RefusesAnOpTypeWithoutAKindAndSaysWhatToSet) {
  try {
    register_op(like_first("RegistryTestKindless"));
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_input);
    EXPECT_STREQ(error.what(),
                 "op type 'RegistryTestKindless' has no kind: set OpType::kind to that of its layer, such as "
                 "LayerKind::activation, or to LayerKind::other");
  }
  EXPECT_THROW(op_type("RegistryTestKindless"), Error);
  OpType type = like_first("RegistryTestKindless");
  type.kind = LayerKind::activation;
  EXPECT_EQ(register_op(std::move(type)).kind, LayerKind::activation);
}

TEST(Registry, EveryBuiltInOpTypeHasAKind) {
  for (const OpType* type : all_op_types()) EXPECT_NE(type->kind, LayerKind::unset) << type->name;
}

}  // namespace
}  // namespace plimsoll
