#include "quantize/packed_weight.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <coupler/error.h>
#include <coupler/quantize.h>
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <mutex>
#include <vector>

#include "base/units.h"
#include "quantize/kernels.h"

namespace coupler::quantization {
namespace {

// The most rows of activations for which the kernels are used. With more, a product with unpacked
// weights is faster, since each part is unpacked once for all rows.
constexpr int64_t kFewRows = 8;
// Weights unpacked at a time for many rows, few enough to stay in a core's cache until used.
constexpr int64_t kPartWeights = int64_t{1} << 18;
// The fewest weights worth a thread.
constexpr int64_t kGrain = int64_t{1} << 16;

int64_t grain_of(const PackedLayout& layout) {
  return std::max<int64_t>(1, kGrain / layout.columns);
}

at::Tensor on_device(const void* memory, size_t bytes, c10::Device device) {
  return at::for_blob(const_cast<void*>(memory), {static_cast<int64_t>(bytes)})
      .options(at::TensorOptions(at::kByte).device(device))
      .target_device(device)
      .make_tensor();
}

}  // namespace

at::Tensor unpack_by_operations(const PackedLayout& layout, const at::Tensor& packed) {
  const int64_t rows = layout.rows, groups = layout.groups();
  const at::Tensor words = packed.slice(0, static_cast<int64_t>(layout.scales_begin()))
                               .view(at::kInt)
                               .slice(0, 0, rows * groups)
                               .view({rows, groups, 1});
  const at::Tensor bytes = packed.slice(0, 0, rows * static_cast<int64_t>(layout.row_bytes()));
  if (layout.bits == 8) {
    return bytes.view(at::kChar).view({rows, layout.columns}).to(at::kFloat) *
           words.view(at::kFloat).squeeze(-1);
  }
  const at::Tensor halves = bytes.view({-1, 1, PackedLayout::kBlock / 2});
  const at::Tensor q = at::cat({halves.bitwise_and(15), halves.bitwise_right_shift(4)}, 1)
                           .to(at::kFloat)
                           .view({rows, groups, layout.group});
  const at::Tensor scale = words.bitwise_and(-65536).view(at::kFloat);
  const at::Tensor zero = words.bitwise_left_shift(16).view(at::kFloat);
  return ((q - 8) * scale + zero).view({rows, layout.columns});
}

std::pair<at::Tensor, PackError> pack(const PackedLayout& layout, const at::Tensor& weight,
                                      bool transposed, const std::string& name) {
  const at::Tensor packed = at::zeros({static_cast<int64_t>(layout.bytes())}, at::kByte);
  const at::Tensor turned = transposed ? weight.t() : weight;
  PackError total;
  std::mutex mutex;
  at::parallel_for(0, layout.rows, grain_of(layout), [&](int64_t begin, int64_t end) {
    PackError error;
    // A few rows of float at a time, so that converting takes little memory.
    const int64_t step = grain_of(layout);
    for (int64_t row = begin; row < end; row += step) {
      const int64_t last = std::min(end, row + step);
      const at::Tensor rows = turned.slice(0, row, last).to(at::kFloat).contiguous();
      error.add(pack_rows(layout, row, last, rows.const_data_ptr<float>(),
                          packed.mutable_data_ptr<uint8_t>()));
    }
    const std::lock_guard lock(mutex);
    total.add(error);
  });
  if (!total.finite)
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("'{}' contains non-finite numbers, which cannot be quantized", name),
        {.subject = name,
         .hint = "check the checkpoint, or add the weight to quantize.skip to leave it as it is"});
  return {packed, total};
}

at::Tensor PackedWeight::unpack(const void* memory, c10::Device device) const {
  at::Tensor matrix;
  if (device.is_cpu()) {
    matrix = at::empty({layout_.rows, layout_.columns}, at::kFloat);
    auto* const to = matrix.mutable_data_ptr<float>();
    at::parallel_for(0, layout_.rows, grain_of(layout_), [&](int64_t begin, int64_t end) {
      packed_kernels().unpack(layout_, static_cast<const uint8_t*>(memory), begin, end,
                              to + begin * layout_.columns);
    });
  } else {
    matrix = unpack_by_operations(layout_, on_device(memory, layout_.bytes(), device));
  }
  matrix = matrix.to(type_);
  return transposed_ ? matrix.t().contiguous() : matrix;
}

at::Tensor PackedWeight::multiply(const at::Tensor& x, const at::Tensor& bias, const void* memory,
                                  c10::Device device) const {
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = layout_.rows;
  if (x.numel() == 0) {  // no rows: a layer always has inputs
    return at::empty(sizes, x.options());
  }
  const at::Tensor rows = x.reshape({-1, layout_.columns});
  const auto* const packed = static_cast<const uint8_t*>(memory);
  const bool by_kernels = device.is_cpu() && x.scalar_type() != at::kDouble;
  at::Tensor result;
  if (!by_kernels) {
    const at::Tensor matrix = unpack(memory, device);
    result = at::mm(rows, transposed_ ? matrix : matrix.t());
  } else if (rows.size(0) <= kFewRows) {
    result = multiply_few(rows, packed);
  } else {
    result = multiply_many(rows, packed);
  }
  if (bias.defined()) result.add_(bias);
  // Not a view: modules add to the result in place, which autograd rejects for views made here.
  return at::_unsafe_view(result.to(x.scalar_type()), sizes);
}

at::Tensor PackedWeight::multiply_few(const at::Tensor& x, const uint8_t* packed) const {
  const at::Tensor rows = x.to(at::kFloat).contiguous();
  const int64_t count = rows.size(0);
  const at::Tensor result = at::empty({count, layout_.rows}, at::kFloat);
  at::Tensor sums;
  if (layout_.bits == 4) sums = rows.view({count, layout_.groups(), layout_.group}).sum(-1);
  const float* const from = rows.const_data_ptr<float>();
  const float* const of_groups = sums.defined() ? sums.const_data_ptr<float>() : nullptr;
  auto* const to = result.mutable_data_ptr<float>();
  at::parallel_for(0, layout_.rows, grain_of(layout_), [&](int64_t begin, int64_t end) {
    packed_kernels().multiply(layout_, packed, begin, end, from, of_groups, count, to,
                              layout_.rows);
  });
  return result;
}

at::Tensor PackedWeight::multiply_many(const at::Tensor& x, const uint8_t* packed) const {
  const at::Tensor result = at::empty({x.size(0), layout_.rows}, x.options());
  const int64_t threads = at::get_num_threads();
  const int64_t part =
      std::min(layout_.rows, std::max<int64_t>(threads * kPartWeights / layout_.columns, 16));
  const at::Tensor room = at::empty({part, layout_.columns}, at::kFloat);
  auto* const weights = room.mutable_data_ptr<float>();
  for (int64_t first = 0; first < layout_.rows; first += part) {
    const int64_t count = std::min(part, layout_.rows - first);
    at::parallel_for(0, count, grain_of(layout_), [&](int64_t begin, int64_t end) {
      packed_kernels().unpack(layout_, packed, first + begin, first + end,
                              weights + begin * layout_.columns);
    });
    at::Tensor to = result.narrow(1, first, count);
    at::mm_out(to, x, room.narrow(0, 0, count).to(x.scalar_type()).t());
  }
  return result;
}

}  // namespace coupler::quantization

namespace coupler {

std::string to_table(const QuantizationReport& report, size_t most) {
  const size_t rows = most == 0 ? report.layers.size() : std::min(most, report.layers.size());
  size_t width = 6;
  uint64_t before = 0, after = 0;
  for (size_t i = 0; i < rows; ++i) width = std::max(width, report.layers[i].name.size());
  for (const QuantizedLayer& layer : report.layers) {
    before += layer.bytes_before;
    after += layer.bytes_after;
  }
  std::string table =
      fmt::format("{:{}}  relative error  largest error       bytes\n", "weight", width);
  for (size_t i = 0; i < rows; ++i) {
    const QuantizedLayer& layer = report.layers[i];
    fmt::format_to(std::back_inserter(table), "{:{}}  {:13.4f}%  {:13.3g}  {:>10}\n", layer.name,
                   width, 100 * layer.relative_error, layer.max_error,
                   format_byte_size(layer.bytes_after));
  }
  if (rows < report.layers.size())
    fmt::format_to(std::back_inserter(table), "and {} more\n", report.layers.size() - rows);
  const std::string group =
      report.group_size == 0 ? "" : fmt::format(", groups of {}", report.group_size);
  fmt::format_to(std::back_inserter(table), "{} weights of {} bits{}: {} instead of {}\n",
                 report.layers.size(), report.bits, group, format_byte_size(after),
                 format_byte_size(before));
  return table;
}

}  // namespace coupler
