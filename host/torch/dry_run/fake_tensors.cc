#include "dry_run/fake_tensors.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/CPUAllocator.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "dry_run/fake_shapes.h"
#include "empty_weights/recording.h"

namespace coupler::dry_run {
namespace {

using Stack = std::vector<c10::IValue>;
constexpr c10::DispatchKey kKey = c10::DispatchKey::Fake;

struct State {
  FakeObserver* observer;
  std::thread::id thread;
  uint64_t last = 0;                                            // number of a storage
  std::unordered_map<const c10::StorageImpl*, uint64_t> alive;  // fake storages
};
State* state = nullptr;  // null: there is no dry run

struct Memory {  // the context of a fake storage's data pointer, which is null
  const c10::StorageImpl* storage;
  uint64_t number;
};

void release(void* context) {
  const std::unique_ptr<Memory> memory(static_cast<Memory*>(context));
  state->alive.erase(memory->storage);
  state->observer->gone(memory->number);
}

void give_fake_memory(c10::StorageImpl& storage, size_t bytes) {
  auto memory = std::make_unique<Memory>(Memory{&storage, ++state->last});
  const uint64_t number = memory->number;
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, memory.release(), &release, at::kCPU));
  storage.set_nbytes(bytes);
  state->alive[&storage] = number;
  state->observer->made(number, bytes);
}

c10::Storage make_fake_storage(size_t bytes) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, c10::DataPtr(nullptr, at::kCPU),
                       c10::GetCPUAllocator(), /*resizable=*/true);
  give_fake_memory(*storage.unsafeGetStorageImpl(), bytes);
  return storage;
}

const c10::StorageImpl* storage_or_null(const at::Tensor& tensor) {
  return tensor.has_storage()
             ? tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl()
             : nullptr;
}

bool is_fake(const at::Tensor& tensor) { return state->alive.contains(storage_or_null(tensor)); }

[[noreturn]] void refuse_in_dry_run(const c10::OperatorHandle& op, const std::string& why) {
  throw Error(ErrorCode::kUnsupported, fmt::format("dry run: {} {}", op.schema().name(), why),
              {.subject = op.schema().name(),
               .hint = "skip it while COUPLER_ESTIMATE is set, or estimate from the model's "
                       "checkpoint or config.json"});
}

// The value assumed for an unknown one.
c10::Scalar placeholder_value(at::ScalarType type) {
  if (type == at::kBool) return false;
  return c10::isIntegralType(type, false) ? c10::Scalar(0) : c10::Scalar(1.0);
}

// One operation with fake tensors among its arguments, run on meta.
class Call {
 public:
  Call(const c10::OperatorHandle& op, const Stack& stack)
      : op_(op),
        arguments_(stack.end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size()),
                   stack.end()) {}

  const std::string& name() const { return op_.schema().name(); }
  bool has_fake() const {
    bool any = false;
    empty_weights::for_each_tensor(
        arguments_, [&](empty_weights::Position, const at::Tensor& t) { any |= is_fake(t); });
    return any;
  }
  void note_uses() const {
    empty_weights::for_each_tensor(
        arguments_, [](empty_weights::Position, const at::Tensor& t) { state->observer->used(t); });
  }
  // Whether every result is one of the arguments, or there are none.
  bool only_writes() const {
    for (const c10::Argument& result : op_.schema().returns()) {
      if (result.alias_info() == nullptr || !result.alias_info()->isWrite()) return false;
    }
    return true;
  }
  // Whether it resizes its output arguments to the sizes of its results.
  bool resizes() const {
    const auto& arguments = op_.schema().arguments();
    return std::any_of(arguments.begin(), arguments.end(),
                       [](const c10::Argument& argument) { return argument.is_out(); });
  }
  bool views() const {
    for (const c10::Argument& result : op_.schema().returns()) {
      if (result.alias_info() != nullptr && !result.alias_info()->isWrite()) return true;
    }
    return false;
  }
  bool has_kernel(c10::DispatchKey key) const { return op_.hasKernelForDispatchKey(key); }

  void run_on_meta(Stack& results) {
    results = twins();
    op_.callBoxed(results);
    take(results);
  }
  void run(ShapeFunction shapes, Stack& results) {
    results = shapes(twins());
    take(results);
  }
  // If only the kernel itself knows the shapes.
  void run_on_zeros(Stack& results) {
    results = arguments_;
    const auto& schema = op_.schema().arguments();
    empty_weights::for_each_tensor(
        arguments_, [&](empty_weights::Position position, const at::Tensor& tensor) {
          if (!is_fake(tensor) && !schema[position.index].is_out()) return;
          auto& [known, zeros] = twins_[tensor.unsafeGetTensorImpl()];
          if (!zeros.defined()) {
            zeros = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options()).zero_();
            known = tensor;
          }
          put(results, position, zeros);
        });
    try {
      op_.callBoxed(results);
    } catch (const c10::Error& error) {
      refuse_in_dry_run(
          op_, fmt::format("cannot run without values: {}", error.what_without_backtrace()));
    }
    take(results);
  }
  // Returns arguments, which the operation wrote to, as the results that alias them.
  void give_arguments(Stack& results) const {
    results.clear();
    for (const c10::Argument& result : op_.schema().returns()) {
      results.push_back(aliased(result));
      if (results.back().isTensor()) discard_values(results.back().toTensor());
    }
  }

 private:
  // A copy of a fake tensor into new memory, as by clone() and to(), is fake. Anything else that is
  // written to a real storage gets harmless values: it may be new memory that nothing else fills.
  // Larger ones are the program's own, which have values.
  void discard_values(const at::Tensor& into) const {
    if (!into.has_storage() || is_fake(into)) return;
    c10::StorageImpl& storage = *into.storage().unsafeGetStorageImpl();
    const bool copies = name() == "aten::copy_";
    if (copies && into.nbytes() == storage.nbytes()) {
      give_fake_memory(storage, storage.nbytes());
    } else if (copies || storage.nbytes() <= kRealBytes) {
      into.fill_(placeholder_value(into.scalar_type()));
    }
  }
  // The arguments with the same geometry on meta; tensors that share memory share it there, too.
  Stack twins() {
    Stack result = arguments_;
    const auto& schema = op_.schema().arguments();
    empty_weights::for_each_tensor(arguments_,
                                   [&](empty_weights::Position position, const at::Tensor& tensor) {
                                     put(result, position, tensor_twin(tensor));
                                   });
    for (size_t i = 0; i < schema.size(); ++i) {
      const bool optional_device = result[i].isNone() && schema[i].name() == "device";
      if (result[i].isDevice() || optional_device) result[i] = c10::Device(at::kMeta);
    }
    return result;
  }
  at::Tensor tensor_twin(const at::Tensor& tensor) {
    const auto [known, is_new] = twins_.try_emplace(tensor.unsafeGetTensorImpl());
    if (!is_new) return known->second.twin;
    const auto [storage, fresh] = storages_.try_emplace(storage_or_null(tensor));
    if (fresh) {
      storage->second = c10::Storage(c10::Storage::use_byte_size_t(),
                                     tensor.unsafeGetTensorImpl()->unsafe_storage().nbytes(),
                                     c10::GetAllocator(at::kMeta), /*resizable=*/true);
    }
    known->second = {tensor,
                     empty_weights::tensor_on(storage->second, empty_weights::geometry_of(tensor),
                                              c10::DispatchKey::Meta)};
    return known->second.twin;
  }

  const c10::IValue& aliased(const c10::Argument& result) const {
    const auto& schema = op_.schema().arguments();
    for (size_t i = 0; i < schema.size(); ++i) {
      if (schema[i].alias_info() == nullptr || result.alias_info() == nullptr) continue;
      if (schema[i].alias_info()->beforeSets() == result.alias_info()->beforeSets()) {
        return arguments_[i];
      }
    }
    return arguments_.at(0);
  }

  // Turns results on meta (or real ones, computed from zeros) into fake ones, and resizes arguments
  // accordingly.
  void take(Stack& results) {
    for (auto& [impl, pair] : twins_) follow(pair.tensor, pair.twin);
    if (!op_.schema().returns().empty() && only_writes()) return give_arguments(results);
    const Stack made = results;
    std::unordered_map<const c10::StorageImpl*, c10::Storage> fakes;
    empty_weights::for_each_tensor(made, [&](empty_weights::Position position,
                                             const at::Tensor& tensor) {
      for (const auto& [impl, pair] : twins_) {
        if (pair.twin.is_same(tensor)) return put(results, position, pair.tensor);
      }
      const empty_weights::TensorGeometry place = empty_weights::geometry_of(tensor);
      for (const auto& [impl, pair] : twins_) {
        if (storage_or_null(pair.twin) != storage_or_null(tensor)) continue;
        return put(results, position,
                   empty_weights::tensor_on(pair.tensor.storage(), place, c10::DispatchKey::CPU));
      }
      auto [storage, fresh] = fakes.try_emplace(storage_or_null(tensor));
      if (fresh) storage->second = make_fake_storage(place.bytes);
      put(results, position,
          empty_weights::tensor_on(storage->second, place, c10::DispatchKey::CPU));
    });
  }
  static void follow(const at::Tensor& tensor, const at::Tensor& twin) {
    if (tensor.sizes() == twin.sizes() && tensor.strides() == twin.strides()) return;
    c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
    if (storage.nbytes() < twin.storage().nbytes()) {
      give_fake_memory(storage, twin.storage().nbytes());
    }
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(twin.sizes(), twin.strides());
  }

  struct Pair {
    at::Tensor tensor, twin;
  };
  const c10::OperatorHandle& op_;
  const Stack arguments_;
  std::unordered_map<const c10::TensorImpl*, Pair> twins_;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages_;
};

// Operations on geometry only, possibly in place: run unchanged.
bool reads_no_values(const std::string& name) {
  static const std::unordered_set<std::string> kNames = {
      "aten::as_strided_",    "aten::squeeze_",
      "aten::unsqueeze_",     "aten::t_",
      "aten::transpose_",     "aten::set_",
      "aten::detach_",        "aten::swapdims_",
      "aten::swapaxes_",      "aten::_fused_sdp_choice",
      "aten::is_pinned",      "aten::is_set_to",
      "aten::requires_grad_", "aten::_nnpack_available",
  };
  return kNames.count(name) != 0;
}

// Whether it makes a large new tensor, other than on meta.
bool allocates_large(const c10::OperatorHandle& op, const Stack& stack) {
  if (op.schema().name() != "aten::empty" && op.schema().name() != "aten::empty_strided") {
    return false;
  }
  const auto& arguments = op.schema().arguments();
  const size_t first = stack.size() - arguments.size();
  uint64_t elements = 1;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = stack[first + i];
    if (arguments[i].name() == "device" && value.isDevice() && !value.toDevice().is_cpu()) {
      return false;
    }
    if (arguments[i].name() != "size") continue;
    for (const int64_t size : value.toIntVector()) elements *= static_cast<uint64_t>(size);
  }
  return elements * 4 > kRealBytes;
}

void replace(const c10::OperatorHandle& op, Stack& stack, Stack results) {
  stack.erase(stack.end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size()),
              stack.end());
  for (c10::IValue& value : results) stack.push_back(std::move(value));
}

void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto go_on = [&] {
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
  };
  const auto run_for_real = [&] {
    const c10::impl::ExcludeDispatchKeyGuard off(kKey);
    go_on();
  };
  if (std::this_thread::get_id() != state->thread) return run_for_real();
  Call call(op, *stack);
  call.note_uses();
  const bool kernel = call.has_kernel(c10::DispatchKey::CPU);
  const bool copies = call.name() == "aten::copy_";
  if (!call.has_fake() && !allocates_large(op, *stack)) {
    return kernel || copies ? run_for_real() : go_on();
  }
  if (reads_no_values(call.name()) || (kernel && call.views())) return run_for_real();
  if (needs_values(call.name())) {
    refuse_in_dry_run(op,
                      "has results whose size depends on values, which a dry run does not have");
  }
  const ShapeFunction shapes = shape_function(call.name());
  const bool asks_value = call.name() == "aten::_local_scalar_dense";
  // Composed of other operations, which are intercepted in turn.
  if (!kernel && !copies && !asks_value && shapes == nullptr && call.name() != "aten::equal") {
    return go_on();
  }
  const c10::impl::ExcludeDispatchKeyGuard off(kKey);
  const at::AutoDispatchBelowAutograd below_autograd;
  Stack results;
  if (asks_value) {
    results = {placeholder_value(empty_weights::get(*stack, {stack->size() - 1}).scalar_type())};
  } else if (call.name() == "aten::equal") {
    results = {true};
  } else if (copies) {
    call.give_arguments(results);
  } else if (shapes != nullptr) {
    call.run(shapes, results);
  } else if (call.has_kernel(c10::DispatchKey::Meta)) {
    call.run_on_meta(results);
  } else if (call.only_writes() && !call.resizes()) {
    call.give_arguments(results);
  } else {
    call.run_on_zeros(results);
  }
  replace(op, *stack, std::move(results));
}

}  // namespace

void begin_fake_tensors(FakeObserver& observer) {
  state = new State{&observer, std::this_thread::get_id(), 0, {}};
  // Never destroyed. Not registered at load time, since only a dry run needs the key.
  auto* const library = new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  library->fallback(torch::CppFunction::makeFromBoxedFunction<&intercept>());
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

RealTensors::RealTensors() : before_(c10::impl::tls_is_dispatch_key_included(kKey)) {
  if (before_) c10::impl::tls_set_dispatch_key_included(kKey, false);
}

RealTensors::~RealTensors() {
  if (before_) c10::impl::tls_set_dispatch_key_included(kKey, true);
}

at::Tensor fake_like(const at::Tensor& tensor) {
  empty_weights::TensorGeometry place = empty_weights::geometry_of(tensor);
  return empty_weights::tensor_on(make_fake_storage(place.bytes), place, c10::DispatchKey::CPU);
}

uint64_t fake_storage_of(const at::Tensor& tensor) {
  const auto found = state->alive.find(storage_or_null(tensor));
  return found == state->alive.end() ? 0 : found->second;
}

}  // namespace coupler::dry_run
