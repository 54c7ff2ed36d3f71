#include "residency/parameter_hooks.h"

#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "empty_weights/recording.h"
#include "residency/intercept.h"

namespace coupler::residency {
namespace {

using WeakParameter = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// The weak pointer keeps the parameter's address from being reused.
struct HookedParameter {
  WeakParameter parameter;
  std::vector<std::weak_ptr<ParameterHook>> hooks;

  bool in_use() const {
    return !parameter.expired() && std::any_of(hooks.begin(), hooks.end(),
                                               [](const auto& hook) { return !hook.expired(); });
  }
};

struct HookTable {
  std::shared_mutex mutex;
  std::unordered_map<const c10::TensorImpl*, HookedParameter> parameters;
  // Whether a search met one that has ended, such as a value that was watched in a first forward.
  std::atomic<bool> has_ended{false};
};
HookTable& table() {
  static auto* const kTable = new HookTable;  // models may outlive the end of main
  return *kTable;
}

std::atomic<int> hook_count{0};

using Hooks = std::vector<std::shared_ptr<ParameterHook>>;

const c10::TensorImpl* base_of(const at::Tensor& tensor) {
  return tensor.is_view() ? tensor._base().unsafeGetTensorImpl() : tensor.unsafeGetTensorImpl();
}

// Saved and recorded copies of a parameter, and views of them, are tensors of their own. Several
// parameters may share a storage, one after another.
bool shares_memory(const at::Tensor& tensor, const c10::TensorImpl& parameter) {
  if (!tensor.has_storage() || !parameter.has_storage()) return false;
  const int64_t offset = tensor.storage_offset() - parameter.storage_offset();
  return tensor.storage().unsafeGetStorageImpl() ==
             parameter.unsafe_storage().unsafeGetStorageImpl() &&
         offset >= 0 && offset < parameter.numel();
}

// Those of a tensor, added to the others if they are not among them. The table's mutex is held.
void add_hooks_of(const at::Tensor& tensor, Hooks& hooks) {
  if (!has_intercept(tensor)) return;
  const auto& parameters = table().parameters;
  auto found = parameters.find(base_of(tensor));
  if (found == parameters.end()) {
    found = std::find_if(parameters.begin(), parameters.end(), [&](const auto& entry) {
      const auto parameter = entry.second.parameter.lock();
      if (!parameter.defined()) table().has_ended.store(true, std::memory_order_relaxed);
      return parameter.defined() && shares_memory(tensor, *parameter);
    });
  }
  if (found == parameters.end()) return;
  for (const std::weak_ptr<ParameterHook>& weak : found->second.hooks) {
    auto hook = weak.lock();
    if (hook == nullptr || std::find(hooks.begin(), hooks.end(), hook) != hooks.end()) continue;
    hooks.push_back(std::move(hook));
  }
}

// The table's mutex is held, by this thread alone.
void drop_unused() {
  std::erase_if(table().parameters, [](const auto& entry) { return !entry.second.in_use(); });
  table().has_ended.store(false, std::memory_order_relaxed);
}

// From the outside to the inside.
void sort_by_place(Hooks& hooks) {
  std::stable_sort(hooks.begin(), hooks.end(),
                   [](const auto& a, const auto& b) { return a->place() < b->place(); });
}

void run_inside(const Hooks& hooks, size_t next, const c10::OperatorHandle& op,
                torch::jit::Stack& stack, const std::function<void()>& run) {
  if (next == hooks.size()) return run();
  hooks[next]->around(op, stack, [&] { run_inside(hooks, next + 1, op, stack, run); });
}

bool swapped(at::IntArrayRef a, at::IntArrayRef b) { return a[0] == b[1] && a[1] == b[0]; }

thread_local bool forward_again = false;

}  // namespace

ForwardAgain::ForwardAgain() : before_(std::exchange(forward_again, true)) {}
ForwardAgain::~ForwardAgain() { forward_again = before_; }

// LibTorch's nodes are named "MmBackward0". Those of custom functions have other names: they may be
// checkpoints, which run forward again.
bool in_backward() {
  if (forward_again) return false;
  const auto node = torch::autograd::get_current_node();
  if (node == nullptr) return false;
  const std::string name = node->name();
  return name.find("Backward") != std::string::npos && name.find("::") == std::string::npos;
}

ParameterHook::ParameterHook(HookPlace place) : place_(place) { hook_count.fetch_add(1); }
ParameterHook::~ParameterHook() { hook_count.fetch_sub(1); }

void add_hook(const at::Tensor& parameter, const std::shared_ptr<ParameterHook>& hook) {
  check_intercept();
  const std::unique_lock lock(table().mutex);
  drop_unused();
  const auto [place, is_new] = table().parameters.try_emplace(
      parameter.unsafeGetTensorImpl(),
      HookedParameter{WeakParameter(parameter.getIntrusivePtr()), {}});
  std::erase_if(place->second.hooks, [](const auto& other) { return other.expired(); });
  place->second.hooks.push_back(hook);
  put_intercept(parameter);
}

bool shows(const at::Tensor& tensor, const at::Tensor& parameter) {
  return base_of(tensor) == parameter.unsafeGetTensorImpl() ||
         shares_memory(tensor, *parameter.unsafeGetTensorImpl());
}

bool any_hooks() { return hook_count.load(std::memory_order_relaxed) != 0; }

bool has_hooks(const at::Tensor& tensor) {
  if (!any_hooks()) return false;
  Hooks hooks;
  const std::shared_lock lock(table().mutex);
  add_hooks_of(tensor, hooks);
  return !hooks.empty();
}

bool has_hooks_inside(const at::Tensor& tensor, const ParameterHook& hook) {
  Hooks hooks;
  const std::shared_lock lock(table().mutex);
  add_hooks_of(tensor, hooks);
  sort_by_place(hooks);
  return !hooks.empty() && hooks.back().get() != &hook;
}

void restore_hooks() {
  if (!any_hooks()) return;
  const std::shared_lock lock(table().mutex);
  for (const auto& [impl, entry] : table().parameters) {
    const auto parameter = entry.parameter.lock();
    if (parameter.defined()) put_intercept(at::Tensor(parameter));
  }
}

void run_with_hooks(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                    const std::function<void()>& run) {
  Hooks hooks;
  {
    const std::shared_lock lock(table().mutex);
    for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
      empty_weights::each_tensor(stack[i],
                                 [&](const at::Tensor& tensor) { add_hooks_of(tensor, hooks); });
    }
  }
  // Otherwise every operation on a copy of a parameter would pass them again.
  if (table().has_ended.load(std::memory_order_relaxed)) {
    const std::unique_lock lock(table().mutex);
    drop_unused();
  }
  sort_by_place(hooks);
  // Module::to() converts a parameter and gives the result's memory and keys to it.
  const std::string& name = op.schema().name();
  const bool converts = name == "aten::to" || name == "aten::_to_copy";
  run_inside(hooks, 0, op, stack, run);
  if (!converts || hooks.empty() || !stack.back().isTensor()) return;
  if (!has_intercept(stack.back().toTensor())) put_intercept(stack.back().toTensor());
}

std::optional<MatrixView> view_of(const at::Tensor& tensor, const at::Tensor& parameter) {
  if (!shows(tensor, parameter) || tensor.dim() != 2 || parameter.dim() != 2 ||
      tensor.storage_offset() != parameter.storage_offset()) {
    return std::nullopt;
  }
  if (tensor.sizes() == parameter.sizes() && tensor.strides() == parameter.strides()) {
    return MatrixView::kStored;
  }
  if (swapped(tensor.sizes(), parameter.sizes()) && swapped(tensor.strides(), parameter.strides()))
    return MatrixView::kTransposed;
  return std::nullopt;
}

}  // namespace coupler::residency
