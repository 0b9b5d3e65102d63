// Products of tiles by the threads of a block, each with a part of the result in its registers: its [i][j] is that of row
// row_of(i) and column column_of(j). kTogether of a thread's columns lie side by side, and kAcross threads, numbered by
// `across`, share a row.
//
//   RowsByRows         out[r][c] += sum over e of a[r][e] b[c][e]
//   RowsByColumns      out[r][c] += sum over e of a[r][e] b[e][c]
//   ColumnsByColumns   out[r][c] += sum over e of a[e][r] b[e][c]
//
// FullProducts multiplies in f32. Tf32Products goes by tensor cores, which see 10 bits behind a factor's point and no more; the
// host multiplies the same factors.
#pragma once

#include <cstring>

#include "device/cuda/bodies/tile.h"

namespace plimsoll::cuda {

inline constexpr int kMostUnrolled = 512;  // multiplications in a row: what a GPU's first cache of instructions holds

// A thread's rows and columns lie apart from each other, so that its neighbours read what lies next to what it reads: one here
// and there, or fours.
struct FullProducts {
  // What bodies make of the room that they have.
  static constexpr bool kLoadsAhead = false;  // shared memory: tiles are loaded before they are needed
  static constexpr bool kHoldsBoth = false;   // registers: a thread has its scores and their gradients at once
  template <int kThreads, int kRows, int kColumns, bool kRowsByFour, bool kColumnsByFour>
  struct Part {
    static constexpr int kAcross = 8, kDown = kThreads / kAcross, kTogether = 4;
    static constexpr int kR = kRows / kDown, kC = kColumns / kAcross;
    int down, across;
    PLIMSOLL_BODY explicit Part(int thread) : down(thread / kAcross), across(thread % kAcross) {}
    PLIMSOLL_BODY int row_of(int i) const {
      return kRowsByFour ? (down + i / 4 * kDown) * 4 + i % 4 : down + i * kDown;
    }
    PLIMSOLL_BODY int column_of(int j) const {
      return kColumnsByFour ? (across + j / 4 * kAcross) * 4 + j % 4 : across + j * kAcross;
    }
  };

  template <int kThreads, int kRows, int kColumns>
  struct RowsByRows : Part<kThreads, kRows, kColumns, false, false> {
    using Base = Part<kThreads, kRows, kColumns, false, false>;
    using Base::Base, Base::kR, Base::kC, Base::row_of, Base::column_of;
    // Of their first `depth` elements, a multiple of 8.
    template <class A, class B>
    PLIMSOLL_BODY void add(float (&out)[kR][kC], const A& a, const B& b, int depth) const {
      PLIMSOLL_UNROLL(1)
      for (int e = 0; e < depth; e += 8) {
        PLIMSOLL_UNROLL_ALL
        for (int half = 0; half < 8; half += 4) {
          Four left[kR];
          PLIMSOLL_UNROLL_ALL
          for (int i = 0; i < kR; ++i) left[i] = load_four(a.at(row_of(i), e + half));
          PLIMSOLL_UNROLL_ALL
          for (int j = 0; j < kC; ++j) {
            const Four right = load_four(b.at(column_of(j), e + half));
            PLIMSOLL_UNROLL_ALL
            for (int k = 0; k < 4; ++k) {
              PLIMSOLL_UNROLL_ALL
              for (int i = 0; i < kR; ++i) out[i][j] += left[i].v[k] * right.v[k];
            }
          }
        }
      }
    }
  };

  template <int kThreads, int kRows, int kColumns, int kDepth>
  struct RowsByColumns : Part<kThreads, kRows, kColumns, false, true> {
    using Base = Part<kThreads, kRows, kColumns, false, true>;
    using Base::Base, Base::kR, Base::kC, Base::row_of, Base::column_of;
    template <class A, class B>
    PLIMSOLL_BODY void add(float (&out)[kR][kC], const A& a, const B& b) const {
      [[maybe_unused]] constexpr int kTimes = kMostUnrolled / (4 * kR * kC);
      PLIMSOLL_UNROLL(kTimes)
      for (int e = 0; e < kDepth; e += 4) {
        Four left[kR];
        load(left, a, e);
        PLIMSOLL_UNROLL_ALL
        for (int k = 0; k < 4; ++k) {
          PLIMSOLL_UNROLL_ALL
          for (int q = 0; q < kC / 4; ++q) add_four(out, left, k, load_four(b.at(e + k, column_of(4 * q))), q);
        }
      }
    }
    // Where that holds, add_own reads a from `own`: the thread's part of it by RowsByRows, of the same rows.
    PLIMSOLL_BODY static constexpr bool reads_own() { return false; }
    template <int kOwn, class A, class B>
    PLIMSOLL_BODY void add_own(float (&out)[kR][kC], const float (&)[kR][kOwn], const A& a, const B& b) const {
      add(out, a, b);
    }
    // The same with two of a, which share what is read of b.
    template <class A, class A2, class B>
    PLIMSOLL_BODY void add(float (&out)[kR][kC], float (&out2)[kR][kC], const A& a, const A2& a2, const B& b) const {
      [[maybe_unused]] constexpr int kTimes = kMostUnrolled / (8 * kR * kC);
      PLIMSOLL_UNROLL(kTimes)
      for (int e = 0; e < kDepth; e += 4) {
        Four left[kR], left2[kR];
        load(left, a, e);
        load(left2, a2, e);
        PLIMSOLL_UNROLL_ALL
        for (int k = 0; k < 4; ++k) {
          PLIMSOLL_UNROLL_ALL
          for (int q = 0; q < kC / 4; ++q) {
            const Four right = load_four(b.at(e + k, column_of(4 * q)));
            add_four(out, left, k, right, q);
            add_four(out2, left2, k, right, q);
          }
        }
      }
    }

   private:
    template <class A>
    PLIMSOLL_BODY void load(Four (&left)[kR], const A& a, int e) const {
      PLIMSOLL_UNROLL_ALL
      for (int i = 0; i < kR; ++i) left[i] = load_four(a.at(row_of(i), e));
    }
    PLIMSOLL_BODY static void add_four(float (&out)[kR][kC], const Four (&left)[kR], int k, const Four& right, int q) {
      PLIMSOLL_UNROLL_ALL
      for (int m = 0; m < 4; ++m) {
        PLIMSOLL_UNROLL_ALL
        for (int i = 0; i < kR; ++i) out[i][4 * q + m] += left[i].v[k] * right.v[m];
      }
    }
  };

  template <int kThreads, int kRows, int kColumns, int kDepth>
  struct ColumnsByColumns : Part<kThreads, kRows, kColumns, true, true> {
    using Base = Part<kThreads, kRows, kColumns, true, true>;
    using Base::Base, Base::kR, Base::kC, Base::row_of, Base::column_of;
    template <class A, class B>
    PLIMSOLL_BODY void add(float (&out)[kR][kC], const A& a, const B& b) const {
      [[maybe_unused]] constexpr int kTimes = kMostUnrolled / (kR * kC);
      PLIMSOLL_UNROLL(kTimes)
      for (int e = 0; e < kDepth; ++e) {
        Four left[kR / 4];
        PLIMSOLL_UNROLL_ALL
        for (int p = 0; p < kR / 4; ++p) left[p] = load_four(a.at(e, row_of(4 * p)));
        PLIMSOLL_UNROLL_ALL
        for (int q = 0; q < kC / 4; ++q) {
          const Four right = load_four(b.at(e, column_of(4 * q)));
          PLIMSOLL_UNROLL_ALL
          for (int m = 0; m < 4; ++m) {
            PLIMSOLL_UNROLL_ALL
            for (int i = 0; i < kR; ++i) out[i][4 * q + m] += left[i / 4].v[i % 4] * right.v[m];
          }
        }
      }
    }
  };
};

// By fragments of a warp, 16 rows x 8 columns x 8 elements (PTX ISA, "Matrix Fragments for mma.m16n8k8" with .tf32). Which
// elements come together is free as long as both factors say the same: of columns they are neighbours, since those of
// rows that lie apart would be in the same banks.
struct Tf32Products {
  static constexpr bool kLoadsAhead = true, kHoldsBoth = true;
  template <int kThreads, int kRows, int kColumns>
  struct Part {
    static constexpr int kWarps = kThreads / 32, kTall = kRows / kWarps / 16, kWide = kColumns / 8;
    static_assert(kTall * kWarps * 16 == kRows);
    static constexpr int kAcross = 4, kTogether = 2, kR = 2 * kTall, kC = 2 * kWide;
    int first, group, across;  // rows of the warp begin at `first`
    PLIMSOLL_BODY explicit Part(int thread)
        : first(thread / 32 * (16 * kTall)), group(thread % 32 / 4), across(thread % 4) {}
    PLIMSOLL_BODY int row_of(int i) const { return first + i / 2 * 16 + i % 2 * 8 + group; }
    PLIMSOLL_BODY int column_of(int j) const { return j / 2 * 8 + across * 2 + j % 2; }
  };

  // What tensor cores see of a factor, as for cuBLASLt's products on a GPU of compute capability 9.0.
  PLIMSOLL_BODY static float seen(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= 0xFFFFE000U;
    memcpy(&x, &bits, sizeof bits);
    return x;
  }
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  __device__ __forceinline__ static uint32_t bits_of(float x) { return __float_as_uint(x); }
  template <class P>
  __device__ __forceinline__ static void add_fragment(float (&out)[P::kR][P::kC], const uint32_t (&left)[P::kTall][4],
                                                      uint32_t low, uint32_t high, int wide) {
    PLIMSOLL_UNROLL_ALL
    for (int tall = 0; tall < P::kTall; ++tall) {
      float &c0 = out[2 * tall][2 * wide], &c1 = out[2 * tall][2 * wide + 1], &c2 = out[2 * tall + 1][2 * wide],
            &c3 = out[2 * tall + 1][2 * wide + 1];
      asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3)
          : "r"(left[tall][0]), "r"(left[tall][1]), "r"(left[tall][2]), "r"(left[tall][3]), "r"(low), "r"(high));
    }
  }
  template <class P, class A>
  __device__ __forceinline__ static void load_left(uint32_t (&left)[P::kTall][4], const P& part, const A& a, int low,
                                                   int high) {
    PLIMSOLL_UNROLL_ALL
    for (int tall = 0; tall < P::kTall; ++tall) {
      const int row = part.row_of(2 * tall);
      left[tall][0] = bits_of(*a(row, low)), left[tall][1] = bits_of(*a(row + 8, low));
      left[tall][2] = bits_of(*a(row, high)), left[tall][3] = bits_of(*a(row + 8, high));
    }
  }
#endif

  // a(row, e) and b(column, e) are addresses. kPairs: elements 2 t and 2 t + 1 come together; else t and t + 4.
  template <bool kPairs, class P, class A, class B>
  PLIMSOLL_BODY static void add(const P& part, float (&out)[P::kR][P::kC], const A& a, const B& b, int depth) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    const int low = kPairs ? 2 * part.across : part.across, high = kPairs ? low + 1 : low + 4;
    PLIMSOLL_UNROLL(2)
    for (int e = 0; e < depth; e += 8) {
      uint32_t left[P::kTall][4];
      load_left(left, part, a, e + low, e + high);
      PLIMSOLL_UNROLL_ALL
      for (int wide = 0; wide < P::kWide; ++wide) {
        const int column = 8 * wide + part.group;
        add_fragment<P>(out, left, bits_of(*b(column, e + low)), bits_of(*b(column, e + high)), wide);
      }
    }
#else
    for (int i = 0; i < P::kR; ++i) {
      for (int j = 0; j < P::kC; ++j) {
        const int row = part.row_of(i), column = part.column_of(j);
        for (int e = 0; e < depth; ++e) out[i][j] += seen(*a(row, e)) * seen(*b(column, e));
      }
    }
#endif
  }

  template <int kThreads, int kRows, int kColumns>
  struct RowsByRows : Part<kThreads, kRows, kColumns> {
    using Base = Part<kThreads, kRows, kColumns>;
    using Base::Base, Base::kR, Base::kC;
    template <class A, class B>
    PLIMSOLL_BODY void add(float (&out)[kR][kC], const A& a, const B& b, int depth) const {
      Tf32Products::add<false>(
          *this, out, [&](int row, int e) { return a.at(row, e); }, [&](int column, int e) { return b.at(column, e); },
          depth);
    }
  };

  template <int kThreads, int kRows, int kColumns, int kDepth>
  struct RowsByColumns : Part<kThreads, kRows, kColumns> {
    using Base = Part<kThreads, kRows, kColumns>;
    using Base::Base, Base::kR, Base::kC;
    template <class A, class B>
    PLIMSOLL_BODY void add(float (&out)[kR][kC], const A& a, const B& b) const {
      Tf32Products::add<true>(
          *this, out, [&](int row, int e) { return a.at(row, e); }, [&](int column, int e) { return b.at(e, column); },
          kDepth);
    }
    // A thread's own pairs of neighbours are what it has to bring: they need not pass through shared memory.
    PLIMSOLL_BODY static constexpr bool reads_own() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
      return true;
#else
      return false;
#endif
    }
    template <int kOwn, class A, class B>
    PLIMSOLL_BODY void add_own(float (&out)[kR][kC], [[maybe_unused]] const float (&own)[kR][kOwn],
                               [[maybe_unused]] const A& a, const B& b) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
      static_assert(4 * kOwn == kDepth);
      PLIMSOLL_UNROLL_ALL
      for (int e = 0; e < kDepth; e += 8) {
        const int pair = e / 4, low = e + 2 * this->across;
        uint32_t left[Base::kTall][4];
        PLIMSOLL_UNROLL_ALL
        for (int tall = 0; tall < Base::kTall; ++tall) {
          left[tall][0] = bits_of(own[2 * tall][pair]), left[tall][1] = bits_of(own[2 * tall + 1][pair]);
          left[tall][2] = bits_of(own[2 * tall][pair + 1]), left[tall][3] = bits_of(own[2 * tall + 1][pair + 1]);
        }
        PLIMSOLL_UNROLL_ALL
        for (int wide = 0; wide < Base::kWide; ++wide) {
          const int column = 8 * wide + this->group;
          add_fragment<Base>(out, left, bits_of(*b.at(low, column)), bits_of(*b.at(low + 1, column)), wide);
        }
      }
#else
      add(out, a, b);
#endif
    }
    template <class A, class A2, class B>
    PLIMSOLL_BODY void add(float (&out)[kR][kC], float (&out2)[kR][kC], const A& a, const A2& a2, const B& b) const {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
      const auto of_a = [&](int row, int e) { return a.at(row, e); };
      const auto of_a2 = [&](int row, int e) { return a2.at(row, e); };
      const int low = 2 * this->across, high = low + 1;
      PLIMSOLL_UNROLL(1)
      for (int e = 0; e < kDepth; e += 8) {
        uint32_t left[Base::kTall][4], left2[Base::kTall][4];
        load_left<Base>(left, *this, of_a, e + low, e + high);
        load_left<Base>(left2, *this, of_a2, e + low, e + high);
        PLIMSOLL_UNROLL_ALL
        for (int wide = 0; wide < Base::kWide; ++wide) {
          const int column = 8 * wide + this->group;
          const uint32_t right_low = bits_of(*b.at(e + low, column)), right_high = bits_of(*b.at(e + high, column));
          add_fragment<Base>(out, left, right_low, right_high, wide);
          add_fragment<Base>(out2, left2, right_low, right_high, wide);
        }
      }
#else
      add(out, a, b);
      add(out2, a2, b);
#endif
    }
  };

  template <int kThreads, int kRows, int kColumns, int kDepth>
  struct ColumnsByColumns : Part<kThreads, kRows, kColumns> {
    using Base = Part<kThreads, kRows, kColumns>;
    using Base::Base, Base::kR, Base::kC;
    template <class A, class B>
    PLIMSOLL_BODY void add(float (&out)[kR][kC], const A& a, const B& b) const {
      Tf32Products::add<true>(
          *this, out, [&](int row, int e) { return a.at(e, row); }, [&](int column, int e) { return b.at(e, column); },
          kDepth);
    }
  };
};

// On GPUs whose blocks have less shared memory.
struct Tf32InTurn : Tf32Products {
  static constexpr bool kLoadsAhead = false;
};

// A thread's row i of a result, times a factor, into a row of `width` elements. by_four: it begins at a multiple of 16 bytes, and
// the width is a multiple of four.
template <class Part>
PLIMSOLL_BODY void store_row(float* to, const Part& part, const float (&v)[Part::kR][Part::kC], int i, float factor,
                             int width, bool by_four) {
  constexpr int kTogether = Part::kTogether;
  struct alignas(4 * kTogether) Neighbours {
    float v[kTogether];
  };
  PLIMSOLL_UNROLL_ALL
  for (int j = 0; j < Part::kC; j += kTogether) {
    const int column = part.column_of(j);
    if (by_four) {
      if (column >= width) continue;
      Neighbours here;
      PLIMSOLL_UNROLL_ALL
      for (int m = 0; m < kTogether; ++m) here.v[m] = v[i][j + m] * factor;
      *reinterpret_cast<Neighbours*>(to + column) = here;
    } else {
      PLIMSOLL_UNROLL_ALL
      for (int m = 0; m < kTogether; ++m) {
        if (column + m < width) to[column + m] = v[i][j + m] * factor;
      }
    }
  }
}

}  // namespace plimsoll::cuda
