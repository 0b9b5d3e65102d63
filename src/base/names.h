// Unknown names: what the user probably meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace plimsoll {

// The known name with the smallest edit distance, "" when none is near (more than a third of the letters differ).
std::string nearest_name(std::string_view name, const std::vector<std::string>& known);

// "unknown model 'resnet5O'; did you mean 'resnet50'? Known: ..." The list of all is given when it is short. Where none
// is near, those that begin so are named: vgg11, vgg13 or vgg16 for vgg.
std::string unknown_name(std::string_view kind, std::string_view name, const std::vector<std::string>& known);

}  // namespace plimsoll
