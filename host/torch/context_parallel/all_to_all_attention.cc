#include "context_parallel/all_to_all_attention.h"

#include <ATen/Functions.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "tensors/group_capsule.h"
#include "tensors/tensor_ops.h"

namespace coupler::context_parallel {
namespace {

using tensors::Group;
using tensors::GroupCapsule;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// [ranks, …]: part i goes to rank i; the result's part i is from rank i.
at::Tensor all_to_all(const at::Tensor& parts, const Group& group) {
  const at::Tensor sent = parts.contiguous(), received = sent.new_empty(sent.sizes());
  group->run(tensors::all_to_all_op(sent, received));
  return received;
}

// [batch, heads, own tokens, size] -> [batch, own heads, tokens, size].
at::Tensor to_heads(const at::Tensor& x, const Group& group) {
  const at::Tensor parts = x.unflatten(1, {group->size(), -1}).transpose(0, 1);
  return all_to_all(parts, group).permute({1, 2, 0, 3, 4}).flatten(2, 3);
}
// The reverse.
at::Tensor to_tokens(const at::Tensor& x, const Group& group) {
  const at::Tensor parts = x.unflatten(2, {group->size(), -1}).permute({2, 0, 1, 3, 4});
  return all_to_all(parts, group).transpose(0, 1).flatten(1, 2);
}

// Each is the gradient of the other, which has a graph if the backward has one (create_graph).
struct Exchange : torch::autograd::Function<Exchange> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, bool heads,
                            const Group& group) {
    ctx->saved_data["heads"] = heads;
    ctx->saved_data["group"] = GroupCapsule::make(group);
    return heads ? to_heads(x, group) : to_tokens(x, group);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const Group group = GroupCapsule::in(ctx->saved_data["group"]);
    const bool heads = ctx->saved_data["heads"].toBool();
    return {Exchange::apply(gradients[0], !heads, group), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor all_to_all_attention(const at::Tensor& query, const at::Tensor& key,
                                const at::Tensor& value, bool causal, double scale,
                                const Group& group) {
  const int64_t heads = query.size(1), ranks = group->size();
  if (heads % ranks != 0) {
    fail_argument(fmt::format("attention of {} heads cannot be divided over the {} ranks of the "
                              "context group (parallel.context_method is \"all_to_all\")",
                              heads, ranks),
                  "parallel.context_method",
                  "set it to \"ring\", which does not divide heads, or choose a parallel.context "
                  "that divides them");
  }
  // Groups of query heads share a key head; a rank needs whole groups, or its own copy.
  const bool divides = key.size(1) % ranks == 0;
  const auto of_keys = [&](const at::Tensor& x) {
    return Exchange::apply(divides ? x : x.repeat_interleave(heads / x.size(1), 1), true, group);
  };
  const at::Tensor all = at::scaled_dot_product_attention(
      Exchange::apply(query, true, group), of_keys(key), of_keys(value), {}, /*dropout_p=*/0,
      causal, scale, /*enable_gqa=*/divides && heads != key.size(1));
  return Exchange::apply(all, false, group);
}

}  // namespace coupler::context_parallel
