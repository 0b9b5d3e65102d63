#include "staging.h"

#include <cstdlib>
#include <new>

#include "plimsoll/error.h"

namespace plimsoll::python {
namespace {

constexpr size_t kPage = 4096;

}  // namespace

std::optional<std::vector<size_t>> order_of(const Tensor& tensor) {
  const size_t rank = tensor.shape.size();
  std::vector<size_t> order(rank);
  for (size_t d = 0; d < rank; ++d) order[d] = d;
  if (tensor.layout.is_plain()) return order;
  const std::string& tag = tensor.layout.tag;
  if (tag.size() != rank) return std::nullopt;
  for (size_t d = 0; d < rank; ++d) {
    order[d] = static_cast<size_t>(tag[d] - 'a');
    if (order[d] >= rank) return std::nullopt;  // blocks are told by capitals and numbers
  }
  return order;
}

// Where the system pins no more, copies from there only take longer.
std::span<std::byte> Staging::room(const Device& device, size_t bytes) {
  if (bytes > bytes_) {
    pinned_.reset();
    bytes_ = 0;
    const size_t whole = (bytes + kPage - 1) / kPage * kPage;
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kPage, whole)));
    if (!memory_) throw std::bad_alloc();
    bytes_ = whole;
    try {
      pinned_ = device.pin({memory_.get(), whole});
    } catch (const Error&) {
    }
  }
  return {memory_.get(), bytes};
}

}  // namespace plimsoll::python
