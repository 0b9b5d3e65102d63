// Under ThreadSanitizer kernels run in one thread each: it does not see how OpenMP's threads wait for each other, and takes
// every one of their meetings for a race.
#pragma once

namespace plimsoll {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kThreadSanitizer = true;
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#else
inline constexpr bool kThreadSanitizer = false;
#endif

// Under either sanitizer all is many times slower: random tests do with fewer cases.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool kSanitizer = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
inline constexpr bool kSanitizer = true;
#else
inline constexpr bool kSanitizer = kThreadSanitizer;
#endif
#else
inline constexpr bool kSanitizer = kThreadSanitizer;
#endif

inline constexpr int kKernelThreads = kThreadSanitizer ? 1 : 2;

}  // namespace plimsoll
