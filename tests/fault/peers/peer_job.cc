// A rank that reaches a moment and stays there, so that a test can kill or stop the last rank then:
//   peer_job init | collective | sizes | soak | stops | between | end | left | rounds
//            [MACHINES [ROUNDS]]
// Writes its process id to pid.RANK when it is there. "sizes": collectives of small, middle and
// large data in turn. "stops": the last rank stops itself. "rounds" ends by itself, after
// collectives whose results are compared. MACHINES: as if its ranks were on several, "2,1".
#include <coupler/error.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "config/config.h"
#include "machines.h"
#include "plugin/plugin.h"
#include "rendezvous/job_file.h"
#include "rendezvous/process_info.h"
#include "simple_ops.h"
#include "store/store.h"

namespace {

using namespace coupler;

constexpr auto kLong = std::chrono::seconds(60);  // longer than the test waits
constexpr size_t kSizes[] = {1, 1'000, 50'000};   // small, middle and large data
constexpr size_t kOneSize[] = {1'000};

void arrive(int rank) {
  const std::string path = fmt::format("pid.{}", rank);
  std::ofstream(path + ".new") << ::getpid() << "\n";
  (void)std::rename((path + ".new").c_str(), path.c_str());  // on failure the test misses the file
}

void collectives(comm::Communicator& communicator, int rank, bool stops,
                 std::span<const size_t> sizes = kOneSize) {
  for (uint64_t step = 0;; ++step) {
    matrix::Values<float> values(sizes[step % sizes.size()], 1.0f);
    communicator.run(matrix::all_reduce(values));
    if (step == 10) arrive(rank);
    if (step == 20 && stops) ::raise(SIGSTOP);
  }
}

// Small collectives for half an hour.
void soak(comm::Communicator& communicator) {
  matrix::Values<float> values(1000, 1.0f);
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(30);
  for (bool done = false; !done;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    values.assign(values.size(), std::chrono::steady_clock::now() >= end ? 1.0f : 0.0f);
    communicator.run(matrix::all_reduce(values));
    done = values[0] > 0;
  }
}

void rounds(comm::Communicator& communicator, int count) {
  const auto ranks = static_cast<float>(communicator.size());
  for (int round = 0; round < count; ++round) {
    for (const size_t size : kSizes) {
      matrix::Values<float> values(size, static_cast<float>(communicator.rank() + 1));
      communicator.run(matrix::all_reduce(values));
      for (const float value : values) {
        if (value == ranks * (ranks + 1) / 2) continue;
        throw Error(ErrorCode::kInternal, fmt::format("round {}: a sum is {}", round, value));
      }
    }
  }
}

void work(const std::string& moment, const rendezvous::ProcessInfo& process,
          const config::Config& config, int round_count) {
  const bool victim = process.rank == process.world_size - 1;
  const plugin::Plugin plugin = plugin::Plugin::load(config.backend);
  const auto store = rendezvous::open_job_store(process, config);
  if (moment == "init") {
    arrive(process.rank);
    if (victim) std::this_thread::sleep_for(kLong);
  }
  const auto communicator = comm::Communicator::create(
      {.plugin = plugin, .process = process, .store = store, .backend = &config.backend});
  communicator->run(matrix::barrier());
  if (moment == "collective") collectives(*communicator, process.rank, false);
  if (moment == "sizes") collectives(*communicator, process.rank, false, kSizes);
  if (moment == "soak") soak(*communicator);
  if (moment == "rounds") rounds(*communicator, round_count);
  if (moment == "stops") collectives(*communicator, process.rank, victim);
  if (moment == "between") {
    arrive(process.rank);
    std::this_thread::sleep_for(kLong);
  }
  if (moment == "end" && !victim) {
    // The last barrier: all ranks except the victim join it.
    arrive(process.rank);
    communicator->run(matrix::barrier());
  }
  if (moment == "end" && victim) {
    arrive(process.rank);
    std::this_thread::sleep_for(kLong);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const config::Config config = config::load_config(config::take_config_arguments(argc, argv));
    const std::string moment = argc > 1 ? argv[1] : "";
    rendezvous::ProcessInfo process = rendezvous::detect_process();
    if (argc > 2) process = matrix::place_on_machines(argv[2], process);
    work(moment, process, config, argc > 3 ? std::stoi(argv[3]) : 0);
    if (moment == "left") {
      arrive(process.rank);
      if (process.rank == process.world_size - 1) std::this_thread::sleep_for(kLong);
    }
  } catch (const Error& error) {
    std::fprintf(stderr, "coupler: error: %s\n", error.what());
    return error.exit_code();
  }
}
