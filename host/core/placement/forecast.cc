#include "placement/forecast.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace coupler {
namespace {

void check_rate(double rate, const std::string& name) {
  if (rate > 0) return;
  throw Error(ErrorCode::kInvalidArgument, fmt::format("rates: {} is {}", name, rate),
              {.subject = name, .hint = "give a number of bytes per second above 0"});
}

// One pass over the units in order.
class Run {
 public:
  Run(const RunProblem& problem, const std::vector<size_t>& lies) : problem_(problem), lies_(lies) {
    const size_t accelerators = problem.cpu();
    main_ = problem.cpu();
    for (const size_t device : lies) main_ = std::min(main_, device);
    // If the map has no accelerator, everything runs on the CPU.
    if (main_ > accelerators) main_ = accelerators;
    for (size_t u = 0; u < lies.size(); ++u) {
      const ForecastUnit& unit = problem.units[u];
      const bool offloaded = lies[u] >= problem.cpu() && lies[u] != main_;
      *used(lies[u]) += unit.lives;
      if (offloaded) *used(main_) += unit.stays;
    }
    for (size_t d = 0; d < problem.disk(); ++d)
      result_.fits = result_.fits && *used(d) <= problem.memory[d];
  }

  Forecast result(std::vector<PredictedRun::Unit>* details) {
    for (size_t u = 0; u < lies_.size(); ++u) step(u, details);
    result_.seconds = now_;
    return result_;
  }

 private:
  // A search makes millions of forecasts: no allocation unless there are many devices.
  uint64_t* used(size_t device) {
    if (device < few_.size()) return &few_[device];
    if (many_.size() <= device) many_.resize(device + 1);
    return &many_[device];
  }
  bool room(size_t device, uint64_t bytes) {
    return *used(device) + bytes <= problem_.memory[device];
  }

  void step(size_t u, std::vector<PredictedRun::Unit>* details) {
    const ForecastUnit& unit = problem_.units[u];
    size_t runs = lies_[u];
    if (runs >= problem_.cpu() && runs != main_)
      runs = room(main_, unit.moves) ? main_ : problem_.cpu();
    if (u > 0 && runs != running_) now_ += problem_.hop;
    running_ = runs;
    double begins = now_;
    if (runs != lies_[u]) {
      begins = std::max(now_, copied(unit, lies_[u], runs));
      result_.waiting += begins - now_;
    }
    now_ = begins + unit.reads / problem_.rate[runs];
    result_.compute += now_ - begins;
    if (runs != lies_[u]) {
      before_last_ = last_;
      last_ = {now_, unit.moves, runs};
    }
    if (details != nullptr)
      details->push_back(
          {"", unit.lives, problem_.devices[lies_[u]], problem_.devices[runs], begins, now_});
  }

  // When the unit's copy completes.
  double copied(const ForecastUnit& unit, size_t from, size_t to) {
    if (!room(to, unit.moves)) result_.fits = false;
    const bool both = last_.device != to || room(to, unit.moves + last_.bytes);
    double seconds = 0;
    if (from == problem_.disk()) seconds += unit.copies / problem_.disk_to_cpu;
    if (to < problem_.cpu()) seconds += unit.copies / problem_.cpu_to_accelerator;
    copying_ = std::max(copying_, both ? before_last_.ends : last_.ends) + seconds;
    return copying_;
  }

  // A copy, and when the unit it was made for has run.
  struct Copy {
    double ends = 0;
    uint64_t bytes = 0;
    size_t device = 0;
  };

  const RunProblem& problem_;
  const std::vector<size_t>& lies_;
  std::array<uint64_t, 18> few_{};
  std::vector<uint64_t> many_;
  size_t main_ = 0, running_ = 0;
  double now_ = 0, copying_ = 0;  // when the last unit ends, when the last copy ends
  Copy last_, before_last_;
  Forecast result_;
};

}  // namespace

RunProblem run_problem(const std::vector<RunUnit>& units, const DeviceMapOptions& options) {
  RunProblem problem;
  const DeviceRates& rates = options.rates;
  for (const RunUnit& unit : units)
    problem.units.push_back({unit.lives, unit.stays, unit.moves,
                             static_cast<double>(unit.reads) * unit.uses,
                             static_cast<double>(unit.moves) * unit.uses});
  const auto add = [&](MapDevice device, uint64_t bytes, double rate) {
    problem.devices.push_back(device);
    problem.memory.push_back(bytes);
    problem.rate.push_back(rate);
  };
  for (const auto& [device, bytes] : options.max_memory.devices()) {
    if (!device.is_accelerator()) continue;
    check_rate(rates.compute_of(device.index()),
               fmt::format("compute of accelerator {}", device.index()));
    add(device, bytes, rates.compute_of(device.index()));
  }
  add(MapDevice::cpu(), options.max_memory.of(MapDevice::cpu()).value_or(0), rates.cpu_compute);
  add(MapDevice::disk(), 0, 0);
  check_rate(rates.cpu_compute, "cpu_compute");
  check_rate(rates.cpu_to_accelerator, "cpu_to_accelerator");
  check_rate(rates.disk_to_cpu, "disk_to_cpu");
  problem.cpu_to_accelerator = rates.cpu_to_accelerator;
  problem.disk_to_cpu = rates.disk_to_cpu;
  problem.hop = rates.hop_seconds;
  return problem;
}

Forecast forecast(const RunProblem& problem, const std::vector<size_t>& lies,
                  std::vector<PredictedRun::Unit>* details) {
  return Run(problem, lies).result(details);
}

}  // namespace coupler
