#include "test_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/SDPBackend.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <string_view>

namespace coupler::testing {
namespace {

constexpr c10::DeviceType kType = c10::DeviceType::PrivateUse1;
constexpr int kDevices = 2;

thread_local c10::DeviceIndex current = 0;
thread_local c10::StreamId stream = 0;
thread_local std::vector<std::string>* stream_log = nullptr;  // of streams_during

template <class... Words>
void log_stream(c10::StreamId id, const Words&... words) {
  if (stream_log == nullptr) return;
  stream_log->push_back(std::to_string(id));
  ((stream_log->back() += words), ...);
}

struct Counter {
  std::atomic<size_t> now{0}, most{0};
};
Counter counters[kDevices];
std::atomic<size_t> limit{0};

// A device address is one that the host cannot access; the contents are elsewhere.
struct Block {
  int device;
  size_t bytes, reserved;
  char* address;
  char* contents;
};
std::mutex blocks_mutex;
std::map<const char*, Block> blocks;  // by address

char* reserve(size_t bytes) {
  void* const address = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  TORCH_CHECK(address != MAP_FAILED, "no addresses are left for the test accelerator");
  return static_cast<char*>(address);
}

// Where the contents of a device address are.
void* contents_of(const void* address) {
  if (address == nullptr) return nullptr;
  const auto* const wanted = static_cast<const char*>(address);
  const std::lock_guard lock(blocks_mutex);
  auto next = blocks.upper_bound(wanted);
  const bool found = next != blocks.begin() &&
                     wanted <= std::prev(next)->second.address + std::prev(next)->second.bytes;
  TORCH_CHECK(found, "test_accelerator was given an address that is not in its memory");
  const Block& block = std::prev(next)->second;
  return block.contents + (wanted - block.address);
}

void give_back(void* address) {
  Block block{};
  {
    const std::lock_guard lock(blocks_mutex);
    const auto found = blocks.find(static_cast<const char*>(address));
    block = found->second;
    blocks.erase(found);
  }
  counters[block.device].now -= block.bytes;
  ::munmap(block.address, block.reserved);
  std::free(block.contents);
}

class Allocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const size_t in_use = counters[current].now, most_bytes = limit;
    TORCH_CHECK_WITH(OutOfMemoryError, most_bytes == 0 || in_use + bytes <= most_bytes,
                     "test_accelerator out of memory. Tried to allocate ", bytes, " bytes, ",
                     most_bytes - in_use, " bytes are free");
    const size_t page = 4096, reserved = bytes / page * page + page;
    const Block block{current, bytes, reserved, reserve(reserved),
                      static_cast<char*>(std::aligned_alloc(64, (bytes + 127) / 64 * 64))};
    {
      const std::lock_guard lock(blocks_mutex);
      blocks[block.address] = block;
    }
    Counter& counter = counters[current];
    const size_t now = counter.now += bytes;
    size_t most = counter.most;
    while (now > most && !counter.most.compare_exchange_weak(most, now)) {
    }
    return {block.address, block.address, &give_back, c10::Device(kType, current)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(contents_of(to), contents_of(from), bytes);
  }
};

class Guard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before(kType, current);
    current = device.index();
    return before;
  }
  c10::Device getDevice() const override { return {kType, current}; }
  void setDevice(c10::Device device) const override { current = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current = device.index(); }
  c10::Stream getStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, stream);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, 1);
  }
  c10::Stream exchangeStream(c10::Stream next) const override {
    const c10::Stream before = getStream(next.device());
    stream = next.id();
    return before;
  }
  void synchronizeStream(const c10::Stream&) const override {}
  // All work is done when it is issued. An event is the number of its stream plus one.
  void record(void** event, const c10::Stream& of, c10::DeviceIndex,
              c10::EventFlag) const override {
    *event = reinterpret_cast<void*>(of.id() + 1);
  }
  void block(void* event, const c10::Stream& waits) const override {
    log_stream(waits.id(), " waits for ",
               std::to_string(reinterpret_cast<c10::StreamId>(event) - 1));
  }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream& uses) const override {
    log_stream(uses.id(), " holds memory");
  }
  bool queryEvent(void*) const override { return true; }
  void synchronizeEvent(void*) const override {}
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
};

c10::Allocator* allocator() {
  static Allocator the_one;
  return &the_one;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetCPUAllocator(); }
  // Operations draw from the CPU's generator: these exist only to be saved and loaded.
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    static const std::array<at::Generator, kDevices> kGenerators = {
        at::make_generator<at::CPUGeneratorImpl>(1), at::make_generator<at::CPUGeneratorImpl>(2)};
    return kGenerators[static_cast<size_t>(index < 0 ? current : index)];
  }
};

at::Tensor empty(c10::IntArrayRef sizes, std::optional<c10::ScalarType> type,
                 std::optional<c10::Layout>, std::optional<c10::Device> device, std::optional<bool>,
                 std::optional<c10::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(kType, current)));
  return at::detail::empty_generic(sizes, allocator(),
                                   c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(type), format);
}

at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         std::optional<c10::ScalarType> type, std::optional<c10::Layout>,
                         std::optional<c10::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(kType, current)));
  return at::detail::empty_strided_generic(sizes, strides, allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                           c10::dtype_or_default(type));
}

// The same memory as a CPU tensor.
at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(contents_of(tensor.const_data_ptr()), tensor.sizes(), tensor.strides(),
                       at::TensorOptions(tensor.scalar_type()));
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  log_stream(stream, " copies");
  on_host(to).copy_(on_host(from));
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  to.resize_(from.sizes());
  return copy_from(from, to, false);
}

const at::Tensor& resize(const at::Tensor& tensor, c10::IntArrayRef sizes,
                         std::optional<c10::MemoryFormat>) {
  if (tensor.sizes() == sizes) return tensor;
  auto* const impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  const size_t bytes = at::detail::computeStorageNbytesContiguous(sizes, tensor.element_size());
  c10::StorageImpl* const storage = impl->unsafe_storage().unsafeGetStorageImpl();
  if (bytes > storage->nbytes()) {
    const c10::DeviceGuard guard(tensor.device());
    c10::DataPtr fresh = allocator()->allocate(bytes);
    if (storage->nbytes() > 0)
      std::memcpy(contents_of(fresh.get()), contents_of(storage->data()), storage->nbytes());
    storage->set_data_ptr_noswap(std::move(fresh));
    storage->set_nbytes(bytes);
  }
  return tensor;
}

// LibTorch's own convolution throws for PrivateUse1 devices.
at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight,
                       const std::optional<at::Tensor>& bias, c10::IntArrayRef stride,
                       c10::IntArrayRef padding, c10::IntArrayRef dilation, bool transposed,
                       c10::IntArrayRef output_padding, int64_t groups) {
  return at::convolution(input.cpu(), weight.cpu(), bias ? bias->cpu() : at::Tensor(), stride,
                         padding, dilation, transposed, output_padding, groups)
      .to(input.device());
}

// Like a GPU, the double computes attention without a matrix of all scores, unless gradients are
// needed.
int64_t attention_kind(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                       const std::optional<at::Tensor>&, double, bool, std::optional<double>,
                       bool grouped) {
  const bool trains = at::GradMode::is_enabled() &&
                      (query.requires_grad() || key.requires_grad() || value.requires_grad());
  return static_cast<int64_t>(trains || grouped ? at::SDPBackend::math
                                                : at::SDPBackend::overrideable);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor,
           at::Tensor, at::Tensor>
attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
          const std::optional<at::Tensor>& mask, double dropout, bool causal, bool,
          std::optional<double> scale) {
  const auto on_cpu = [](const at::Tensor& tensor) { return tensor.cpu(); };
  const at::Tensor result = at::scaled_dot_product_attention(
      on_cpu(query), on_cpu(key), on_cpu(value), mask ? std::optional(on_cpu(*mask)) : std::nullopt,
      dropout, causal, scale);
  return {result.to(query.device()), {}, {}, {}, 0, 0, {}, {}, {}};
}

void fall_back(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::native::cpu_fallback(op, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&fall_back>());
}
TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("resize_", &resize);
  library.impl("view", &at::native::view);
  library.impl("set_.source_Storage_storage_offset", &at::native::set_storage_cpu_);
  library.impl("convolution_overrideable", &convolution);
  library.impl("_scaled_dot_product_fused_attention_overrideable", &attention);
  // LibTorch 2.14's composite one fails for channels last.
  library.impl("native_group_norm", torch::CppFunction::makeFromBoxedFunction<&fall_back>());
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace
}  // namespace coupler::testing

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &coupler::testing::attention_kind)
}  // namespace at::native

namespace coupler::testing {

c10::Device test_device(int index) {
  static const bool kRegistered = [] {
    c10::register_privateuse1_backend("test_accelerator");
    c10::SetAllocator(kType, allocator());
    static Hooks hooks;
    at::RegisterPrivateUse1HooksInterface(&hooks);
    return true;
  }();
  static_cast<void>(kRegistered);
  return {kType, static_cast<c10::DeviceIndex>(index)};
}

bool register_if_chosen() {
  const char* const options = std::getenv("COUPLER_OVERRIDES");
  if (options == nullptr ||
      std::string_view(options).find("training.device=test_accelerator") == std::string_view::npos)
    return false;
  test_device(0);
  return true;
}

at::Tensor on_device(const at::Tensor& values) { return values.to(test_device(0)); }
size_t device_bytes(int index) { return counters[index].now; }
size_t most_device_bytes(int index) { return counters[index].most; }
void limit_device_bytes(size_t most) { limit = most; }
void reset_device_bytes() {
  for (Counter& counter : counters) counter.most = counter.now.load();
}

std::vector<std::string> streams_during(const std::function<void()>& action) {
  std::vector<std::string> result;
  stream_log = &result;
  action();
  stream_log = nullptr;
  return result;
}

}  // namespace coupler::testing
