#include "activations/forward_segment.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "activations/activation_offload.h"
#include "activations/forward_recorder.h"
#include "empty_weights/recording.h"
#include "precision/precision.h"
#include "residency/parameter_hooks.h"

namespace coupler::activations {
namespace {

// The same values and version counter, without a graph. Does not dispatch an operation, so it does
// not disturb the one that runs now.
at::Tensor alias_of(const at::Tensor& tensor) {
  c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return at::Tensor(impl.shallow_copy_and_detach(impl.version_counter(),
                                                 /*allow_tensor_metadata_change=*/true));
}

const c10::StorageImpl* storage_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

bool is_same_view(const at::Tensor& a, const at::Tensor& b) {
  return storage_of(a) != nullptr && storage_of(a) == storage_of(b) &&
         a.storage_offset() == b.storage_offset() && a.scalar_type() == b.scalar_type() &&
         a.key_set() == b.key_set() && a.sizes() == b.sizes() && a.strides() == b.strides();
}

// Not memory that is filled without operations, such as by another rank, and not the next numbers
// of a program's own generator.
bool is_repeatable(const c10::OperatorHandle& op, const ForwardSegment::Stack& arguments) {
  const std::string& name = op.schema().name();
  return name != "aten::empty" && name != "aten::empty_strided" && name != "aten::new_empty" &&
         std::none_of(arguments.begin(), arguments.end(),
                      [](const c10::IValue& argument) { return argument.isGenerator(); });
}

[[noreturn]] void refuse_change(const at::Tensor& tensor, const std::string& unit) {
  throw Error(
      ErrorCode::kUsage,
      fmt::format("backward needs a tensor of shape [{}] of unit '{}' as it was in forward, "
                  "but an in-place operation has changed it since",
                  fmt::join(tensor.sizes(), ", "), unit),
      {.subject = unit, .hint = "use the operation that returns a new tensor"});
}

}  // namespace

ForwardSegment::ForwardSegment(std::string unit)
    : unit_(std::move(unit)),
      autocast_(precision::autocast_now()),
      attention_(tensors::replaced_attention()),
      tokens_(tensors::part_of_tokens()),
      divided_(tensors::divided_values()) {}

std::optional<ForwardSegment::Made> ForwardSegment::made_of(const at::Tensor& tensor) const {
  const auto found = known_.find(tensor.unsafeGetTensorImpl());
  if (found == known_.end() || calls_[found->second.made.call].once) return std::nullopt;
  return found->second.made;
}

bool ForwardSegment::is_outside(const at::Tensor& tensor) const {
  const c10::StorageImpl* const storage = storage_of(tensor);
  return storage == nullptr || outside_.contains(storage);
}

ForwardSegment::Input ForwardSegment::input_of(const at::Tensor& tensor,
                                               empty_weights::Position position) {
  Input input;
  input.position = position;
  input.requires_grad = tensor.requires_grad();
  input.made = made_of(tensor);
  if (!input.made) {
    input.outside = {.tensor = alias_of(tensor), .version = VersionMark(tensor), .away = {}};
    outside_.insert(storage_of(tensor));
  }
  return input;
}

// A result of a custom autograd function; writing to a leaf is not allowed.
bool ForwardSegment::would_be_leaf(const Input& input) const {
  return input.made && input.requires_grad && !calls_[input.made->call].grad_mode;
}

void ForwardSegment::begin_call(const c10::OperatorHandle& op, const Stack& arguments) {
  const auto& schema = op.schema().arguments();
  const bool repeatable = is_repeatable(op, arguments);
  Call& call = calls_.emplace_back(Call{.op = op,
                                        .arguments = arguments,
                                        .inputs = {},
                                        .grad_mode = at::GradMode::is_enabled(),
                                        .once = !repeatable});
  empty_weights::for_each_tensor(
      arguments, [&](empty_weights::Position position, const at::Tensor& tensor) {
        Input input = input_of(tensor, position);
        const c10::Argument& argument = schema[position.index];
        const c10::AliasInfo* const alias = argument.alias_info();
        if (alias != nullptr && alias->isWrite()) {
          if (is_outside(tensor)) call.once = true;
          // A view of it that runs again would not see what is not repeated.
          if (would_be_leaf(input) || (input.made && !repeatable)) recomputable_ = false;
        }
        input.copied = argument.name() == "running_mean" || argument.name() == "running_var";
        call.inputs.push_back(std::move(input));
      });
  // The next operation would draw the numbers that this one does not draw again.
  if (call.once && repeatable && op.hasTag(at::Tag::nondeterministic_seeded)) recomputable_ = false;
  for (const Input& input : call.inputs) put(call.arguments, input.position, at::Tensor());
  in_call_ = true;
}

void ForwardSegment::end_call(const Stack& results) {
  in_call_ = false;
  empty_weights::for_each_tensor(
      results, [&](empty_weights::Position position, const at::Tensor& tensor) {
        known_.insert_or_assign(
            tensor.unsafeGetTensorImpl(),
            Known{{calls_.size() - 1, position},
                  c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr())});
      });
}

void ForwardSegment::abandon_call() {
  in_call_ = false;
  recomputable_ = false;
}

size_t ForwardSegment::save(const at::Tensor& tensor) {
  Saved& saved = saved_.emplace_back();
  saved.kept = {.tensor = alias_of(tensor), .version = VersionMark(tensor), .away = {}};
  saved.made = made_of(tensor);
  saved.call = calls_.size() - 1;
  saved.nth = calls_.back().saves++;
  saved.sizes = tensor.sizes().vec();
  if (!saved.made) inner_.push_back(tensor);
  return saved_.size() - 1;
}

// Checked at the segment's end; value_of() detects later writes.
bool ForwardSegment::inputs_are_as_they_were() const {
  for (const Call& call : calls_) {
    if (call.once) continue;
    for (const Input& input : call.inputs) {
      if (!input.made && !input.copied && input.outside.version.changed()) return false;
    }
  }
  return true;
}

void ForwardSegment::close() {
  size_t needed = 0;  // calls
  recomputable_ = recomputable_ && inputs_are_as_they_were();
  for (Saved& saved : saved_) {
    if (!recomputable_ || is_outside(saved.kept.tensor)) continue;
    if (calls_[saved.place()].once) continue;
    // A changed tensor is kept so that backward reports the change.
    if (saved.kept.version.changed()) continue;
    saved.kept.tensor.reset();
    needed = std::max(needed, saved.place() + 1);
  }
  calls_.erase(calls_.begin() + static_cast<std::ptrdiff_t>(needed), calls_.end());
  known_.clear();
  outside_.clear();
  let_go();
  if (ActivationOffload::of_process().is_default()) offload();
}

void ForwardSegment::offload() {
  for (Call& call : calls_) {
    if (call.once) call.inputs.clear();  // it does not run again
    for (Input& input : call.inputs) {
      if (!input.copied) offload(input.outside);
    }
  }
  for (Saved& saved : saved_) offload(saved.kept);
}

void ForwardSegment::offload(Kept& kept) {
  if (kept.version.changed() || !ActivationOffload::of_process().moves(kept.tensor)) return;
  if (offloaded_ == nullptr) offloaded_ = OffloadedTensors::make();
  kept.away = offloaded_->add(kept.tensor);
  kept.tensor.reset();
}

at::Tensor ForwardSegment::unpack(size_t number) {
  let_go();  // a backward on another thread has not left its segment
  Saved& saved = saved_.at(number);
  if (offloaded_ != nullptr && back_.empty()) back_ = offloaded_->bring_back();
  at::Tensor result;
  if (saved.kept.there()) {
    result = value_of(saved.kept);
  } else {
    if (!saved.again.defined()) recompute();
    result = std::exchange(saved.again, {});
  }
  // If the graph is retained, another backward brings them back again.
  if (++unpacked_ % saved_.size() == 0) back_.clear();
  return result;
}

at::Tensor ForwardSegment::value_of(const Kept& kept) const {
  at::Tensor tensor = kept.away ? back_[*kept.away] : kept.tensor;
  if (kept.version.changed()) refuse_change(tensor, unit_);
  return tensor;
}

at::Tensor ForwardSegment::value_of(const Input& input, const std::vector<Stack>& results,
                                    std::vector<at::Tensor>& aliases) const {
  at::Tensor value =
      input.made ? get(results[input.made->call], input.made->position) : value_of(input.outside);
  if (input.copied && !input.made) return value.clone();
  // A result of a custom autograd function gets its graph from that function.
  if (value.requires_grad() == input.requires_grad) return value;
  // One for all calls, by which layers know that they have the same input.
  for (const at::Tensor& known : aliases) {
    if (known.requires_grad() == input.requires_grad && is_same_view(known, value)) return known;
  }
  at::Tensor alias = alias_of(value);
  alias.set_requires_grad(input.requires_grad);
  aliases.push_back(alias);
  return alias;
}

void ForwardSegment::refuse_difference(const std::string& difference) const {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("the operations of unit '{}' give different results when they run again "
                          "in backward: {}",
                          unit_, difference),
              {.subject = unit_, .hint = "leave the unit out of memory.activation_checkpointing"});
}

void ForwardSegment::take_recomputed(Saved& saved, const at::Tensor& tensor) const {
  if (tensor.sizes() != saved.sizes) {
    refuse_difference(fmt::format("a tensor of shape [{}] instead of [{}]",
                                  fmt::join(tensor.sizes(), ", "), fmt::join(saved.sizes, ", ")));
  }
  saved.again = alias_of(tensor);
}

void ForwardSegment::recompute() {
  const residency::ForwardAgain forward;
  const RandomGuard after;
  random_.restore();
  const AutocastScope autocast(autocast_);
  const tensors::AttentionScope attention(attention_);
  const tensors::PartOfTokensScope tokens(tokens_);
  const tensors::DividedValuesScope divided(divided_);
  std::vector<Stack> results(calls_.size());
  std::vector<at::Tensor> aliases, inner;  // inner: as in forward
  for (size_t i = 0; i < calls_.size(); ++i) {
    const Call& call = calls_[i];
    if (call.once) continue;
    Stack stack = call.arguments;
    for (const Input& input : call.inputs) {
      put(stack, input.position, value_of(input, results, aliases));
    }
    const at::AutoGradMode mode(call.grad_mode);
    const std::vector<at::Tensor> saves =
        ForwardRecorder::saved_during([&] { call.op.callBoxed(stack); });
    if (saves.size() != call.saves) {
      refuse_difference(fmt::format("{} saves {} tensors instead of {}", call.op.schema().name(),
                                    saves.size(), call.saves));
    }
    for (Saved& saved : saved_) {
      if (!saved.kept.there() && !saved.made && saved.call == i) {
        take_recomputed(saved, saves[saved.nth]);
      }
    }
    inner.insert(inner.end(), saves.begin(), saves.end());
    results[i] = std::move(stack);
  }
  for (Saved& saved : saved_) {
    if (saved.kept.there() || !saved.made) continue;
    take_recomputed(saved, get(results[saved.made->call], saved.made->position));
  }
}

}  // namespace coupler::activations
