#include "context_parallel/ring_attention.h"

#include <ATen/Functions.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <utility>

#include "context_parallel/block_attention.h"
#include "tensors/group_capsule.h"
#include "tensors/second_order.h"
#include "tensors/tensor_ops.h"

namespace coupler::context_parallel {
namespace {

using tensors::Group;
using tensors::GroupCapsule;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// One message to the next rank and one from the one before, both under way. If the backend cannot
// use the device's memory, operations on it complete when submitted, so every rank would wait for
// the other's message; messages then go through host memory.
class RingStep {
 public:
  RingStep(const Group& group, const at::Tensor& sent)
      : device_(sent.device()),
        sent_(group->is_on_streams() ? sent : sent.cpu()),
        received_(sent_.new_empty(sent_.sizes())) {
    const int ranks = group->size(), rank = group->rank();
    receive_ = group->submit(message(DB_RECV, received_, (rank + ranks - 1) % ranks));
    send_ = group->submit(message(DB_SEND, sent_, (rank + 1) % ranks));
  }
  at::Tensor wait() {
    receive_.wait();
    send_.wait();
    return received_.to(device_);
  }

 private:
  static db_op message(db_kind kind, const at::Tensor& tensor, int peer) {
    db_op op = tensors::broadcast_op(tensor, peer);  // takes the same arguments
    op.kind = kind;
    return op;
  }
  c10::Device device_;
  at::Tensor sent_, received_;
  comm::Work receive_, send_;
};

// Which queries of this rank see which keys of another: all; or, of a causal attention in balanced
// order, the keys' first half or the queries' second half only.
struct Visible {
  bool later_queries = false, earlier_keys = false;
};
Visible visible(bool causal, int rank, int of) {
  if (!causal || rank == of) return {};
  return {.later_queries = of > rank, .earlier_keys = of < rank};
}
at::Tensor half(const at::Tensor& tokens, bool second) {
  const int64_t size = tokens.size(2) / 2;
  return tokens.narrow(2, second ? size : 0, size);
}

// Keys and values in one message: [2, batch, tokens, heads, size]. Layers and flash attention have
// this order in memory, too.
at::Tensor pair_of(const at::Tensor& key, const at::Tensor& value) {
  return at::stack({key.transpose(1, 2), value.transpose(1, 2)});
}
at::Tensor in_pair(const at::Tensor& pair, int64_t which) {
  return pair.select(0, which).transpose(1, 2);
}

Block block_of(const at::Tensor& query, const at::Tensor& pair, Visible seen, bool causal,
               double scale) {
  const auto keys = [&](int64_t which) {
    const at::Tensor tokens = in_pair(pair, which);
    return seen.earlier_keys ? half(tokens, false) : tokens;
  };
  return {seen.later_queries ? half(query, true) : query, keys(0), keys(1), causal, scale};
}

struct RingAttention : torch::autograd::Function<RingAttention> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& query, const at::Tensor& key,
                            const at::Tensor& value, bool causal, double scale,
                            const Group& group) {
    const int ranks = group->size(), rank = group->rank();
    at::Tensor pair = pair_of(key, value);
    Attended all;
    for (int step = 0; step < ranks; ++step) {
      std::optional<RingStep> next;
      if (step + 1 < ranks) next.emplace(group, pair);
      const int of = (rank - step + ranks) % ranks;
      const Visible seen = visible(causal, rank, of);
      const Attended block = attend(block_of(query, pair, seen, causal && step == 0, scale));
      if (seen.later_queries) {
        Attended later{half(all.output, true),
                       all.log_weights.narrow(2, query.size(2) / 2, query.size(2) / 2)};
        add_block(later, block);
      } else {
        add_block(all, block);
      }
      if (next) pair = next->wait();
    }
    const at::Tensor output = all.output.to(query.scalar_type());
    ctx->save_for_backward({query, key, value, output, all.log_weights});
    ctx->saved_data["causal"] = causal;
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["group"] = GroupCapsule::make(group);
    return output;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    tensors::refuse_create_graph("ring attention", "parallel.context_method",
                                 "set parallel.context to 1 for this training");
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &query = saved[0], &output = saved[3], &log_weights = saved[4];
    const bool causal = ctx->saved_data["causal"].toBool();
    const double scale = ctx->saved_data["scale"].toDouble();
    const Group group = GroupCapsule::in(ctx->saved_data["group"]);
    const int ranks = group->size(), rank = group->rank();
    const at::ScalarType wide = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    at::Tensor pair = pair_of(saved[1], saved[2]), of_query, of_pair;
    std::optional<RingStep> sums;  // of_pair's, under way while the next block is computed
    for (int step = 0; step < ranks; ++step) {
      std::optional<RingStep> next;
      if (step + 1 < ranks) next.emplace(group, pair);
      const Visible seen = visible(causal, rank, (rank - step + ranks) % ranks);
      const auto of_queries = [&](const at::Tensor& tokens) {
        return seen.later_queries ? half(tokens, true) : tokens;
      };
      {
        const BlockGradients block = context_parallel::backward(
            block_of(query, pair, seen, causal && step == 0, scale),
            {of_queries(output), of_queries(log_weights)}, of_queries(gradients[0]));
        const auto add = [&](int64_t which, const at::Tensor& more) {
          const at::Tensor sum = in_pair(of_pair, which);
          (seen.earlier_keys ? half(sum, false) : sum).add_(more);
        };
        if (step == 0) {  // of all own tokens
          of_query = block.query.to(wide);
          of_pair = pair_of(block.key.to(wide), block.value.to(wide));
        } else {
          of_pair = sums->wait();
          sums.reset();  // and what was sent
          of_queries(of_query).add_(block.query);
          add(0, block.key);
          add(1, block.value);
        }
      }
      sums.emplace(group, std::exchange(of_pair, at::Tensor()));
      if (next) pair = next->wait();
    }
    of_pair = sums->wait();  // after the last step they are at home
    const auto narrow = [&](const at::Tensor& tensor) { return tensor.to(query.scalar_type()); };
    return {narrow(of_query),
            narrow(in_pair(of_pair, 0)),
            narrow(in_pair(of_pair, 1)),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

at::Tensor ring_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                          bool causal, double scale, const Group& group) {
  return RingAttention::apply(query, key, value, causal, scale, group);
}

}  // namespace coupler::context_parallel
