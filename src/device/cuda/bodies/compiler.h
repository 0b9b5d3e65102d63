// The one place that asks who compiles: nvcc, for both sides, or the host's compiler.
#pragma once

#ifdef __CUDACC__
#define PLIMSOLL_BODY __host__ __device__ __forceinline__
#else
#define PLIMSOLL_BODY inline
#endif

#define PLIMSOLL_PRAGMA(text) _Pragma(#text)
#ifdef __CUDA_ARCH__
#define PLIMSOLL_UNROLL(times) PLIMSOLL_PRAGMA(unroll times)
#define PLIMSOLL_UNROLL_ALL PLIMSOLL_PRAGMA(unroll)
#else
#define PLIMSOLL_UNROLL(times)
#define PLIMSOLL_UNROLL_ALL
#endif
