// What the options of a training say of its data and of its budget; what was not said is taken from data and machine.
#pragma once

#include <memory>

#include "plimsoll/checkpoint.h"
#include "plimsoll/data.h"
#include "plimsoll/device.h"
#include "plimsoll/train.h"

namespace plimsoll {

// The data set that `options.data` names. Images that have no size of their own come in the network's size.
std::shared_ptr<const DataSet> open_training_data(const TrainOptions& options);

// The network's input for this data. Throws Error(invalid_input) where the data has more classes than were asked for.
ModelInput training_input(const TrainOptions& options, const DataInfo& data);

// What a checkpoint keeps of the data, and how a network is fed by it.
SavedInput input_to_save(const DataInfo& data, int64_t classes);
DataInfo data_info(const SavedInput& input);

// The arena where no --memory is given: what the machine has free, less a reserve and the host memory that is taken
// beside it.
Bytes default_budget(const Device& device, Bytes host_memory);

}  // namespace plimsoll
