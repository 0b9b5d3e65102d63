// When a thread that copies gets a processor.
#pragma once

namespace plimsoll {

// Of the calling thread. Who waits for a disk should get a processor as soon as it is done, and not when a computing
// thread beside it, which may only be waiting busily, has had its turn of some milliseconds: short turns come sooner.
// Advice: where the system does not take it (Linux before 6.12), copies are late now and then.
void take_short_turns();

}  // namespace plimsoll
