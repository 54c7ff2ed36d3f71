// How a program registers its comm hooks.
#include <coupler/accelerator.h>
#include <coupler/comm_hook.h>
#include <fmt/format.h>

#include <memory>
#include <utility>

#include "accelerator/accelerator.h"
#include "base/error.h"
#include "strategy/comm_hook.h"

namespace coupler {

ScopeGuard Accelerator::register_comm_hook_of(const detail::ModelRef& model,
                                              const std::string& name, CommHook hook) {
  if (hook == nullptr) {
    fail_argument(fmt::format("register_comm_hook: the hook '{}' is an empty function", name),
                  "hook", "pass a function of a GradientBucket");
  }
  impl_->strategy_of(model);  // throws if it is not prepared
  const std::shared_ptr<strategy::Strategy> found = impl_->find(model.identity);
  const std::string& of = found->model().name;
  if (found->comm_hook() != nullptr) {
    fail_usage(fmt::format("register_comm_hook: the model '{}' has the hook '{}' already", of,
                           found->comm_hook()->name),
               name, "let that one's scope end first, or call both from one function");
  }
  if (world_size() > 1) impl_->comm->verify({{"the comm hook of the model '" + of + "'", name}});
  found->set_comm_hook(std::make_shared<const strategy::NamedHook>(
      strategy::NamedHook{.name = name, .function = std::move(hook)}));
  return ScopeGuard([weak = std::weak_ptr(found)] {
    if (const auto alive = weak.lock()) alive->set_comm_hook(nullptr);
  });
}

}  // namespace coupler
