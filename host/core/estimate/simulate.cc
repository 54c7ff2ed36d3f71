#include "estimate/simulate.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <unordered_map>

#include "base/file_descriptor.h"
#include "estimate/heap.h"
#include "estimate/model_simulation.h"

namespace coupler {
namespace {

using nlohmann::json;

std::string write(const MemoryEstimate& e) {
  return json({e.at_peak, e.most, e.base, e.heap, e.largest_unit, e.largest_unit_name, e.peak,
               e.when})
      .dump();
}

MemoryEstimate read(const json& value) {
  MemoryEstimate e;
  value.at(0).get_to(e.at_peak);
  value.at(1).get_to(e.most);
  e.base = value.at(2);
  e.heap = value.at(3);
  e.largest_unit = value.at(4);
  e.largest_unit_name = value.at(5);
  e.peak = value.at(6);
  e.when = value.at(7);
  return e;
}

[[noreturn]] void fail_estimate(const std::string& why) {
  throw Error(ErrorCode::kInternal, "the estimate failed: " + why,
              {.hint = "report this with the output of coupler env"});
}

std::string text_of(int file) {
  std::string text;
  char block[4096];
  for (off_t at = 0;;) {
    const ssize_t count = ::pread(file, block, sizeof block, at);
    if (count <= 0) return text;
    text.append(block, static_cast<size_t>(count));
    at += count;
  }
}

}  // namespace

MemoryEstimate in_own_process(const std::function<MemoryEstimate()>& work) {
  const UniqueFd file(::memfd_create("coupler-estimate", MFD_CLOEXEC));
  const pid_t child = file.get() < 0 ? -1 : ::fork();
  if (child < 0) fail_estimate("cannot create a process for it");
  if (child == 0) {
    std::string text;
    try {
      text = write(work());
    } catch (const std::exception& error) {
      text = json(error.what()).dump();
    }
    const bool written =
        ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::_exit(written ? 0 : 1);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const json result = json::parse(text_of(file.get()), nullptr, false);
  if (result.is_string()) fail_estimate(result.get<std::string>());
  if (!result.is_array()) fail_estimate(fmt::format("its process ended with status {}", status));
  return read(result);
}

namespace {

using Kind = StepEvent::Kind;

// One in this many bytes of a heap that is never trimmed is lost to fragmentation beyond the
// simulation, whose allocations always come in the same order. In training, communication threads
// allocate in between, and repeated runs of one job peak up to a tenth apart (measured: 1 to 11 %
// above the simulation).
constexpr uint64_t kInterleavedShare = 20;

class StepSimulation {
 public:
  StepSimulation(const StepLog& log, const std::vector<EstimatePlan>& plans, Heap& heap)
      : log_(log), ledger_(heap, log.base_bytes), divided_(false) {
    for (size_t i = 0; i < log.models.size(); ++i) {
      models_.emplace_back(ledger_, log, log.models[i], plans[i]);
      divided_ = divided_ || plans[i].reduces();
    }
  }

  MemoryEstimate run() {
    for (ModelSimulation& model : models_) model.prepare();
    for (ModelSimulation& model : models_) model.make_optimizer_state();
    // The first pass records the order in which units are used, as a job's first step does.
    for (int pass = 0; pass < 3; ++pass) step();
    return ledger_.result();
  }

 private:
  void step() {
    ledger_.enter("forward");
    for (size_t i = 0; i < log_.events.size(); ++i) {
      const StepEvent& event = log_.events[i];
      if (event.kind == Kind::kGradient && i < log_.initial) {
        MemoryLedger::Block& block = blocks_[event.storage];
        divided_ ? ledger_.give_back(block) : ledger_.move(block, MemoryCategory::kGradients);
        continue;
      }
      take(event);
    }
    for (auto& [storage, block] : blocks_) ledger_.give_back(block);
    blocks_.clear();
  }

  void take(const StepEvent& event) {
    switch (event.kind) {
      case Kind::kMade:
        blocks_[event.storage] = ledger_.take(MemoryCategory::kActivations, bytes_of(event));
        return;
      case Kind::kGone:
        ledger_.give_back(blocks_[event.storage]);
        blocks_.erase(event.storage);
        return;
      case Kind::kUsed:
        return model_of(event.index).use(event.index - first_);
      case Kind::kGradient: {
        MemoryLedger::Block& block = blocks_[event.storage];
        model_of(event.index).take_gradient(event.index - first_, block, event.bytes == 1);
        return;
      }
      case Kind::kBackwardBegan:
        return ledger_.enter("backward");
      case Kind::kBackwardEnded:
        for (ModelSimulation& model : models_) model.backward_ended(event.bytes == 1);
        in_step_ = event.bytes == 1;
        return ledger_.enter(in_step_ ? "step" : "forward");
      case Kind::kObjects:
        return ledger_.set_objects(event.bytes > log_.objects ? event.bytes - log_.objects : 0);
      case Kind::kStepped:
        for (ModelSimulation& model : models_) model.stepped();
        in_step_ = false;
        return ledger_.enter("forward");
    }
  }

  // An optimizer that is not fused makes temporary tensors as large as what it updates.
  uint64_t bytes_of(const StepEvent& event) const {
    if (!in_step_ || log_.optimizer_fused) return event.bytes;
    return static_cast<uint64_t>(static_cast<double>(event.bytes) * models_.front().share());
  }

  ModelSimulation& model_of(uint64_t parameter) {
    size_t i = 0;
    while (i + 1 < log_.models.size() && parameter >= log_.models[i + 1].first_parameter) ++i;
    first_ = log_.models[i].first_parameter;
    return models_[i];
  }

  const StepLog& log_;
  MemoryLedger ledger_;
  std::deque<ModelSimulation> models_;
  std::unordered_map<uint64_t, MemoryLedger::Block> blocks_;  // by storage
  bool divided_, in_step_ = false;
  uint64_t first_ = 0;  // of the model that model_of() returned
};

}  // namespace

MemoryEstimate simulate(const StepLog& log, const std::vector<EstimatePlan>& plans, Heap& heap) {
  return StepSimulation(log, plans, heap).run();
}

MemoryEstimate simulate(const StepLog& log, const std::vector<EstimatePlan>& plans) {
  if (log.events.empty()) {
    HeapModel heap;
    return simulate(log, plans, heap);
  }
  MemoryEstimate estimate = in_own_process([&] {
    ProcessHeap heap;
    return simulate(log, plans, heap);
  });
  const bool trims = std::any_of(plans.begin(), plans.end(),
                                 [](const EstimatePlan& plan) { return plan.sharded(); });
  if (!trims) {
    const uint64_t lost = (estimate.peak - estimate.base) / kInterleavedShare;
    estimate.peak += lost;
    estimate.heap += lost;
  }
  return estimate;
}

}  // namespace coupler
