// Gathering: concatenates rows in rank order, either all rows or each rank's own ones.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "accelerator/agreement.h"
#include "accelerator/leaf_rules.h"
#include "accelerator/nested_collectives.h"
#include "tensors/tensor_ops.h"

namespace coupler {
namespace {

// One leaf, its place in a message and its result.
struct Slot {
  at::Tensor input;  // contiguous, at least one dimension
  at::Tensor output;
  int64_t row_bytes = 0;
  int64_t bytes = 0;   // that each rank sends: those of the most rows on any rank
  int64_t offset = 0;  // in the message
};

at::Tensor byte_view(const at::Tensor& contiguous) {
  return contiguous.reshape({-1}).view(at::kByte);
}

// The last step of gather_packed for tensors that are not on the CPU.
void take_on_device(const at::Tensor& received, const std::vector<Slot*>& slots,
                    const std::vector<int64_t>& rows) {
  for (const Slot* slot : slots) {
    const at::Tensor output = byte_view(slot->output);
    int64_t to = 0;
    for (size_t rank = 0; rank < rows.size(); ++rank) {
      const int64_t bytes = rows[rank] * slot->row_bytes;
      if (bytes == 0) continue;
      output.narrow(0, to, bytes)
          .copy_(received[static_cast<int64_t>(rank)].narrow(0, slot->offset, bytes));
      to += bytes;
    }
  }
}

// Sends the slots of a message, which are all on one device, together and puts every rank's rows
// into the outputs.
void gather_packed(Communicator& comm, const std::vector<Slot*>& slots,
                   const std::vector<int64_t>& rows) {
  int64_t size = 0;
  for (Slot* slot : slots) {
    slot->offset = size;
    size += slot->bytes;
  }
  const auto own = rows[static_cast<size_t>(comm.rank())];
  const auto options = at::TensorOptions(at::kByte).device(slots.front()->input.device());
  const at::Tensor sent = at::zeros({size}, options);  // zeros, so that no stray memory is sent
  for (const Slot* slot : slots) {
    if (own == 0) break;
    const int64_t bytes = own * slot->row_bytes;
    if (sent.is_cpu()) {
      std::memcpy(sent.mutable_data_ptr<uint8_t>() + slot->offset, slot->input.const_data_ptr(),
                  static_cast<size_t>(bytes));
    } else {
      sent.narrow(0, slot->offset, bytes).copy_(byte_view(slot->input).narrow(0, 0, bytes));
    }
  }
  const at::Tensor received = at::empty({comm.size(), size}, options);
  comm.run(all_gather_op(sent, received));
  if (!sent.is_cpu()) {
    take_on_device(received, slots, rows);
    return;
  }
  for (const Slot* slot : slots) {
    auto* to = static_cast<uint8_t*>(slot->output.mutable_data_ptr());
    for (int rank = 0; rank < comm.size(); ++rank) {
      const auto bytes = static_cast<size_t>(rows[static_cast<size_t>(rank)] * slot->row_bytes);
      if (bytes == 0) continue;
      std::memcpy(to, received.const_data_ptr<uint8_t>() + rank * size + slot->offset, bytes);
      to += bytes;
    }
  }
}

// rows[r]: how many of each leaf's first rows count on rank r. Empty: all rows, equally many on
// every rank.
std::vector<at::Tensor> gather_rows(Communicator& comm, const detail::NestedView& value,
                                    const std::vector<int64_t>& rows) {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> result(value.leaves.size());
  std::vector<Slot> slots;
  slots.reserve(result.size());
  for (size_t i = 0; i < result.size(); ++i) {
    if (!value.leaves[i].defined()) continue;
    Slot slot;
    slot.input = value.leaves[i].detach().contiguous();
    if (slot.input.dim() == 0) slot.input = slot.input.view({1});
    const int64_t all = slot.input.size(0);
    const int64_t most = rows.empty() ? all : *std::max_element(rows.begin(), rows.end());
    std::vector<int64_t> shape = slot.input.sizes().vec();
    shape[0] =
        rows.empty() ? all * comm.size() : std::accumulate(rows.begin(), rows.end(), int64_t{0});
    slot.output = result[i] = at::empty(shape, slot.input.options().requires_grad(false));
    slot.row_bytes = std::accumulate(shape.begin() + 1, shape.end(), slot.input.element_size(),
                                     std::multiplies<>());
    slot.bytes = most * slot.row_bytes;
    if (slot.bytes > 0) slots.push_back(std::move(slot));
  }

  const bool even =
      std::adjacent_find(rows.begin(), rows.end(), std::not_equal_to<>()) == rows.end();
  const size_t small = static_cast<size_t>(std::count_if(
      slots.begin(), slots.end(), [](const Slot& slot) { return slot.bytes <= kPackUpTo; }));
  std::map<c10::DeviceType, std::vector<Slot*>> packed;
  for (Slot& slot : slots) {
    if (slot.bytes <= kPackUpTo && small > 1) {
      packed[slot.input.device().type()].push_back(&slot);
    } else if (even) {
      const at::Tensor sent = rows.empty() ? slot.input : slot.input.narrow(0, 0, rows[0]);
      comm.run(all_gather_op(sent, slot.output));
    } else {
      gather_packed(comm, {&slot}, rows);
    }
  }
  // If all ranks have the same number of rows, each leaf is sent as a single row of bytes.
  for (const auto& [device, message] : packed) {
    if (rows.empty()) {
      for (Slot* slot : message) slot->row_bytes = slot->bytes;
      gather_packed(comm, message, std::vector<int64_t>(static_cast<size_t>(comm.size()), 1));
    } else {
      gather_packed(comm, message, rows);
    }
  }
  return result;
}

// The problem if the leaves do not have one row for each of the batch's samples.
std::optional<Error> rows_problem(const std::string& operation, const detail::NestedView& value,
                                  const detail::BatchSamples& samples) {
  std::optional<int64_t> rows;
  return problem_of(operation, value, [&](const at::Tensor& leaf) {
    if (leaf.dim() == 0) {
      throw Error(
          ErrorCode::kInvalidArgument,
          "a scalar is not a per-sample value, and an average of unequal batches is wrong",
          {.rank = -1,
           .subject = {},
           .hint = "gather per-sample values (reduction \"none\"), or use gather or reduce for "
                   "per-process values"});
    }
    if (!samples.fits(leaf.size(0))) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("dimension 0 is {}, but this rank's batch has {} samples, {} of them its own",
                      leaf.size(0), samples.all, samples.own),
          {.rank = -1, .subject = {}, .hint = "make dimension 0 the samples"});
    }
    if (rows.value_or(leaf.size(0)) != leaf.size(0)) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("dimension 0 is {}, but that of an earlier leaf is {}", leaf.size(0), *rows),
          {.rank = -1, .subject = {}, .hint = "make dimension 0 the samples"});
    }
    rows = leaf.size(0);
  });
}

}  // namespace

std::vector<at::Tensor> gather_leaves(Communicator& comm, const detail::NestedView& value) {
  agree(comm, {.operation = "gather", .value = &value, .problem = problem_of("gather", value)});
  return gather_rows(comm, value, {});
}

std::vector<at::Tensor> gather_own_rows(Communicator& comm, const detail::NestedView& value,
                                        const std::optional<detail::BatchSamples>& samples) {
  const std::string name = "gather_for_metrics";
  if (!samples) {
    agree(comm, {.operation = name + " outside of a loop",
                 .value = &value,
                 .problem = problem_of(name, value)});
    return gather_rows(comm, value, {});
  }
  return gather_rows(comm, value,
                     agree(comm, {.operation = name,
                                  .value = &value,
                                  .same = SameSizes::kButRows,
                                  .number = samples->own,
                                  .problem = rows_problem(name, value, *samples)}));
}

}  // namespace coupler
