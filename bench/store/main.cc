// Simulated ranks meet in a job's store: bench_store [--ranks N] [--rounds R] [--threads T]
// [--bytes B]. Prints the seconds of three kinds of meetings per round: each rank gets all ranks'
// values; rank 0 gets them in one request and publishes a verdict; rank 0 requests each value
// separately, as it had to before get_ranks.
#include <coupler/error.h>
#include <malloc.h>
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "simulated_ranks.h"
#include "store/server.h"

namespace {

// Both ends of every connection are in this process.
void raise_descriptor_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

double measure(coupler::RendezvousPlan plan, coupler::RendezvousPlan::Kind kind) {
  plan.kind = kind;
  const auto secret = coupler::random_bytes32();
  const coupler::store::StoreServer server(secret, {.members = static_cast<size_t>(plan.ranks)});
  const auto result = coupler::meet(server.host(), server.port(), secret, plan);
  if (result.met != plan.ranks) {
    std::fprintf(stderr, "bench_store: %d of %d ranks met: %s\n", result.met, plan.ranks,
                 result.problem.c_str());
    std::exit(1);
  }
  return result.seconds;
}

}  // namespace

int main(int argc, char** argv) {
  using Kind = coupler::RendezvousPlan::Kind;
  coupler::RendezvousPlan plan;
  int rounds = 5;
  for (int i = 1; i + 1 < argc; i += 2) {
    const int value = std::atoi(argv[i + 1]);
    if (std::strcmp(argv[i], "--ranks") == 0) {
      plan.ranks = value;
    } else if (std::strcmp(argv[i], "--rounds") == 0) {
      rounds = value;
    } else if (std::strcmp(argv[i], "--threads") == 0) {
      plan.threads = value;
    } else if (std::strcmp(argv[i], "--bytes") == 0) {
      plan.value_bytes = static_cast<size_t>(value);
    } else {
      std::fprintf(stderr, "bench_store: unknown option %s\n", argv[i]);
      return 2;
    }
  }
  try {
    raise_descriptor_limit();
    // Keeps the buffers of thousands of ranks in the heap instead of returning them to the kernel.
    ::mallopt(M_MMAP_THRESHOLD, 1 << 30);
    ::mallopt(M_TRIM_THRESHOLD, 1 << 30);
    for (int round = 0; round < rounds; ++round) {
      std::printf("%.6f", measure(plan, Kind::kAll));
      std::printf(" %.6f", measure(plan, Kind::kVerdict));
      std::printf(" %.6f\n", measure(plan, Kind::kOneByOne));
      std::fflush(stdout);
    }
  } catch (const coupler::Error& error) {
    std::fprintf(stderr, "bench_store: %s\n", error.what());
    return error.exit_code();
  }
  return 0;
}
