// Under ThreadSanitizer kernels run in one thread each: it does not see how OpenMP's threads wait for each other, and
// takes every one of their meetings for a race.
#pragma once

namespace plimsoll {

// GCC defines a macro, Clang has a feature.
#if defined(__has_feature)
#define PLIMSOLL_HAS_FEATURE(name) __has_feature(name)
#else
#define PLIMSOLL_HAS_FEATURE(name) 0
#endif
#if defined(__SANITIZE_THREAD__) || PLIMSOLL_HAS_FEATURE(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
// Under either sanitizer all is many times slower: random tests do with fewer cases.
#if defined(__SANITIZE_ADDRESS__) || PLIMSOLL_HAS_FEATURE(address_sanitizer)
inline constexpr bool kSanitizer = true;
#else
inline constexpr bool kSanitizer = kThreadSanitizer;
#endif
#undef PLIMSOLL_HAS_FEATURE

inline constexpr int kKernelThreads = kThreadSanitizer ? 1 : 2;

}  // namespace plimsoll
