#include "activations/forward_recorder.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/library.h>

#include <algorithm>
#include <regex>
#include <utility>

#include "base/name_pattern.h"
#include "empty_weights/recording.h"
#include "precision/precision.h"
#include "residency/autograd_node.h"
#include "tensors/autocast_state.h"
#include "tensors/replaced_attention.h"
#include "tensors/replaced_dropout.h"

namespace coupler::activations {
namespace {

using torch::autograd::SavedVariableHooks;

using tensors::kRecordedKey;

// Stands for a tensor that autograd would keep.
class SavedActivation final : public SavedVariableHooks {
 public:
  explicit SavedActivation(std::shared_ptr<ForwardSegment> segment)
      : segment_(std::move(segment)) {}
  void call_pack_hook(const at::Tensor& tensor) override { number_ = segment_->save(tensor); }
  at::Tensor call_unpack_hook() override {
    ForwardRecorder::of_this_thread().leave();
    return segment_->unpack(number_);
  }

 private:
  const std::shared_ptr<ForwardSegment> segment_;
  size_t number_ = 0;
};

// Collects the tensors of a graph that is thrown away.
class CollectedActivation final : public SavedVariableHooks {
 public:
  explicit CollectedActivation(std::vector<at::Tensor>& list) : list_(list) {}
  void call_pack_hook(const at::Tensor& tensor) override { list_.push_back(tensor); }
  at::Tensor call_unpack_hook() override { return {}; }

 private:
  std::vector<at::Tensor>& list_;
};

// LibTorch asks its engine for the hooks for saved tensors; Python's hooks come in the same way.
// LibTorch's own engine runs backward: device threads are started once per process, for the engine
// that runs first.
class HookingEngine final : public torch::autograd::Engine {
 public:
  // Never destroyed: LibTorch threads may still use it.
  static Engine& instance() {
    static auto* const kEngine = new HookingEngine;
    return *kEngine;
  }
  ~HookingEngine() override { stop(); }
  torch::autograd::variable_list execute(const torch::autograd::edge_list& roots,
                                         const torch::autograd::variable_list& inputs,
                                         bool keep_graph, bool create_graph, bool accumulate_grad,
                                         const torch::autograd::edge_list& outputs) override {
    return get_base_engine().execute(roots, inputs, keep_graph, create_graph, accumulate_grad,
                                     outputs);
  }
  c10::intrusive_ptr<at::ivalue::Future> execute_with_graph_task(
      const std::shared_ptr<torch::autograd::GraphTask>& task, residency::AutogradNode root,
      torch::autograd::InputBuffer&& inputs) override {
    return get_base_engine().execute_with_graph_task(task, std::move(root), std::move(inputs));
  }
  std::unique_ptr<SavedVariableHooks> get_default_saved_variable_hooks() override {
    return ForwardRecorder::of_this_thread().hooks();
  }
};

void intercept(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kRecordedKey);
  ForwardRecorder::of_this_thread().call(op, *stack);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
}

[[noreturn]] void refuse_pattern(const std::string& pattern, const strategy::Model& model) {
  std::vector<std::string> names;
  for (const strategy::ModelModule& module : model.modules) {
    if (!module.name.empty() && names.size() < 6) names.push_back(module.name);
  }
  throw Error(
      ErrorCode::kConfig,
      fmt::format("memory.activation_checkpointing: '{}' matches no module of '{}'", pattern,
                  model.name),
      {.subject = "memory.activation_checkpointing",
       .hint = names.empty() ? "the model has no modules: leave it out"
                             : fmt::format("its modules are {}{}", fmt::join(names, ", "),
                                           model.modules.size() > names.size() + 1 ? ", …" : "")});
}

// By module: its outermost ancestor, or itself, that a pattern matches; -1: none.
std::vector<int64_t> units_of(const strategy::Model& model,
                              const std::vector<std::string>& patterns) {
  std::vector<int64_t> result(model.modules.size(), -1);
  for (const std::string& pattern : patterns) {
    const std::regex regex = name_pattern(pattern);
    bool any = false;
    for (size_t m = 0; m < model.modules.size(); ++m) {
      // The whole model would be one unit, which saves nothing.
      const std::string& name = model.modules[m].name;
      if (name.empty() || !std::regex_match(name, regex)) continue;
      result[m] = static_cast<int64_t>(m);
      any = true;
    }
    if (!any) refuse_pattern(pattern, model);
  }
  for (size_t m = 0; m < model.modules.size(); ++m) {  // parents come first
    const int64_t parent = model.modules[m].parent;
    if (parent >= 0 && result[static_cast<size_t>(parent)] >= 0) {
      result[m] = result[static_cast<size_t>(parent)];
    }
  }
  return result;
}

bool same(const AutocastSettings& a, const AutocastSettings& b) {
  return a.enabled == b.enabled && (!a.enabled || a.type == b.type) &&
         a.fp8_gradients == b.fp8_gradients;
}

}  // namespace

ForwardRecorder& ForwardRecorder::of_this_thread() {
  static thread_local ForwardRecorder recorder;
  return recorder;
}

void ForwardRecorder::watch(const strategy::Model& model,
                            const std::vector<std::string>& patterns) {
  const std::vector<int64_t> unit_of_module = units_of(model, patterns);
  std::unordered_map<int64_t, int> numbers;  // by module
  for (const strategy::ModelParameter& parameter : model.parameters) {
    const int64_t module = unit_of_module[parameter.module];
    int unit = kNoUnit;
    if (module >= 0) {
      const auto [found, is_new] = numbers.try_emplace(module, static_cast<int>(units_.size()));
      if (is_new) units_.push_back(model.modules[static_cast<size_t>(module)].name);
      unit = found->second;
    }
    unit_of_[parameter.tensor.unsafeGetTensorImpl()] = unit;
    parameters_.push_back(parameter.tensor);
  }
  torch::autograd::set_default_engine_stub(&HookingEngine::instance);
  c10::impl::tls_set_dispatch_key_included(kRecordedKey, true);
}

void ForwardRecorder::forget_all() {
  c10::impl::tls_set_dispatch_key_included(kRecordedKey, false);
  leave();
  unit_of_.clear();
  parameters_.clear();
  units_.clear();
}

void ForwardRecorder::open(int unit) {
  close();
  open_ = std::make_shared<ForwardSegment>(units_[static_cast<size_t>(unit)]);
  unit_ = unit;
}

void ForwardRecorder::close() {
  if (open_ != nullptr) open_->close();
  leave();
}

void ForwardRecorder::leave() {
  if (open_ != nullptr) open_->let_go();
  open_.reset();
  unit_ = kNoUnit;
}

// The first parameter among the arguments shows which unit the forward is in.
void ForwardRecorder::enter(const std::vector<c10::IValue>& arguments) {
  if (!at::GradMode::is_enabled()) return;
  const int* found = nullptr;
  empty_weights::for_each_tensor(arguments, [&](empty_weights::Position, const at::Tensor& tensor) {
    if (found != nullptr) return;
    const auto unit = unit_of_.find(tensor.unsafeGetTensorImpl());
    if (unit != unit_of_.end()) found = &unit->second;
  });
  if (found != nullptr && *found == kNoUnit) return close();
  if (found != nullptr && *found != unit_) return open(*found);
  if (open_ != nullptr && !same(open_->autocast(), precision::autocast_now())) open(unit_);
}

void ForwardRecorder::call(const c10::OperatorHandle& op, std::vector<c10::IValue>& stack) {
  const auto first = stack.end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
  const std::vector<c10::IValue> arguments(first, stack.end());
  // For other devices, backward runs on LibTorch threads, so leave() was not called here.
  if (open_ != nullptr && open_->unpacked()) leave();
  enter(arguments);
  // What replaces attention or dropout is part of the call, also when that runs again.
  const tensors::ReplacedOpAgain again(tensors::is_replaced_attention(op) ||
                                       tensors::is_replaced_dropout(op));
  // A call inside a call (a custom autograd function) is part of the outer one.
  const std::shared_ptr<ForwardSegment> segment = open_;
  if (segment == nullptr || segment->in_call()) return op.callBoxed(stack);
  segment->begin_call(op, arguments);
  const auto results_from = stack.size() - arguments.size();
  try {
    op.callBoxed(stack);
  } catch (...) {
    segment->abandon_call();
    throw;
  }
  segment->end_call({stack.begin() + static_cast<std::ptrdiff_t>(results_from), stack.end()});
}

std::unique_ptr<SavedVariableHooks> ForwardRecorder::hooks() {
  if (collected_ != nullptr) return std::make_unique<CollectedActivation>(*collected_);
  if (open_ == nullptr || !open_->in_call()) return nullptr;
  return std::make_unique<SavedActivation>(open_);
}

std::vector<at::Tensor> ForwardRecorder::saved_during(const std::function<void()>& compute) {
  const c10::impl::ExcludeDispatchKeyGuard below(kRecordedKey);
  ForwardRecorder& recorder = of_this_thread();
  std::vector<at::Tensor> result;
  const auto before = std::exchange(recorder.collected_, &result);
  try {
    compute();
  } catch (...) {
    recorder.collected_ = before;
    throw;
  }
  recorder.collected_ = before;
  return result;
}

}  // namespace coupler::activations
