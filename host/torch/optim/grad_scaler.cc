#include "optim/grad_scaler.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/log.h"
#include "residency/unit.h"
#include "tensors/tensor_ops.h"

namespace coupler::optim {
namespace {

// LibTorch's kernel divides and checks in one pass. It takes tensors of one type at a time.
void unscale_and_check(const std::vector<at::Tensor>& gradients, at::Tensor overflow,
                       const at::Tensor& inverse) {
  for (const at::Tensor& gradient : gradients) {
    if (gradient.layout() == at::kStrided) continue;
    throw Error(ErrorCode::kUnsupported, "a sparse gradient cannot be unscaled",
                {.subject = "training.mixed_precision",
                 .hint = "build its Embedding with sparse(false), or use bf16"});
  }
  for (size_t begin = 0, end = 0; begin < gradients.size(); begin = end) {
    while (end < gradients.size() &&
           gradients[end].scalar_type() == gradients[begin].scalar_type()) {
      ++end;
    }
    residency::visit_in_groups({gradients.begin() + static_cast<std::ptrdiff_t>(begin),
                                gradients.begin() + static_cast<std::ptrdiff_t>(end)},
                               [&](at::TensorList bunch) {
                                 at::_amp_foreach_non_finite_check_and_unscale_(bunch, overflow,
                                                                                inverse);
                               });
  }
}

}  // namespace

GradScaler::GradScaler(const config::TrainingConfig& config,
                       std::shared_ptr<comm::Communicator> comm)
    : growth_factor_(config.loss_scale_growth_factor),
      backoff_factor_(config.loss_scale_backoff_factor),
      growth_interval_(config.loss_scale_growth_interval),
      comm_(std::move(comm)),
      scale_(config.loss_scale_init_scale) {}

void GradScaler::add(const std::shared_ptr<strategy::ModelState>& model) {
  entries_.push_back({.model = model, .key = model.get()});
}

std::vector<GradScaler::Entry*> GradScaler::entries_of(
    const std::vector<strategy::ModelState*>& models) {
  std::vector<Entry*> result;
  for (Entry& entry : entries_) {
    if (std::find(models.begin(), models.end(), entry.key) == models.end()) continue;
    if (!entry.model.expired()) result.push_back(&entry);
  }
  return result;
}

at::Tensor GradScaler::scale_loss(const at::Tensor& loss,
                                  const std::vector<strategy::ModelState*>& expected) {
  for (Entry& entry : entries_) {
    // A model that this loss only might reach can still await its step, already unscaled.
    const bool reached = std::find(expected.begin(), expected.end(), entry.key) != expected.end();
    if (reached || entry.done) {
      entry.unscaled = entry.overflow = entry.counted = entry.done = false;
    }
  }
  // A 16-bit type could not hold the product.
  return (c10::elementSize(loss.scalar_type()) < 4 ? loss.to(at::kFloat) : loss) * scale_;
}

bool GradScaler::unscale(const std::vector<strategy::ModelState*>& models) {
  const at::NoGradGuard no_grad;
  const std::vector<Entry*> entries = entries_of(models);
  std::vector<Entry*> pending;
  for (Entry* entry : entries) {
    if (!entry->unscaled) pending.push_back(entry);
  }
  if (!pending.empty()) {
    const auto options =
        at::TensorOptions(at::kFloat).device(pending.front()->model.lock()->model().device);
    const at::Tensor inverse = at::full({1}, 1.0 / scale_, options);
    const at::Tensor overflow = at::zeros({static_cast<int64_t>(pending.size())}, options);
    for (size_t i = 0; i < pending.size(); ++i) {
      const auto model = pending[i]->model.lock();
      unscale_and_check(model->own_gradients(), overflow.narrow(0, static_cast<int64_t>(i), 1),
                        inverse);
    }
    if (comm_->size() > 1) comm_->run(tensors::all_reduce_op(overflow, DB_MAX));
    const at::Tensor found = overflow.cpu();
    const auto* const flags = found.const_data_ptr<float>();
    for (size_t i = 0; i < pending.size(); ++i) {
      pending[i]->unscaled = true;
      pending[i]->overflow = flags[i] != 0;
    }
  }
  return std::any_of(entries.begin(), entries.end(),
                     [](const Entry* entry) { return entry->overflow; });
}

void GradScaler::update(const std::vector<strategy::ModelState*>& models) {
  bool any = false, overflow = false;
  for (Entry* entry : entries_of(models)) {
    entry->done = true;
    if (entry->counted) continue;  // by another optimizer of the same model
    entry->counted = true;
    any = true;
    overflow = overflow || entry->overflow;
  }
  if (!any) return;
  if (overflow) {
    good_steps_ = 0;
    set_scale(scale_ * backoff_factor_);
    if (log_enabled(LogLevel::kInfo, "optim")) {
      log(LogLevel::kInfo, "optim",
          fmt::format(
              "a gradient is infinite or NaN: the step is skipped and the loss scale is now {}",
              scale_));
    }
    if (scale_ < 1 && !warned_) {
      warned_ = true;
      log(LogLevel::kWarning, "optim",
          fmt::format("the loss scale fell to {}: gradients are infinite or NaN for a reason other "
                      "than scaling; check the loss and the inputs",
                      scale_));
    }
  } else if (++good_steps_ >= growth_interval_) {
    good_steps_ = 0;
    set_scale(scale_ * growth_factor_);
  }
}

// Keeps the scale and its inverse representable as floats.
void GradScaler::set_scale(double scale) {
  constexpr double kLeast = 1.0 / (1LL << 40) / (1LL << 40);
  if (scale > static_cast<double>(std::numeric_limits<float>::max())) return;
  const at::NoGradGuard no_grad;
  const double next = std::max(scale, kLeast);
  const double factor = next / scale_;
  for (const Entry& entry : entries_) {
    const auto model = entry.model.lock();
    if (model == nullptr) continue;
    // Gradients that are not unscaled yet still carry the old scale.
    if (!entry.unscaled) {
      const std::vector<at::Tensor> gradients = model->own_gradients();
      if (!gradients.empty()) at::_foreach_mul_(gradients, factor);
    }
    for (const strategy::StateTensor& state : model->state_tensors()) {
      if (state.scales_with_loss) state.tensor.mul_(factor);
    }
  }
  scale_ = next;
}

// Entries stay unscaled until the next backward: another optimizer may still need its part.
void GradScaler::gradients_dropped(const std::vector<strategy::ModelState*>& models) {
  for (Entry* entry : entries_of(models)) entry->done = true;
}

void GradScaler::load_state(const State& state) {
  if (!std::isfinite(state.scale) || state.scale <= 0) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("loss scale: {} cannot be loaded: it must be finite and above 0", state.scale));
  }
  if (state.good_steps < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("loss scale: {} steps without overflow cannot be loaded: the number "
                            "must be 0 or more",
                            state.good_steps));
  }
  scale_ = state.scale;
  good_steps_ = state.good_steps;
}

}  // namespace coupler::optim
