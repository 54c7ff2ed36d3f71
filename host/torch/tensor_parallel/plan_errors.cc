#include "tensor_parallel/plan_errors.h"

#include <coupler/error.h>
#include <fmt/format.h>

#include <utility>

#include "residency/product.h"
#include "tensors/divided_values.h"

namespace coupler::tensor_parallel {

PlanErrors::PlanErrors(std::string layer, std::string line, int ranks, int64_t outputs)
    : ParameterHook(residency::HookPlace::kModule),
      layer_(std::move(layer)),
      line_(std::move(line)),
      ranks_(ranks),
      outputs_(outputs) {}

void PlanErrors::watch(const at::Tensor& result, const std::shared_ptr<PlanErrors>& errors) {
  residency::add_hook(result, errors);
}

void PlanErrors::around(const c10::OperatorHandle& op, torch::jit::Stack& stack,
                        const std::function<void()>& run) {
  // After a layer that makes whole values again, an error is the program's own.
  if (residency::in_backward() || tensors::divided_values() == nullptr) return run();
  // Where the parts end; in place, too, as overlapped products multiply.
  const bool product =
      residency::product_of(op, stack).has_value() || op.schema().name() == "aten::addmm_";
  try {
    run();
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::AcceleratorError&) {  // the device's own, perhaps of earlier work
    throw;
  } catch (const c10::Error& error) {
    explain(op, error);
  }
  const auto& results = op.schema().returns();
  if (product || results.size() != 1 || !stack.back().isTensor()) return;
  // What is written in place is watched already, or is a buffer, which the next forward has, too.
  const c10::AliasInfo* const alias = results[0].alias_info();
  if (alias != nullptr && alias->isWrite()) return;
  const at::Tensor made = stack.back().toTensor();
  if (made.defined() && made.is_floating_point() && !residency::has_hooks(made))
    residency::add_hook(made, shared_from_this());
}

void PlanErrors::explain(const c10::OperatorHandle& op, const c10::Error& error) const {
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format("'{}' is divided over {} ranks ({}), so that each has {} of its {} outputs, but "
                  "{} fails with what was made of them: {}",
                  layer_, ranks_, line_, outputs_, outputs_ * ranks_, op.schema().name(),
                  error.what_without_backtrace()),
      {.subject = layer_,
       .hint = "a rowwise layer takes what colwise ones make; give the layer the style "
               "colwise_gather if what follows needs all of its outputs, or leave it out of the "
               "plan"});
}

}  // namespace coupler::tensor_parallel
