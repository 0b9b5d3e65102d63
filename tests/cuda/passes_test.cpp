// How many kernels and products an op asks the GPU for: each is a pass over memory.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "device/cuda/device.h"
#include "plimsoll/graph.h"
#include "tests/cuda/fake_door.h"
#include "tests/cuda/run_kernel.h"

namespace plimsoll::testing {
namespace {

class CudaPasses : public ::testing::Test {
 protected:
  TensorId tensor(Shape shape, DType dtype = DType::f32) {
    return graph_.add_source("t" + std::to_string(graph_.tensors().size()), std::move(shape), dtype, Role::input);
  }
  std::string name() { return "op" + std::to_string(graph_.ops().size()); }
  // Calls of this name that the op's kernel makes.
  int calls(const std::string& call, OpId id, const std::string& kernel) {
    const auto made = device_->make_kernel(graph_, graph_.op(id), kernel);
    const int before = count(call);
    run_kernel(*device_, graph_, graph_.op(id), *made);
    return count(call) - before;
  }
  int launches_of_norm(const std::string& type, int64_t rows, int64_t length) {
    const TensorId x = tensor({rows, length}), gamma = tensor({length});
    const Attributes attributes = {{"affine", std::string("gamma")}, {"axes", int64_t{1}}};
    const OpId forward = graph_.add_op(type + "Forward", name(), "", {x, gamma}, attributes);
    std::vector<TensorId> inputs = {x, tensor({rows, length})};
    for (size_t i = 1; i < graph_.op(forward).outputs.size(); ++i) inputs.push_back(graph_.output(forward, i));
    inputs.push_back(gamma);
    const OpId backward = graph_.add_op(type + "Backward", name(), "", inputs, attributes);
    return 10 * calls("cudaLaunchKernel", forward, "own") + calls("cudaLaunchKernel", backward, "own");
  }
  int products_of_loss(int64_t classes, bool transposed, const std::string& kernel) {
    const Attributes attributes = {{"transposed", int64_t{transposed}}, {"gradients", std::string("xw")}};
    const TensorId x = tensor({64, 8}), w = tensor(transposed ? Shape{8, classes} : Shape{classes, 8});
    const OpId loss = graph_.add_op("LinearCrossEntropyTraining", name(), "",
                                    {x, w, tensor({64}, DType::i32), tensor({})}, attributes);
    return calls("cublasLtMatmul", loss, kernel);
  }

 private:
  int count(const std::string& call) const {
    const auto at = door_->calls().find(call);
    return at == door_->calls().end() ? 0 : at->second;
  }
  Graph graph_;
  std::shared_ptr<FakeDoor> door_ = std::make_shared<FakeDoor>();
  std::shared_ptr<const Device> device_ = cuda::open_behind(door_, "cuda:0", true);
};

TEST_F(CudaPasses, ARowThatThreadsHoldIsReadOnceByItsNorm) {
  for (const char* type : {"LayerNorm", "RmsNorm"}) {
    for (const int64_t length : {4, 768, 1028, 8192}) EXPECT_EQ(launches_of_norm(type, 5, length), 12) << length;
    for (const int64_t length : {30, 8196}) EXPECT_EQ(launches_of_norm(type, 5, length), 24) << length;
  }
}

TEST_F(CudaPasses, AVocabularyThatIsNotInFoursHasProductsOfItsOwnForTheRest) {
  EXPECT_EQ(products_of_loss(1043, false, "rows=64:tf32"), 6);
  EXPECT_EQ(products_of_loss(1043, false, "rows=64"), 3);  // no tensor cores
  EXPECT_EQ(products_of_loss(1043, true, "rows=64:tf32"), 3);
  EXPECT_EQ(products_of_loss(1044, false, "rows=64:tf32"), 3);
  EXPECT_EQ(products_of_loss(1003, false, "rows=64:tf32"), 3);
}

}  // namespace
}  // namespace plimsoll::testing
