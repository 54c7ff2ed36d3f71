#include "tensor_parallel/exchange.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <array>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tensors/group_capsule.h"
#include "tensors/replaced_dropout.h"
#include "tensors/second_order.h"
#include "tensors/tensor_ops.h"

namespace coupler::tensor_parallel {

void refuse_create_graph() {
  tensors::refuse_create_graph(
      "a layer that is divided over a tensor group", "parallel.tensor",
      "set parallel.tensor to 1 for this training, or leave the layer out of the plan");
}

namespace {

using tensors::GroupCapsule;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

WeakTensor weak(const at::Tensor& tensor) { return WeakTensor(tensor.getIntrusivePtr()); }
WeakTensor none() {
  return WeakTensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>());
}

// An input of divided layers, and what its first layer made of it. Kept alive by what these layers
// save for backward.
struct SharedInput {
  WeakTensor given = none(), shared = none();
  int64_t version = 0;  // of the values that were given
  c10::weak_intrusive_ptr<InputGradient> gradient{InputGradientPtr()};
};
// The last two on this thread: a layer's own, and that of its LoRA product.
thread_local std::array<SharedInput, 2> last_inputs;
thread_local size_t older_input = 0;

LayerInput taken(const LayerInput& input) {
  if (input.gradient) input.gradient->take();
  return input;
}

// What layers that get the same x, which requires a gradient, share.
LayerInput shared_input(const at::Tensor& x, at::ScalarType type,
                        const std::function<LayerInput()>& make) {
  for (size_t i = 0; i < last_inputs.size(); ++i) {
    const SharedInput& last = last_inputs[i];
    if (last.given.lock().get() != x.unsafeGetTensorImpl() || last.version != x._version())
      continue;
    auto known = last.shared.lock();
    if (!known.defined()) continue;
    at::Tensor shared(std::move(known));
    if (shared.scalar_type() != type) continue;
    older_input = 1 - i;
    return taken({shared, last.gradient.lock()});
  }
  const LayerInput made = make();
  last_inputs[older_input] = {weak(x), weak(made.values), x._version(),
                              c10::weak_intrusive_ptr<InputGradient>(made.gradient)};
  older_input = 1 - older_input;
  return taken(made);
}

at::Tensor summed(const at::Tensor& gradient, const Group& group) {
  refuse_create_graph();
  // The layers computed it for this input alone, so it may be overwritten.
  const at::Tensor values = gradient.contiguous();
  group->run(tensors::all_reduce_op(values, DB_SUM));
  return values;
}

// How the tokens of a sequence go from rank to rank.
enum class TokenMove : int64_t { kGather, kReduceScatter, kOwn };

at::Tensor moved(const at::Tensor& x, int64_t dim, TokenMove move, const Group& group) {
  const int64_t ranks = group->size();
  if (move == TokenMove::kOwn) {
    const int64_t part = x.size(dim) / ranks;
    return x.narrow(dim, part * group->rank(), part).clone(at::MemoryFormat::Contiguous);
  }
  if (move == TokenMove::kGather) {
    const at::Tensor mine = x.contiguous();
    std::vector<int64_t> sizes = mine.sizes().vec();
    sizes[static_cast<size_t>(dim)] *= ranks;
    const at::Tensor whole = mine.new_empty(sizes);
    const at::Tensor parts = by_rank(whole, dim, group);
    // Of one sequence, or with the tokens first, the parts arrive in their place.
    const at::Tensor arrived = parts.is_contiguous() ? parts : mine.new_empty(parts.sizes());
    group->run(tensors::all_gather_op(mine, arrived));
    if (!arrived.is_same(parts)) parts.copy_(arrived);
    return whole;
  }
  const at::Tensor parts = by_rank(x, dim, group).contiguous();
  const at::Tensor own = parts.new_empty(parts.sizes().slice(1));
  group->run(tensors::reduce_scatter_op(parts, own, DB_SUM));
  return own;
}

struct TokensMoved : torch::autograd::Function<TokensMoved> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, int64_t dim,
                            TokenMove forward_move, TokenMove backward_move, const Group& group) {
    ctx->saved_data["dim"] = dim;
    ctx->saved_data["move"] = static_cast<int64_t>(backward_move);
    ctx->saved_data["group"] = GroupCapsule::make(group);
    return moved(x, dim, forward_move, group);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    refuse_create_graph();
    const auto move = static_cast<TokenMove>(ctx->saved_data["move"].toInt());
    const at::Tensor result = moved(gradients[0], ctx->saved_data["dim"].toInt(), move,
                                    GroupCapsule::in(ctx->saved_data["group"]));
    return {result, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// An input that is given as it is. Not as a view of it: views of a view keep only its base alive,
// so that layers which reshape their input would not keep what later ones share.
struct SummedInput : torch::autograd::Function<SummedInput> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Group& group) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["group"] = GroupCapsule::make(group);
    return x.tensor_data();
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const at::Tensor& gradient = gradients[0];
    if (!gradient.defined()) return {at::Tensor(), at::Tensor()};
    return {summed(gradient, GroupCapsule::in(ctx->saved_data["group"])), at::Tensor()};
  }
};

// An input that is given as it is, or whose tokens are gathered; its layers give their parts of the
// gradient away.
struct OverlappedInput : torch::autograd::Function<OverlappedInput> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x,
                            const std::shared_ptr<ArrivingTokens>& arriving,
                            const InputGradientPtr& gradient) {
    ctx->set_materialize_grads(false);
    ctx->saved_data["gradient"] = c10::IValue::make_capsule(gradient);
    return arriving == nullptr ? x : arriving->whole();
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    refuse_create_graph();
    const auto gradient = ctx->saved_data["gradient"].toCapsule();
    const at::Tensor sum = static_cast<InputGradient&>(*gradient).finish(gradients[0]);
    return {sum, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor begin_of_parts(const at::Tensor& made, int64_t dim, const Group& group) {
  if (made.dim() != 3) return made;  // positions, which have no batch
  const tensors::PartOfTokens part{made.size(dim), dim, group->rank(), group->size()};
  const auto known = tensors::part_of_tokens();
  if (known == nullptr || *known != part)
    tensors::set_part_of_tokens(std::make_shared<const tensors::PartOfTokens>(part));
  return made;
}

at::Tensor all_tokens(const at::Tensor& own, int64_t dim, const Group& group) {
  return moved(own, dim, TokenMove::kGather, group);
}

void LayerInput::complete() {
  if (arriving != nullptr) std::exchange(arriving, nullptr)->finish();
}

LayerInput input_for_overlap(const at::Tensor& x, at::ScalarType type, std::optional<int64_t> dim,
                             int64_t chunks, const Group& group) {
  if (!at::GradMode::is_enabled() || !x.requires_grad())
    return {dim ? gather_for_layers(x, type, *dim, group) : x.to(type)};
  return shared_input(x, type, [&] {
    const auto gradient = c10::make_intrusive<InputGradient>(group, dim);
    const at::Tensor own = x.to(type);
    std::shared_ptr<ArrivingTokens> arriving;
    if (dim) arriving = std::make_shared<ArrivingTokens>(own, *dim, chunks, group);
    return LayerInput{OverlappedInput::apply(own, arriving, gradient), gradient, arriving};
  });
}

void end_of_parts() { tensors::set_part_of_tokens(nullptr); }

at::Tensor sum_gradient(const at::Tensor& x, at::ScalarType type, const Group& group) {
  if (!at::GradMode::is_enabled() || !x.requires_grad()) return x.to(type);
  return shared_input(x, type, [&] { return LayerInput{SummedInput::apply(x.to(type), group)}; })
      .values;
}

at::Tensor sum_gradient_of_result(const at::Tensor& result, const Group& group) {
  if (!at::GradMode::is_enabled() || !result.requires_grad()) return result;
  const at::Tensor alias = result.view_as(result);
  alias.register_hook([group](const at::Tensor& gradient) {
    return summed(gradient.clone(at::MemoryFormat::Contiguous), group);
  });
  return alias;
}

void sum_values(const at::Tensor& values, const Group& group) {
  const at::NoGradGuard no_grad;
  const at::Tensor plain = values.detach();
  if (plain.is_contiguous()) {
    group->run(tensors::all_reduce_op(plain, DB_SUM));
    return;
  }
  const at::Tensor dense = plain.contiguous();
  group->run(tensors::all_reduce_op(dense, DB_SUM));
  plain.copy_(dense);
}

at::Tensor gather_last(const at::Tensor& own, const Group& group) {
  std::vector<at::Tensor> parts;
  {
    const at::NoGradGuard no_grad;
    const at::Tensor mine = own.detach().contiguous();
    std::vector<int64_t> sizes = mine.sizes().vec();
    sizes.insert(sizes.begin(), group->size());
    const at::Tensor all = mine.new_empty(sizes);
    group->run(tensors::all_gather_op(mine, all));
    parts = all.unbind();
  }
  parts[static_cast<size_t>(group->rank())] = own;  // the only one with a gradient
  return at::cat(parts, -1);
}

at::Tensor part_of_last(const at::Tensor& x, const Group& group) {
  const int64_t part = x.size(-1) / group->size();
  return x.narrow(-1, part * group->rank(), part);
}

at::Tensor gather_for_layers(const at::Tensor& x, at::ScalarType type, int64_t dim,
                             const Group& group) {
  const auto gathered = [&] {
    return LayerInput{
        TokensMoved::apply(x.to(type), dim, TokenMove::kGather, TokenMove::kReduceScatter, group)};
  };
  const bool trains = at::GradMode::is_enabled() && x.requires_grad();
  return (trains ? shared_input(x, type, gathered) : gathered()).values;
}

at::Tensor gather_tokens(const at::Tensor& x, int64_t dim, const Group& group) {
  end_of_parts();
  return TokensMoved::apply(x, dim, TokenMove::kGather, TokenMove::kOwn, group);
}

at::Tensor own_tokens_of_sum(const at::Tensor& summand, int64_t dim, const Group& group) {
  return begin_of_parts(
      TokensMoved::apply(summand, dim, TokenMove::kReduceScatter, TokenMove::kGather, group), dim,
      group);
}

at::Tensor own_tokens(const at::Tensor& x, int64_t dim, const Group& group) {
  return begin_of_parts(TokensMoved::apply(x, dim, TokenMove::kOwn, TokenMove::kGather, group), dim,
                        group);
}

}  // namespace coupler::tensor_parallel
