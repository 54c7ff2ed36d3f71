#include <ATen/core/grad_mode.h>
#include <coupler/detail/registered.h>
#include <coupler/error.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace coupler::detail {
namespace {

void load_tensor(const StateDict& state, const std::string& name, at::Tensor tensor) {
  const at::Tensor& saved = state.tensor(name);
  if (saved.sizes() != tensor.sizes() || saved.scalar_type() != tensor.scalar_type()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("tensor '{}' of a registered module is {} [{}], but the program's is {} [{}]",
                    name, c10::toString(saved.scalar_type()), fmt::join(saved.sizes(), ", "),
                    c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", ")),
        {.subject = name, .hint = "register the module that was saved"});
  }
  const at::NoGradGuard no_grad;
  tensor.copy_(saved);
}

}  // namespace

void save_module(const torch::nn::Module& module, StateDict& state) {
  for (const auto& item : module.named_parameters()) state.set(item.key(), item.value());
  for (const auto& item : module.named_buffers()) state.set(item.key(), item.value());
}

void load_module(torch::nn::Module& module, const StateDict& state) {
  for (auto& item : module.named_parameters()) load_tensor(state, item.key(), item.value());
  for (auto& item : module.named_buffers()) load_tensor(state, item.key(), item.value());
}

}  // namespace coupler::detail
