// Every operation, dtype, reduction and size, in place or not, blocking or not, against the naive
// reference, with canaries around the buffers; and what supports() refuses, submit() refuses.
#include <fmt/format.h>

#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>

#include "comm/fingerprint.h"
#include "memory.h"
#include "rank.h"
#include "values.h"

namespace coupler::matrix {
namespace {

constexpr size_t kGuard = 64;
constexpr unsigned char kCanary = 0xa5;

// Elements between two canaries.
template <typename T>
class Buffer {
 public:
  explicit Buffer(uint64_t size)
      : size_(size),
        bytes_((2 * kGuard + size * sizeof(T) + kGuard - 1) / kGuard * kGuard),
        memory_(static_cast<unsigned char*>(allocate(bytes_)), deallocate) {
    std::memset(memory_.get(), kCanary, bytes_);
  }
  T* data() { return reinterpret_cast<T*>(memory_.get() + kGuard); }
  uint64_t size() const { return size_; }
  bool intact() const {
    const size_t end = kGuard + size_ * sizeof(T);
    for (size_t i = 0; i < kGuard; ++i) {
      if (memory_.get()[i] != kCanary) return false;
    }
    for (size_t i = end; i < bytes_; ++i) {
      if (memory_.get()[i] != kCanary) return false;
    }
    return true;
  }

 private:
  uint64_t size_;
  size_t bytes_;
  std::unique_ptr<unsigned char, void (*)(void*)> memory_;
};

// The sizes and contents of one cell on every rank.
struct Plan {
  Cell cell;
  int world = 1, me = 0, root = 0;
  uint64_t seed = 0;
  std::vector<uint64_t> counts;  // V kinds with one array: by rank

  uint64_t count_of(int rank) const { return counts[static_cast<size_t>(rank)]; }
  uint64_t before(int rank) const {
    uint64_t sum = 0;
    for (int i = 0; i < rank; ++i) sum += count_of(i);
    return sum;
  }
  // ALL_TO_ALL_V: symmetric, so that it may be in place; some parts are empty.
  uint64_t between(int from, int to) const {
    if (cell.count == 0 || (from + to) % 3 == 2) return 0;
    return cell.count + static_cast<uint64_t>(from + to);
  }
  uint64_t sent_before(int from, int to) const {
    uint64_t sum = 0;
    for (int i = 0; i < to; ++i) sum += between(from, i);
    return sum;
  }
  uint64_t send_size(int rank) const {
    const auto ranks = static_cast<uint64_t>(world);
    switch (cell.kind) {
      case DB_ALL_REDUCE:
      case DB_REDUCE:
      case DB_ALL_GATHER:
      case DB_GATHER:
        return cell.count;
      case DB_BROADCAST:
        return rank == root ? cell.count : 0;
      case DB_ALL_GATHER_V:
        return count_of(rank);
      case DB_REDUCE_SCATTER:
      case DB_ALL_TO_ALL:
        return ranks * cell.count;
      case DB_REDUCE_SCATTER_V:
        return before(world);
      case DB_ALL_TO_ALL_V:
        return sent_before(rank, world);
      case DB_SCATTER:
        return rank == root ? ranks * cell.count : 0;
      default:
        return 0;
    }
  }
  uint64_t recv_size(int rank) const {
    const auto ranks = static_cast<uint64_t>(world);
    switch (cell.kind) {
      case DB_ALL_REDUCE:
      case DB_BROADCAST:
      case DB_REDUCE_SCATTER:
      case DB_SCATTER:
        return cell.count;
      case DB_REDUCE:
        return rank == root ? cell.count : 0;
      case DB_ALL_GATHER:
      case DB_ALL_TO_ALL:
        return ranks * cell.count;
      case DB_ALL_GATHER_V:
        return before(world);
      case DB_REDUCE_SCATTER_V:
        return count_of(rank);
      case DB_ALL_TO_ALL_V:
        return sent_before(rank, world);
      case DB_GATHER:
        return rank == root ? ranks * cell.count : 0;
      default:
        return 0;
    }
  }
  // In place: where the smaller buffer lies in the larger one, in elements.
  uint64_t part() const {
    switch (cell.kind) {
      case DB_ALL_GATHER:
      case DB_GATHER:
      case DB_REDUCE_SCATTER:
      case DB_SCATTER:
        return static_cast<uint64_t>(me) * cell.count;
      case DB_ALL_GATHER_V:
      case DB_REDUCE_SCATTER_V:
        return before(me);
      default:
        return 0;
    }
  }
  // Which rank's element, and which, ends at `index` of my result; reducing kinds: of every rank.
  std::pair<int, uint64_t> origin(uint64_t index) const {
    const uint64_t count = cell.count;
    switch (cell.kind) {
      case DB_BROADCAST:
        return {root, index};
      case DB_ALL_GATHER:
      case DB_GATHER:
        return {static_cast<int>(index / count), index % count};
      case DB_ALL_GATHER_V:
        for (int rank = 0;; ++rank) {
          if (index < before(rank + 1)) return {rank, index - before(rank)};
        }
      case DB_REDUCE_SCATTER:
      case DB_REDUCE_SCATTER_V:
        return {0, part() + index};
      case DB_ALL_TO_ALL:
        return {static_cast<int>(index / count), static_cast<uint64_t>(me) * count + index % count};
      case DB_ALL_TO_ALL_V:
        for (int rank = 0;; ++rank) {
          const uint64_t start = sent_before(me, rank);
          if (index < start + between(me, rank)) {
            return {rank, sent_before(rank, me) + index - start};
          }
        }
      case DB_SCATTER:
        return {root, static_cast<uint64_t>(me) * count + index};
      default:
        return {0, index};
    }
  }
};

template <typename T>
bool same(const T& a, const T& b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

template <typename T>
class CellRun {
 public:
  CellRun(Communicator& communicator, const Plan& plan)
      : communicator_(communicator),
        plan_(plan),
        send_(plan.send_size(plan.me)),
        recv_(plan.recv_size(plan.me)) {}

  void run() {
    fill();
    db_op op = make_op();
    if (plan_.cell.blocking) {
      communicator_.run(op);
    } else {
      Work work = communicator_.submit(op);
      if (plan_.seed % 2 == 0) {
        work.wait();
      } else {
        while (!work.done()) std::this_thread::yield();
      }
    }
    verify();
  }

  db_op make_op() {
    const Cell& cell = plan_.cell;
    op_ = {};
    op_.kind = cell.kind;
    op_.dtype = cell.dtype;
    op_.reduce = cell.reduce;
    op_.root_or_peer = is_rooted(cell.kind) ? plan_.root : 0;
    op_.count = cell.count;
    op_.scale = kPremulScale;
    op_.memory = memory_kind();
    op_.send = send_.data();
    op_.recv = recv_.data();
    if (cell.in_place && send_.size() > 0 && recv_.size() > 0) {
      if (send_.size() >= recv_.size()) {
        op_.recv = send_.data() + (send_.size() > recv_.size() ? plan_.part() : 0);
      } else {
        op_.send = recv_.data() + plan_.part();
      }
    }
    if (cell.kind == DB_ALL_GATHER_V || cell.kind == DB_REDUCE_SCATTER_V) {
      op_.recv_counts = plan_.counts.data();
    }
    if (cell.kind == DB_ALL_TO_ALL_V) {
      sends_.clear();
      takes_.clear();
      for (int rank = 0; rank < plan_.world; ++rank) {
        sends_.push_back(plan_.between(plan_.me, rank));
        takes_.push_back(plan_.between(rank, plan_.me));
      }
      op_.send_counts = sends_.data();
      op_.recv_counts = takes_.data();
    }
    return op_;
  }

 private:
  T input(int rank, uint64_t index) const {
    return element<T>(plan_.cell.reduce, plan_.world, plan_.seed, rank, index);
  }

  void fill() {
    T* inside = send_.data();
    if (plan_.cell.in_place && recv_.size() > send_.size()) inside = recv_.data() + plan_.part();
    for (uint64_t i = 0; i < send_.size(); ++i) inside[i] = input(plan_.me, i);
  }

  void verify() {
    const T* result = static_cast<const T*>(op_.recv);
    std::vector<T> values(static_cast<size_t>(plan_.world));
    const bool reducing = is_reducing(plan_.cell.kind);
    for (uint64_t i = 0; i < recv_.size(); ++i) {
      const auto [rank, index] = plan_.origin(i);
      T expected{};
      if (reducing) {
        for (int other = 0; other < plan_.world; ++other) {
          values[static_cast<size_t>(other)] = input(other, index);
        }
        expected = reference(plan_.cell.reduce, values);
      } else {
        expected = input(rank, index);
      }
      if (!same(result[i], expected)) fail_at(i, result[i], expected);
    }
    if (op_.recv == recv_.data() && op_.send == send_.data()) {
      for (uint64_t i = 0; i < send_.size(); ++i) {
        check(same(send_.data()[i], input(plan_.me, i)), "the send buffer changed");
      }
    }
    check(send_.intact() && recv_.intact(), "memory beside the buffers changed");
  }

  [[noreturn]] void fail_at(uint64_t index, const T& got, const T& expected) const {
    uint64_t got_bits = 0, expected_bits = 0;
    std::memcpy(&got_bits, &got, sizeof(T));
    std::memcpy(&expected_bits, &expected, sizeof(T));
    fail(fmt::format("element {}: {:#x}, expected {:#x}", index, got_bits, expected_bits));
  }

  Communicator& communicator_;
  const Plan& plan_;
  db_op op_ = {};
  Buffer<T> send_, recv_;
  std::vector<uint64_t> sends_, takes_;
};

Plan plan_of(const Cell& cell, const Communicator& communicator, uint64_t number) {
  Plan plan{.cell = cell, .world = communicator.size(), .me = communicator.rank()};
  plan.root = static_cast<int>(number % static_cast<uint64_t>(plan.world));
  plan.seed = number;
  for (int rank = 0; rank < plan.world; ++rank) {
    const bool empty = cell.count == 0 || rank == 1;
    plan.counts.push_back(empty ? 0 : cell.count + static_cast<uint64_t>(rank));
  }
  return plan;
}

void expect_refused(Communicator& communicator, db_op op, bool blocking) {
  try {
    if (blocking) {
      communicator.run(op);
    } else {
      communicator.submit(op).wait();
    }
  } catch (const Error& error) {
    check(error.code() == ErrorCode::kUnsupported,
          fmt::format("refused with {}: {}", to_string(error.code()), error.what()));
    return;
  }
  fail("supports() says no, but the operation was performed");
}

// What is wrong with one cell, "" where nothing; *ran: whether it was supported.
std::string run_cell(Communicator& communicator, const Plan& plan, bool complete, bool* ran) {
  const Cell& cell = plan.cell;
  try {
    visit(cell.dtype, [&](auto type) {
      CellRun<decltype(type)> one(communicator, plan);
      const db_op op = one.make_op();
      const bool supported = communicator.supports(op);
      const bool defined =
          !is_reducing(cell.kind) || is_offered(memory_kind(), cell.dtype, cell.reduce);
      check(!complete || supported == defined,
            supported ? "supports() claims what has no meaning" : "supports() refuses it");
      *ran = supported;
      if (supported) {
        one.run();
      } else {
        expect_refused(communicator, op, cell.blocking);
      }
    });
  } catch (const Error&) {
    throw;  // the communicator is dead, and the error names the operation itself
  } catch (const std::exception& error) {
    return fmt::format("cell {} ({}), world {}, rank {}: {}\n", plan.seed, to_string(cell),
                       plan.world, plan.me, error.what());
  }
  return {};
}

// What was run and what was refused, of each kind, dtype and reduction: for tables of what is
// supported.
class Tally {
 public:
  void count(const Cell& cell, bool ran) {
    auto& [run, refused] = counts_[{cell.kind, cell.dtype, cell.reduce}];
    ++(ran ? run : refused);
  }
  std::string text() const {
    std::string lines;
    for (const auto& [what, counts] : counts_) {
      const auto& [kind, dtype, reduce] = what;
      lines +=
          fmt::format("{} {} {} {} {}\n", kind_name(kind), dtype_name(dtype),
                      is_reducing(kind) ? reduce_name(reduce) : "-", counts.first, counts.second);
    }
    return lines;
  }

 private:
  std::map<std::tuple<db_kind, db_dtype, db_reduce>, std::pair<uint64_t, uint64_t>> counts_;
};

}  // namespace

int operations(Rank& rank) {
  const auto communicator = rank.connect();
  uint64_t number = 0, run = 0, refused = 0, wrong = 0;
  Tally tally;
  std::string problems;
  for (const Cell& cell : choose_cells(rank.arguments().cover, rank.arguments().seed)) {
    bool ran = false;
    const Plan plan = plan_of(cell, *communicator, ++number);
    const std::string problem = run_cell(*communicator, plan, rank.arguments().complete, &ran);
    ++(ran ? run : refused);
    tally.count(cell, ran);
    if (problem.empty()) continue;
    if (++wrong <= 10) problems += problem;
  }
  if (wrong > 0) fail(fmt::format("{} cells are wrong, the first of them:\n{}", wrong, problems));
  check(run > 0, "not one cell was run");
  rank.report(fmt::format("{} cells run, {} refused", run, refused));
  rank.leave("tally", tally.text());
  return 0;
}

}  // namespace coupler::matrix
