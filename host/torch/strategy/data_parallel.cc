#include "strategy/data_parallel.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "empty_weights/empty_weights.h"
#include "tensors/tensor_ops.h"

namespace coupler::strategy {
namespace {

// The offloaded memory for optimizer state; null: the state stays on the device.
std::unique_ptr<residency::OffloadedMemory> place_for_state(const config::MemoryConfig& memory,
                                                            c10::Device device) {
  if (memory.offload_optimizer_device == "cpu" && !device.is_cpu()) {
    return std::make_unique<residency::OffloadedMemory>(residency::OffloadPlace{}, device);
  }
  if (memory.offload_optimizer_device != "nvme") return nullptr;
  return std::make_unique<residency::OffloadedMemory>(
      residency::OffloadPlace{.folder = memory.offload_optimizer_nvme_path,
                              .buffers = static_cast<int>(memory.offload_optimizer_buffer_count)},
      device);
}

}  // namespace

LocalSgd::LocalSgd(const config::CommunicationConfig& config, FlatParameters& flat,
                   std::shared_ptr<comm::Communicator> comm, std::vector<at::Tensor> buffers)
    : flat_(flat),
      comm_(std::move(comm)),
      buffers_(std::move(buffers)),
      steps_(config.local_sgd_steps),
      momentum_(config.local_sgd_momentum) {
  if (momentum_ == 0) return;
  for (const FlatGroup& group : flat_.groups()) {
    previous_.push_back(group.parameters.detach().clone());
    velocity_.push_back(at::zeros_like(previous_.back()));
  }
}

void LocalSgd::restart() {
  since_average_ = 0;
  for (size_t i = 0; i < previous_.size(); ++i) previous_[i].copy_(flat_.groups()[i].parameters);
}

void LocalSgd::average() {
  const at::NoGradGuard no_grad;
  since_average_ = 0;
  for (size_t i = 0; i < flat_.groups().size(); ++i) {
    at::Tensor& parameters = flat_.groups()[i].parameters;
    parameters.mul_(1.0 / comm_->size());
    comm_->run(tensors::all_reduce_op(parameters, DB_SUM));
    if (momentum_ == 0) continue;
    at::Tensor& velocity = velocity_[i];
    velocity.mul_(momentum_).add_(parameters).sub_(previous_[i]);
    parameters.copy_(previous_[i].add_(velocity));
  }
  if (!buffers_.empty()) tensors::broadcast_coalesced(*comm_, buffers_, 0);
}

std::vector<StateTensor> LocalSgd::state_tensors() const {
  std::vector<StateTensor> result;
  if (momentum_ == 0) return result;
  for (const FlatSlot& slot : flat_.slots()) {
    result.push_back({.name = "local_sgd_velocity/" + slot.name,
                      .tensor = velocity_[static_cast<size_t>(slot.group)]
                                    .narrow(0, slot.offset, slot.numel)
                                    .view(slot.parameter.sizes())});
  }
  return result;
}

DataParallel::DataParallel(Model described, std::shared_ptr<comm::Communicator> comm,
                           const config::TrainingConfig& config, const config::MemoryConfig& memory,
                           const config::CommunicationConfig& communication)
    : Strategy(std::move(described)), optimizer_memory_(place_for_state(memory, model().device)) {
  const bool several = comm != nullptr && comm->size() > 1;
  if (several) {
    comm_ = std::move(comm);
    comm_->verify(shared_settings_of(model()));
  }
  if (communication.gradients != "none")
    require_whole_parameters("compressed gradients", "communication.gradients");
  if (communication.local_sgd_steps > 0)
    require_whole_parameters("LocalSGD", "communication.local_sgd_steps");
  make_meta_tensors();
  NamedTensors trainable;
  std::vector<std::shared_ptr<comm::Communicator>> averaging;  // by trainable parameter
  std::vector<at::Tensor> frozen, buffers;
  for (const ModelParameter& parameter : model().parameters) {
    if (parameter.tensor.requires_grad()) {
      trainable.emplace_back(parameter.name, parameter.tensor);
      const auto& ranks = ranks_of(parameter);
      averaging.push_back(ranks == comm_ ? nullptr : ranks);
    } else {
      move_to(parameter.tensor, model().device);
      if (ranks_of(parameter) == comm_) frozen.push_back(parameter.tensor);
    }
  }
  for (const auto& [name, buffer] : model().buffers) {
    move_to(buffer, model().device);
    buffers.push_back(buffer);
  }
  const bool offloads = optimizer_memory_ != nullptr;
  flat() =
      FlatParameters(trainable, several && communication.local_sgd_steps == 0, model().device,
                     offloads ? memory.offload_optimizer_sub_group_size : FlatParameters::kNoLimit,
                     averaging, comm_);
  for (FlatGroup& group : flat().groups()) group.state_memory = optimizer_memory_.get();
  local_ = std::make_shared<LocalGradients>(flat());
  describe({.text = "whole on every rank", .types = types_of(model())});
  if (!several) return;

  for (const FlatGroup& group : flat().groups()) {
    comm::Communicator& ranks = group.averaging != nullptr ? *group.averaging : *comm_;
    ranks.run(tensors::broadcast_op(group.parameters, 0));
  }
  for (const ModelParameter& parameter : model().parameters) {
    const auto& ranks = ranks_of(parameter);
    if (!parameter.tensor.requires_grad() && ranks != comm_)
      ranks->run(tensors::broadcast_op(parameter.tensor, 0));
  }
  std::vector<at::Tensor> rest = frozen;
  rest.insert(rest.end(), buffers.begin(), buffers.end());
  tensors::broadcast_coalesced(*comm_, rest, 0);
  if (trainable.empty()) return;
  if (config.broadcast_buffers) buffers_ = std::move(buffers);
  if (communication.local_sgd_steps > 0) {
    local_sgd_ = std::make_unique<LocalSgd>(communication, flat(), comm_, buffers_);
    return;
  }
  reducer_ = std::make_shared<GradientReducer>(model().name, flat(), comm_, buffers_,
                                               config.bucket_cap_mb, communication);
  reducer_->install();
}

void DataParallel::make_meta_tensors() {
  std::vector<empty_weights::MetaTensor> on_meta;
  for (const ModelParameter& parameter : model().parameters) {
    if (parameter.tensor.is_meta()) on_meta.push_back({parameter.name, parameter.tensor});
  }
  for (const auto& [name, buffer] : model().buffers) {
    if (buffer.is_meta()) on_meta.push_back({name, buffer});
  }
  empty_weights::materialize(on_meta, [&](size_t i, const at::Tensor& value) {
    empty_weights::put_value(on_meta[i].tensor, value);
  });
}

void DataParallel::require_whole_parameters(const std::string& what, const std::string& key) const {
  for (const ModelParameter& parameter : model().parameters) {
    if (ranks_of(parameter) == comm_) continue;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("{}: '{}' of the model '{}' is divided over expert groups, but this "
                            "needs parameters that all ranks have whole",
                            what, parameter.name, model().name),
                {.subject = key, .hint = "leave it out, or set parallel.expert to 1"});
  }
}

void DataParallel::begin_local_sgd(int64_t steps) {
  require_whole_parameters("LocalSGD", "parallel.expert");
  if (in_local_sgd_) {
    throw Error(ErrorCode::kUsage,
                fmt::format("LocalSGD: another one of the model '{}' is active", model().name),
                {.subject = model().name, .hint = "end its scope before starting the next one"});
  }
  if (reducer_ == nullptr) return;  // nothing is trained
  if (local_sgd_ == nullptr) {
    local_sgd_ = std::make_unique<LocalSgd>(config::CommunicationConfig{.local_sgd_steps = steps},
                                            flat(), comm_, buffers_);
  }
  local_sgd_->set_steps(steps);
  in_local_sgd_ = true;
  local_->set_sync(reducer_->sync());
  reducer_->set_sync(false);
}

void DataParallel::average_if_due() {
  if (in_local_sgd_) local_sgd_->average_if_due();
}

void DataParallel::end_local_sgd(bool average) {
  if (!in_local_sgd_) return;
  in_local_sgd_ = false;
  reducer_->set_sync(local_->sync());
  if (average) local_sgd_->synchronize();
}

GradientSync& DataParallel::gradient_sync() {
  if (averages_gradients()) return *reducer_;
  return *local_;
}

void DataParallel::use_comm_hook(const std::shared_ptr<const NamedHook>& hook) {
  if (hook != nullptr) require_whole_parameters("register_comm_hook", hook->name);
  if (reducer_ != nullptr) {
    reducer_->set_hook(hook);
  } else if (hook != nullptr && local_sgd_ != nullptr) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("register_comm_hook: with communication.local_sgd_steps above 0, no "
                            "gradients of '{}' are sent",
                            model().name),
                {.subject = hook->name,
                 .hint = "set communication.local_sgd_steps to 0, or register no hook"});
  }
}

void DataParallel::parameters_changed(ParameterWriter writer) {
  if (local_sgd_ == nullptr) return;
  if (writer == ParameterWriter::kCheckpoint) {
    local_sgd_->restart();
  } else if (!averages_gradients()) {
    local_sgd_->stepped();
    if (!in_local_sgd_) local_sgd_->average_if_due();
  }
}

std::vector<StateTensor> DataParallel::state_tensors() {
  if (reducer_ != nullptr) return reducer_->state_tensors();
  return local_sgd_ != nullptr ? local_sgd_->state_tensors() : std::vector<StateTensor>{};
}

std::optional<ParameterPart> DataParallel::part(size_t parameter) {
  const at::Tensor& whole = model().parameters[parameter].tensor;
  const auto& ranks = ranks_of(model().parameters[parameter]);
  return ParameterPart{.parameter = parameter,
                       .begin = 0,
                       .end = whole.numel(),
                       .values = whole.detach(),
                       .optimizer_tensor = whole,
                       .copies = ranks != nullptr ? ranks->size() : 1,
                       .copy = ranks != nullptr ? ranks->rank() : 0};
}

// Gradients are equal on every rank that has the parameters, so these throw the same error.
double DataParallel::gradient_norm(const GradientNorm& which) {
  const at::NoGradGuard no_grad;
  const double norm = which.norm_of(which.power_of(gradients_of(which)));
  if (!std::isfinite(norm)) throw_not_finite(norm, first_not_finite(which), model());
  return norm;
}

}  // namespace coupler::strategy
