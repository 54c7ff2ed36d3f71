// A rank that joins its job's store, announces its rank and waits for all others; prints "rank 1 of
// 2 met 2". The optional argument is the timeout in seconds (default 20).
#include <coupler/error.h>
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "config/config.h"
#include "rendezvous/job_file.h"
#include "rendezvous/process_info.h"
#include "store/store.h"

int main(int argc, char** argv) {
  const auto timeout = std::chrono::seconds(argc > 1 ? std::atoi(argv[1]) : 20);
  try {
    const auto process = coupler::rendezvous::detect_process();
    const auto begin = std::chrono::steady_clock::now();
    auto config = coupler::config::load_config({});
    config.backend.timeout = timeout;
    const auto store = coupler::rendezvous::open_job_store(process, config);
    store->set(fmt::format("here/{}", process.rank), std::to_string(process.rank));
    int met = 0;
    for (int rank = 0; rank < process.world_size; ++rank) {
      const auto text = store->get(fmt::format("here/{}", rank), timeout);
      met += text == std::to_string(rank) ? 1 : 0;
    }
    // No rank leaves before all have met, since rank 0 may host the store.
    store->add("left", 1);
    while (store->add("left", 0) < process.world_size &&
           std::chrono::steady_clock::now() < begin + timeout) {
    }
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    std::printf("rank %d of %d met %d\n", process.rank, process.world_size, met);
    if (std::getenv("COUPLER_TEST_TIME") != nullptr) {
      std::printf("rank %d took %.2f ms\n", process.rank, took.count());
    }
    return met == process.world_size ? 0 : 1;
  } catch (const coupler::Error& error) {
    std::fprintf(stderr, "coupler: error: %s\n", error.what());
    return error.exit_code();
  }
}
