#include "tensor_parallel/overlapped_product.h"

#include <ATen/Functions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "residency/intercept.h"
#include "tensor_parallel/exchange.h"
#include "tensors/group_capsule.h"

namespace coupler::tensor_parallel {
namespace {

using tensors::GroupCapsule;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

// A product of matrices, into the result's memory; in place, since an operation that makes its
// result would go through the hooks of the weight again.
void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& into, double keep = 0) {
  into.addmm_(a, b, /*beta=*/keep);
}

// The weight in a product's type, transposed if it is turned.
at::Tensor matrix_of(const at::Tensor& matrix, at::ScalarType type, bool turn) {
  const at::Tensor converted = matrix.to(type);
  return turn ? converted.t() : converted;
}

// Calls each(first row, number of rows) for every chunk.
template <class Each>
void in_chunks(int64_t rows, int64_t chunks, const Each& each) {
  chunks = std::min(chunks, rows);
  for (int64_t i = 0; i < chunks; ++i) {
    const int64_t begin = rows * i / chunks;
    each(begin, rows * (i + 1) / chunks - begin);
  }
}

// into: [rows, out], in place.
void multiply_and_sum(const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& into,
                      const Overlap& overlap) {
  const at::Tensor rows = rows_of(x);
  std::vector<PendingExchange> pending;
  in_chunks(rows.size(0), overlap.chunks, [&](int64_t begin, int64_t size) {
    const at::Tensor chunk = into.narrow(0, begin, size);
    multiply(rows.narrow(0, begin, size), matrix, chunk);
    pending.push_back(PendingExchange::sum(chunk, overlap.group));
  });
  for (PendingExchange& sum : pending) sum.wait();
}

// A chunk has some of each rank's tokens. into: this rank's, [rows, out].
void multiply_and_scatter(const at::Tensor& x, const at::Tensor& matrix, const at::Tensor& into,
                          const Overlap& overlap) {
  const int64_t ranks = overlap.group->size(), in = x.size(-1), out = matrix.size(1);
  const at::Tensor rows = by_rank(x, overlap.dim, overlap.group).reshape({ranks, -1, in});
  std::vector<PendingExchange> pending;
  in_chunks(rows.size(1), overlap.chunks, [&](int64_t begin, int64_t size) {
    const at::Tensor parts = x.new_empty({ranks, size, out});
    multiply(rows.narrow(1, begin, size).reshape({-1, in}), matrix, parts.view({-1, out}));
    pending.push_back(
        PendingExchange::sum_of_parts(parts, into.narrow(0, begin, size), overlap.group));
  });
  for (PendingExchange& sum : pending) sum.wait();
}

// result: of all tokens, [..., out].
void multiply_as_they_arrive(ArrivingTokens& arriving, const at::Tensor& matrix,
                             const std::optional<at::Tensor>& bias, const at::Tensor& result) {
  while (const auto chunk = arriving.next()) {
    const at::Tensor rows = rows_of(chunk->values), place = arriving.place_of(*chunk, result),
                     made = rows.new_empty({rows.size(0), matrix.size(1)});
    if (bias) made.copy_(*bias);
    multiply(rows, matrix, made, /*keep=*/bias ? 1 : 0);
    place.copy_(made.view(place.sizes()));
  }
}

struct OverlappedProduct : torch::autograd::Function<OverlappedProduct> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& matrix,
                            const std::optional<at::Tensor>& bias, bool out_in,
                            const Overlap& overlap) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    // What is not needed is not kept. Saves the weight, not its copy in another type: a sharded
    // weight is gathered again for backward.
    ctx->save_for_backward(
        {matrix.requires_grad() ? x : at::Tensor(), x.requires_grad() ? matrix : at::Tensor()});
    ctx->saved_data["sizes"] = x.sizes().vec();
    ctx->saved_data["out_in"] = out_in;
    ctx->saved_data["matrix"] = static_cast<int64_t>(matrix.scalar_type());
    if (bias) ctx->saved_data["bias"] = static_cast<int64_t>(bias->scalar_type());
    if (overlap.result == ResultExchange::kOwnTokens) {
      ctx->saved_data["group"] = GroupCapsule::make(overlap.group);
      ctx->saved_data["dim"] = overlap.dim;
    }
    if (overlap.input) {
      overlap.input->promise();
      ctx->saved_data["input"] = c10::IValue::make_capsule(overlap.input);
    }
    const at::Tensor in_out = matrix_of(matrix, x.scalar_type(), out_in);
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = in_out.size(1);
    if (overlap.result == ResultExchange::kOwnTokens)
      sizes[static_cast<size_t>(overlap.dim)] /= overlap.group->size();
    const at::Tensor result = x.new_empty(sizes);
    const at::Tensor into = result.view({-1, sizes.back()});
    if (overlap.result == ResultExchange::kSum) {
      multiply_and_sum(x, in_out, into, overlap);
    } else if (overlap.result == ResultExchange::kOwnTokens) {
      multiply_and_scatter(x, in_out, into, overlap);
    } else if (overlap.arriving != nullptr) {
      multiply_as_they_arrive(*overlap.arriving, in_out, bias, result);
    } else {
      if (bias) into.copy_(*bias);
      multiply(rows_of(x), in_out, into, /*keep=*/bias ? 1 : 0);
    }
    return result;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    refuse_create_graph();
    const variable_list saved = ctx->get_saved_variables();  // may run forward again
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    auto& data = ctx->saved_data;
    const bool out_in = data["out_in"].toBool();
    const bool parts = data.find("group") != data.end();
    const at::Tensor gradient =
        parts ? all_tokens(gradients[0], data["dim"].toInt(), GroupCapsule::in(data["group"]))
              : gradients[0];
    const at::Tensor rows = rows_of(gradient);
    const auto narrowed = [&](const at::Tensor& value, const char* of) {
      return value.to(static_cast<at::ScalarType>(data[of].toInt()));
    };
    variable_list result(5);
    if (ctx->needs_input_grad(0)) {
      const at::Tensor part = rows.new_empty(data["sizes"].toIntVector());
      multiply(rows, matrix_of(saved[1], rows.scalar_type(), !out_in),
               part.view({-1, part.size(-1)}));
      const auto input = data.find("input");
      result[0] = input == data.end()
                      ? part
                      : static_cast<InputGradient&>(*input->second.toCapsule()).give(part);
    }
    if (ctx->needs_input_grad(1)) {
      const at::Tensor x = rows_of(saved[0]);
      result[1] = narrowed(out_in ? at::mm(rows.t(), x) : at::mm(x.t(), rows), "matrix");
    }
    if (data.find("bias") != data.end() && ctx->needs_input_grad(2))
      result[2] = narrowed(rows.sum(0), "bias");
    return result;
  }
};

}  // namespace

bool can_overlap(const residency::Product& product) {
  const at::Tensor &x = product.x, &matrix = product.matrix, &bias = product.bias;
  if (x.dim() == 0 || x.numel() == 0 || matrix.dim() != 2 || matrix.numel() == 0) return false;
  if (bias.defined() && bias.dim() != 1) return false;
  const residency::ManagedStorage* const managed = residency::managed_storage_of(matrix);
  if (managed != nullptr && (managed->packed != nullptr || managed->unit->output_type))
    return false;
  if (!x.is_floating_point() || !matrix.is_floating_point()) return false;
  if (x.scalar_type() == matrix.scalar_type()) return true;
  const bool double_one = x.scalar_type() == at::kDouble || matrix.scalar_type() == at::kDouble;
  return residency::is_autocast_on(x.device().type()) && !double_one;
}

at::Tensor overlapped_product(const residency::Product& product, const Overlap& overlap) {
  const std::optional<at::Tensor> bias =
      product.bias.defined() ? std::optional(product.bias) : std::nullopt;
  return OverlappedProduct::apply(product.x, product.matrix, bias, product.out_in, overlap);
}

}  // namespace coupler::tensor_parallel
