// Plans on XLA's buffers, without Python: what `ndpool.jax` puts into XLA's programs as a call of "ndpool.run".
//
// The one attribute, "plan", is numbers from which the plan is made, so that a program means the same in any process:
// after jax.export, or from a cache on disk. src/ndpool/jax/ffi.py writes them:
//
//     FORMAT, mode, law, ties, ignore_nan, flip, mean, parameter (the bits of a double), divisor, rank,
//     then for each of `rank` pooled axes 8 numbers as `OwnedAxis::sliding` takes them, or (size, outputs, 0, ...):
//     bins
//
// Sizes of the axes that are not pooled are the buffers': [lead, pooled axes, lanes], dense. Plans are kept.
//
// Max-unpooling has no window: FORMAT, UNPOOL and what stays where values meet, on places and values [rows, columns].
#include "xla.h"

#include <cstring>
#include <unordered_map>

#include "plan.h"
#include "run.h"
#include "unpool.h"
#include "xla_frame.h"

namespace ndpool::xla {
namespace {

constexpr i64 FORMAT = 1;
constexpr i64 UNPOOL = 6;  // a mode, behind those of plans
constexpr size_t HEAD = 10, PER_AXIS = 8;
constexpr i64 LIMIT = i64(1) << 31;  // of the numbers of an axis: no product of two is beyond 64 bits
constexpr size_t MOST_PLANS = 512;

// -- plans
// ---------------------------------------------------------------------------------------------------------------

// The numbers of the attribute, then the sizes of lead and lanes, and the type of the elements.
using Key = std::vector<i64>;
struct Hash {
  size_t operator()(const Key &key) const {
    uint64_t h = 1469598103934665603u;
    for (i64 n : key) h = (h ^ uint64_t(n)) * 1099511628211u, h ^= h >> 29;
    return size_t(h);
  }
};

std::mutex mutex;
std::unordered_map<Key, std::shared_ptr<const OwnedPlan>, Hash> plans;

bool is_between(i64 n, i64 least, i64 most) { return n >= least && n <= most; }

std::shared_ptr<const OwnedPlan> make(const Key &key) {
  size_t rank = size_t(key[9]);
  auto owned = std::make_shared<OwnedPlan>();
  Plan &p = owned->plan;
  if (!is_between(key[2], 0, int(Law::mode)) || !is_between(key[3], 0, int(Ties::smallest)) || key[8] < 0)
    refuse("the plan of this program names a law that is not known");
  p.law = Law(key[2]), p.ties = Ties(key[3]), p.ignore_nan = key[4], p.flip = key[5], p.mean = key[6];
  std::memcpy(&p.parameter, &key[7], sizeof p.parameter);
  p.divisor = key[8], p.lead = 1, p.sizes[0] = key[key.size() - 3], p.lanes = key[key.size() - 2];
  p.type = Type(key.back());
  i64 taps = 1;  // of the axes behind this one
  for (size_t i = rank; i-- > 0;) {
    const i64 *f = key.data() + HEAD + i * PER_AXIS;
    bool bins = f[2] == 0, valid = f[0] > 0 && f[1] > 0;
    for (size_t k = 0; k < PER_AXIS; k++) valid = valid && is_between(f[k], k == 5 ? -LIMIT : 0, LIMIT);
    valid = valid && (bins || (f[3] > 0 && f[4] > 0));
    if (!valid) refuse("the plan of this program has an axis that is none");
    OwnedAxis axis =
        bins ? OwnedAxis::bins(f[0], f[1]) : OwnedAxis::sliding(f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7]);
    p.tap_steps[i] = taps, p.position_steps[i] = 0;
    // folds go from the last axis to the first, which keeps row-major order among equals
    p.order[rank - 1 - i] = int32_t(i);
    if (__builtin_mul_overflow(taps, axis.axis.most_taps, &taps)) refuse("the windows of this program have no end");
    owned->axes.insert(owned->axes.begin(), std::move(axis));
  }
  owned->finish();
  return owned;
}

std::shared_ptr<const OwnedPlan> plan_of(const Key &key) {
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (auto found = plans.find(key); found != plans.end()) return found->second;
  }
  auto made = make(key);
  std::lock_guard<std::mutex> lock(mutex);
  if (plans.size() >= MOST_PLANS) plans.clear();  // who is running one holds it
  plans.emplace(key, made);
  return made;
}

// The numbers of the attribute: at least FORMAT, a mode and one more.
const Numbers &numbers(const Attributes &from) {
  for (i64 i = 0; i < from.count; i++)
    if (from.names[i]->length == 4 && !std::memcmp(from.names[i]->data, "plan", 4) && from.types[i] == ARRAY) {
      const auto &found = *static_cast<const Numbers *>(from.items[i]);
      const auto *at = static_cast<const i64 *>(found.data);
      if (found.type != DataType::i64 || found.count < 3) break;
      if (at[0] != FORMAT) refuse("this program was made by another version of ndpool; export it again");
      return found;
    }
  refuse("this program calls ndpool without a plan");
}

// What each mode is given, and gives: the first argument may be which tap won, the last may lie as outputs do, and the
// results as inputs.
struct Signature {
  int arguments, results;
  bool residual, from_outputs, to_inputs;
};
constexpr Signature SIGNATURES[] = {
    {1, 1, false, false, false},  // forward
    {1, 2, false, false, false},  // winners
    {2, 1, false, false, false},  // jvp
    {2, 1, false, true, true},    // vjp
    {2, 1, true, false, false},   // jvp_by_winner
    {2, 1, true, true, true},     // vjp_by_winner
};

// An array of the plan: its memory, and its strides, once its shape is what the plan says.
void take(Array &to, const Buffer &from, const Plan &p, bool out, i64 bytes) {
  int n = p.rank + 2;
  bool fits = from.rank == n && from.dims[0] == p.sizes[0] && from.dims[n - 1] == p.lanes;
  for (int i = 0; fits && i < p.rank; i++) fits = from.dims[i + 1] == (out ? p.axes[i].outputs : p.axes[i].size);
  if (!fits || BYTES[int(type_of(from.type))] != bytes) refuse("an array has not the shape or type that its plan has");
  to.data = static_cast<char *>(from.data);
  for (int k = n - 1; k >= 0; k--) to.strides[k] = bytes, bytes *= from.dims[k];
}

// -- a call of a plan
// ----------------------------------------------------------------------------------------------------

struct Running final : Shared {
  std::shared_ptr<const OwnedPlan> plan;
  Run run;

  Running(std::shared_ptr<const OwnedPlan> owned, Mode mode, Type type)
      : Shared(chosen->units(owned->plan, mode)), plan(std::move(owned)), run(plan->plan, mode, type) {}

  void work() override {
    if (!run.work([this](i64 &unit) { return claim(unit); }, [] { return true; })) stop();
  }
};

void call_plan(const Frame &frame, const Numbers &given) {
  const auto *first = static_cast<const i64 *>(given.data);
  bool whole = given.count >= HEAD && is_between(first[9], 1, MOST_AXES - 3) &&
               given.count == HEAD + size_t(first[9]) * PER_AXIS;
  if (!whole) refuse("this program calls ndpool without a plan");
  if (!is_between(first[1], 0, int(Mode::vjp_by_winner)))
    refuse("the plan of this program names a mode that is not known");
  auto mode = Mode(first[1]);
  const Signature &sides = SIGNATURES[first[1]];
  // the vjp of a linear law asks for no x
  bool no_x = mode == Mode::vjp && frame.arguments.count == 1;
  if (frame.arguments.count != sides.arguments - no_x || frame.results.count != sides.results)
    refuse("this program calls ndpool with other arrays than its plan has");
  const Buffer &last = buffer(frame.arguments, frame.arguments.count - 1);
  if (last.rank < 2) refuse("an array has not the shape that its plan has");
  Type type = type_of(last.type);
  Key key(first, first + given.count);
  key.push_back(last.dims[0]), key.push_back(last.dims[last.rank - 1]), key.push_back(i64(type));
  if (!is_between(key[key.size() - 3], 1, INT64_MAX) || !is_between(key[key.size() - 2], 1, INT64_MAX)) return;

  std::shared_ptr<const OwnedPlan> owned = plan_of(key);
  const Plan &p = owned->plan;
  if (p.law == Law::mode && mode != Mode::forward) refuse("this program asks for the derivative of a mode");
  if (no_x && p.law != Law::sum) refuse("this program calls ndpool without an array that its plan asks for");
  auto begin = [&](Mode of) {
    auto running = std::make_shared<Running>(owned, of, type);
    Job &job = running->run.job;
    i64 bytes = BYTES[int(type)];
    if (sides.arguments == 1) {
      take(job.x, last, p, false, bytes);
    } else {
      take(job.a, last, p, sides.from_outputs, bytes);
      if (!no_x) take(job.x, buffer(frame.arguments, 0), p, sides.residual, sides.residual ? p.residual_bytes : bytes);
    }
    take(job.y, buffer(frame.results, 0), p, !sides.to_inputs, bytes);
    if (sides.results == 2) take(job.b, buffer(frame.results, 1), p, true, p.residual_bytes);
    return running;
  };
  auto finish = [&](const std::shared_ptr<Running> &running) {
    run_shared(frame, running, Run::elements(p) >= SMALL);
    if (running->run.refused) throw std::bad_alloc();
    if (running->run.job.overflow) refuse("a sum does not fit the integers of x; convert x to a wider type first");
  };
  auto running = begin(mode);
  if (mode == Mode::vjp && p.states_first) {
    auto before = begin(Mode::states);
    finish(before);
    running->run.use_states(std::move(before->run.states));
  }
  finish(running);
}

// -- a call of max-unpooling
// ---------------------------------------------------------------------------------------------

struct Unpooling final : Shared {
  Unpool job;
  i64 rows, rows_per_unit;
  std::atomic<Put> worst{Put::done};

  Unpooling(const Unpool &unpool, i64 all, i64 per_unit)
      : Shared((all + per_unit - 1) / per_unit), job(unpool), rows(all), rows_per_unit(per_unit) {}

  void work() override {
    WithSmallNumbers small;
    for (i64 unit; claim(unit);) {
      Put put = unpool(job, unit * rows_per_unit, std::min(rows, (unit + 1) * rows_per_unit));
      for (Put before = worst; put > before && !worst.compare_exchange_weak(before, put);) {
      }
      if (put >= Put::no_memory) stop();
    }
  }
};

void call_unpool(const Frame &frame, const Numbers &given) {
  i64 meet = static_cast<const i64 *>(given.data)[2];
  if (given.count != 3 || !is_between(meet, 0, int(Meet::any)) || frame.arguments.count != 2 ||
      frame.results.count != 1)
    refuse("this program calls ndpool without a plan");
  const Buffer &places = buffer(frame.arguments, 0), &values = buffer(frame.arguments, 1);
  const Buffer &out = buffer(frame.results, 0);
  Type type = type_of(values.type);
  bool fits = places.rank == 2 && values.rank == 2 && out.rank == 2 && out.type == values.type &&
              (places.type == DataType::i32 || places.type == DataType::i64) &&
              (Meet(meet) != Meet::any || type == Type::u8);
  for (int i = 0; fits && i < 2; i++) fits = places.dims[i] == values.dims[i] && (i || out.dims[i] == values.dims[i]);
  if (!fits) refuse("an array has not the shape or type that its plan has");
  i64 rows = values.dims[0], columns = values.dims[1], size = out.dims[1];
  if (rows == 0 || columns + size == 0) return;
  Unpool job{type,
             Meet(meet),
             places.type == DataType::i64,
             static_cast<const char *>(values.data),
             static_cast<const char *>(places.data),
             static_cast<char *>(out.data),
             columns,
             size};
  auto running = std::make_shared<Unpooling>(job, rows, job.rows_per_unit());
  run_shared(frame, running, rows * (columns + size) >= SMALL);
  if (running->worst == Put::outside) refuse("indices has a place outside the output; give a larger output_size");
  if (running->worst == Put::no_memory) throw std::bad_alloc();
  if (running->worst == Put::overflow)
    refuse("values that meet add up beyond the integers of y; convert y to a wider type first");
}

// XLA asks once, when the handler is registered, which version it is made for.
bool is_question(Frame *frame) {
  for (Extension *e = frame->extensions; e; e = e->next)
    if (e->type == METADATA) {
      Version &version = reinterpret_cast<MetadataExtension *>(e)->metadata->version;
      version.major = MAJOR, version.minor = MINOR;
      return true;
    }
  return false;
}

}  // namespace

Error *run(Frame *frame) {
  if (is_question(frame)) return nullptr;
  auto failed = [&](Code code, const char *message) {
    CreateError error{sizeof(CreateError), nullptr, message, code};
    return frame->api->create_error(&error);
  };
  try {
    const Numbers &given = numbers(frame->attributes);
    bool unpools = static_cast<const i64 *>(given.data)[1] == UNPOOL;
    (unpools ? call_unpool : call_plan)(*frame, given);
    return nullptr;
  } catch (const Wrong &wrong) {
    return failed(wrong.code, ("ndpool: " + wrong.message).c_str());
  } catch (const std::bad_alloc &) {
    return failed(Code::resource_exhausted, "ndpool: no memory for this window");
  } catch (const std::exception &error) {
    return failed(Code::internal, error.what());
  }
}

void before_fork() { mutex.lock(); }
void after_fork() { mutex.unlock(); }

}  // namespace ndpool::xla
