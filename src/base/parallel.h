// Independent pieces of work side by side, for what is computed before training begins.
#pragma once

#include <cstddef>
#include <functional>

namespace plimsoll {

// Calls work(i) once for every i below `count`: on this thread, and on others as long as this process has cores that do
// no such work. Returns when all are done. May be called from within itself: who waits meanwhile does pieces of what was
// called within. Where calls throw, the exception of the least i is thrown on.
void for_each_in_parallel(size_t count, const std::function<void(size_t)>& work);

// From now on no more than so many threads do such work at once, since each holds memory of its own.
void limit_parallel_work(int threads);

// The most threads that it would do so much work on, this one included.
int threads_in_parallel(size_t count);

// How many threads beside this one the system lets the process have now: `wanted`, or less where a limit is lower. For
// those who then let a library start them that ends the process where it cannot.
int startable_threads(int wanted);

}  // namespace plimsoll
