#include "optim/fused_kernel.h"

#include <ATen/Functions.h>
#include <coupler/error.h>
#include <fmt/ranges.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <optional>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <utility>

#include "residency/intercept.h"
#include "residency/offloaded_memory.h"
#include "residency/unit.h"

namespace coupler::optim {
namespace {

// Whether `has` is true of the options of some group.
template <class Options, class Has>
bool any_group(torch::optim::Optimizer& optimizer, const Has& has) {
  return std::any_of(optimizer.param_groups().begin(), optimizer.param_groups().end(),
                     [&](auto& group) { return has(static_cast<Options&>(group.options())); });
}

// Adam and AdamW differ only in where weight decay goes.
template <class Options>
void update_adam(FusedBatch& batch) {
  const auto& options = static_cast<const Options&>(*batch.options);
  const auto [beta1, beta2] = options.betas();
  const std::vector<at::Tensor> none;
  const auto& most = options.amsgrad() ? batch.state[2] : none;
  if constexpr (std::is_same_v<Options, torch::optim::AdamWOptions>) {
    at::_fused_adamw_(batch.parameters, batch.gradients, batch.state[0], batch.state[1], most,
                      batch.steps, options.lr(), beta1, beta2, options.weight_decay(),
                      options.eps(), options.amsgrad(), /*maximize=*/false);
  } else {
    at::_fused_adam_(batch.parameters, batch.gradients, batch.state[0], batch.state[1], most,
                     batch.steps, options.lr(), beta1, beta2, options.weight_decay(), options.eps(),
                     options.amsgrad(), /*maximize=*/false);
  }
}

template <class Options>
FusedKind adam_kind(torch::optim::Optimizer& optimizer, const char* name) {
  FusedKind kind{name, {"exp_avg", "exp_avg_sq"}, &update_adam<Options>};
  if (any_group<Options>(optimizer, [](const Options& options) { return options.amsgrad(); })) {
    kind.state_names.emplace_back("max_exp_avg_sq");
  }
  return kind;
}

bool has_momentum(const torch::optim::SGDOptions& options) { return options.momentum() != 0; }

void update_sgd(FusedBatch& batch) {
  const auto& options = static_cast<const torch::optim::SGDOptions&>(*batch.options);
  const std::vector<at::Tensor> none;
  at::_fused_sgd_(batch.parameters, batch.gradients, has_momentum(options) ? batch.state[0] : none,
                  options.weight_decay(), options.momentum(), options.lr(), options.dampening(),
                  options.nesterov(), /*maximize=*/false, batch.first_step);
}

constexpr int64_t kCacheElements = 1 << 16;

// Calls use with the run's parameters, gradients and state, cut so that on a CPU the operations of
// an update find their operands in the cache. Memory that is fetched for each use stays whole.
void use_pieces(const FusedBatch& batch, size_t run,
                const std::function<void(const ParameterOptimizer::Piece&)>& use) {
  const at::Tensor &parameter = batch.parameters[run], &gradient = batch.gradients[run];
  const bool cuts = batch.alone == nullptr && parameter.is_cpu() && parameter.is_contiguous() &&
                    gradient.is_contiguous();
  const int64_t all = parameter.numel(), most = cuts ? kCacheElements : std::max<int64_t>(all, 1);
  for (int64_t at = 0; at < all; at += most) {
    const auto part = [&](const at::Tensor& whole) {
      return all <= most ? whole : whole.view(-1).narrow(0, at, std::min(most, all - at));
    };
    ParameterOptimizer::Piece piece{
        .parameter = part(parameter), .gradient = part(gradient), .step = batch.numbers[run]};
    for (const std::vector<at::Tensor>& tensors : batch.state)
      piece.state.push_back(part(tensors[run]));
    use(piece);
  }
}

FusedKind kind_of_own(const ParameterOptimizer& optimizer) {
  return {optimizer_type(optimizer), optimizer.state_names(), [&optimizer](FusedBatch& batch) {
            auto& options = dynamic_cast<ParameterOptions&>(*batch.options);
            for (size_t run = 0; run < batch.parameters.size(); ++run) {
              use_pieces(batch, run, [&](const ParameterOptimizer::Piece& piece) {
                optimizer.update(piece, options);
              });
            }
          }};
}

// Subclasses may have overridden step(), so the type must be exact.
std::optional<FusedKind> kind_of(torch::optim::Optimizer& optimizer) {
  if (const auto* own = dynamic_cast<const ParameterOptimizer*>(&optimizer))
    return own->is_elementwise() ? std::optional(kind_of_own(*own)) : std::nullopt;
  const std::type_info& type = typeid(optimizer);
  if (type == typeid(torch::optim::AdamW)) {
    return adam_kind<torch::optim::AdamWOptions>(optimizer, "AdamW");
  }
  if (type == typeid(torch::optim::Adam)) {
    return adam_kind<torch::optim::AdamOptions>(optimizer, "Adam");
  }
  if (type != typeid(torch::optim::SGD)) return std::nullopt;
  FusedKind kind{"SGD", {}, &update_sgd};
  if (any_group<torch::optim::SGDOptions>(optimizer, has_momentum)) {
    kind.state_names.emplace_back("momentum_buffer");
  }
  return kind;
}

// Zeros laid out like the group's parameters, in the memory for its state. name: of the group's
// first parameter.
at::Tensor zeros_for(const strategy::FlatGroup& group, const std::string& name,
                     const std::string& state) {
  const at::ScalarType type = group.parameters.scalar_type();
  return group.state_memory == nullptr
             ? at::zeros({group.parameters.numel()},
                         at::TensorOptions(type).device(group.parameters.device()))
             : group.state_memory->make(state + " of " + name, group.parameters.numel(), type);
}

bool is_in_none(const std::vector<strategy::FlatParameters*>& models, const at::Tensor& parameter) {
  return std::none_of(models.begin(), models.end(),
                      [&](strategy::FlatParameters* model) { return model->find(parameter) >= 0; });
}

}  // namespace

std::unique_ptr<FusedKernel> FusedKernel::make(torch::optim::Optimizer& optimizer,
                                               const std::vector<strategy::FlatParameters*>& models,
                                               std::string& why) {
  // Only the kernel can offload state, so a frozen parameter must not rule out the kernel.
  const bool may_be_frozen =
      std::any_of(models.begin(), models.end(), [](strategy::FlatParameters* model) {
        return std::any_of(
            model->groups().begin(), model->groups().end(),
            [](const strategy::FlatGroup& group) { return group.state_memory != nullptr; });
      });
  for (auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (is_in_none(models, parameter)) {
        if (may_be_frozen && !parameter.requires_grad()) continue;
        why = "one of its parameters needs no gradient, so it is not in flat memory";
        return nullptr;
      }
      if (!parameter.is_floating_point()) {
        why = "one of its parameters is not floating-point";
        return nullptr;
      }
    }
  }
  std::optional<FusedKind> kind = kind_of(optimizer);
  if (kind) {
    std::unique_ptr<FusedKernel> kernel(new FusedKernel(*std::move(kind)));
    kernel->take_groups(optimizer, models);
    return kernel;
  }
  why = dynamic_cast<const ParameterOptimizer*>(&optimizer) != nullptr
            ? "it works on whole matrices"
            : "only that of SGD, Adam, AdamW and the element-wise ones of coupler/optimizers.h can";
  return nullptr;
}

void FusedKernel::take_groups(torch::optim::Optimizer& optimizer,
                              const std::vector<strategy::FlatParameters*>& models) {
  FusedKind kind = *kind_of(optimizer);  // a further group's options may need more state
  std::unordered_map<const at::TensorImpl*, torch::optim::OptimizerOptions*> options;
  std::vector<at::Tensor> frozen;
  for (auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      options[parameter.unsafeGetTensorImpl()] = &group.options();
      if (is_in_none(models, parameter)) frozen.push_back(parameter);
    }
  }
  std::unordered_map<const strategy::FlatSlot*, int64_t> steps;
  for (const Member& member : members_) steps[member.slot] = member.steps;
  std::vector<Member> members;
  size_t number = 0;  // of the group, among those of all models
  for (const strategy::FlatParameters* model : models) {
    for (const strategy::FlatGroup& group : model->groups()) {
      if (number == state_.size()) state_.emplace_back();
      std::vector<at::Tensor>& state = state_[number++];
      for (size_t i = group.first_slot; i < group.end_slot; ++i) {
        const strategy::FlatSlot& slot = model->slots()[i];
        const auto found = options.find(slot.parameter.unsafeGetTensorImpl());
        if (found == options.end()) continue;
        while (state.size() < kind.state_names.size()) {
          state.push_back(zeros_for(group, slot.name, kind.state_names[state.size()]));
        }
        const auto known = steps.find(&slot);
        members.push_back({.model = model,
                           .group = &group,
                           .slot = &slot,
                           .slot_index = i,
                           .state = &state,
                           .options = found->second,
                           .steps = known == steps.end() ? 0 : known->second});
      }
    }
  }
  kind_ = std::move(kind);
  frozen_ = std::move(frozen);
  members_ = std::move(members);
  all_ = runs_of(0, members_.size());
  apart_.clear();
}

FusedKernel::Runs FusedKernel::runs_of(size_t first, size_t end) const {
  return {.first = first,
          .end = end,
          .gradients = std::vector<Gradient>(end - first, Gradient::kNone),
          .steps = std::vector<int64_t>(end - first)};
}

FusedKernel::Member& FusedKernel::member_of(const at::Tensor& held) {
  return *std::find_if(members_.begin(), members_.end(),
                       [&](const Member& member) { return member.slot->parameter.is_same(held); });
}

ParameterState FusedKernel::state_of(const at::Tensor& held) {
  const Member& member = member_of(held);
  ParameterState result{.steps = member.steps};
  for (size_t k = 0; k < kind_.state_names.size(); ++k) {
    const at::Tensor& memory = (*member.state)[k];
    result.tensors.emplace_back(
        kind_.state_names[k],
        strategy::place_in(memory, member.slot->offset, {member.slot->numel}));
  }
  return result;
}

void FusedKernel::set_steps(const at::Tensor& held, int64_t steps) {
  member_of(held).steps = steps;
}

FusedKernel::Gradient FusedKernel::gradient_of(const Member& member) {
  const at::Tensor& gradient = member.slot->parameter.grad();
  if (!gradient.defined()) return Gradient::kNone;
  return gradient.is_same(member.slot->gradient) ? Gradient::kFlat : Gradient::kOwn;
}

// Otherwise step() would silently skip the parameter.
void FusedKernel::require_frozen() const {
  for (const at::Tensor& parameter : frozen_) {
    if (!parameter.grad().defined()) continue;
    throw Error(ErrorCode::kUsage,
                fmt::format("a parameter of shape [{}] has a gradient, but was frozen when it was "
                            "prepared",
                            fmt::join(parameter.sizes(), ", ")),
                {.hint = "unfreeze parameters before accelerator.prepare"});
  }
}

void FusedKernel::step() {
  require_frozen();
  step(all_);
}

void FusedKernel::step_slots(const strategy::FlatParameters& model, size_t first, size_t end) {
  const auto is_within = [&](const Member& member) {
    return member.model == &model && member.slot_index >= first && member.slot_index < end;
  };
  const auto begin = std::find_if(members_.begin(), members_.end(), is_within);
  const auto past = std::find_if_not(begin, members_.end(), is_within);
  const std::pair range{static_cast<size_t>(begin - members_.begin()),
                        static_cast<size_t>(past - members_.begin())};
  step(apart_.try_emplace(range, runs_of(range.first, range.second)).first->second);
  for (auto member = begin; member != past; ++member) {
    member->slot->parameter.mutable_grad().reset();
  }
}

void FusedKernel::step(Runs& runs) {
  at::NoGradGuard no_grad;
  bool changed = runs.first_step;
  for (size_t i = 0; i < runs.gradients.size(); ++i) {
    const Member& member = members_[runs.first + i];
    const Gradient gradient = gradient_of(member);
    // Each run has its own step count.
    changed |= gradient != runs.gradients[i] || member.steps != runs.steps[i];
    runs.gradients[i] = gradient;
    runs.steps[i] = member.steps;
  }
  if (changed) cut(runs);
  for (FusedBatch& batch : runs.batches) {
    for (size_t run = 0; run < batch.member.size(); ++run) {
      if (batch.member[run] < 0) continue;
      const strategy::FlatSlot& slot = *members_[static_cast<size_t>(batch.member[run])].slot;
      batch.gradients[run] = slot.parameter.grad();
    }
    for (const auto& [before, counter] : batch.counters) counter.add_(1);
    for (int64_t& number : batch.numbers) ++number;
    if (batch.alone == nullptr) {
      kind_.update(batch);
    } else {
      // The kernel's schema declares that it writes to gradients, but it does not.
      residency::InUse gradients(batch.gradients[0]);
      kind_.update(batch);
      gradients.drop_writes();
    }
    // Gradients that the program drops must not stay alive until the next step.
    for (size_t run = 0; run < batch.member.size(); ++run) {
      if (batch.member[run] >= 0) batch.gradients[run].reset();
    }
  }
  for (size_t i = 0; i < runs.gradients.size(); ++i) {
    if (runs.gradients[i] != Gradient::kNone) runs.steps[i] = ++members_[runs.first + i].steps;
  }
}

void FusedKernel::switch_mode(const ParameterOptimizer& optimizer, bool training) {
  const at::NoGradGuard no_grad;
  std::map<torch::optim::OptimizerOptions*, std::vector<ParameterOptimizer::Piece>> groups;
  for (const Member& member : members_) {
    const auto part = [&](const at::Tensor& memory) {
      return strategy::place_in(memory, member.slot->offset, {member.slot->numel});
    };
    ParameterOptimizer::Piece piece{.parameter = part(member.group->parameters),
                                    .step = member.steps};
    for (const at::Tensor& memory : *member.state) piece.state.push_back(part(memory));
    groups[member.options].push_back(std::move(piece));
  }
  for (const auto& [options, pieces] : groups)
    optimizer.switch_mode(pieces, dynamic_cast<ParameterOptions&>(*options), training);
}

FusedBatch& FusedKernel::batch_for(Runs& runs, const Member& member) const {
  const bool first_step = member.steps == 0;
  const bool offloaded = member.group->state_memory != nullptr ||
                         residency::managed_storage_of(member.group->parameters) != nullptr;
  const strategy::FlatGroup* const alone = offloaded ? member.group : nullptr;
  for (FusedBatch& batch : runs.batches) {
    if (batch.options == member.options && batch.first_step == first_step && batch.alone == alone) {
      return batch;
    }
  }
  FusedBatch& batch = runs.batches.emplace_back();
  batch.options = member.options;
  batch.first_step = first_step;
  batch.alone = alone;
  batch.state.resize(kind_.state_names.size());
  return batch;
}

// The end of a slot including its padding, so that a run is a whole number of vectors. Kernels
// round the elements of a partial last vector differently, so results would depend on how memory is
// divided over ranks.
int64_t FusedKernel::padded_end(const Member& member) {
  const at::Tensor& memory = member.group->parameters;
  const int64_t unit = std::min<int64_t>(16, 64 / memory.element_size());
  const int64_t end = member.slot->offset + member.slot->numel;
  const size_t next = member.slot_index + 1;
  const int64_t limit =
      next < member.group->end_slot ? member.model->slots()[next].offset : memory.numel();
  return std::min((end + unit - 1) / unit * unit, limit);
}

void FusedKernel::cut(Runs& runs) const {
  runs.batches.clear();
  runs.first_step = false;
  const auto gradient = [&](size_t member) { return runs.gradients[member - runs.first]; };
  for (size_t i = runs.first; i < runs.end;) {
    const Member& first = members_[i];
    if (gradient(i) == Gradient::kNone) {
      ++i;
      continue;
    }
    runs.first_step |= first.steps == 0;
    size_t end = i + 1;
    if (gradient(i) == Gradient::kFlat) {
      while (end < runs.end && gradient(end) == Gradient::kFlat &&
             members_[end].group == first.group &&
             members_[end].slot_index == members_[end - 1].slot_index + 1 &&
             members_[end].options == first.options && members_[end].steps == first.steps) {
        ++end;
      }
    }
    const int64_t offset = first.slot->offset;
    const bool flat = gradient(i) == Gradient::kFlat;
    const int64_t numel = padded_end(members_[end - 1]) - offset;
    const auto place = [&](const at::Tensor& memory) {
      return strategy::place_in(memory, offset,
                                flat ? at::IntArrayRef(numel) : first.slot->parameter.sizes());
    };
    FusedBatch& batch = batch_for(runs, first);
    batch.parameters.push_back(place(first.group->parameters));
    batch.gradients.push_back(flat ? place(first.group->gradients) : at::Tensor());
    for (size_t k = 0; k < kind_.state_names.size(); ++k) {
      batch.state[k].push_back(place((*first.state)[k]));
    }
    at::Tensor& counter = batch.counters[first.steps];
    if (!counter.defined()) {
      counter =
          at::scalar_tensor(static_cast<double>(first.steps),
                            at::TensorOptions(at::kFloat).device(first.group->parameters.device()));
    }
    batch.steps.push_back(counter);
    batch.numbers.push_back(first.steps);
    batch.member.push_back(flat ? -1 : static_cast<int>(i));
    i = end;
  }
}

}  // namespace coupler::optim
