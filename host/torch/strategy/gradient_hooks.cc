#include "strategy/gradient_hooks.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <utility>

#include "residency/autograd_node.h"

namespace coupler::strategy {
namespace {

class Hook : public torch::autograd::FunctionPostHook {
 public:
  Hook(std::weak_ptr<GradientListener> listener, size_t index)
      : listener_(std::move(listener)), index_(index) {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    if (auto listener = listener_.lock()) listener->on_gradient(index_);
    return outputs;
  }

 private:
  std::weak_ptr<GradientListener> listener_;
  size_t index_;
};

// Callbacks for the ends of this thread's nested backwards; the outermost uses the engine's queue.
thread_local std::vector<std::vector<std::function<void()>>> waiting;

}  // namespace

void GradientHooks::add(const at::Tensor& parameter, std::weak_ptr<GradientListener> listener,
                        size_t index) {
  auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
  accumulator->add_post_hook(std::make_unique<Hook>(std::move(listener), index));
  accumulators_.push_back(std::make_shared<residency::AutogradNode>(std::move(accumulator)));
}

void after_backward(std::function<void()> done) {
  if (!waiting.empty()) {
    waiting.back().push_back(std::move(done));
    return;
  }
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(done));
}

NestedBackward::NestedBackward() { waiting.emplace_back(); }

// The nested backward has ended: its callbacks move to the outer one.
NestedBackward::~NestedBackward() {
  auto own = std::move(waiting.back());
  waiting.pop_back();
  for (auto& done : own) after_backward(std::move(done));
}

void require_dense_gradient(const at::Tensor& gradient, const std::string& name) {
  if (gradient.layout() == at::kStrided) return;
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("parameter '{}' has a sparse gradient, which cannot be averaged over ranks",
                  name),
      {.subject = name, .hint = "build its Embedding with sparse(false)"});
}

void throw_second_gradient(const std::string& name) {
  throw Error(ErrorCode::kUnsupported,
              fmt::format("parameter '{}' received a second gradient in one backward", name),
              {.subject = name,
               .hint = "a checkpointed segment used twice causes this: run backward inside "
                       "no_sync() and synchronize in the last one"});
}

}  // namespace coupler::strategy
