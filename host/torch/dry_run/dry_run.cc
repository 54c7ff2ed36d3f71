#include "dry_run/dry_run.h"

#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/process.h"
#include "base/text.h"
#include "empty_weights/empty_weights.h"
#include "tensors/tensor_ops.h"

namespace coupler::dry_run {
estimate::LoggedModel describe_for_estimate(const strategy::Model& model) {
  estimate::LoggedModel result{.name = model.name};
  for (const strategy::ModelModule& module : model.modules) {
    result.modules.push_back({module.name, module.type, module.parent});
  }
  for (const strategy::ModelParameter& parameter : model.parameters) {
    const at::Tensor& tensor = parameter.tensor;
    result.parameters.push_back({.name = parameter.name,
                                 .module = parameter.module,
                                 .sizes = {tensor.sizes().begin(), tensor.sizes().end()},
                                 .dtype = tensors::to_db_dtype(tensor.scalar_type()),
                                 .element_size = c10::elementSize(tensor.scalar_type()),
                                 .trainable = tensor.requires_grad(),
                                 .in_memory = !tensor.is_meta()});
  }
  return result;
}

namespace {

using EventKind = estimate::StepEvent::Kind;

uint64_t whole_numel_of(const strategy::ModelParameter& parameter) {
  if (!parameter.division) return 0;
  return static_cast<uint64_t>(parameter.tensor.numel()) *
         static_cast<uint64_t>(parameter.division->elements.ranks);
}

// Of COUPLER_ESTIMATE_STAGE.
int stage_of_process() {
  const std::string text = environment_value("COUPLER_ESTIMATE_STAGE");
  if (text.empty()) return 0;
  const std::optional<int> stage = to_number<int>(text);
  if (stage && *stage >= 0) return *stage;
  fail_usage(
      fmt::format("COUPLER_ESTIMATE_STAGE is '{}', not the number of a stage", for_message(text)),
      "COUPLER_ESTIMATE_STAGE", "start the program with `coupler estimate`, which sets it");
}

void become_fake(const at::Tensor& tensor) {
  if (fake_storage_of(tensor) != 0) return;
  const at::Tensor fake = fake_like(tensor.detach());
  tensor.is_meta() ? empty_weights::put_value(tensor, fake) : tensor.set_data(fake);
}

}  // namespace

DryRun* DryRun::of_process() {
  static DryRun* const kRun = []() -> DryRun* {
    const char* file = std::getenv("COUPLER_ESTIMATE");
    if (file == nullptr || *file == '\0') return nullptr;
    // Never destroyed: hooks and storages live until exit.
    auto* const run = new DryRun(file, stage_of_process());
    run->self_ = std::shared_ptr<DryRun>(run, [](DryRun*) {});
    begin_fake_tensors(*run);
    return run;
  }();
  return kRun;
}

DryRun::DryRun(std::string file, int stage) : file_(std::move(file)), stage_(stage) {}

void DryRun::set_configuration(const std::string& mixed_precision,
                               const std::vector<std::string>& activation_checkpointing) {
  log_.mixed_precision = mixed_precision;
  log_.activation_checkpointing = activation_checkpointing;
}

void DryRun::add_experts(int64_t experts) {
  log_.experts = std::gcd(log_.experts, static_cast<uint64_t>(experts));
}

void DryRun::make_fake(const strategy::Model& model) {
  const at::NoGradGuard no_grad;
  in_memory_.clear();
  std::vector<at::Tensor> parameters;
  for (const strategy::ModelParameter& parameter : model.parameters)
    parameters.push_back(parameter.tensor);
  never_whole_ = empty_weights::never_whole(parameters);
  for (const strategy::ModelParameter& parameter : model.parameters) {
    in_memory_.push_back(!parameter.tensor.is_meta());
    become_fake(parameter.tensor);
  }
  for (const auto& [name, buffer] : model.buffers) {
    if (buffer.is_meta()) become_fake(buffer);
  }
}

void DryRun::take(const strategy::Model& model, const std::vector<bool>& elsewhere) {
  estimate::LoggedModel logged = describe_for_estimate(model);
  for (size_t i = 0; i < in_memory_.size(); ++i) {
    const strategy::ModelParameter& parameter = model.parameters[i];
    logged.parameters[i].in_memory = in_memory_[i];
    logged.parameters[i].whole_numel = whole_numel_of(parameter);
    // Experts are divided when they are whole (expert_parallel/divide_experts.cc).
    logged.parameters[i].in_chunks =
        never_whole_[i] && parameter.division && parameter.parts == model.tensor_comm;
    if (!elsewhere.empty() && elsewhere[i]) logged.parameters[i].leave_to_others();
  }
  logged.first_parameter = log_.parameter_count();
  log_.models.push_back(std::move(logged));
  for (const auto& [name, buffer] : model.buffers) log_.buffer_bytes += buffer.nbytes();
}

void DryRun::watch(const strategy::Model& model) {
  for (const auto& [name, buffer] : model.buffers) {
    lasting_.insert(fake_storage_of(buffer));
  }
  for (const strategy::ModelParameter& parameter : model.parameters) {
    const at::Tensor& tensor = parameter.tensor;
    const uint64_t number = parameters_.size();
    const auto size = static_cast<int64_t>(tensor.element_size());
    const int64_t begin = tensor.storage_offset() * size;
    ranges_[tensor.storage().unsafeGetStorageImpl()].push_back(
        {begin, begin + tensor.numel() * size, number});
    lasting_.insert(fake_storage_of(tensor));
    parameters_.push_back(tensor);
    if (tensor.requires_grad()) hooks_.add(tensor, self_, number);
  }
  for (auto& [storage, ranges] : ranges_) {
    std::sort(ranges.begin(), ranges.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
  }
  new_since_backward_.clear();
}

void DryRun::add_optimizer(const void* optimizer, const std::string& description, bool fused) {
  steps_.emplace(optimizer, 0);
  log_.optimizer += (log_.optimizer.empty() ? "" : ", ") + description;
  log_.optimizer_fused = log_.optimizer_fused && fused;
  optimizer_state_.insert(new_since_backward_.begin(), new_since_backward_.end());
  new_since_backward_.clear();
}

void DryRun::stepped(const void* optimizer) {
  int& count = steps_[optimizer];
  // What the first step made and kept.
  if (count++ == 0) {
    optimizer_state_.insert(new_since_backward_.begin(), new_since_backward_.end());
  }
  new_since_backward_.clear();
  add({.kind = EventKind::kStepped});
  const int least =
      std::min_element(steps_.begin(), steps_.end(), [](const auto& a, const auto& b) {
        return a.second < b.second;
      })->second;
  if (logging_ && least >= 2) finish();
  if (!logging_ && least >= 1) begin_log();
}

void DryRun::backward_begins(bool reduced) {
  reduced_ = reduced;
  add({.kind = EventKind::kBackwardBegan, .bytes = reduced ? uint64_t{1} : 0});
}

void DryRun::backward_ends() {
  new_since_backward_.clear();
  add({.kind = EventKind::kBackwardEnded, .bytes = reduced_ ? uint64_t{1} : 0});
}

void DryRun::add(estimate::StepEvent event) {
  if (!logging_) return;
  last_used_ = event.kind == EventKind::kUsed ? event.index : ~uint64_t{0};
  log_.events.push_back(event);
}

void DryRun::made(uint64_t storage, uint64_t bytes) {
  alive_[storage] = bytes;
  new_since_backward_.insert(storage);
  add({.kind = EventKind::kMade, .storage = storage, .bytes = bytes});
}

void DryRun::gone(uint64_t storage) {
  alive_.erase(storage);
  new_since_backward_.erase(storage);
  optimizer_state_.erase(storage);
  add({.kind = EventKind::kGone, .storage = storage});
}

void DryRun::used(const at::Tensor& tensor) {
  if (!logging_ || !tensor.has_storage()) return;
  const auto found =
      ranges_.find(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
  if (found == ranges_.end()) return;
  const int64_t at = tensor.storage_offset() * static_cast<int64_t>(tensor.element_size());
  const auto range = std::find_if(found->second.begin(), found->second.end(),
                                  [&](const Range& r) { return at >= r.begin && at < r.end; });
  if (range == found->second.end() || range->parameter == last_used_) return;
  add({.kind = EventKind::kUsed, .index = range->parameter});
}

void DryRun::on_gradient(size_t parameter) {
  const at::Tensor& gradient = parameters_[parameter].grad();
  add({.kind = EventKind::kGradient,
       .index = parameter,
       .storage = gradient.defined() ? fake_storage_of(gradient) : 0,
       .bytes = reduced_ ? uint64_t{1} : 0});
}

// Logs what exists between two steps, except what a strategy and an optimizer keep.
void DryRun::begin_log() {
  logging_ = true;
  std::unordered_map<uint64_t, uint64_t> gradients;  // parameter by storage
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& gradient = parameters_[i].grad();
    if (gradient.defined()) gradients[fake_storage_of(gradient)] = i;
  }
  uint64_t state = 0;
  for (const auto& [storage, bytes] : alive_) {
    if (lasting_.count(storage) != 0) continue;
    if (optimizer_state_.count(storage) != 0) {
      state += bytes;
      continue;
    }
    add({.kind = EventKind::kMade, .storage = storage, .bytes = bytes});
    const auto gradient = gradients.find(storage);
    if (gradient == gradients.end()) continue;
    add({.kind = EventKind::kGradient, .index = gradient->second, .storage = storage, .bytes = 1});
  }
  const uint64_t trainable = log_.trainable_bytes();
  log_.optimizer_factor =
      trainable == 0 ? 0 : static_cast<double>(state) / static_cast<double>(trainable);
  log_.initial = log_.events.size();
}

void DryRun::finish() {
  logging_ = false;
  malloc_trim(0);
  log_.base_bytes = resident_bytes();
  std::ofstream file(file_, std::ios::trunc);
  file << write_step_log(log_) << std::flush;
  if (!file) std::fprintf(stderr, "coupler: error: cannot write '%s'\n", file_.c_str());
  std::fflush(nullptr);
  ::_exit(file ? 0 : 1);
}

}  // namespace coupler::dry_run
