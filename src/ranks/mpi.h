// The door to MPI: what its module (module/mpi.cpp) gives. It is loaded when mpirun or srun has started several of us,
// so that a program with MPI starts where there is none.
#pragma once

#include <cstddef>

#include "plimsoll/communicator.h"

namespace plimsoll {

// Raised by whoever changes Transport: a module of another number is not loaded.
inline constexpr int kTransportVersion = 3;

using MpiVersion = int (*)();
// Joins the others; with `served`, to serve this memory to them. Null with the reason in `reason` where MPI cannot.
using MpiOpen = Transport* (*)(std::byte* served, size_t served_bytes, char* reason, size_t size);

}  // namespace plimsoll
