// Every operation, dtype, reduction and size, in-place or not, blocking or not, compared with the
// naive reference, with canaries around the buffers. What supports() rejects, submit() rejects too.
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <span>
#include <thread>
#include <tuple>
#include <utility>

#include "comm/flight_recorder.h"
#include "contents.h"
#include "memory.h"
#include "plan.h"
#include "rank.h"
#include "simple_ops.h"
#include "values.h"

namespace coupler::matrix {
namespace {

constexpr size_t kGuard = 64;
constexpr unsigned char kCanary = 0xa5;

// Elements between two canaries; clear() writes the canaries.
template <typename T>
class Buffer {
 public:
  explicit Buffer(uint64_t size)
      : size_(size),
        bytes_((2 * kGuard + size * sizeof(T) + kGuard - 1) / kGuard * kGuard),
        memory_(static_cast<unsigned char*>(allocate(bytes_)), deallocate) {}
  void clear() { std::memset(memory_.get(), kCanary, bytes_); }
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

template <typename T>
class CellRun {
 public:
  CellRun(comm::Communicator& communicator, const Plan& plan, Shelf& shelf)
      : communicator_(communicator),
        plan_(plan),
        shelf_(shelf),
        send_(plan.send_size(plan.me)),
        recv_(plan.recv_size(plan.me)) {}

  void run() {
    fill();
    db_op op = make_op();
    if (plan_.cell.blocking) {
      communicator_.run(op);
    } else {
      comm::Work work = communicator_.submit(op);
      if (plan_.polls) {
        while (!work.done()) std::this_thread::yield();
      } else {
        work.wait();
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
    op_.root_or_peer = comm::is_rooted(cell.kind) ? plan_.root : 0;
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
      for (int rank = 0; rank < plan_.world_size; ++rank) {
        sends_.push_back(plan_.between(plan_.me, rank));
        takes_.push_back(plan_.between(rank, plan_.me));
      }
      op_.send_counts = sends_.data();
      op_.recv_counts = takes_.data();
    }
    return op_;
  }

 private:
  void fill() {
    send_.clear();
    recv_.clear();
    T* inside = send_.data();
    if (plan_.cell.in_place && recv_.size() > send_.size()) inside = recv_.data() + plan_.part();
    contents().copy(plan_.number, plan_.me, 0, {inside, send_.size()});
  }

  void verify() {
    const std::span<const T> result(static_cast<const T*>(op_.recv), recv_.size());
    uint64_t begin = 0;
    for (const Stretch& from : plan_.origin()) {
      const std::span<const T> got = result.subspan(begin, from.count);
      if (comm::is_reducing(plan_.cell.kind)) {
        const uint64_t wrong = contents().first_wrong_reduced(plan_.number, from.first, got);
        if (wrong < got.size()) {
          fail_at(begin + wrong, got[wrong],
                  contents().expected_reduced(plan_.number, from.first + wrong));
        }
      } else {
        const uint64_t wrong = contents().first_wrong(plan_.number, from.rank, from.first, got);
        if (wrong < got.size()) {
          fail_at(begin + wrong, got[wrong],
                  contents().expected(plan_.number, from.rank, from.first + wrong));
        }
      }
      begin += from.count;
    }
    check(begin == result.size(), "the plan does not cover the whole result");
    if (op_.recv == recv_.data() && op_.send == send_.data()) {
      const std::span<const T> sent(send_.data(), send_.size());
      check(contents().first_wrong(plan_.number, plan_.me, 0, sent) == sent.size(),
            "the send buffer changed");
    }
    check(send_.intact() && recv_.intact(), "memory next to the buffers changed");
  }

  Contents<T>& contents() { return shelf_.of<T>(plan_.cell); }

  [[noreturn]] void fail_at(uint64_t index, const T& got, const T& expected) const {
    uint64_t got_bits = 0, expected_bits = 0;
    std::memcpy(&got_bits, &got, sizeof(T));
    std::memcpy(&expected_bits, &expected, sizeof(T));
    fail(fmt::format("element {}: {:#x}, expected {:#x}", index, got_bits, expected_bits));
  }

  comm::Communicator& communicator_;
  const Plan& plan_;
  Shelf& shelf_;
  db_op op_ = {};
  Buffer<T> send_, recv_;
  std::vector<uint64_t> sends_, takes_;
};

void expect_refused(comm::Communicator& communicator, db_op op, bool blocking) {
  try {
    if (blocking) {
      communicator.run(op);
    } else {
      communicator.submit(op).wait();
    }
  } catch (const Error& error) {
    check(error.code() == ErrorCode::kUnsupported,
          fmt::format("rejected with {}: {}", to_string(error.code()), error.what()));
    return;
  }
  fail("supports() returned false, but the operation was performed");
}

// What is wrong with one cell; "" if nothing. *ran: whether it was supported.
std::string run_cell(comm::Communicator& communicator, const Plan& plan, Shelf& shelf,
                     bool complete, bool* ran) {
  const Cell& cell = plan.cell;
  try {
    visit(cell.dtype, [&](auto type) {
      CellRun<decltype(type)> one(communicator, plan, shelf);
      const db_op op = one.make_op();
      const bool supported = communicator.supports(op);
      const bool defined =
          !comm::is_reducing(cell.kind) || is_offered(memory_kind(), cell.dtype, cell.reduce);
      check(!complete || supported == defined,
            supported ? "supports() claims an undefined operation" : "supports() rejects it");
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
    return fmt::format("cell {} ({}), world {}, rank {}: {}\n", plan.number, to_string(cell),
                       plan.world_size, plan.me, error.what());
  }
  return {};
}

// How many cells were run and rejected for each kind, dtype and reduction: for support tables.
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
      lines += fmt::format("{} {} {} {} {}\n", comm::kind_name(kind), comm::dtype_name(dtype),
                           comm::is_reducing(kind) ? comm::reduce_name(reduce) : "-", counts.first,
                           counts.second);
    }
    return lines;
  }

 private:
  std::map<std::tuple<db_kind, db_dtype, db_reduce>, std::pair<uint64_t, uint64_t>> counts_;
};

// Returns a summary; throws if a cell is wrong.
std::string run_cells(const Rank& rank, comm::Communicator& communicator, Cover cover,
                      Tally& tally) {
  uint64_t number = 0, run = 0, refused = 0, wrong = 0;
  Shelf shelf(communicator.size());
  std::string problems;
  for (const Cell& cell : choose_cells(cover, rank.arguments().seed)) {
    bool ran = false;
    const Plan plan = plan_of(cell, communicator.size(), communicator.rank(), ++number);
    const std::string problem =
        run_cell(communicator, plan, shelf, rank.arguments().complete, &ran);
    ++(ran ? run : refused);
    tally.count(cell, ran);
    if (problem.empty()) continue;
    if (++wrong <= 10) problems += problem;
  }
  if (wrong > 0) fail(fmt::format("{} cells are wrong; the first ones:\n{}", wrong, problems));
  check(run > 0, "no cell was run");
  return fmt::format("{} cells run, {} refused", run, refused);
}

}  // namespace

int operations(Rank& rank) {
  // Thousands of large buffers are allocated and freed: keeps their pages.
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
  const auto communicator = rank.connect();
  Tally tally;
  rank.report(run_cells(rank, *communicator, rank.arguments().cover, tally));
  rank.leave("tally", tally.text());
  return 0;
}

// The same for pairs, with most buffers in memory from the backend. Every fifth is elsewhere, which
// ones depends on the rank.
int memory(Rank& rank) {
  const auto communicator = rank.connect();
  constexpr size_t kSample = 100'000;
  const auto sample = communicator->peer_memory(kSample);
  Values<float> givers(1, sample == nullptr ? 0.0f : 1.0f);
  if (const db_op op = all_reduce(givers);
      op.memory == DB_MEMORY_HOST && communicator->supports(op))
    communicator->run(op);
  if (memory_kind() != DB_MEMORY_HOST || givers[0] == 0.0f) {
    rank.report("the backend gives no memory (coupler.memory/1)");
    return 0;
  }
  if (sample == nullptr) {  // as this rank is alone on its machine, unlike others
    Tally tally;
    rank.report(run_cells(rank, *communicator, Cover::kPairs, tally));
    return 0;
  }
  check(reinterpret_cast<uintptr_t>(sample.get()) % kGuard == 0, "it is not aligned to 64 bytes");
  const auto* const bytes = static_cast<const unsigned char*>(sample.get());
  check(std::count(bytes, bytes + kSample, 0) == static_cast<std::ptrdiff_t>(kSample),
        "it is not zero");
  use_memory_of([&communicator, calls = uint64_t{0}](size_t size) mutable {
    const bool elsewhere = ++calls % 5 == static_cast<uint64_t>(communicator->rank());
    return elsewhere ? nullptr : communicator->peer_memory(size);
  });
  Tally tally;
  const std::string cells = run_cells(rank, *communicator, Cover::kPairs, tally);
  use_memory_of({});
  rank.report(cells);
  return 0;
}

}  // namespace coupler::matrix
