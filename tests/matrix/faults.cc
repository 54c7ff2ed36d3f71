// A peer that dies, is stopped, or is only late while the others are in a collective.
#include <fmt/format.h>
#include <signal.h>

#include <chrono>
#include <thread>

#include "rank.h"
#include "simple_ops.h"

namespace coupler::matrix {
namespace {

// Runs collectives until one fails; the last rank calls `fault` midway.
int with_fault(Rank& rank, const std::function<void()>& fault) {
  // The launcher ends the other ranks soon after the fault; on a busy machine one may not have run
  // since. SIGKILL follows in any case.
  ::signal(SIGTERM, SIG_IGN);
  const auto communicator = rank.connect();
  return rank.report_error([&] {
    for (int step = 0; step < 1000; ++step) {
      if (step == 20 && rank.rank() == rank.world_size() - 1) fault();
      Values<float> values(1000, 1.0f);
      communicator->run(all_reduce(values));
    }
  });
}

}  // namespace

int killed(Rank& rank) {
  return with_fault(rank, [] { ::raise(SIGKILL); });
}

int stopped(Rank& rank) {
  return with_fault(rank, [] { ::raise(SIGSTOP); });
}

int deadline(Rank& rank) {
  const auto timeout = rank.config().backend.timeout;
  std::chrono::steady_clock::time_point start;
  const auto communicator = rank.connect();
  const int code = rank.report_error([&] {
    communicator->run(barrier());
    if (rank.rank() == rank.world_size() - 1) std::this_thread::sleep_for(20 * timeout);
    start = std::chrono::steady_clock::now();
    communicator->run(barrier());
  });
  const auto taken = std::chrono::steady_clock::now() - start;
  if (taken > 10 * timeout) {
    rank.report(fmt::format("the deadline of {} ms was passed after {} ms",
                            timeout / std::chrono::milliseconds(1),
                            taken / std::chrono::milliseconds(1)));
  }
  return code;
}

int options(Rank& rank) {
  rank.connect()->run(barrier());
  return 0;
}

}  // namespace coupler::matrix
