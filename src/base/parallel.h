// Independent pieces of work side by side, for what is computed before training begins.
#pragma once

#include <cstddef>
#include <functional>

namespace plimsoll {

// Calls work(i) once for every i below `count`: on this thread, and on others as long as this process has cores that do
// no such work. Returns when all are done. May be called from within itself. Where calls throw, the exception of the
// least i is thrown on.
void for_each_in_parallel(size_t count, const std::function<void(size_t)>& work);

}  // namespace plimsoll
