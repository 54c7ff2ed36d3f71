#include "cli/plugins/bench_collectives.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "comm/fingerprint.h"

namespace coupler::cli {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kWarmUp = 5;
constexpr int64_t kFewest = 20;
constexpr int64_t kMost = 20'000;

// The share of the larger buffer's bytes that crosses each rank's link at least.
double bus_factor(db_kind kind, int world) {
  const double others = static_cast<double>(world - 1) / world;
  switch (kind) {
    case DB_ALL_REDUCE:
      return 2 * others;
    case DB_BROADCAST:
    case DB_REDUCE:
      return world > 1 ? 1 : 0;
    default:
      return others;
  }
}

// Whether count is one rank's share of the larger buffer.
bool has_parts(db_kind kind) {
  return kind == DB_ALL_GATHER || kind == DB_REDUCE_SCATTER || kind == DB_ALL_TO_ALL ||
         kind == DB_GATHER || kind == DB_SCATTER;
}

class Buffer {
 public:
  explicit Buffer(uint64_t bytes)
      : memory_(static_cast<char*>(std::aligned_alloc(64, (bytes + 127) / 64 * 64)), std::free) {
    if (memory_ == nullptr) throw std::bad_alloc();
    std::memset(memory_.get(), 0, bytes + 1);
  }
  void* data() const { return memory_.get(); }

 private:
  std::unique_ptr<char, void (*)(void*)> memory_;
};

void perform(Communicator& communicator, const db_op& op, bool asynchronous) {
  if (asynchronous) {
    communicator.submit(op).wait();
  } else {
    communicator.run(op);
  }
}

// Rank 0's value, on every rank.
int64_t agree(Communicator& communicator, int64_t value) {
  if (communicator.size() == 1) return value;
  db_op op{};
  op.kind = DB_BROADCAST;
  op.dtype = DB_I64;
  op.send = op.recv = &value;
  op.count = 1;
  communicator.run(op);
  return value;
}

std::vector<double> time_operation(Communicator& communicator, const db_op& op,
                                   const BenchPlan& plan) {
  const Clock::time_point warm = Clock::now();
  for (int64_t i = 0; i < kWarmUp; ++i) perform(communicator, op, plan.asynchronous);
  const auto each = std::max<std::chrono::nanoseconds>((Clock::now() - warm) / kWarmUp,
                                                       std::chrono::nanoseconds(1));
  const int64_t count = agree(communicator, std::clamp(plan.time / each, kFewest, kMost));
  std::vector<double> microseconds;
  microseconds.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const Clock::time_point start = Clock::now();
    perform(communicator, op, plan.asynchronous);
    microseconds.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  std::sort(microseconds.begin(), microseconds.end());
  return microseconds;
}

}  // namespace

std::vector<BenchRow> bench_collectives(Communicator& communicator, const std::string& backend,
                                        const BenchPlan& plan) {
  std::vector<BenchRow> rows;
  const auto world = static_cast<uint64_t>(communicator.size());
  const uint64_t element = dtype_size(plan.dtype);
  for (const db_kind kind : plan.kinds) {
    for (const uint64_t bytes : plan.bytes) {
      db_op op{};
      op.kind = kind;
      op.dtype = plan.dtype;
      op.reduce = is_reducing(kind) ? DB_SUM : 0;
      op.memory = DB_MEMORY_HOST;
      const uint64_t parts = has_parts(kind) ? world : 1;
      op.count = kind == DB_BARRIER ? 0 : std::max<uint64_t>(1, bytes / element / parts);
      const uint64_t moved = op.count * parts * element;
      const Buffer send(moved), recv(moved);
      op.send = send.data();
      op.recv = recv.data();
      if (!communicator.supports(op)) break;
      const std::vector<double> times = time_operation(communicator, op, plan);
      BenchRow row{.op = std::string(kind_name(kind)),
                   .dtype = kind == DB_BARRIER ? "" : std::string(dtype_name(plan.dtype)),
                   .bytes = moved,
                   .world = communicator.size(),
                   .backend = backend};
      row.median_us = times[times.size() / 2];
      row.p99_us = times[std::min(times.size() - 1, times.size() * 99 / 100)];
      row.algbw = static_cast<double>(moved) / row.median_us / 1e3;
      row.busbw = row.algbw * bus_factor(kind, communicator.size());
      rows.push_back(std::move(row));
      if (kind == DB_BARRIER) break;
    }
  }
  return rows;
}

}  // namespace coupler::cli
