// A trained network that answers: its forward pass alone, planned inside a budget, with the weights of a file.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plimsoll/train.h"
#include "plimsoll/training_step.h"
#include "train/session.h"
#include "train/weights_file.h"

namespace plimsoll {

// What a network is made of and fed with, by what was given on the command line and else by the checkpoint's header.
struct InferenceRequest {
  TrainOptions options;             // model, data, batch, memory, device, threads, ...
  bool batch_given = false;         // else the largest that fits, up to options.batch
  bool memory_given = false;        // else the checkpoint's, or what the machine has free
  std::optional<SavedInput> input;  // of the checkpoint; none: an older one, or another program's file
};
// The request that a file makes by itself. A file of another program says nothing of model and data.
InferenceRequest request_of(const WeightsFile& file);

class Inference {
 public:
  using Notice = std::function<void(const std::string&)>;
  // Throws Error(infeasible) when not even one image fits, and Error(invalid_input) where the file lacks a weight.
  // `data`: bytes that the data set holds; `decoders`: threads that decode image files.
  Inference(const InferenceRequest& request, ModelInput input, const WeightsFile& weights, Bytes data, int decoders,
            const Notice& notice);

  struct Answers {
    double loss_sum = 0;            // over the rows with a label
    std::span<const float> logits;  // batch x classes, until the next run
  };
  // Rows without a sample have the label -1.
  Answers run(std::span<const float> data, std::span<const int32_t> labels);
  Answers run(const Batch& batch);
  // Of a language model, whose samples are windows: the sum of the loss over a batch's windows; and of a batch of one window,
  // the scores of the token that follows number `at` of it, until the next run.
  double loss_sum(const Batch& batch);
  std::span<const float> scores_after(std::span<const int32_t> window, int64_t at);

  int64_t batch() const { return input_.batch; }
  int32_t padding_label() const {
    return plimsoll::padding_label(step_->program().network);
  }  // of rows that count nothing
  int64_t classes() const { return input_.classes; }
  Bytes budget() const { return step_->program().plan->budget; }
  Bytes arena() const { return step_->program().plan->arena; }
  Bytes process() const { return stated_; }  // at most: as stated, or as predicted
  Bytes peak() const { return step_->executor().measured_peak(); }
  const Device& device() const { return *session_.device; }
  bool takes_channels_last() const { return step_->takes_channels_last(); }
  const Network& network() const { return step_->program().network; }

 private:
  Answers answers(std::span<const int32_t> labels);

  ModelInput input_;
  Session session_;
  ProcessMemory process_;
  Bytes stated_;
  std::unique_ptr<TrainingStep> step_;
  TensorId logits_;
  std::vector<float> scores_;
  std::vector<int32_t> labels_;
};

// How well a network answers on a data set's test images, each counted once. Throws Error(interrupted) when `go_on`
// says no.
struct ClassCount {
  int64_t images = 0, right = 0, answered = 0;  // of the class; answered rightly; images that were called so
};
struct Assessment {
  int64_t images = 0;
  double loss = 0;
  double accuracy = 0;
  std::optional<double> top5_accuracy;  // where there are more than five classes
  bool language = false;                // images are windows of a text then, and only the loss is known
  std::vector<ClassCount> classes;
  double seconds = 0;
};
Assessment assess(Inference& network, const std::shared_ptr<const DataSet>& data, uint64_t seed, int workers,
                  const std::function<bool(int64_t batches_done, int64_t batches)>& go_on);

// The classes of the `count` highest scores, the highest first and of equal ones the first, with their probabilities.
struct Guess {
  int64_t label = 0;
  double probability = 0;
};
std::vector<Guess> best_guesses(std::span<const float> logits, int64_t count);

}  // namespace plimsoll
