#include "pipeline/stage.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "empty_weights/empty_weights.h"
#include "pipeline/link.h"
#include "strategy/model.h"
#include "tensors/tensor_ops.h"

namespace coupler::pipelining {
namespace {

at::Tensor meta_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(at::kMeta).requires_grad(false));
}

}  // namespace

StagePlacement placement_of(const LayerList& layers, const strategy::Model& model,
                            const sharding::StageBegins& begins, int stages) {
  StagePlacement placement{std::vector<std::vector<int>>(model.parameters.size()),
                           std::vector<int>(model.buffers.size(), 0)};
  for (size_t i = 0, part = 0; i < layers.entries.size(); ++i) {
    if (part + 1 < begins.size() && i == begins[part + 1]) ++part;
    const int stage = static_cast<int>(part) % stages;
    for (const size_t parameter : layers.entries[i].parameters) {
      std::vector<int>& holders = placement.parameters[parameter];
      const auto place = std::lower_bound(holders.begin(), holders.end(), stage);
      if (place == holders.end() || *place != stage) holders.insert(place, stage);
    }
    for (const size_t buffer : layers.entries[i].buffers) placement.buffers[buffer] = stage;
  }
  return placement;
}

PipelineStage::PipelineStage(strategy::Model described, StagePlacement placement,
                             PipelineComms comms, bool broadcast_buffers)
    : strategy::Strategy(std::move(described)),
      placement_(std::move(placement)),
      comm_(std::move(comms.stages)),
      replicas_(std::move(comms.replicas)),
      made_up_(comms.made_up),
      broadcast_buffers_(broadcast_buffers) {
  const at::NoGradGuard no_grad;
  comm_->verify(strategy::shared_settings_of(model()));
  if (replicas_ != nullptr) replicas_->verify(strategy::shared_settings_of(model()));
  make_tied_communicators();
  if (!made_up_) take_values();
  strategy::NamedTensors trainable;
  for (size_t i = 0; i < model().parameters.size(); ++i) {
    if (!keeps(i)) continue;
    if (variable(i).requires_grad()) {
      trainable.emplace_back(model().parameters[i].name, variable(i));
    } else {
      strategy::move_to(variable(i), model().device);
    }
  }
  for (const auto& [name, buffer] : model().buffers) strategy::move_to(buffer, model().device);
  if (replicas_ != nullptr) share_values();
  flat() = strategy::FlatParameters(trainable, /*flat_gradients=*/false, model().device);
  describe({.text = fmt::format("stage {} of a pipeline of {}", comm_->rank(), comm_->size()),
            .types = strategy::types_of(model())});
}

bool PipelineStage::keeps(size_t parameter) const {
  const auto& stages = placement_.parameters[parameter];
  return std::find(stages.begin(), stages.end(), comm_->rank()) != stages.end();
}

void PipelineStage::make_tied_communicators() {
  std::map<std::vector<int>, std::shared_ptr<comm::Communicator>> made;  // null: without this rank
  for (size_t i = 0; i < placement_.parameters.size(); ++i) {
    const std::vector<int>& stages = placement_.parameters[i];
    if (stages.size() < 2) continue;
    const auto [entry, is_new] = made.try_emplace(stages);
    if (is_new) {
      const std::string name = fmt::format("tied {}", made.size() - 1);
      if (!made_up_) {
        entry->second = comm_->split(keeps(i) ? 0 : -1, comm_->rank(), name);
      } else if (keeps(i)) {
        entry->second = comm::Communicator::made_up(name, static_cast<int>(stages.size()));
      }
      if (entry->second != nullptr) tied_comms_.push_back(entry->second);
    }
    if (keeps(i) && variable(i).requires_grad()) tied_.push_back({i, entry->second.get()});
  }
}

// The first pipeline's values on this stage of all.
void PipelineStage::share_values() {
  std::vector<at::Tensor> values;
  for (size_t i = 0; i < model().parameters.size(); ++i) {
    if (keeps(i)) values.push_back(variable(i).detach());
  }
  for (const auto& [name, buffer] : model().buffers) values.push_back(buffer);
  tensors::broadcast_coalesced(*replicas_, values, 0);
}

// Rank 0 sends each value preceded by its number, since the values of a model that is not in memory
// become ready in their own order.
void PipelineStage::take_values() {
  const size_t parameters = model().parameters.size();
  const size_t count = parameters + model().buffers.size();
  const auto whole = [&](size_t i) {
    return i < parameters ? variable(i) : model().buffers[i - parameters].second;
  };
  const auto is_mine = [&](size_t i) { return i >= parameters || keeps(i); };
  const auto forget = [&](size_t i) {
    if (whole(i).is_meta()) return;
    whole(i).mutable_grad().reset();
    empty_weights::give_value(whole(i), meta_like(whole(i)));
  };
  const auto keep = [&](size_t i, const at::Tensor& value) {
    const at::Tensor tensor = whole(i);
    if (tensor.is_meta()) {
      empty_weights::put_value(tensor, value);
    } else if (!value.is_same(tensor)) {
      tensor.copy_(value);
    }
  };
  if (comm_->rank() != 0) {
    size_t expected = 0;
    for (size_t i = 0; i < count; ++i) {
      if (is_mine(i)) {
        ++expected;
      } else {
        forget(i);  // before others take memory
      }
    }
    for (; expected > 0; --expected) {
      const at::Tensor number = at::zeros({1}, at::kLong);
      comm_->run(message_op(DB_RECV, number, 0));
      const auto i = static_cast<size_t>(number.item<int64_t>());
      const at::Tensor value =
          at::empty(whole(i).sizes(), whole(i).options().device(at::kCPU).requires_grad(false));
      comm_->run(message_op(DB_RECV, value, 0));
      keep(i, value);
    }
    return;
  }
  std::vector<int> all(static_cast<size_t>(comm_->size()));
  std::iota(all.begin(), all.end(), 0);
  const auto pass_on = [&](size_t i, const at::Tensor& from) {
    const at::Tensor value = from.detach().to(at::kCPU).contiguous();
    const at::Tensor number = at::full({1}, static_cast<int64_t>(i), at::kLong);
    for (const int other : i < parameters ? placement_.parameters[i] : all) {
      if (other == 0) continue;
      comm_->run(message_op(DB_SEND, number, other));
      comm_->run(message_op(DB_SEND, value, other));
    }
    is_mine(i) ? keep(i, from) : forget(i);
  };
  std::vector<empty_weights::MetaTensor> on_meta;
  std::vector<size_t> index_on_meta;
  for (size_t i = 0; i < count; ++i) {
    if (!whole(i).is_meta()) {
      pass_on(i, whole(i));
      continue;
    }
    on_meta.push_back(
        {i < parameters ? model().parameters[i].name : model().buffers[i - parameters].first,
         whole(i)});
    index_on_meta.push_back(i);
  }
  empty_weights::materialize(
      on_meta, [&](size_t i, const at::Tensor& value) { pass_on(index_on_meta[i], value); });
}

std::vector<size_t> PipelineStage::trained() const {
  std::vector<size_t> result;
  for (size_t i = 0; i < model().parameters.size(); ++i) {
    if (keeps(i) && variable(i).requires_grad()) result.push_back(i);
  }
  return result;
}

void PipelineStage::begin_gradients() {
  if (has_waiting()) return;  // no rank's gradients are combined with those of others
  if (!sync()) {
    // Those that are, of a tied parameter, become shares, which are summed with the batches to
    // come.
    const at::NoGradGuard no_grad;
    for (const Tied& tied : tied_) {
      const at::Tensor& gradient = variable(tied.parameter).grad();
      if (gradient.defined()) gradient.div_(tied.comm->size());
    }
    return;
  }
  const auto set_aside = [this](size_t parameter) {
    at::Tensor& gradient = variable(parameter).mutable_grad();
    earlier_[parameter] = gradient;
    gradient.reset();
  };
  if (replicas_ != nullptr) {
    for (const size_t i : trained()) set_aside(i);
  } else {
    for (const Tied& tied : tied_) set_aside(tied.parameter);
  }
}

void PipelineStage::finish_gradients(double factor) {
  set_waiting(!sync());
  if (!sync()) return;
  const at::NoGradGuard no_grad;
  for (const Tied& tied : tied_) {
    at::Tensor& gradient = variable(tied.parameter).mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(variable(tied.parameter));
    gradient = gradient.contiguous();
    tied.comm->run(tensors::all_reduce_op(gradient, DB_SUM));
  }
  if (replicas_ != nullptr) average_gradients();
  for (auto& [parameter, earlier] : std::exchange(earlier_, {})) {
    if (!earlier.defined()) continue;
    at::Tensor& gradient = variable(parameter).mutable_grad();
    if (gradient.defined()) earlier.add_(gradient);
    gradient = earlier;
  }
  if (factor == 1) return;
  for (const size_t i : trained()) {
    if (variable(i).grad().defined()) variable(i).grad().mul_(factor);
  }
}

// A parameter that no pipeline has used keeps no gradient.
void PipelineStage::average_gradients() {
  const std::vector<size_t> parameters = trained();
  std::vector<int32_t> used;
  for (const size_t i : parameters) used.push_back(variable(i).grad().defined() ? 1 : 0);
  if (!used.empty()) {
    db_op op = tensors::host_op(DB_ALL_REDUCE, DB_I32, used.data(), used.data(), used.size());
    op.reduce = DB_MAX;
    replicas_->run(op);
  }
  std::vector<at::Tensor> gradients;
  for (size_t at = 0; at < parameters.size(); ++at) {
    if (used[at] == 0) continue;
    const size_t i = parameters[at];
    at::Tensor& gradient = variable(i).mutable_grad();
    gradient = gradient.defined() ? gradient.contiguous() : at::zeros_like(variable(i));
    gradient.mul_(1.0 / replicas_->size());
    gradients.push_back(gradient);
  }
  tensors::all_reduce_coalesced(*replicas_, gradients, DB_SUM);
  if (!broadcast_buffers_) return;
  std::vector<at::Tensor> buffers;
  for (size_t i = 0; i < model().buffers.size(); ++i) {
    if (placement_.buffers[i] == comm_->rank()) buffers.push_back(model().buffers[i].second);
  }
  tensors::broadcast_coalesced(*replicas_, buffers, 0);
}

void PipelineStage::begin_backward(double) {
  throw Error(
      ErrorCode::kUsage,
      fmt::format("backward: '{}' is a pipeline; its train_step runs forward and backward for "
                  "all micro-batches",
                  model().name),
      {.subject = model().name,
       .hint = "call pipeline.train_step(input, target, loss) instead of forward and "
               "accelerator.backward"});
}

// A tied gradient counts once, on the first of its stages.
double PipelineStage::gradient_norm(const strategy::GradientNorm& which) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> counted;
  for (size_t i = 0; i < placement_.parameters.size(); ++i) {
    if (placement_.parameters[i].front() != comm_->rank() || !which.covers(i) ||
        !variable(i).grad().defined())
      continue;
    counted.push_back(variable(i).grad());
  }
  const double norm = which.norm_of(tensors::all_reduce_number(
      *comm_, which.power_of(counted), which.is_maximum() ? DB_MAX : DB_SUM));
  if (std::isfinite(norm)) return norm;
  const double first =
      tensors::all_reduce_number(*comm_, static_cast<double>(first_not_finite(which)), DB_MIN);
  strategy::throw_not_finite(norm, static_cast<size_t>(first), model());
}

// own: this rank's tensor, used on the first stage that keeps the parameter.
at::Tensor PipelineStage::from_owner(size_t parameter, const at::Tensor& own) {
  if (comm_->size() == 1) return own;
  const int owner = placement_.parameters[parameter].front();
  const at::Tensor& like = variable(parameter);
  const at::Tensor whole =
      comm_->rank() == owner
          ? own.contiguous()
          : at::empty(like.sizes(), like.options().device(model().device).requires_grad(false));
  comm_->run(tensors::broadcast_op(whole, owner));
  return whole;
}

at::Tensor PipelineStage::whole_gradient(size_t parameter) {
  const at::NoGradGuard no_grad;
  const at::Tensor& own = variable(parameter).grad();
  const bool sends = comm_->rank() == placement_.parameters[parameter].front();
  const double there = tensors::all_reduce_number(*comm_, sends && own.defined() ? 1 : 0, DB_MAX);
  return there == 0 ? at::Tensor() : from_owner(parameter, own);
}

std::optional<strategy::ParameterPart> PipelineStage::part(size_t parameter) {
  if (!keeps(parameter)) return std::nullopt;
  const std::vector<int>& stages = placement_.parameters[parameter];
  const auto place = std::find(stages.begin(), stages.end(), comm_->rank()) - stages.begin();
  const int pipelines = replicas_ != nullptr ? replicas_->size() : 1;
  const int pipeline = replicas_ != nullptr ? replicas_->rank() : 0;
  return strategy::ParameterPart{.parameter = parameter,
                                 .begin = 0,
                                 .end = variable(parameter).numel(),
                                 .values = variable(parameter).detach(),
                                 .optimizer_tensor = variable(parameter),
                                 .copies = static_cast<int>(stages.size()) * pipelines,
                                 .copy = static_cast<int>(place) * pipelines + pipeline,
                                 .holders = stages};
}

at::Tensor PipelineStage::whole_parameter(size_t parameter) {
  const at::NoGradGuard no_grad;
  return from_owner(parameter, variable(parameter).detach());
}

void PipelineStage::synchronize() {
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < model().buffers.size(); ++i) {
    tensors::broadcast_coalesced(*comm_, {model().buffers[i].second}, placement_.buffers[i]);
  }
}

}  // namespace coupler::pipelining
