// The most frequent value under each window. Windows of few taps are compared tap by tap, many outputs at once; of
// more, the values are counted in a table, one window after another. Nothing is kept of a window but its value.
#include "families.h"
#include "part.h"
#include "results.h"
#include "rows.h"

namespace ndpool::NDPOOL_SET {
namespace {

constexpr int FEW =
    2 * WIDTH < 127 ? 2 * WIDTH : 127;  // taps that are compared with each other; a byte holds their number
constexpr i64 FEW_ALONE = 16;           // the same for windows that fill no vector
constexpr i64 PACKED = 8192;            // taps that are laid side by side where they do not lie so
constexpr i64 FIRST_SLOTS = 512;        // of a table: bytes never fill it

// Labels are bits, compared as signed integers. Among the most frequent the smallest wins, where bits that differ from
// those of such integers in `sign` are in order; or the first.
template <class T> struct Rule {
  T sign;
  bool smallest;
};

// -- few taps: each is compared with those after it, so the first of equals counts all of them ------------------------

// body(0), ..., body(K - 1), written out; or up to k, if K is 0
template <int K, class Body> INLINE void each_tap(int k, Body body) {
  if constexpr (K > 0)
    times<K, true>(body);
  else
    for (int i = 0; i < k; i++) body(i);
}

// `any`, half by half
template <class X> INLINE bool any_by_halves(X mask) {
  if constexpr (sizeof(X) > 16)
    return any_by_halves<Half<X>>(halve(mask, 0) | halve(mask, 1));
  else
    return any(mask);
}

// One window in each lane, of `k` taps in row-major order, which `load_taps` puts into an array.
template <int K, class X, class Load>
INLINE X most_frequent(const Rule<Element<X>> &rule, int k, const Load &load_taps) {
  X t[K ? K : FEW];
  t[0] = X{};
  load_taps(t);
  Ints<X> unlike{};
  each_tap<K>(k, [&](int i) INLINE_LAMBDA { unlike |= t[i] ^ t[0]; });
  if (!any_by_halves<Ints<X>>(unlike)) return t[0];
  const X one = splat<X>(1), sign = splat<X>(rule.sign);
  const Ints<X> smallest = splat<Ints<X>>(rule.smallest ? -1 : 0);
  X y{}, most{};
  each_tap<K>(k, [&](int i) INLINE_LAMBDA {
    X count = one;
    if constexpr (K > 0)
      times<K, true>([&](int j) INLINE_LAMBDA {
        if (j > i) count = choose<X>(t[i] == t[j], count + one, count);
      });
    else
      for (int j = i + 1; j < k; j++) count = choose<X>(t[i] == t[j], count + one, count);
    Ints<X> less = Ints<X>((t[i] ^ sign) < (y ^ sign)) & smallest;
    Ints<X> better = Ints<X>(count > most) | (Ints<X>(count == most) & less);
    y = choose<X>(better, t[i], y), most = choose<X>(better, count, most);
  });
  return y;
}

// n windows, each STRIDE elements after the one before; at[i] is where tap i of the first one lies. PAIRS: of each two
// taps the second lies beside the first, so that one pair of loads has both of them.
template <int K, int STRIDE, bool PAIRS = false, class T>
NOINLINE void compare(const Rule<T> &rule, const T *const *at, int k, i64 n, char *y) {
  each_vector<T, true>(n, [&](auto kind, i64 j) INLINE_LAMBDA {
    using X = decltype(kind);
    X found = most_frequent<K, X>(rule, k, [&](X *t) INLINE_LAMBDA {
      if constexpr (PAIRS)
        each_tap<K / 2>(k / 2, [&](int i) INLINE_LAMBDA { load_pair<X>(at[2 * i] + j * 2, t[2 * i], t[2 * i + 1]); });
      else
        each_tap<K>(k, [&](int i) INLINE_LAMBDA { t[i] = load<X, STRIDE>(at[i] + j * STRIDE); });
    });
    __builtin_memcpy(y + j * i64(sizeof(T)), &found, sizeof found);
  });
}
template <int K, int STRIDE, class T> void compare_some(const Rule<T> &rule, const T *const *at, i64 n, char *y) {
  bool pairs = STRIDE == 2;
  for (int i = 0; i < K; i += 2) pairs = pairs && at[i + 1] == at[i] + 1;
  if (pairs) return compare<K, 2, true>(rule, at, K, n, y);
  compare<K, STRIDE>(rule, at, K, n, y);
}
template <int STRIDE, class T> void compare_any(const Rule<T> &rule, const T *const *at, int k, i64 n, char *y) {
  if (k == 4) return compare_some<4, STRIDE>(rule, at, n, y);
  if (k == 8) return compare_some<8, STRIDE>(rule, at, n, y);
  compare<0, STRIDE>(rule, at, k, n, y);
}

// -- many taps: a table of the values seen, in the order of their appearance ------------------------------------------

template <class T> class Table {
  struct Entry {
    T value;
    i64 count;
  };
  Scratch &scratch_;
  Entry *entries_ = nullptr;
  i64 *slots_ = nullptr;  // the number of an entry and one more, or 0
  i64 size_ = 0, most_ = 0;
  T last_{};
  i64 run_ = 0;

  i64 slot(T value) const {
    uint64_t h = uint64_t(value);
    if constexpr (sizeof(T) > 1)
      h = (h ^ h >> 32) * 0x9e3779b97f4a7c15u, h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u, h ^= h >> 32;
    i64 at = i64(h & uint64_t(most_ - 1));
    while (slots_[at] && entries_[slots_[at] - 1].value != value) at = (at + 1) & (most_ - 1);
    return at;
  }
  void grow() {
    Entry *before = entries_;
    i64 most = most_ ? 2 * most_ : FIRST_SLOTS;
    Entry *entries = scratch_.take<Entry>(most / 2);
    i64 *slots = scratch_.take<i64>(most);
    if (scratch_.failed) return;
    entries_ = entries, slots_ = slots, most_ = most;
    std::memset(slots_, 0, size_t(most_) * sizeof(i64));
    if (size_) std::memcpy(entries_, before, size_t(size_) * sizeof(Entry));
    for (i64 i = 0; i < size_; i++) slots_[slot(entries_[i].value)] = i + 1;
  }
  void add() {  // the run of equals that has ended
    if (run_ == 0) return;
    i64 at = slot(last_);
    if (!slots_[at]) {
      if (2 * size_ >= most_) {
        grow();
        if (scratch_.failed) return;
        at = slot(last_);
      }
      entries_[size_] = {last_, 0}, slots_[at] = ++size_;
    }
    entries_[slots_[at] - 1].count += run_, run_ = 0;
  }

 public:
  explicit Table(Scratch &scratch) : scratch_(scratch) { grow(); }

  void count(T value) {
    if (value != last_) add(), last_ = value;
    run_++;
  }

  // The most frequent of all that were counted; the table is empty then.
  T most_frequent(const Rule<T> &rule) {
    add();
    T y{};
    i64 most = 0;
    for (i64 i = 0; i < size_; i++) {
      auto [value, count] = entries_[i];
      if (count > most || (count == most && rule.smallest && T(value ^ rule.sign) < T(y ^ rule.sign)))
        y = value, most = count;
    }
    for (i64 i = 0; i < size_; i++) entries_[i].count = slot(entries_[i].value);
    for (i64 i = 0; i < size_; i++) slots_[entries_[i].count] = 0;
    size_ = 0;
    return y;
  }
};

// -- the windows of a unit --------------------------------------------------------------------------------------------

template <class T> class Unit {
  const Plan &p_;
  const Array &x_;
  Part part_;
  Scratch scratch_;
  Table<T> table_;
  Rule<T> rule_;
  T *packed_;
  int order_[MOST_AXES];      // of the axes: row-major as the caller has them, or where any order will do as memory has
  i64 taps_[MOST_AXES] = {};  // of the windows that `offsets_` is of
  i64 known_ = -1;            // how many
  i64 offsets_[FEW];          // bytes from the first tap of a window to each of them, in that order

  i64 step(int i) const { return p_.axes[i].step * x_.strides[p_.lead + i]; }

  // What the taps of windows with so many on each axis are
  i64 prepare(const i64 *taps) {
    if (known_ >= 0 && !std::memcmp(taps, taps_, size_t(p_.rank) * sizeof(i64))) return known_;
    std::memcpy(taps_, taps, size_t(p_.rank) * sizeof(i64));
    known_ = 1;
    for (int i = 0; i < p_.rank; i++) known_ *= taps[i];
    if (known_ == 0 || known_ > FEW) return known_;
    i64 n = 1;
    offsets_[0] = 0;
    for (int at = 0; at < p_.rank; at++) {
      i64 more = taps[order_[at]], by = step(order_[at]);
      for (i64 i = n; i-- > 0;)
        for (i64 tap = more; tap-- > 0;) offsets_[i * more + tap] = offsets_[i] + tap * by;
      n *= more;
    }
    return known_;
  }

  // n windows alike, `apart` bytes from each other, of which the first reads from `from` on.
  void make(const i64 *taps, const char *from, i64 n, i64 apart, char *y) {
    i64 k = prepare(taps);
    if (k == 0) return void(std::memset(y, 0, size_t(n) * sizeof(T)));
    if (k > (n * i64(sizeof(T)) < 16 ? FEW_ALONE : FEW)) {
      for (i64 o = 0; o < n; o++) {
        T found = counted(from + o * apart);
        std::memcpy(y + o * i64(sizeof(T)), &found, sizeof(T));
      }
      return;
    }
    const T *at[FEW];
    bool aligned = reinterpret_cast<uintptr_t>(from) % sizeof(T) == 0;
    for (i64 i = 0; i < k; i++) {
      at[i] = reinterpret_cast<const T *>(from + offsets_[i]);
      aligned = aligned && offsets_[i] % i64(sizeof(T)) == 0;
    }
    if (aligned && apart == sizeof(T)) return compare_any<1>(rule_, at, int(k), n, y);
    if (aligned && apart == 2 * sizeof(T)) return compare_any<2>(rule_, at, int(k), n, y);
    for (i64 done = 0, many; done < n; done += many) {
      many = least(PACKED / k, n - done);
      for (i64 i = 0; i < k; i++) {
        const char *tap = from + offsets_[i] + done * apart;
        for (i64 o = 0; o < many; o++) packed_[i * many + o] = element<T>(tap + o * apart);
        at[i] = packed_ + i * many;
      }
      compare_any<1>(rule_, at, int(k), many, y + done * i64(sizeof(T)));
    }
  }

  // One window of many taps, in their order.
  T counted(const char *from) {
    i64 at[MOST_AXES] = {};
    int last = order_[p_.rank - 1];
    for (;;) {
      for (i64 tap = 0, by = step(last); tap < taps_[last]; tap++) table_.count(element<T>(from + tap * by));
      int i = p_.rank - 2;
      for (; i >= 0; i--) {
        int axis = order_[i];
        from += step(axis);
        if (++at[i] < taps_[axis]) break;
        from -= taps_[axis] * step(axis), at[i] = 0;
      }
      if (i < 0 || scratch_.failed) return table_.most_frequent(rule_);
    }
  }

  // A row of outputs along the innermost axis, whose windows start at `from` on all others.
  void make_row(i64 *taps, const char *from, i64 begin, i64 end, char *y) {
    int inner = p_.rank - 1;
    const Axis &axis = p_.axes[inner];
    i64 apart = x_.strides[p_.lead + inner];
    auto clamp = [&](i64 o) { return o < begin ? begin : o > end ? end : o; };
    i64 a = clamp(axis.whole_from), b = clamp(axis.whole_to);
    if (a >= b) a = b = end;
    for (i64 o = begin; o < end;) {
      Clipped w = axis.at(o);
      i64 n = o == a && a < b ? b - a : 1;
      taps[inner] = w.length;
      make(taps, from + w.first * apart, n, n > 1 ? axis.stride * apart : sizeof(T), y + (o - begin) * i64(sizeof(T)));
      o += n;
    }
  }

  // All outputs from axis i on: rows, whose place in y moves on.
  void make_from(int i, i64 *taps, const char *from, char *&y) {
    i64 begin = i == 0 ? part_.from : 0, end = i == 0 ? part_.to : i < p_.rank ? p_.axes[i].outputs : 0;
    if (p_.lanes > 1 && i == p_.rank) {
      make(taps, from, p_.lanes, x_.strides[p_.lead + i], y);
      y += p_.lanes * i64(sizeof(T));
    } else if (p_.lanes == 1 && i == p_.rank - 1) {
      make_row(taps, from, begin, end, y);
      y += (end - begin) * i64(sizeof(T));
    } else {
      for (i64 o = begin; o < end && !scratch_.failed; o++) {
        Clipped w = p_.axes[i].at(o);
        taps[i] = w.length;
        make_from(i + 1, taps, from + w.first * x_.strides[p_.lead + i], y);
      }
    }
  }

 public:
  Unit(Job &job, i64 unit, Arena &arena)
      : p_(*job.plan), x_(job.x), part_(band_of(p_, false, unit)), scratch_(arena), table_(scratch_) {
    bool is_signed = p_.type <= Type::i64;
    rule_ = {is_signed ? T(0) : T(T(1) << (8 * sizeof(T) - 1)), p_.ties == Ties::smallest};
    packed_ = scratch_.take<T>(PACKED);
    for (int i = 0; i < p_.rank; i++) {
      int at = i;
      for (; !rule_.smallest && at > 0 && p_.tap_steps[order_[at - 1]] < p_.tap_steps[i]; at--)
        order_[at] = order_[at - 1];
      order_[at] = i;
    }
  }

  Outcome run(char *y) {
    if (scratch_.failed) return Outcome::no_memory;
    y += dense_offset(p_, part_, false) * i64(sizeof(T));
    for (i64 tile = part_.tile; tile < part_.tile + part_.tiles; tile++) {
      i64 rest = tile, offset = 0, taps[MOST_AXES];
      for (int i = p_.lead; i-- > 0; rest /= p_.sizes[i]) offset += rest % p_.sizes[i] * x_.strides[i];
      make_from(0, taps, x_.data + offset, y);
    }
    return scratch_.failed ? Outcome::no_memory : Outcome::done;
  }
};

}  // namespace

Outcome mode_of_labels(Job &job, i64 unit, Arena &arena) {
  switch (size_of(job.plan->type)) {
    case 1:
      return Unit<int8_t>(job, unit, arena).run(job.y.data);
    case 2:
      return Unit<int16_t>(job, unit, arena).run(job.y.data);
    case 4:
      return Unit<int32_t>(job, unit, arena).run(job.y.data);
    default:
      return Unit<int64_t>(job, unit, arena).run(job.y.data);
  }
}

}  // namespace ndpool::NDPOOL_SET
