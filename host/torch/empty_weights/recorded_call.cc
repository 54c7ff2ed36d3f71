#include "empty_weights/recorded_call.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/Allocator.h>
#include <c10/core/DefaultDtype.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "empty_weights/recording.h"

namespace coupler::empty_weights {
namespace {

using Kind = CallTensor::Kind;

// In-place operations that write every element of `self` without reading it.
bool overwrites_self(std::string_view name) {
  constexpr std::array<std::string_view, 10> kNames = {
      "aten::normal_", "aten::uniform_",   "aten::zero_",      "aten::fill_",
      "aten::copy_",   "aten::random_",    "aten::bernoulli_", "aten::exponential_",
      "aten::cauchy_", "aten::log_normal_"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

// Normalizations update their running statistics without declaring it in their schema.
bool updates_unannounced(std::string_view argument) {
  return argument == "running_mean" || argument == "running_var";
}

Kind tensor_kind(const at::Tensor& tensor) {
  if (Recording::tag_of(tensor) != nullptr) return Kind::kRecorded;
  if (tensor.is_meta()) return Kind::kUnknown;
  const bool plain = tensor.is_cpu() && tensor.layout() == c10::kStrided && tensor.has_storage();
  return plain ? Kind::kReal : Kind::kForeign;
}

bool covers_storage(const at::Tensor& tensor, const TensorGeometry& geometry) {
  return tensor.is_non_overlapping_and_dense() &&
         static_cast<size_t>(tensor.numel()) * tensor.element_size() == geometry.bytes;
}

// Keeps a constant as it is now: a later set_data on the user's handle does not change it, and
// memory that the tensor does not own (from_blob) is copied while it is known to be valid.
at::Tensor keep_constant(const at::Tensor& tensor) {
  const at::DataPtr& data = tensor.storage().data_ptr();
  const bool owned = data.get() == nullptr || data.get_context() != nullptr;
  return owned ? tensor.detach() : tensor.detach().clone();
}

}  // namespace

RecordedCall::RecordedCall(const c10::OperatorHandle& op, std::vector<c10::IValue> arguments)
    : op_(op),
      arguments_(std::move(arguments)),
      random_(op.hasTag(at::Tag::nondeterministic_seeded)) {
  const auto& schema = op.schema().arguments();
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (arguments_[i].isGenerator() || schema[i].name() == "generator") random_ = true;
    if (schema[i].name() == "device") device_ = static_cast<int>(i);
  }
  for_each_tensor(arguments_, [&](Position position, const at::Tensor& tensor) {
    const c10::AliasInfo* const alias = schema[position.index].alias_info();
    CallTensor item{.position = position,
                    .tensor = tensor,
                    .kind = tensor_kind(tensor),
                    .writes = updates_unannounced(schema[position.index].name()),
                    .announced = alias != nullptr && alias->isWrite(),
                    .geometry = {}};
    item.writes = item.writes || item.announced;
    if (item.kind == Kind::kRecorded || item.kind == Kind::kReal)
      item.geometry = geometry_of(tensor);
    if (item.kind == Kind::kRecorded) item.geometry.storage = Recording::tag_of(tensor)->id;
    tensors_.push_back(std::move(item));
  });
}

bool RecordedCall::has(Kind kind) const {
  return std::any_of(tensors_.begin(), tensors_.end(),
                     [&](const CallTensor& item) { return item.kind == kind; });
}

bool RecordedCall::writes(Kind kind) const {
  return std::any_of(tensors_.begin(), tensors_.end(),
                     [&](const CallTensor& item) { return item.kind == kind && item.writes; });
}

bool RecordedCall::returns_recorded_input() const {
  return std::any_of(tensors_.begin(), tensors_.end(), [](const CallTensor& item) {
    return item.kind == Kind::kRecorded && item.announced;
  });
}

bool RecordedCall::takes_storage() const {
  return std::any_of(arguments_.begin(), arguments_.end(),
                     [](const c10::IValue& value) { return value.isStorage(); });
}

bool RecordedCall::gives_tensors() const {
  const auto& returns = op_.schema().returns();
  return std::any_of(returns.begin(), returns.end(), [](const c10::Argument& result) {
    const auto& type = result.type();
    return type->isSubtypeOf(*c10::TensorType::get()) || type->kind() == c10::TypeKind::ListType;
  });
}

bool RecordedCall::shapes_without_values() const {
  return gives_tensors() && !op_.hasTag(at::Tag::dynamic_output_shape) &&
         !op_.hasTag(at::Tag::data_dependent_output);
}

// Rejects what a replay on the CPU with the default generator could not repeat.
void RecordedCall::require_replayable() {
  if (device_ >= 0 && arguments_[device_].isDevice()) {
    const c10::Device device = arguments_[device_].toDevice();
    if (!device.is_cpu() && !device.is_meta()) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("'{}' requests a tensor on {}, but inside coupler::EmptyWeights "
                              "tensors are made for the CPU",
                              name(), device.str()),
                  {.subject = name(),
                   .hint = "leave the device out; weights move when they are materialized"});
    }
    if (device.is_meta()) arguments_[device_] = c10::Device(c10::kCPU);
  }
  for (const c10::IValue& value : arguments_) {
    if (!value.isGenerator() || value.toGenerator() == at::detail::getDefaultCPUGenerator())
      continue;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("'{}' draws from its own generator, which coupler::EmptyWeights cannot "
                            "repeat later",
                            name()),
                {.subject = name(), .hint = "use the default generator and torch::manual_seed"});
  }
  if (has(Kind::kForeign)) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("'{}' mixes a tensor made inside coupler::EmptyWeights with one that is "
                    "not a dense CPU tensor",
                    name()),
        {.subject = name(), .hint = "move or convert that tensor before entering the scope"});
  }
}

std::vector<c10::IValue> RecordedCall::meta_arguments() {
  std::vector<c10::IValue> result = arguments_;
  for (const CallTensor& item : tensors_) {
    if (item.kind != Kind::kReal) continue;
    const c10::Storage& real = item.tensor.storage();
    auto found = std::find_if(stand_ins_.begin(), stand_ins_.end(), [&](const auto& pair) {
      return pair.first.unsafeGetStorageImpl() == real.unsafeGetStorageImpl();
    });
    if (found == stand_ins_.end()) {
      const c10::Storage meta(c10::Storage::use_byte_size_t(), item.geometry.bytes,
                              c10::GetAllocator(c10::kMeta), true);
      found = stand_ins_.insert(found, {real, meta});
    }
    const at::Tensor stand_in = tensor_on(found->second, item.geometry, c10::DispatchKey::Meta);
    if (item.tensor.unsafeGetTensorImpl()->is_wrapped_number())
      stand_in.unsafeGetTensorImpl()->set_wrapped_number(true);
    put(result, item.position, stand_in);
  }
  if (device_ < 0) return result;
  const auto& schema = op_.schema().arguments();
  for (size_t i = 0; i < result.size(); ++i) {
    if (schema[i].name() == "pin_memory") result[i] = c10::IValue();
  }
  // Without a device argument, an operation on tensors uses their device.
  if (tensors_.empty() || result[device_].isDevice()) result[device_] = c10::Device(c10::kMeta);
  return result;
}

c10::Storage RecordedCall::real_storage_of(const at::Tensor& meta) const {
  for (const auto& [real, stand_in] : stand_ins_) {
    if (meta.has_storage() && meta.storage().is_alias_of(stand_in)) return real;
  }
  return {};
}

RecordedOperation RecordedCall::operation() const {
  RecordedOperation result{.op = op_,
                           .arguments = arguments_,
                           .inputs = {},
                           .outputs = {},
                           .default_dtype = c10::typeMetaToScalarType(c10::get_default_dtype()),
                           .content = nullptr,
                           .random = random_,
                           .before = nullptr,
                           .after = nullptr};
  for (const CallTensor& item : tensors_) {
    RecordedInput input{.position = item.position,
                        .constant = {},
                        .version = 0,
                        .geometry = item.geometry,
                        .reads = true,
                        .writes = item.writes,
                        .covers = false};
    if (item.kind == Kind::kReal) {
      input.constant = keep_constant(item.tensor);
      if (!input.constant.is_inference()) input.version = input.constant._version();
    } else if (item.writes && item.position.index == 0 && item.position.element < 0 &&
               overwrites_self(name())) {
      input.reads = false;
      input.covers = covers_storage(item.tensor, item.geometry);
    }
    put(result.arguments, item.position, at::Tensor());
    result.inputs.push_back(std::move(input));
  }
  return result;
}

}  // namespace coupler::empty_weights
