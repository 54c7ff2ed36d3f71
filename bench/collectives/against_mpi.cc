// A backend against MPI's own calls in the same process: mpi, for the overhead of our interface
// over the calls it makes, on a separate communicator; or shm. Started by bench/run under `coupler
// launch` over mpi.
//
// One more contender shows what ours could reach at best. For mpi: ranks that meet before they
// enter a collective, as ours do, but by MPI's own barrier. For shm: a communicator that does
// nothing, for the cost of the interface, and then the least that two ranks have to do, which is to
// write their values and read the other's.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

#include "session.h"

namespace coupler::bench {
namespace {

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  throw std::runtime_error(fmt::format("{} failed with MPI error {}", call, code));
}

// All-reduces of two ranks without any check, through memory that they share. Used by one thread.
class BareExchange {
 public:
  // Collective.
  explicit BareExchange(MPI_Comm comm) {
    int rank = 0;
    check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
    void* memory = nullptr;
    check(MPI_Win_allocate_shared(static_cast<MPI_Aint>(sizeof(Side) + alignof(Side)), 1,
                                  MPI_INFO_NULL, comm, &memory, &window_),
          "MPI_Win_allocate_shared");
    for (const int side : {rank, 1 - rank}) {
      MPI_Aint bytes = 0;
      int unit = 0;
      check(MPI_Win_shared_query(window_, side, &bytes, &unit, &memory), "MPI_Win_shared_query");
      auto room = static_cast<size_t>(bytes);
      std::align(alignof(Side), sizeof(Side), memory, room);
      (side == rank ? mine_ : theirs_) = static_cast<Side*>(memory);
    }
    new (mine_) Side;
    check(MPI_Barrier(comm), "MPI_Barrier");
  }

  // Collective, after the last all_reduce.
  void free() { check(MPI_Win_free(&window_), "MPI_Win_free"); }

  void all_reduce(float* data, uint64_t count) {
    for (uint64_t done = 0; done < count; done += kMost) {
      exchange(data + done, std::min(kMost, count - done));
    }
  }

 private:
  static constexpr uint64_t kMost = 1022;  // of floats in a message
  // Writing message n overwrites n - 2, which the other rank has read before it sent n - 1.
  struct alignas(64) Message {
    std::atomic<uint64_t> number{0};
    float values[kMost];
  };
  struct Side {
    Message messages[2];
  };

  void exchange(float* data, uint64_t count) {
    constexpr uint64_t kMostSpins = uint64_t{1} << 34;  // about a minute
    const uint64_t number = ++number_;
    Message& sent = mine_->messages[number % 2];
    std::copy_n(data, count, sent.values);
    sent.number.store(number, std::memory_order_release);
    const Message& received = theirs_->messages[number % 2];
    for (uint64_t spins = 0; received.number.load(std::memory_order_acquire) != number; ++spins) {
      if (spins == kMostSpins) throw std::runtime_error("bare exchange: the other rank is silent");
    }
    for (uint64_t i = 0; i < count; ++i) data[i] += received.values[i];
  }

  MPI_Win window_ = MPI_WIN_NULL;
  Side *mine_ = nullptr, *theirs_ = nullptr;
  uint64_t number_ = 0;
};

void run(int argc, char** argv) {
  Session session(argc, argv);  // over mpi, it initializes and finalizes MPI
  int initialized = 0;
  check(MPI_Initialized(&initialized), "MPI_Initialized");
  if (initialized == 0) check(MPI_Init(nullptr, nullptr), "MPI_Init");
  MPI_Comm raw = MPI_COMM_NULL, other = MPI_COMM_NULL;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &raw), "MPI_Comm_dup");
  check(MPI_Comm_dup(MPI_COMM_WORLD, &other), "MPI_Comm_dup");
  const Candidate blocking{
      .name = "MPI_Allreduce", .prepare = [raw](float* data, uint64_t count) {
        return [raw, data, elements = static_cast<int>(count)] {
          check(MPI_Allreduce(MPI_IN_PLACE, data, elements, MPI_FLOAT, MPI_SUM, raw),
                "MPI_Allreduce");
        };
      }};
  const Candidate asynchronous{
      .name = "MPI_Iallreduce+MPI_Wait", .prepare = [raw](float* data, uint64_t count) {
        return [raw, data, elements = static_cast<int>(count)] {
          MPI_Request request = MPI_REQUEST_NULL;
          check(MPI_Iallreduce(MPI_IN_PLACE, data, elements, MPI_FLOAT, MPI_SUM, raw, &request),
                "MPI_Iallreduce");
          check(MPI_Wait(&request, MPI_STATUS_IGNORE), "MPI_Wait");
        };
      }};
  const Candidate met{
      .name = "MPI_Barrier+MPI_Allreduce", .prepare = [other](float* data, uint64_t count) {
        return [other, data, elements = static_cast<int>(count)] {
          check(MPI_Barrier(other), "MPI_Barrier");
          check(MPI_Allreduce(MPI_IN_PLACE, data, elements, MPI_FLOAT, MPI_SUM, other),
                "MPI_Allreduce");
        };
      }};
  std::vector<Candidate> candidates = {session.blocking(), blocking, session.asynchronous(),
                                       asynchronous};
  std::unique_ptr<BareExchange> exchange;
  const bool over_shm = session.communicator().backend() == "shm";
  if (over_shm && session.world_size() == 2) {
    const auto interface = comm::Communicator::made_up("interface", session.world_size());
    exchange = std::make_unique<BareExchange>(other);
    candidates.push_back({.name = "interface and bare exchange",
                          .prepare = [interface, &exchange](float* data, uint64_t count) {
                            return [interface, &exchange, data, count,
                                    op = all_reduce_of(data, count)] {
                              interface->run(op);
                              exchange->all_reduce(data, count);
                            };
                          }});
  } else if (!over_shm) {
    candidates.push_back(met);
  }
  session.hold(candidates);
  if (exchange != nullptr) exchange->free();
  check(MPI_Comm_free(&other), "MPI_Comm_free");
  check(MPI_Comm_free(&raw), "MPI_Comm_free");
  if (initialized == 0) check(MPI_Finalize(), "MPI_Finalize");
}

}  // namespace
}  // namespace coupler::bench

int main(int argc, char** argv) {
  return coupler::bench::guarded([&] { coupler::bench::run(argc, argv); });
}
