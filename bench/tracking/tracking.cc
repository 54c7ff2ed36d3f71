// The cost of tracking per step: the loop of bench steps over the MLP in one process, with 10
// values per step logged to csv, jsonl, tensorboard and mlflow, and without, in turns. Prints per
// round:
//   WITHOUT WITH CPU_WITHOUT CPU_WITH LOG BESIDE
// in microseconds per step: wall time, CPU time of all threads, time inside log() itself, and wall
// time without tracking next to a thread that only takes as much CPU time as the trackers' threads.
// MLFLOW_TRACKING_URI names a server.
//   bench tracking --rounds N --steps N --folder FOLDER
#include <ATen/Functions.h>
#include <coupler/accelerator.h>
#include <coupler/error.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

#include "models.h"
#include "program.h"

namespace coupler::bench::tracking {
namespace {

using Clock = std::chrono::steady_clock;
using Microseconds = std::chrono::duration<double, std::micro>;

// Fills the trackers' queues to the level of a steady run.
constexpr auto kWarmUp = std::chrono::milliseconds(300);
// Longer than trackers buffer values, so everything logged has been written.
constexpr auto kDrained = std::chrono::milliseconds(700);

double processor_microseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

struct Cost {
  double step = 0, processor = 0, log = 0;  // microseconds
};

// Keeps a core busy for a share of the time and does nothing with it.
class BusyThread {
 public:
  explicit BusyThread(double share)
      : share_(share), thread_([this] {
          constexpr Microseconds kPeriod(1000);
          while (!over_) {
            const auto start = Clock::now();
            while (Clock::now() - start < share_ * kPeriod) {
            }
            std::this_thread::sleep_until(start + std::chrono::milliseconds(1));
          }
        }) {}
  ~BusyThread() {
    over_ = true;
    thread_.join();
  }
  BusyThread(const BusyThread&) = delete;
  BusyThread& operator=(const BusyThread&) = delete;

 private:
  const double share_;
  std::atomic<bool> over_{false};
  std::thread thread_;  // last: it uses the rest
};

class Loop {
 public:
  explicit Loop(coupler::Accelerator& accelerator) : accelerator_(accelerator) {}

  Cost turn(bool tracked, int64_t steps) {
    for (const auto end = Clock::now() + kWarmUp; Clock::now() < end;) step(tracked);
    log_time_ = {};
    const double processor = processor_microseconds();
    const auto start = Clock::now();
    for (int64_t i = 0; i < steps; ++i) step(tracked);
    const Microseconds time = Clock::now() - start;
    const auto count = static_cast<double>(steps);
    const Cost cost = {time.count() / count, (processor_microseconds() - processor) / count,
                       Microseconds(log_time_).count() / count};
    if (tracked) std::this_thread::sleep_for(kDrained);
    return cost;
  }

 private:
  void step(bool tracked) {
    const auto& batch = batches_[static_cast<size_t>(count_) % batches_.size()];
    auto scope = accelerator_.accumulate(net_);
    const auto loss = coupler::bench::loss_of(net_->forward(batch.data), batch.target);
    accelerator_.backward(loss);
    opt_.step();
    opt_.zero_grad();
    ++count_;
    if (!tracked) return;
    const auto start = Clock::now();
    const double x = 1e-3 * static_cast<double>(count_);
    accelerator_.log({{"train/loss", loss},
                      {"train/rate", x},
                      {"train/epoch", count_ / 100},
                      {"train/norm", 2 * x},
                      {"train/scale", 3 * x},
                      {"train/tokens", count_},
                      {"train/accuracy", 1 / x},
                      {"system/memory", 5 * x},
                      {"system/step_time", 6 * x},
                      {"system/wait_time", 7 * x}},
                     count_);
    log_time_ += Clock::now() - start;
  }

  coupler::Accelerator& accelerator_;
  const std::vector<coupler::bench::Batch> batches_ = coupler::bench::mlp_batches(100);
  coupler::bench::MLP net_ = coupler::bench::make_mlp();
  torch::optim::AdamW optimizer_{net_->parameters(), torch::optim::AdamWOptions(1e-4)};
  coupler::Optimizer opt_ = std::get<1>(accelerator_.prepare(net_, optimizer_));
  int64_t count_ = 0;
  Clock::duration log_time_{};
};

}  // namespace

int program(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  if (words.size() != 6 || words[0] != "--rounds" || words[2] != "--steps" ||
      words[4] != "--folder") {
    std::fputs("usage: bench tracking --rounds N --steps N --folder FOLDER\n", stderr);
    return 2;
  }
  const int rounds = std::atoi(words[1].c_str());
  const int64_t steps = std::atoll(words[3].c_str());
  coupler::Accelerator accelerator(
      {.log_with = std::vector<std::string>{"csv", "jsonl", "tensorboard", "mlflow"},
       .project_dir = words[5]});
  accelerator.init_trackers("bench", {{"lr", 1e-4}});
  Loop loop(accelerator);
  loop.turn(false, steps);
  loop.turn(true, steps);
  for (int round = 0; round < rounds; ++round) {
    const bool tracked_first = round % 2 == 1;
    const Cost first = loop.turn(tracked_first, steps);
    const Cost second = loop.turn(!tracked_first, steps);
    const Cost& without = tracked_first ? second : first;
    const Cost& with = tracked_first ? first : second;
    const double trackers = std::max(0.0, with.processor - without.processor - with.log);
    const BusyThread busy(std::min(1.0, trackers / with.step));
    const Cost beside = loop.turn(false, steps);
    std::printf("%.3f %.3f %.3f %.3f %.3f %.3f\n", without.step, with.step, without.processor,
                with.processor, with.log, beside.step);
  }
  accelerator.end_training();
  return 0;
}

const Registration kRegistration("tracking", program);

}  // namespace coupler::bench::tracking
