#include "train/sample_inputs.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>

#include "plimsoll/compile.h"
#include "plimsoll/models.h"
#include "tests/support/temporary_folder.h"
#include "train/session.h"

namespace plimsoll {
namespace {

// Another tensor's bytes, larger than the labels', lie upon them later in the step.
bool labels_are_overwritten(const Program& program) {
  const Plan& plan = program.plan;
  const auto labels = std::find_if(plan.stays.begin(), plan.stays.end(),
                                   [&](const Stay& s) { return s.tensor == program.network.labels; });
  return std::any_of(plan.stays.begin(), plan.stays.end(), [&](const Stay& s) {
    return s.first > labels->last && s.offset < labels->offset + labels->bytes && labels->offset < s.offset + s.bytes;
  });
}

TEST(SampleInputs, AreReadByEveryStepThatIsTimedThoughTheirBytesAreTakenOver) {
  const TemporaryFolder cache;
  ::setenv("PLIMSOLL_CACHE", cache.path().c_str(), 1);
  Session session = open_session("cpu", 1);
  session.costs =
      CostTable();  // the same kernels, and with them the same offsets, however fast the machine seems to be
  int overwritten = 0;
  for (const char* model : {"mlp", "lenet", "resnet20", "densenet:depth=10,growth=4"}) {
    for (int64_t batch : {1, 4, 40}) {
      const ModelInput input{.batch = batch, .channels = 3, .height = 32, .width = 32, .classes = 10, .training = true};
      auto compiled =
          compile_training(build_model(model, input), *session.device, session.costs, {.policy = "liveness"});
      Program& program = std::get<Program>(compiled);
      overwritten += labels_are_overwritten(program);
      EXPECT_NO_THROW(calibrate(session, program)) << model << ", batch " << batch;
    }
  }
  EXPECT_GT(overwritten, 0);
  ::unsetenv("PLIMSOLL_CACHE");
}

}  // namespace
}  // namespace plimsoll
