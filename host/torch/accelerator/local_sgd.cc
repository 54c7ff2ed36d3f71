#include <coupler/error.h>
#include <coupler/local_sgd.h>
#include <fmt/format.h>

#include <exception>
#include <utility>

#include "accelerator/accelerator.h"
#include "base/error.h"
#include "base/log.h"
#include "strategy/data_parallel.h"

namespace coupler {
namespace {

std::shared_ptr<strategy::DataParallel> whole_on_every_rank(
    const std::shared_ptr<strategy::Strategy>& model) {
  if (auto whole = std::dynamic_pointer_cast<strategy::DataParallel>(model)) return whole;
  const std::string& name = model->model().name;
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("LocalSGD: the model '{}' is kept {}: no rank has all parameters to "
                  "train by itself",
                  name, model->description().text),
      {.subject = name,
       .hint = "use a transport (backend.use = \"auto\"), let the backend shard nothing, or "
               "use LocalSGD with enabled = false"});
}

}  // namespace

LocalSGD::LocalSGD(Accelerator& accelerator, const detail::ModelRef& model,
                   const LocalSGDOptions& options)
    : exceptions_(std::uncaught_exceptions()) {
  if (options.local_sgd_steps < 1) {
    fail_argument(fmt::format("LocalSGD: local_sgd_steps is {}, but must be at least 1",
                              options.local_sgd_steps),
                  "local_sgd_steps", "enabled = false averages gradients in every step");
  }
  Accelerator::Impl& impl = *accelerator.impl_;
  impl.strategy_of(model);  // throws if it is not prepared
  if (!options.enabled || impl.process.world_size == 1) return;
  const int64_t configured = impl.config.communication.local_sgd_steps;
  if (configured > 0) {
    if (impl.process.rank == 0) {
      log(LogLevel::kWarning, "train",
          fmt::format("LocalSGD with {} steps is ignored: communication.local_sgd_steps is {}, "
                      "which applies to the whole run",
                      options.local_sgd_steps, configured));
    }
    return;
  }
  if (impl.config.training.optimizer_in_backward) {
    fail_usage(
        "LocalSGD: training.optimizer_in_backward is true, which needs local SGD to be set up "
        "before the optimizer",
        "training.optimizer_in_backward",
        "set it to false, or set communication.local_sgd_steps instead of LocalSGD");
  }
  std::shared_ptr<strategy::DataParallel> found = whole_on_every_rank(impl.find(model.identity));
  found->begin_local_sgd(options.local_sgd_steps);
  model_ = std::move(found);
}

LocalSGD::~LocalSGD() noexcept(false) {
  if (model_ != nullptr) model_->end_local_sgd(std::uncaught_exceptions() == exceptions_);
}

void LocalSGD::step(CallSite) {
  if (model_ != nullptr) model_->average_if_due();
}

}  // namespace coupler
