#include "expert_parallel/routing.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#include <numeric>

#include "tensors/group_capsule.h"
#include "tensors/tensor_ops.h"

namespace coupler::expert_parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

std::vector<int64_t> numbers_of(const at::Tensor& counts) {
  const at::Tensor here = counts.cpu().contiguous();
  const int64_t* const first = here.const_data_ptr<int64_t>();
  return {first, first + here.numel()};
}

// In elements, as the transport counts.
std::vector<uint64_t> elements_of(const std::vector<int64_t>& rows, int64_t width) {
  std::vector<uint64_t> result;
  for (const int64_t count : rows) result.push_back(static_cast<uint64_t>(count * width));
  return result;
}

at::Tensor exchanged(const at::Tensor& rows, const std::vector<int64_t>& sent,
                     const std::vector<int64_t>& received, const Group& group) {
  const at::Tensor from = rows.contiguous();
  const int64_t width = from.size(1);
  const at::Tensor to =
      from.new_empty({std::accumulate(received.begin(), received.end(), int64_t{0}), width});
  const std::vector<uint64_t> send = elements_of(sent, width), take = elements_of(received, width);
  group->run(tensors::all_to_all_v_op(from, send, to, take));
  return to;
}

struct ExchangeRows : torch::autograd::Function<ExchangeRows> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& rows,
                            const std::vector<int64_t>& sent, const std::vector<int64_t>& received,
                            const Group& group) {
    ctx->saved_data["sent"] = sent;
    ctx->saved_data["received"] = received;
    ctx->saved_data["group"] = tensors::GroupCapsule::make(group);
    return exchanged(rows, sent, received, group);
  }
  // With a graph of its own if the backward has one (create_graph).
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    return {exchange_rows(gradients[0], ctx->saved_data["received"].toIntVector(),
                          ctx->saved_data["sent"].toIntVector(),
                          tensors::GroupCapsule::in(ctx->saved_data["group"])),
            at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

Routing route(const at::Tensor& chosen, int64_t experts, int64_t capacity) {
  const at::Tensor expert_of = chosen.flatten();
  at::Tensor counts = at::bincount(expert_of, {}, experts);
  at::Tensor choices = at::argsort(expert_of, /*stable=*/true, 0);
  if (capacity < expert_of.numel()) {
    const at::Tensor first = counts.cumsum(0).sub(counts);
    const at::Tensor place = at::arange(expert_of.numel(), expert_of.options())
                                 .sub(first.index_select(0, expert_of.index_select(0, choices)));
    choices = choices.masked_select(place.lt(capacity));
    counts = counts.clamp_max(capacity);
  }
  return {.choices = choices,
          .rows = numbers_of(counts),
          .dropped = expert_of.numel() - choices.numel()};
}

Routing assume_balance(const at::Tensor& chosen, int64_t experts) {
  const int64_t choices = chosen.numel();
  Routing routing{.choices = at::argsort(chosen.flatten(), /*stable=*/true, 0), .assumed = true};
  for (int64_t e = 0; e < experts; ++e)
    routing.rows.push_back(choices / experts + (e < choices % experts ? 1 : 0));
  return routing;
}

Arrivals arrivals_of(const Routing& routing, const Group& group, const at::Tensor& like) {
  const int64_t ranks = group->size();
  const at::Tensor mine = at::tensor(routing.rows, at::kLong).view({ranks, -1});
  // [ranks, own experts]; not empty_like, which recomputed activations would call again.
  at::Tensor theirs = at::empty(mine.sizes(), mine.options());
  if (routing.assumed) {
    theirs.copy_(mine[group->rank()].expand_as(theirs));
  } else {
    group->run(tensors::all_to_all_op(mine, theirs));
  }
  const int64_t own = theirs.size(1);
  const at::Tensor expert_of =
      at::arange(own, at::kLong).repeat({ranks}).repeat_interleave(theirs.flatten());
  const at::Tensor by_expert = at::argsort(expert_of, /*stable=*/true, 0);
  return {.sent = numbers_of(mine.sum(1)),
          .received = numbers_of(theirs.sum(1)),
          .by_expert = by_expert.to(like.device()),
          .by_rank = at::argsort(by_expert).to(like.device()),
          .rows = numbers_of(theirs.sum(0))};
}

at::Tensor exchange_rows(const at::Tensor& rows, const std::vector<int64_t>& sent,
                         const std::vector<int64_t>& received, const Group& group) {
  return ExchangeRows::apply(rows, sent, received, group);
}

}  // namespace coupler::expert_parallel
