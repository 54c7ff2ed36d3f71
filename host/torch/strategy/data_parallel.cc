#include "strategy/data_parallel.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "empty_weights/empty_weights.h"
#include "strategy/model.h"
#include "tensors/tensor_ops.h"

namespace coupler {

LocalGradients::LocalGradients(FlatParameters& flat, const GradientUsers& users)
    : flat_(flat), users_(users), used_(flat.slots().size()) {}

void LocalGradients::install() {
  for (size_t i = 0; i < flat_.slots().size(); ++i) {
    hooks_.add(flat_.slots()[i].parameter, weak_from_this(), i);
  }
}

void LocalGradients::on_gradient(size_t slot) {
  if (!offers_ || !users_.any()) return;
  if (!active_) {
    active_ = true;
    std::fill(used_.begin(), used_.end(), uint8_t{0});
    users_.tell_backward_begins();
    after_backward([weak = weak_from_this()] {
      if (auto self = weak.lock()) self->active_ = false;
    });
  }
  if (used_[slot] != 0) throw_second_gradient(flat_.slots()[slot].name);
  users_.offer(flat_, slot, slot + 1);
  used_[slot] = flat_.slots()[slot].parameter.grad().defined() ? 0 : 1;
}

namespace {

// The offloaded memory for optimizer state; null: the state stays on the device.
std::unique_ptr<OffloadedMemory> place_for_state(const MemoryConfig& memory, c10::Device device) {
  if (memory.offload_optimizer_device == "cpu" && !device.is_cpu()) {
    return std::make_unique<OffloadedMemory>(OffloadPlace{}, device);
  }
  if (memory.offload_optimizer_device != "nvme") return nullptr;
  return std::make_unique<OffloadedMemory>(
      OffloadPlace{.folder = memory.offload_optimizer_nvme_path,
                   .buffers = static_cast<int>(memory.offload_optimizer_buffer_count)},
      device);
}

}  // namespace

DataParallel::DataParallel(Model described, std::shared_ptr<Communicator> comm, const TrainingConfig& config,
                 const MemoryConfig& memory, const CommunicationConfig& communication)
    : Strategy(std::move(described)), optimizer_memory_(place_for_state(memory, model().device)) {
  const bool several = comm != nullptr && comm->size() > 1;
  if (several) {
    copies_ = comm->size();
    copy_ = comm->rank();
    comm->verify(facts_of(model()));
  }
  make_meta_tensors();
  NamedTensors trainable;
  std::vector<at::Tensor> frozen, buffers;
  for (const ModelParameter& parameter : model().parameters) {
    if (parameter.tensor.requires_grad()) {
      trainable.emplace_back(parameter.name, parameter.tensor);
    } else {
      move_to(parameter.tensor, model().device);
      frozen.push_back(parameter.tensor);
    }
  }
  for (const auto& [name, buffer] : model().buffers) {
    move_to(buffer, model().device);
    buffers.push_back(buffer);
  }
  const bool offloads = optimizer_memory_ != nullptr;
  flat_ = std::make_unique<FlatParameters>(
      trainable, several && communication.local_sgd_steps == 0, model().device,
      offloads ? memory.offload_optimizer_sub_group_size : FlatParameters::kNoLimit);
  for (FlatGroup& group : flat_->groups()) group.state_memory = optimizer_memory_.get();
  if (!several) return;

  for (const FlatGroup& group : flat_->groups()) comm->run(broadcast_op(group.parameters, 0));
  std::vector<at::Tensor> rest = frozen;
  rest.insert(rest.end(), buffers.begin(), buffers.end());
  broadcast_coalesced(*comm, rest, 0);
  if (trainable.empty()) return;
  if (config.broadcast_buffers) buffers_ = std::move(buffers);
  comm_ = std::move(comm);
  if (communication.local_sgd_steps > 0) {
    local_sgd_ = std::make_unique<LocalSgd>(communication, *flat_, comm_, buffers_);
    return;
  }
  reducer_ = std::make_shared<GradientReducer>(*flat_, comm_, buffers_, config.bucket_cap_mb,
                                               communication, gradient_users());
  reducer_->install();
}

void DataParallel::make_meta_tensors() {
  std::vector<MetaTensor> on_meta;
  for (const ModelParameter& parameter : model().parameters) {
    if (parameter.tensor.is_meta()) on_meta.push_back({parameter.name, parameter.tensor});
  }
  for (const auto& [name, buffer] : model().buffers) {
    if (buffer.is_meta()) on_meta.push_back({name, buffer});
  }
  materialise(on_meta,
              [&](size_t i, const at::Tensor& value) { put_value(on_meta[i].tensor, value); });
}

void DataParallel::stepped() {
  if (local_sgd_ == nullptr || averages_gradients()) return;
  local_sgd_->stepped();
  if (!in_local_sgd_) local_sgd_->average_if_due();
}

void DataParallel::begin_local_sgd(int64_t steps) {
  if (in_local_sgd_) {
    throw Error(ErrorCode::kUsage,
                fmt::format("LocalSGD: another one of the model '{}' is active", model().name),
                {.subject = model().name, .hint = "end its scope before starting the next one"});
  }
  if (reducer_ == nullptr) return;  // nothing is trained
  if (local_sgd_ == nullptr) {
    local_sgd_ = std::make_unique<LocalSgd>(CommunicationConfig{.local_sgd_steps = steps}, *flat_,
                                            comm_, buffers_);
  }
  local_sgd_->set_steps(steps);
  in_local_sgd_ = true;
  reducer_->set_sync(false);
}

void DataParallel::average_if_due() {
  if (in_local_sgd_) local_sgd_->average_if_due();
}

void DataParallel::end_local_sgd(bool average) {
  if (!in_local_sgd_) return;
  in_local_sgd_ = false;
  reducer_->set_sync(sync_);
  if (average) local_sgd_->settle();
}

NamedTensors DataParallel::carried() {
  if (reducer_ != nullptr) return reducer_->carried();
  return local_sgd_ != nullptr ? local_sgd_->carried() : NamedTensors{};
}

void DataParallel::set_sync(bool sync) {
  sync_ = sync;
  if (averages_gradients()) reducer_->set_sync(sync);
  choose_offers();
}

// With a factor, gradients are final only after backward, so they are not offered in it.
void DataParallel::choose_offers() {
  if (lone_ != nullptr) lone_->set_offers(sync_ && factor_ == 1);
}

void DataParallel::add_gradient_user(const std::shared_ptr<GradientConsumer>& user) {
  Strategy::add_gradient_user(user);
  if (reducer_ != nullptr || lone_ != nullptr) return;
  lone_ = std::make_shared<LocalGradients>(*flat_, gradient_users());
  lone_->install();
}

void DataParallel::begin_backward(double factor) {
  factor_ = factor;
  choose_offers();
  if (averages_gradients()) reducer_->expect_backward(factor);
}

void DataParallel::end_backward() {
  if (averages_gradients()) {
    reducer_->finish_if_untouched();
  } else if (sync_ && factor_ != 1) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& gradient : own_gradients()) gradient.mul_(factor_);
  }
  factor_ = 1;
  choose_offers();
}

void DataParallel::abandon_backward() {
  if (reducer_ != nullptr) reducer_->abandon_backward();
  if (lone_ != nullptr) lone_->abandon_backward();
}

// Whole buffers if every parameter's gradient is there (padding is zero); otherwise one by one,
// since gradients that were only accumulated (no_sync) are not in flat memory yet.
std::vector<at::Tensor> DataParallel::own_gradients() {
  std::vector<at::Tensor> result;
  bool whole = reducer_ != nullptr;
  for (const FlatSlot& slot : flat_->slots()) {
    const at::Tensor& gradient = slot.parameter.grad();
    if (gradient.defined()) result.push_back(gradient);
    whole = whole && gradient.is_same(slot.gradient);
  }
  if (!whole) return result;
  result.clear();
  for (const FlatGroup& group : flat_->groups()) {
    const FlatSlot& last = flat_->slots()[group.end_slot - 1];
    result.push_back(group.gradients.narrow(0, 0, last.offset + last.numel));
  }
  return result;
}

double DataParallel::clip_grad_norm(double max_norm) {
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> all = own_gradients();
  const double norm = std::sqrt(sum_of_squares(all));
  if (!std::isfinite(norm)) {
    // Gradients are equal on every rank, so all ranks throw the same error.
    int64_t at_fault = 0;
    for (const ModelParameter& parameter : model().parameters) {
      const at::Tensor& gradient = parameter.tensor.grad();
      if (gradient.defined() && !at::isfinite(gradient).all().item<bool>()) break;
      ++at_fault;
    }
    throw_not_finite(norm, at_fault, model());
  }
  scale_to_norm(all, norm, max_norm);
  return norm;
}

void DataParallel::clip_grad_value(double max_value) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& gradient : own_gradients()) gradient.clamp_(-max_value, max_value);
}

ModelTypes DataParallel::types() const {
  ModelTypes result;
  for (const ModelParameter& parameter : model().parameters) {
    const at::ScalarType type = parameter.tensor.scalar_type();
    result.stored.insert(type);
    result.computed.insert(type);
    if (parameter.tensor.requires_grad()) result.reduced.insert(type);
  }
  return result;
}

std::vector<ParameterPart> DataParallel::parts() {
  std::vector<ParameterPart> result;
  for (size_t i = 0; i < model().parameters.size(); ++i) {
    const at::Tensor& parameter = model().parameters[i].tensor;
    result.push_back({.parameter = i,
                      .begin = 0,
                      .end = parameter.numel(),
                      .values = parameter.detach(),
                      .held = parameter.requires_grad() ? parameter : at::Tensor(),
                      .copies = copies_,
                      .copy = copy_});
  }
  return result;
}

}  // namespace coupler
