#include "collectives.h"

#include <algorithm>
#include <cstring>

#include "common/op.h"
#include "common/reduce.h"

namespace nccl_double {
namespace {

class Kernel {
 public:
  Kernel(const Collective& call, SharedGroup& group, int rank, int size, const Aborted& aborted)
      : call_(call), group_(group), rank_(rank), size_(size), aborted_(aborted) {}

  // For each piece of the count elements: every rank publishes what `from` returns, then `take`
  // reads the slots.
  template <class From, class Take>
  bool in_pieces(const From& from, const Take& take) {
    const size_t step = SharedGroup::kSlot / call_.element;
    for (size_t done = 0; done < call_.count; done += step) {
      const size_t n = std::min(step, call_.count - done);
      if (const char* const data = from(done)) show(data, n);
      if (!group_.step(aborted_)) return false;
      take(done, n);
      if (!group_.step(aborted_)) return false;
    }
    return true;
  }

  bool run() {
    const size_t e = call_.element;
    const auto mine = [&](size_t done) { return call_.send + done * e; };
    switch (call_.kind) {
      case Collective::kBroadcast:
        return in_pieces([&](size_t done) { return rank_ == call_.root ? mine(done) : nullptr; },
                         [&](size_t done, size_t n) {
                           std::memmove(call_.recv + done * e, group_.slot(call_.root), n * e);
                         });
      case Collective::kAllGather:
        return in_pieces(mine, [&](size_t done, size_t n) {
          for (int r = 0; r < size_; ++r) {
            const size_t begin = static_cast<size_t>(r) * call_.count + done;
            std::memcpy(call_.recv + begin * e, group_.slot(r), n * e);
          }
        });
      case Collective::kReduceScatter:
        for (int to = 0; to < size_; ++to) {
          const size_t begin = static_cast<size_t>(to) * call_.count;
          if (!in_pieces([&](size_t done) { return call_.send + (begin + done) * e; },
                         [&](size_t done, size_t n) {
                           if (to == rank_) reduce(call_.recv + done * e, n);
                         }))
            return false;
        }
        return true;
      default:
        return in_pieces(mine, [&](size_t done, size_t n) {
          if (call_.kind == Collective::kAllReduce || rank_ == call_.root)
            reduce(call_.recv + done * e, n);
        });
    }
  }

 private:
  void show(const char* data, size_t n) {
    char* const slot = group_.slot(rank_);
    const Combine& combine = call_.combine;
    if (combine.scale != 1) {
      db::scale(combine.dtype, slot, data, n, combine.scale);
    } else {
      std::memcpy(slot, data, n * call_.element);
    }
  }

  void reduce(char* to, size_t n) {
    const Combine& combine = call_.combine;
    const db::ReduceFunction function = db::reduce_function(combine.dtype, combine.reduce);
    std::memcpy(to, group_.slot(0), n * call_.element);
    for (int r = 1; r < size_; ++r) function(to, to, group_.slot(r), n);
    if (combine.reduce == DB_AVG && !db::is_floating(combine.dtype))
      db::divide(combine.dtype, to, n, size_);
  }

  const Collective& call_;
  SharedGroup& group_;
  const int rank_, size_;
  const Aborted& aborted_;
};

}  // namespace

bool perform(const Collective& call, SharedGroup& group, int rank, int size,
             const Aborted& aborted) {
  return Kernel(call, group, rank, size, aborted).run();
}

}  // namespace nccl_double
