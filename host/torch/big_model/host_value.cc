#include "big_model/host_value.h"

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "base/mapped_file.h"
#include "base/text.h"
#include "device/device_memory.h"
#include "tensors/safetensors.h"

namespace coupler::big_model {

// Copies from host memory to a device. For pageable memory, the driver alternates between filling
// its own buffer and sending it. With two pinned buffers of ours, one is filled while the other is
// in flight. [any-thread]; each thread has its own buffers.

namespace {

constexpr int64_t kBufferBytes = int64_t{16} << 20;

struct Buffer {
  at::Tensor pinned;
  std::optional<c10::Event> sent;  // recorded after the last copy from it
};

class Ring {
 public:
  Buffer& next(c10::Device device) {
    turn_ = (turn_ + 1) % buffers_.size();
    Buffer& buffer = buffers_[turn_];
    if (!buffer.pinned.defined()) {
      buffer.pinned = device::host_bytes(kBufferBytes, device);
      buffer.sent.emplace(device.type());
      return buffer;
    }
    buffer.sent->synchronize();
    return buffer;
  }

 private:
  std::array<Buffer, 2> buffers_;
  size_t turn_ = 0;
};

// Both contiguous, one-dimensional and of the same size; `from` is on the CPU. Once it returns,
// `from` may be changed, and `to` is valid for work issued on the thread's stream afterwards.
void staged_copy(const at::Tensor& from, const at::Tensor& to) {
  if (to.is_cpu() || !device::can_pin(to.device()) || from.is_pinned()) {
    to.copy_(from);
    return;
  }
  static thread_local Ring ring;  // a process has only one kind of accelerator
  const c10::DeviceGuard guard(to.device());
  const c10::impl::VirtualGuardImpl streams(to.device().type());
  const int64_t step = kBufferBytes / static_cast<int64_t>(from.element_size());
  for (int64_t at = 0; at < from.numel(); at += step) {
    const int64_t end = std::min(from.numel(), at + step);
    Buffer& buffer = ring.next(to.device());
    const at::Tensor staged = buffer.pinned.view(from.scalar_type()).slice(0, 0, end - at);
    staged.copy_(from.slice(0, at, end));
    to.slice(0, at, end).copy_(staged, /*non_blocking=*/true);
    buffer.sent->record(streams.getStream(to.device()));
  }
}

// In LibTorch, other bytes than 0 and 1 are neither true nor false.
void check_booleans(const weights::WeightTensor& weight, const char* bytes, size_t size) {
  const char* const wrong =
      std::find_if(bytes, bytes + size, [](char byte) { return byte != 0 && byte != 1; });
  if (wrong == bytes + size) return;
  throw Error(ErrorCode::kIo,
              fmt::format("boolean tensor '{}' contains the byte {}, which is neither 0 nor 1",
                          for_message(weight.name), static_cast<int>(static_cast<uint8_t>(*wrong))),
              {.subject = weight.name, .hint = "the checkpoint is damaged; copy it again"});
}

at::ScalarType stored_type(const weights::WeightTensor& weight) {
  return safetensors::scalar_type(weight.dtype, weight.name);
}

// In bytes of the tensor: from the first to the last element. What other ranks have in between is
// read, too: in whole pages it would be anyway.
struct ByteRange {
  uint64_t begin, end;
};
ByteRange range_of(const weights::WeightTensor& weight, int64_t begin, int64_t numel,
                   const sharding::Division& division) {
  const uint64_t element = c10::elementSize(stored_type(weight));
  if (numel == 0) return {0, 0};
  const auto bytes = [&](int64_t elements) { return static_cast<uint64_t>(elements) * element; };
  return {bytes(division.in_tensor(begin)), bytes(division.in_tensor(begin + numel - 1) + 1)};
}

}  // namespace

HostValue host_value(const at::Tensor& tensor) {
  return {tensor.detach().contiguous(), {}, nullptr};
}

HostValue host_value(const weights::WeightTensor& weight, at::ScalarType type) {
  const at::ScalarType stored = stored_type(weight);
  if (stored == at::kBool) {
    weight.read([&](const char* bytes, size_t size) { check_booleans(weight, bytes, size); });
  }
  const auto& file = weight.place.file;
  const bool empty = weight.bytes() == 0;
  const auto element = static_cast<uintptr_t>(c10::elementSize(stored));
  uint8_t* const data = file == nullptr ? nullptr : file->data() + weight.place.begin;
  const bool aligned = reinterpret_cast<uintptr_t>(data) % element == 0;
  if (stored != type || (!empty && (data == nullptr || !aligned))) return {{}, {}, &weight};
  if (empty) return {at::empty(weight.shape, type), {}, &weight};
  if (weight.verify) weight.verify();
  return {at::from_blob(
              data, weight.shape, [keep = guard_mapping(file)](void*) {}, at::TensorOptions(type)),
          weight.place, &weight};
}

void copy_value(const HostValue& value, const at::Tensor& destination, bool drop_pages) {
  const at::NoGradGuard no_grad;
  const at::Tensor flat = destination.view(-1);
  if (value.tensor.defined()) {
    staged_copy(value.tensor.view(-1), flat);
    if (drop_pages && value.place.file != nullptr)
      drop(*value.place.file, value.place.begin, value.tensor.nbytes());
    return;
  }
  const weights::WeightTensor& weight = *value.weight;
  const at::ScalarType stored = stored_type(weight);
  const auto element = static_cast<int64_t>(c10::elementSize(stored));
  const weights::FilePlace& place = weight.place;
  int64_t at = 0;
  uint64_t read = 0;
  // Chunks contain whole elements: their size is a multiple of every element size.
  weight.read([&](const char* bytes, size_t size) {
    const int64_t count = static_cast<int64_t>(size) / element;
    const at::Tensor chunk =
        at::from_blob(const_cast<char*>(bytes), {count}, at::TensorOptions(stored));
    flat.slice(0, at, at + count).copy_(chunk);
    at += count;
    read += size;
    // From the beginning, since the previous chunk may share a page with this one.
    if (drop_pages && place.file != nullptr) drop(*place.file, place.begin, read);
  });
}

void check_range(const weights::WeightTensor& weight, int64_t begin, int64_t numel,
                 const sharding::Division& division) {
  const ByteRange bytes = range_of(weight, begin, numel, division);
  const weights::FilePlace& place = weight.place;
  const bool mapped = !weight.read_range && place.file != nullptr && bytes.begin < bytes.end;
  if (mapped) populate(*place.file, place.begin + bytes.begin, bytes.end - bytes.begin);
  const bool boolean = stored_type(weight) == at::kBool;
  weights::read_range(weight, bytes.begin, bytes.end, [&](const char* chunk, size_t size) {
    if (boolean) check_booleans(weight, chunk, size);
  });
  if (mapped) drop(*place.file, place.begin + bytes.begin, bytes.end - bytes.begin);
}

void copy_range(const weights::WeightTensor& weight, int64_t begin, const at::Tensor& destination,
                const sharding::Division& division) {
  const at::NoGradGuard no_grad;
  const at::ScalarType stored = stored_type(weight);
  const auto element = static_cast<int64_t>(c10::elementSize(stored));
  const bool in_place = destination.is_contiguous();
  const at::Tensor dense =
      in_place ? destination : at::empty(destination.sizes(), destination.options());
  const at::Tensor flat = dense.dim() == 1 ? dense : dense.view(-1);
  const ByteRange bytes = range_of(weight, begin, destination.numel(), division);
  int64_t first = division.in_tensor(begin);  // of the chunk, in the whole tensor
  weights::read_range(weight, bytes.begin, bytes.end, [&](const char* chunk, size_t size) {
    const int64_t count = static_cast<int64_t>(size) / element;
    const at::Tensor values =
        at::from_blob(const_cast<char*>(chunk), {count}, at::TensorOptions(stored));
    for (int64_t at = division.next_in_tensor(first); at < first + count;) {
      const int64_t part = division.in_part(at);
      const int64_t together = division.together(part, part + first + count - at);
      flat.slice(0, part - begin, part - begin + together)
          .copy_(values.slice(0, at - first, at - first + together));
      at = division.next_in_tensor(at + together);
    }
    first += count;
  });
  if (!in_place) destination.copy_(dense);
  if (weight.place.file != nullptr && bytes.begin < bytes.end) {
    drop(*weight.place.file, weight.place.begin + bytes.begin, bytes.end - bytes.begin);
  }
}

namespace {

// Accelerators are of the kind that LibTorch sees.
c10::Device device_of(MapDevice device) {
  if (!device.is_accelerator()) return c10::kCPU;
  const auto kind = at::getAccelerator();
  const int count = kind ? at::accelerator::deviceCount() : 0;
  if (device.index() >= count) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the device map names accelerator {}, but LibTorch sees {}",
                            device.index(), count == 0 ? "none" : fmt::format("{}", count)),
                {.subject = device.to_string(),
                 .hint = "use a map for the devices of this machine, or device_map = \"auto\" with "
                         "max_memory for them"});
  }
  return {*kind, static_cast<c10::DeviceIndex>(device.index())};
}

c10::Device main_device_of(const DeviceMap& map, const PlaceRules& rules) {
  if (rules.main_device) return *rules.main_device;
  std::optional<MapDevice> lowest;
  for (const auto& [path, device] : map.entries()) {
    if (device.is_accelerator() && (!lowest || device < *lowest)) lowest = device;
  }
  return lowest ? device_of(*lowest) : c10::Device(c10::kCPU);
}

}  // namespace

std::vector<PlacedTensor> place_tensors(const strategy::Model& model, const DeviceMap& map,
                                        const PlaceRules& rules) {
  const c10::Device main = main_device_of(map, rules);
  std::vector<PlacedTensor> result;
  const auto place = [&](const std::string& name, const at::Tensor& variable, size_t module,
                         bool buffer) {
    PlacedTensor placed{.name = name, .variable = variable, .module = module, .buffer = buffer};
    placed.type = variable.scalar_type();
    if (rules.dtype && variable.is_floating_point()) placed.type = *rules.dtype;
    placed.stored_on = map.device_of(name).value_or(MapDevice::cpu());
    placed.runs_on = placed.stored_on.is_accelerator() ? device_of(placed.stored_on) : main;
    if (buffer && !rules.offload_buffers && !placed.stays()) {
      placed.stored_on = main.is_cpu() ? MapDevice::cpu() : MapDevice(main.index());
    }
    result.push_back(std::move(placed));
  };
  for (const strategy::ModelParameter& parameter : model.parameters)
    place(parameter.name, parameter.tensor, parameter.module, false);
  for (const auto& [name, buffer] : model.buffers) {
    // The module of a buffer is known only from its name.
    const auto dot = name.rfind('.');
    const std::string path = dot == std::string::npos ? "" : name.substr(0, dot);
    const auto module =
        std::find_if(model.modules.begin(), model.modules.end(),
                     [&](const strategy::ModelModule& other) { return other.name == path; });
    place(name, buffer, static_cast<size_t>(module - model.modules.begin()), true);
  }
  return result;
}

}  // namespace coupler::big_model
