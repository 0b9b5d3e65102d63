// The one place that asks who compiles: nvcc, for both sides, or the host's compiler.
#pragma once

#ifdef __CUDACC__
#define PLIMSOLL_BODY __host__ __device__ __forceinline__
#else
#define PLIMSOLL_BODY inline
#endif
