#include "accelerator/memory_limit.h"

#include <c10/core/CPUAllocator.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <malloc.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>

#include "base/process.h"
#include "base/units.h"
#include "device/heap_allocator.h"
#include "estimate/settings.h"
#include "residency/buffer_pool.h"

namespace coupler {
namespace {

// oneDNN frees null, too.
void release(void* memory) {
  if (memory == nullptr) return;
  residency::MemoryBudget::of_process().give_back(residency::MemoryPart::kTensors,
                                                  device::heap_size(memory));
  device::free_heap(memory);
}

// Takes tensors' memory as training always does, and counts it: the size that the C library
// allocated, since only that is known when memory is freed.
class CountingAllocator final : public at::Allocator {
 public:
  at::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, at::kCPU};
    residency::MemoryBudget& budget = residency::MemoryBudget::of_process();
    budget.take(residency::MemoryPart::kTensors,
                bytes);  // before allocating, so that the limit holds
    void* memory = nullptr;
    try {
      memory = device::take_heap(bytes);
    } catch (...) {
      budget.give_back(residency::MemoryPart::kTensors, bytes);
      throw;
    }
    budget.note_more(residency::MemoryPart::kTensors, device::heap_size(memory) - bytes);
    return {memory, memory, &release, at::kCPU};
  }
  at::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

// Whether `test` is true for the options of any parameter group.
template <class Options, class Test>
bool any_group(const torch::optim::Optimizer& optimizer, const Test& test) {
  const auto& groups = optimizer.param_groups();
  return std::any_of(groups.begin(), groups.end(), [&](const auto& group) {
    return test(static_cast<const Options&>(group.options()));
  });
}

template <class Options>
double adam_factor(const torch::optim::Optimizer& optimizer) {
  return any_group<Options>(optimizer, [](const auto& options) { return options.amsgrad(); }) ? 3
                                                                                              : 2;
}

std::string parts_of(const estimate::MemoryEstimate& estimate) {
  std::string text;
  const auto add = [&](const char* name, uint64_t bytes) {
    if (bytes == 0) return;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, format_byte_size(bytes));
  };
  add("parameters", estimate.of(estimate::MemoryCategory::kParameters));
  add("master weights", estimate.of(estimate::MemoryCategory::kMaster));
  add("gradients", estimate.of(estimate::MemoryCategory::kGradients));
  add("optimizer state", estimate.of(estimate::MemoryCategory::kOptimizer));
  add("buffers", estimate.of(estimate::MemoryCategory::kBuffers));
  if (estimate.largest_unit > 0) {
    add(fmt::format("largest unit '{}'", estimate.largest_unit_name).c_str(),
        estimate.largest_unit);
  }
  add("the process itself", estimate.base);
  return text;
}

struct Candidate {
  estimate::Setting setting;
  estimate::MemoryEstimate estimate;
};

// Skips settings whose plugin is not available.
std::vector<Candidate> candidates(const estimate::StepLog& log, const config::Config& config,
                                  const estimate::SharingRanks& ranks) {
  std::vector<Candidate> result;
  for (const estimate::Setting& setting :
       estimate::known_settings(config.backend, "/a/local/disk")) {
    try {
      result.push_back({setting, estimate::estimate_memory(log, apply(setting, config.backend),
                                                           ranks, config.communication)});
    } catch (const Error&) {
    }
  }
  return result;
}

std::string toml_words(const estimate::Setting& setting) {
  std::string text = fmt::format("backend.use = \"{}\"", setting.use);
  for (const auto& [key, value] : setting.options) {
    const auto* word = std::get_if<std::string>(&value);
    text += word != nullptr
                ? fmt::format(", {} = \"{}\"", key, *word)
                : fmt::format(", {} = {}", key,
                              std::visit([](const auto& other) { return fmt::format("{}", other); },
                                         value));
  }
  return text;
}

}  // namespace

void enforce_memory_limit(uint64_t limit, int rank) {
  static auto* const kAllocator = new CountingAllocator;  // tensors may outlive everything
  residency::MemoryBudget::of_process().start(limit, resident_bytes(), rank);
  constexpr uint8_t kPriority = 100;
  c10::SetCPUAllocator(kAllocator, kPriority);
}

void measure_uncounted_memory() {
  residency::MemoryBudget& budget = residency::MemoryBudget::of_process();
  if (!budget.on()) return;
  ::malloc_trim(0);  // returns free heap memory to the system
  budget.set_resident(resident_bytes());
}

double state_factor(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::Adam*>(&optimizer) != nullptr) {
    return adam_factor<torch::optim::AdamOptions>(optimizer);
  }
  if (dynamic_cast<const torch::optim::AdamW*>(&optimizer) != nullptr) {
    return adam_factor<torch::optim::AdamWOptions>(optimizer);
  }
  if (dynamic_cast<const torch::optim::SGD*>(&optimizer) != nullptr) {
    return any_group<torch::optim::SGDOptions>(
        optimizer, [](const auto& options) { return options.momentum() != 0; });
  }
  return 0;
}

void require_fit(const estimate::StepLog& log, const config::Config& config, int rank,
                 const estimate::SharingRanks& ranks, bool divided) {
  const uint64_t limit = estimate::memory_limit_of(config);
  config::BackendConfig backend = config.backend;
  if (!divided) backend.use = "auto";
  const estimate::MemoryEstimate estimate =
      estimate::estimate_memory(log, backend, ranks, config.communication, config.memory);
  // Without logged events, the peak is the need between two steps.
  if (estimate.peak <= limit) return;
  const std::vector<Candidate> others = candidates(log, config, ranks);
  for (const Candidate& other : others) {
    const uint64_t needed = estimate.base + other.estimate.largest_unit;
    if (other.estimate.largest_unit == 0 || needed <= limit) continue;
    throw Error(
        ErrorCode::kConfig,
        fmt::format("memory.limit is {}, but the unit '{}' alone is {} when it is gathered, and "
                    "the process itself is {}: the model cannot be trained within it",
                    format_byte_size(limit), other.estimate.largest_unit_name,
                    format_byte_size(other.estimate.largest_unit), format_byte_size(estimate.base)),
        {.rank = rank,
         .subject = "memory.limit",
         .hint = "raise the limit, or split that module into smaller ones"});
  }
  std::string fitting;
  for (const Candidate& other : others) {
    if (other.estimate.peak > limit) continue;
    fitting += fmt::format("{}{} ({})", fitting.empty() ? "" : "; ", toml_words(other.setting),
                           format_byte_size(other.estimate.peak));
  }
  throw Error(
      ErrorCode::kConfig,
      fmt::format(
          "a rank needs at least {}, but memory.limit is {}: {}; activations are not counted",
          format_byte_size(estimate.peak), format_byte_size(limit), parts_of(estimate)),
      {.rank = rank,
       .subject = "memory.limit",
       .hint = fitting.empty()
                   ? "no setting fits with this number of processes: start more, or raise the limit"
                   : "these settings would fit, fastest first: " + fitting +
                         "; memory.activation_checkpointing and training.mixed_precision = "
                         "\"bf16\" reduce the memory of activations"});
}

std::string known_parts(const estimate::StepLog& log, int world_size, bool divided) {
  uint64_t parameters = 0;
  for (const estimate::LoggedModel& model : log.models) {
    for (const estimate::LoggedParameter& p : model.parameters) parameters += p.bytes();
  }
  const uint64_t trainable = log.trainable_bytes();
  const auto state = static_cast<uint64_t>(log.optimizer_factor * static_cast<double>(trainable));
  return fmt::format(
      " (the whole model{} has parameters of {}, gradients of {} and optimizer state of {})",
      divided ? fmt::format(", sharded over {} ranks,", world_size) : "",
      format_byte_size(parameters), format_byte_size(trainable), format_byte_size(state));
}

}  // namespace coupler
