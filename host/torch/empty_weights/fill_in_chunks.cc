#include "empty_weights/fill_in_chunks.h"

#include <ATen/TensorGeometry.h>
#include <c10/core/ScalarType.h>
#include <c10/util/accumulate.h>

#include <array>
#include <set>
#include <string>

namespace coupler::empty_weights {
namespace {

int64_t numel_of(const TensorGeometry& geometry) { return c10::multiply_integers(geometry.sizes); }

bool is_dense(const TensorGeometry& geometry) {
  return !geometry.conjugate && !geometry.negative &&
         at::geometry_is_contiguous(geometry.sizes, geometry.strides);
}

// Whether the operation writes one recorded tensor, which is dense, and reads none.
bool only_overwrites(const RecordedOperation& operation) {
  constexpr std::array kTypes = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16};
  if (operation.inputs.size() != 1 || !operation.outputs.empty()) return false;
  const RecordedInput& self = operation.inputs.front();
  return self.writes && !self.reads && is_dense(self.geometry) &&
         std::find(kTypes.begin(), kTypes.end(), self.geometry.dtype) != kTypes.end();
}

bool sets_to_constant(const RecordedOperation& operation) {
  const std::string& name = operation.op.schema().name();
  return (name == "aten::fill_" || name == "aten::zero_") && only_overwrites(operation);
}

bool fills_storage(const RecordedOperation& operation) {
  const std::string& name = operation.op.schema().name();
  const bool draws = name == "aten::uniform_" || name == "aten::normal_";
  return (draws ? only_overwrites(operation) : sets_to_constant(operation)) &&
         is_whole_storage(operation.inputs.front().geometry);
}

}  // namespace

bool is_whole_storage(const TensorGeometry& geometry) {
  return geometry.bytes > 0 && is_dense(geometry) &&
         static_cast<size_t>(numel_of(geometry)) * c10::elementSize(geometry.dtype) ==
             geometry.bytes;
}

ChunkedFills chunked_fills(const std::deque<RecordedOperation>& operations,
                           const std::unordered_map<uint64_t, at::ScalarType>& storages) {
  ChunkedFills result;
  for (size_t i = 0; i < operations.size(); ++i) {
    const RecordedOperation& operation = operations[i];
    for (const uint64_t storage : touched_by(operation)) {
      const auto wanted = storages.find(storage);
      if (wanted == storages.end()) continue;
      const bool of_type =
          !operation.inputs.empty() && operation.inputs.front().geometry.dtype == wanted->second;
      const auto fill = result.find(storage);
      if (of_type && fills_storage(operation)) {
        result.insert_or_assign(storage, ChunkedFill{i, {}});
      } else if (fill != result.end() && of_type && sets_to_constant(operation)) {
        fill->second.later.push_back(i);
      } else if (fill != result.end()) {
        result.erase(fill);
      }
    }
  }
  return result;
}

void plan_chunks(const std::deque<RecordedOperation>& operations, const ChunkedFills& fills,
                 std::vector<ReplayStep>& steps) {
  std::unordered_map<size_t, uint64_t> filled;  // storages, by operation
  std::set<size_t> later;
  for (const auto& [storage, fill] : fills) {
    filled.emplace(fill.operation, storage);
    later.insert(fill.later.begin(), fill.later.end());
  }
  std::erase_if(steps, [&](const ReplayStep& step) { return later.contains(step.operation); });
  for (ReplayStep& step : steps) {
    const RecordedOperation& operation = operations[step.operation];
    if (const auto fill = filled.find(step.operation); fill != filled.end()) {
      step.in_chunks = true;
      step.finished = {fill->second};
      step.later = fills.at(fill->second).later;
    } else if (operation.random && !step.skip_draw && step.finished.empty() && !step.dead.empty() &&
               fills_storage(operation)) {
      step.in_chunks = true;
    }
  }
}

void run_on_chunk(const RecordedOperation& operation, int64_t begin, const at::Tensor& chunk) {
  const RecordedInput& self = operation.inputs.front();
  const int64_t first = std::max(begin, self.geometry.offset);
  const int64_t end =
      std::min(begin + chunk.numel(), self.geometry.offset + numel_of(self.geometry));
  if (first >= end) return;
  std::vector<c10::IValue> stack = operation.arguments;
  put(stack, self.position, chunk.narrow(0, first - begin, end - first));
  operation.op.callBoxed(stack);
}

}  // namespace coupler::empty_weights
