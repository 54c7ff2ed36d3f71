#include "dry_run/fake_shapes.h"

#include <ATen/Functions.h>

#include <unordered_map>
#include <unordered_set>

namespace coupler::dry_run {
namespace {

using IValues = std::vector<c10::IValue>;

at::Tensor empty_of(at::IntArrayRef sizes, at::ScalarType type) {
  return at::empty(sizes, at::TensorOptions().dtype(type).device(at::kMeta));
}

bool has_tensor(const c10::IValue& value) { return value.isTensor() && value.toTensor().defined(); }

at::ScalarType type_of(const c10::IValue& value, const at::Tensor& otherwise) {
  return (has_tensor(value) ? value.toTensor() : otherwise).scalar_type();
}

at::Tensor like_or_none(const c10::IValue& value, bool wanted) {
  return wanted && has_tensor(value) ? at::empty_like(value.toTensor()) : at::Tensor();
}

// (input, normalized_shape, weight, bias, eps)
IValues layer_norm(const IValues& in) {
  const at::Tensor input = in[0].toTensor();
  const auto normalized = static_cast<int64_t>(in[1].toIntVector().size());
  std::vector<int64_t> sizes = input.sizes().vec();
  std::fill(sizes.end() - normalized, sizes.end(), 1);
  const at::ScalarType type = type_of(in[2], input);
  return {empty_of(input.sizes(), input.scalar_type()), empty_of(sizes, type),
          empty_of(sizes, type)};
}

// (grad_out, input, normalized_shape, mean, rstd, weight, bias, mask)
IValues layer_norm_backward(const IValues& in) {
  const auto mask = in[7].toBoolList();
  return {like_or_none(in[1], mask[0]), like_or_none(in[5], mask[1]), like_or_none(in[6], mask[2])};
}

// (self, dim, index)
IValues index_select(const IValues& in) {
  const at::Tensor self = in[0].toTensor();
  std::vector<int64_t> sizes = self.sizes().vec();
  if (!sizes.empty()) {
    const int64_t dimension = in[1].toInt();
    sizes[static_cast<size_t>(dimension < 0 ? dimension + self.dim() : dimension)] =
        in[2].toTensor().numel();
  }
  return {empty_of(sizes, self.scalar_type())};
}

// (grad_output, indices, num_weights, padding_idx, scale_grad_by_freq)
IValues embedding_dense_backward(const IValues& in) {
  const at::Tensor gradient = in[0].toTensor();
  return {empty_of({in[2].toInt(), gradient.size(-1)}, gradient.scalar_type())};
}

// (self, size, dtype, layout, device, pin_memory)
IValues new_empty(const IValues& in) {
  const at::Tensor self = in[0].toTensor();
  return {
      empty_of(in[1].toIntVector(), in[2].isNone() ? self.scalar_type() : in[2].toScalarType())};
}

// (query, key, value, dropout_p, is_causal, attn_mask, scale): the kernel's own layout, in which
// heads come after the sequence.
IValues flash_attention(const IValues& in) {
  const at::Tensor query = in[0].toTensor(), value = in[2].toTensor();
  const at::ScalarType sums = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor output =
      empty_of({query.size(0), query.size(2), query.size(1), value.size(3)}, query.scalar_type());
  const at::Tensor log_sums = empty_of({query.size(0), query.size(2), query.size(1)}, sums);
  return {output.transpose(1, 2), log_sums.transpose(1, 2)};
}

// (grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, attn_mask, scale)
IValues flash_attention_backward(const IValues& in) {
  IValues result;
  for (size_t i = 1; i <= 3; ++i) {
    const at::Tensor like = in[i].toTensor();
    result.emplace_back(
        empty_of({like.size(0), like.size(2), like.size(1), like.size(3)}, like.scalar_type())
            .transpose(1, 2));
  }
  return result;
}

// (input, weight, bias, running_mean, running_var, training, momentum, eps)
IValues batch_norm(const IValues& in) {
  const at::Tensor input = in[0].toTensor();
  const int64_t channels = in[5].toBool() ? input.size(1) : 0;
  const at::ScalarType type = type_of(in[1], input);
  return {at::empty_like(input), empty_of({channels}, type), empty_of({channels}, type)};
}

// (grad_out, input, weight, running_mean, running_var, save_mean, save_invstd, train, eps, mask)
IValues batch_norm_backward(const IValues& in) {
  const at::Tensor input = in[1].toTensor();
  const auto mask = in[9].toBoolList();
  const at::ScalarType type = type_of(in[2], input);
  return {like_or_none(in[1], mask[0]), mask[1] ? empty_of({input.size(1)}, type) : at::Tensor(),
          mask[2] ? empty_of({input.size(1)}, type) : at::Tensor()};
}

int64_t entry(const std::vector<int64_t>& values, size_t dimension) {
  return values.size() == 1 ? values[0] : values.at(dimension);
}

// (input, weight, bias, stride, padding, dilation, transposed, output_padding, groups). The
// kernel's temporary memory for unfolding is not counted.
IValues convolution(const IValues& in) {
  const at::Tensor input = in[0].toTensor(), weight = in[1].toTensor();
  const auto stride = in[3].toIntVector(), padding = in[4].toIntVector(),
             dilation = in[5].toIntVector(), more = in[7].toIntVector();
  const bool transposed = in[6].toBool();
  const auto dimensions = static_cast<size_t>(weight.dim() - 2);
  std::vector<int64_t> sizes(input.sizes().begin(),
                             input.sizes().end() - static_cast<std::ptrdiff_t>(dimensions + 1));
  sizes.push_back(transposed ? weight.size(1) * in[8].toInt() : weight.size(0));
  for (size_t d = 0; d < dimensions; ++d) {
    const int64_t from = input.size(static_cast<int64_t>(d) - static_cast<int64_t>(dimensions));
    const int64_t kernel = entry(dilation, d) * (weight.size(static_cast<int64_t>(d) + 2) - 1) + 1;
    sizes.push_back(transposed ? (from - 1) * entry(stride, d) - 2 * entry(padding, d) + kernel +
                                     entry(more, d)
                               : (from + 2 * entry(padding, d) - kernel) / entry(stride, d) + 1);
  }
  return {empty_of(sizes, input.scalar_type())};
}

// (grad_output, input, weight, bias_sizes, stride, …, groups, output_mask)
IValues convolution_backward(const IValues& in) {
  const auto mask = in[10].toBoolList();
  const at::Tensor weight = in[2].toTensor();
  const at::Tensor gradient = in[0].toTensor();
  return {like_or_none(in[1], mask[0]), like_or_none(in[2], mask[1]),
          mask[2] ? empty_of({in[3].isNone() ? weight.size(0) : in[3].toIntVector().at(0)},
                             gradient.scalar_type())
                  : at::Tensor()};
}

}  // namespace

ShapeFunction shape_function(const std::string& name) {
  static const std::unordered_map<std::string, ShapeFunction> kFunctions = {
      {"aten::native_layer_norm", layer_norm},
      {"aten::native_layer_norm_backward", layer_norm_backward},
      {"aten::new_empty", new_empty},
      {"aten::index_select", index_select},
      {"aten::embedding_dense_backward", embedding_dense_backward},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", flash_attention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", flash_attention_backward},
      {"aten::convolution", convolution},
      {"aten::convolution_backward", convolution_backward},
      {"aten::native_batch_norm", batch_norm},
      {"aten::native_batch_norm_backward", batch_norm_backward},
  };
  const auto found = kFunctions.find(name);
  return found == kFunctions.end() ? nullptr : found->second;
}

bool needs_values(const std::string& name) {
  static const std::unordered_set<std::string> kNames = {
      "aten::nonzero",
      "aten::masked_select",
      "aten::_unique",
      "aten::_unique2",
      "aten::unique_consecutive",
      "aten::unique_dim",
      "aten::bincount",
      "aten::repeat_interleave",
      "aten::nonzero_numpy",
      "aten::argwhere",
      "aten::histc",
  };
  return kNames.count(name) != 0;
}

}  // namespace coupler::dry_run
