#include "residency/intercept.h"

#include <ATen/Functions.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Device.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <torch/library.h>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "empty_weights/recording.h"
#include "residency/packed.h"
#include "residency/parameter_hooks.h"
#include "residency/residency.h"

namespace coupler::residency {

// CrossDeviceCall: one operation of a model spread over several devices. Moves its arguments to the
// device it runs on and marks its results, so that operations on them also come through the
// intercept, which moves their other arguments, whatever device the program has them on.
//
// Lives on the intercept's stack and works below its dispatch key; [any-thread].

namespace {

class CrossDeviceCall {
 public:
  // runs_on: the device of the parameters among the arguments; unset if none of them has one.
  // Without parameters (`only_intercepted`), the operation runs where the last one with parameters
  // did, if one of its arguments is there; otherwise where the first argument outside the CPU is.
  CrossDeviceCall(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                  std::optional<c10::Device> runs_on, bool only_intercepted);
  CrossDeviceCall(const CrossDeviceCall&) = delete;
  CrossDeviceCall& operator=(const CrossDeviceCall&) = delete;

  // Call after the operation: copies written arguments back to the program's tensors and marks
  // results for the intercept.
  void finish(const c10::OperatorHandle& op, torch::jit::Stack& stack) const;

 private:
  at::Tensor moved(const at::Tensor& tensor, bool writes);

  std::optional<c10::Device> device_;
  c10::SmallVector<std::pair<at::Tensor, at::Tensor>, 2> written_;  // the program's, and ours
};

// The device of this thread's last operation with parameters.
thread_local std::optional<c10::Device> last_device;

// The arguments of these may be on different devices.
constexpr std::array<std::string_view, 6> kBetweenDevices = {"aten::copy_", "aten::_copy_from",
                                                             "aten::to",    "aten::_to_copy",
                                                             "aten::set_",  "aten::set_data"};

bool writes_to(const c10::Argument& argument) {
  const c10::AliasInfo* const alias = argument.alias_info();
  return alias != nullptr && alias->isWrite();
}

// Null if the operation has no argument of that name.
const c10::IValue* argument_named(const char* name, const c10::OperatorHandle& op,
                                  const torch::jit::Stack& stack) {
  const auto index = op.schema().argumentIndexWithName(name);
  if (!index) return nullptr;
  return &stack[stack.size() - op.schema().arguments().size() + static_cast<size_t>(*index)];
}

bool is_between_devices(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return std::find(kBetweenDevices.begin(), kBetweenDevices.end(), name) != kBetweenDevices.end();
}

// A number on the CPU combines with tensors of any device.
bool is_number(const at::Tensor& tensor) { return tensor.dim() == 0 && tensor.is_cpu(); }

std::optional<c10::Device> device_among(const c10::OperatorHandle& op,
                                        const torch::jit::Stack& stack) {
  std::optional<c10::Device> first;
  bool at_last = false;
  for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    empty_weights::each_tensor(stack[i], [&](const at::Tensor& tensor) {
      if (is_number(tensor)) return;
      if (!first && !tensor.is_cpu()) first = tensor.device();
      at_last = at_last || tensor.device() == last_device;
    });
  }
  return at_last && !last_device->is_cpu() ? last_device : first;
}

CrossDeviceCall::CrossDeviceCall(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                                 std::optional<c10::Device> runs_on, bool only_intercepted) {
  if (runs_on) {
    last_device = device_ = runs_on;
  } else if (only_intercepted) {
    device_ = device_among(op, stack);
  }
  if (!device_ || is_between_devices(op)) return;
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  const size_t begin = stack.size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    change_tensors(stack[begin + i], [&](const at::Tensor& tensor) {
      return moved(tensor, writes_to(arguments[i]));
    });
  }
}

at::Tensor CrossDeviceCall::moved(const at::Tensor& tensor, bool writes) {
  if (tensor.device() == *device_ || is_number(tensor)) return tensor;
  at::Tensor there = tensor.to(*device_);
  if (writes) written_.emplace_back(tensor, there);
  return there;
}

void CrossDeviceCall::finish(const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
  if (!device_) return;
  for (const auto& [original, there] : written_) original.copy_(there);
  for (size_t i = stack.size() - op.schema().returns().size(); i < stack.size(); ++i) {
    for (const auto& [original, there] : written_) {
      if (stack[i].isTensor() && stack[i].toTensor().is_same(there)) stack[i] = original;
    }
    empty_weights::each_tensor(stack[i], [](const at::Tensor& tensor) {
      if (!tensor.is_cpu() && !has_intercept(tensor)) put_intercept(tensor);
    });
  }
}

constexpr c10::DispatchKey kParameterKey = c10::DispatchKey::DeferredInit;

// TensorImpl's key set is protected; a derived class may name the member.
struct KeySet : c10::TensorImpl {
  static c10::DispatchKeySet& of(c10::TensorImpl& tensor) { return tensor.*(&KeySet::key_set_); }
};

// The units that the current operation needs: few, and often the same one several times.
class Pins {
 public:
  Pins() = default;
  ~Pins() {
    for (Unit* unit : units_) Residency::unpin(*unit);
  }
  Pins(const Pins&) = delete;
  Pins& operator=(const Pins&) = delete;

  void add(const ManagedStorage& managed) {
    managed.unit->residency->use(*managed.unit);
    units_.push_back(managed.unit);
    packed_ = packed_ || managed.packed != nullptr;
  }
  bool packed() const { return packed_; }  // whether any of the parameters is
  bool empty() const { return units_.empty(); }
  // The types the operation computes in and returns: those of the first unit that sets one.
  std::optional<c10::ScalarType> compute_type() const { return first(&Unit::compute_type); }
  std::optional<c10::ScalarType> output_type() const { return first(&Unit::output_type); }
  // The device it runs on.
  std::optional<c10::Device> device() const { return first(&Unit::device); }

 private:
  template <class Value>
  std::optional<Value> first(std::optional<Value> Unit::*member) const {
    for (const Unit* unit : units_) {
      if (unit->*member) return unit->*member;
    }
    return std::nullopt;
  }
  c10::SmallVector<Unit*, 4> units_;
  bool packed_ = false;
};

[[noreturn]] void refuse_write(const c10::OperatorHandle& op, const ManagedStorage& managed) {
  if (managed.unit->placed) {
    throw Error(ErrorCode::kUsage,
                fmt::format("{} writes to parameter '{}', which was placed by a device map and is "
                            "fetched for each use: the change would be lost",
                            op.schema().name(), managed.name),
                {.subject = managed.name,
                 .hint = "change it before dispatching the model; dispatched models are for "
                         "inference"});
  }
  throw Error(
      ErrorCode::kUsage,
      fmt::format("{} writes to parameter '{}', which is gathered from its owners for each use "
                  "(unit '{}'): the change would be lost",
                  op.schema().name(), managed.name, managed.unit->name),
      {.subject = managed.name,
       .hint = "write to parameters inside coupler::summon_full_parameters(net, true), and give "
               "optimizers to accelerator.prepare"});
}

// Module::to() ends here for each parameter.
[[noreturn]] void refuse_move(const ManagedStorage& managed) {
  throw Error(ErrorCode::kUsage,
              fmt::format("parameter '{}' belongs to a model placed by a device map and cannot be "
                          "moved to another device",
                          managed.name),
              {.subject = managed.name,
               .hint = "move the model before dispatching it, or drop its handle and load it again "
                       "with another map"});
}

// Whether the operation copies its argument to a named device of another type.
bool moves_elsewhere(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                     const ManagedStorage& managed) {
  const std::string& name = op.schema().name();
  if (name != "aten::to" && name != "aten::_to_copy") return false;
  const c10::IValue* const device = argument_named("device", op, stack);
  return device != nullptr && device->isDevice() &&
         device->toDevice().type() != managed.device.type();
}

void pin_arguments(const c10::OperatorHandle& op, torch::jit::Stack& stack, Pins& pins) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  const size_t first = stack.size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    empty_weights::each_tensor(stack[first + i], [&](const at::Tensor& tensor) {
      ManagedStorage* const managed = managed_storage_of(tensor);
      if (managed == nullptr) return;
      Unit& unit = *managed->unit;
      const bool writes = writes_to(arguments[i]);
      if (writes && managed->packed != nullptr) refuse_packed(*managed, "writing to it");
      if (writes && !unit.writes_back && unit.writable.load() == 0) refuse_write(op, *managed);
      if (unit.placed && moves_elsewhere(op, stack, *managed)) refuse_move(*managed);
      pins.add(*managed);
      if (writes) unit.written.store(true);
    });
  }
}

// Casts floating-point tensors, except parameters.
void cast_tensors(c10::IValue& value, at::ScalarType type) {
  change_tensors(value, [&](const at::Tensor& tensor) {
    const bool stays = !tensor.is_floating_point() || tensor.scalar_type() == type ||
                       managed_storage_of(tensor) != nullptr;
    return stays ? tensor : tensor.to(type);
  });
}

// The type of a normalization's running statistics, if it has any. Normalizations write them
// without declaring it; they must keep their type, and parameters must be passed in that type.
std::optional<at::ScalarType> statistics_type(const c10::OperatorHandle& op,
                                              const torch::jit::Stack& stack) {
  const c10::IValue* const mean = argument_named("running_mean", op, stack);
  if (mean == nullptr || !mean->isTensor() || !mean->toTensor().defined()) return std::nullopt;
  return mean->toTensor().scalar_type();
}

void cast_parameters(const c10::OperatorHandle& op, torch::jit::Stack& stack, at::ScalarType type) {
  for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    change_tensors(stack[i], [&](const at::Tensor& tensor) {
      return managed_storage_of(tensor) != nullptr ? tensor.to(type) : tensor;
    });
  }
}

// Casts the other arguments to the type that parameters are gathered in, as if the module had been
// converted. Arguments the operation writes to stay as they are.
void cast_arguments(const c10::OperatorHandle& op, torch::jit::Stack& stack, at::ScalarType type) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  const size_t first = stack.size() - arguments.size();
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].alias_info() == nullptr) cast_tensors(stack[first + i], type);
  }
}

void cast_results(const c10::OperatorHandle& op, torch::jit::Stack& stack, at::ScalarType type) {
  const std::vector<c10::Argument>& results = op.schema().returns();
  const size_t first = stack.size() - results.size();
  for (size_t i = 0; i < results.size(); ++i) {
    c10::IValue& value = stack[first + i];
    // Views of a parameter and written arguments are not results.
    if (results[i].alias_info() == nullptr && value.isTensor()) cast_tensors(value, type);
  }
}

void run_pinned(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  Pins pins;
  pin_arguments(op, *stack, pins);
  const c10::impl::ExcludeDispatchKeyGuard below(kParameterKey);
  const CrossDeviceCall cross_device(op, *stack, pins.device(),
                                     pins.empty() && Unit::any_on_device.load());
  if (const auto type = pins.compute_type()) {
    if (const auto statistics = statistics_type(op, *stack)) {
      cast_parameters(op, *stack, *statistics);
    } else {
      cast_arguments(op, *stack, *type);
    }
  }
  if (pins.packed() && run_packed(op, *stack)) {
    cross_device.finish(op, *stack);
    return;
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kParameterKey),
                     stack);
  if (const auto type = pins.output_type()) cast_results(op, *stack, *type);
  cross_device.finish(op, *stack);
}

void run_intercepted(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                     torch::jit::Stack* stack) {
  if (!any_hooks()) return run_pinned(op, keys, stack);
  run_with_hooks(op, *stack, [&] { run_pinned(op, keys, stack); });
}

TORCH_LIBRARY_IMPL(_, DeferredInit, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_intercepted>());
}

// Counts its fills, for check_intercept.
class CountingSource : public Source {
 public:
  explicit CountingSource(int& fills) : fills_(fills) {}
  void fill(size_t, void* memory) override {
    ++fills_;
    *static_cast<float*>(memory) = 2;
  }
  void store(size_t, const void*) override {}

 private:
  int& fills_;
};

}  // namespace

ManagedStorage* managed_storage_of(const at::Tensor& tensor) {
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return impl.has_storage() ? ManagedStorage::of(*impl.unsafe_storage().unsafeGetStorageImpl())
                            : nullptr;
}

void put_intercept(const at::Tensor& parameter) {
  c10::DispatchKeySet& keys = KeySet::of(*parameter.unsafeGetTensorImpl());
  keys = keys.add(kParameterKey);
}

bool has_intercept(const at::Tensor& parameter) { return parameter.key_set().has(kParameterKey); }

at::Tensor make_managed(ManagedStorage& managed, at::IntArrayRef sizes, at::ScalarType type) {
  const c10::InferenceMode no_inference(false);
  const at::Tensor like = at::empty({0}, at::TensorOptions().dtype(type).device(managed.device));
  const size_t bytes = static_cast<size_t>(c10::multiply_integers(sizes)) * c10::elementSize(type);
  managed.storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), bytes, c10::DataPtr(nullptr, managed.device), nullptr,
      /*resizable=*/false);
  at::Tensor result = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(managed.storage),
                                                               like.key_set(), like.dtype());
  result.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return result;
}

void check_intercept() {
  static const bool kWorks = [] {
    int fills = 0;
    BufferPool pool;
    Residency residency(std::make_unique<CountingSource>(fills), pool, {});
    auto unit = std::make_unique<Unit>();
    unit->bytes = sizeof(float);
    unit->storages.push_back(std::make_unique<ManagedStorage>());
    const at::Tensor probe = make_managed(*unit->storages[0], {1}, at::kFloat);
    residency.add(std::move(unit));
    put_intercept(probe);
    const at::Tensor view = probe.view({1, 1}).detach();
    return at::add(view, 1).item<float>() == 3 && fills == 1;
  }();
  if (kWorks) return;
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("LibTorch {} does not route operations on parameters through the dispatch "
                  "key that sharding uses",
                  TORCH_VERSION),
      {.subject = "LibTorch", .hint = "use LibTorch 2.15"});
}

}  // namespace coupler::residency
