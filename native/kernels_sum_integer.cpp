// Sums and means of integers: exact, and a mean is rounded half to even. A sum that does not fit its type is reported.
#include "families.h"
#include "modes.h"

namespace ndpool::NDPOOL_SET {
namespace {

// Sums of a few bytes fit 16 bits, those of more of them, or of other short integers, 32. Their means, which are never
// close to a half unless they are one, are rounded by a floating point number.
inline bool fits_16_bits(const Plan &p) { return size_of(p.type) == 1 && p.taps <= 128; }
inline bool fits_32_bits(const Plan &p) { return size_of(p.type) <= 2 && p.taps <= 32768; }

// sum / 2^shift, rounded half to even
template <class X> INLINE X halved(X sum, int shift) {
  using T = Element<X>;
  X below_half = splat<X>(T((T(1) << (shift - 1)) - 1)), one = splat<X>(T(1));
  return X(sum + below_half + ((sum >> shift) & one)) >> shift;
}

// store(mean, n, at) with what makes a result of a sum: the sum, or its mean over `divisor`, by F where no shift will
// do.
template <class F, class T, class Store> void with_mean(i64 divisor, Store store) {
  constexpr F MAGIC = F(3) * F(i64(1) << (Format<F>::fraction - 1));  // adding it rounds to an integer, halves to even
  if (divisor <= 1) return store([](auto sum) INLINE_LAMBDA { return sum; });
  if ((divisor & (divisor - 1)) == 0) {
    int shift = __builtin_ctzll(uint64_t(divisor));
    return store([=](auto sum) INLINE_LAMBDA { return halved(sum, shift); });
  }
  F by = F(divisor), inverse = 1 / by;
  auto rounded = [](F mean) INLINE_LAMBDA { return T((mean + MAGIC) - MAGIC); };
  if (divisor % 2)  // no mean lies between two integers, nor so near to it that the inverse would miss
    return store([=](T sum) INLINE_LAMBDA { return rounded(F(sum) * inverse); });
  store([=](T sum) INLINE_LAMBDA { return rounded(F(sum) / by); });
}

// n sums in T, or their means, put where they are stored as S. False if one does not fit; nobody looks if they are sure
// to.
template <class S, class F, class T> NOINLINE bool put_row(char *to, const T *sums, i64 n, i64 divisor, bool sure) {
  bool fits = true;
  with_mean<F, T>(divisor, [&](auto mean) INLINE_LAMBDA {
    if constexpr (std::is_invocable_v<decltype(mean), Vec<T>>) {
      each_once<T>(n, [&](auto kind, i64 i) INLINE_LAMBDA {
        using X = decltype(kind);
        save_stored<S>(to + i * i64(sizeof(S)), mean(load<X>(sums + i)));
      });
    } else
      for (i64 i = 0; i < n; i++) save_stored<S>(to + i * i64(sizeof(S)), mean(sums[i]));
    if (!sure)
      for (i64 i = 0; i < n; i++) fits &= T(S(mean(sums[i]))) == mean(sums[i]);
  });
  return fits;
}

// Sums in T, their means by F.
template <class T, class F> Outcome short_sum(Job &job, i64 unit, Arena &arena) {
  using Law = Add<T, 1>;
  Law law;
  FoldedUnit<Law> u(law, job, unit, arena);
  const Plan &p = u.plan;
  if (!u.fold()) return u.outcome();
  bool sure = p.mean && p.divisor == 0;  // a mean lies between the elements
  auto put = [&](i64 at, i64 n, i64 divisor) {
    with_type<typename Integer<sizeof(T) / 2>::type>(p.type, [&](auto stored) {
      using S = decltype(stored);
      if (!put_row<S, F>(u.place(job.y, p.type) + at * i64(sizeof(S)), u.states.at[0] + at, n, divisor, sure))
        __atomic_store_n(&job.overflow, true, __ATOMIC_RELAXED);
    });
  };
  const Axis &axis = p.axes[p.rank - 1];
  i64 first = p.rank == 1 ? u.part.from : 0;
  if (!p.mean || p.divisor || p.even)
    put(0, u.results, p.mean ? (p.divisor ? p.divisor : first_count(p)) : 1);
  else
    each_row(p, p.axes, u.part, [&](i64 at, i64 n, i64 counts, i64) {
      if (p.lanes > 1) return put(at, n, counts);
      for (i64 i = 0; i < n; i++) put(at + i, 1, counts * axis.count(first + i));
    });
  return Outcome::done;
}

// Any other sums, in 64 bits; those of 64-bit integers in two planes, their lower and their upper halves.
template <int PLANES> Outcome long_sum(Job &job, i64 unit, Arena &arena) {
  using T = int64_t;
  using Law = Add<T, PLANES>;
  Law law;
  FoldedUnit<Law> u(law, job, unit, arena);
  const Plan &p = u.plan;
  const Part &of = u.part;
  Passes<Law> &passes = u.passes;
  Scratch &scratch = u.scratch;
  passes.reserve(scratch);
  Type type = PLANES == 2 ? Type::i64 : p.type;
  Region<T> x(p, job.x, type, false, of, passes.sizes, passes.span.first);
  bool chunks = p.pieces > 1 || in_chunks(p, x);
  i64 most_at_once = chunks ? CHUNK : x.elements;
  T *lower = scratch.take<T>(most_at_once), *upper = PLANES == 2 ? scratch.take<T>(most_at_once) : nullptr;
  if (scratch.failed) return Outcome::no_memory;
  auto taken_apart = [&](const Region<T> &part) {
    Source<T, PLANES> from;
    from.at[0] = part.all(lower);
    if constexpr (PLANES == 2) {
      for (i64 i = 0; i < part.elements; i++) {
        T v = from.at[0][i];
        upper[i] = p.type == Type::u64 ? T(uint64_t(v) >> 32) : v >> 32;
        lower[i] = v & 0xffffffffLL;
      }
      from.at[0] = lower, from.at[1] = upper;
    }
    return from;
  };
  Sink<T, PLANES> states = passes.rooms[0];
  if (!chunks) states = passes.template run<ALL<Law>>(taken_apart(x), scratch);
  if (scratch.failed) return Outcome::no_memory;
  // long lines, a part at a time: integers may be added in any order
  const Axis &line = p.axes[0];
  auto add_up = [&](i64 tile, i64 first, i64 n) {
    State<T, PLANES> sum{};
    for (i64 done = 0; done < n; done += CHUNK) {
      i64 sizes[1] = {least(CHUNK, n - done)};
      auto from = taken_apart(
          Region<T>(p, job.x, type, false, {.tile = tile, .tiles = 1, .from = 0, .to = 0}, sizes, first + done));
      for (int i = 0; i < PLANES; i++)
        for (i64 j = 0; j < sizes[0]; j++) sum.at[i] += from.at[i][j];
    }
    return sum;
  };
  if (p.pieces > 1) {
    Clipped w = line.at(of.from);
    State<T, PLANES> sum{};
    each_piece<Law>(0, w.length, 0, p.pieces, [&](i64 piece, i64 from, i64 to) {
      if (piece == of.piece) sum = add_up(of.tile, w.first + from, to - from);
    });
    if (!last_piece<Law>(p, job, of, sum)) return Outcome::done;
    save<Law, One<T>>(states, 0, merged_pieces(law, p, job, of));
  } else if (chunks) {
    for (i64 t = 0, at = 0; t < of.tiles; t++)
      for (i64 o = of.from; o < of.to; o++, at++)
        save<Law, One<T>>(states, at, add_up(of.tile + t, line.first(o), line.length(o)));
  }
  i64 size = size_of(p.type);
  char *y = u.place(job.y, p.type);
  using Wide = __int128;
  Wide lowest = 0, highest = (Wide(1) << (8 * size)) - 1;
  if (p.type <= Type::i64) lowest = -(Wide(1) << (8 * size - 1)), highest = -lowest - 1;
  const Axis &axis = p.axes[p.rank - 1];
  i64 first = p.rank == 1 ? of.from : 0;
  each_row(p, p.axes, of, [&](i64 at, i64 count, i64 counts, i64) {
    for (i64 i = 0; i < count; i++) {
      Wide sum = states.at[0][at + i];
      if constexpr (PLANES == 2) sum += Wide(states.at[1][at + i]) << 32;
      i64 inner = p.lanes == 1 ? axis.count(first + i) : 1, by = p.mean ? (p.divisor ? p.divisor : counts * inner) : 1;
      if (by > 1) {
        Wide down = sum / by, rest = sum % by;
        if (rest < 0) rest += by, down -= 1;
        if (2 * rest > by || (2 * rest == by && down % 2 != 0)) down += 1;
        sum = down;
      }
      if (sum < lowest || sum > highest) __atomic_store_n(&job.overflow, true, __ATOMIC_RELAXED);
      uint64_t low = uint64_t(sum);
      std::memcpy(y + (at + i) * size, &low, size_t(size));  // little-endian
    }
  });
  return Outcome::done;
}

}  // namespace

Outcome sum_of_integers(Job &job, i64 unit, Arena &arena) {
  if (fits_16_bits(*job.plan)) return short_sum<int16_t, float>(job, unit, arena);
  if (fits_32_bits(*job.plan)) return short_sum<int32_t, double>(job, unit, arena);
  return size_of(job.plan->type) == 8 ? long_sum<2>(job, unit, arena) : long_sum<1>(job, unit, arena);
}

}  // namespace ndpool::NDPOOL_SET
