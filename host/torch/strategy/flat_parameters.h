// FlatParameters: the trainable parameters of one model, moved into flat memory: one buffer per
// dtype (or several of a limited size), in reverse order of registration (roughly the order in
// which gradients arrive). Parameters point into it; gradients get a second buffer of the same
// layout. Used by one thread at a time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace coupler::residency {
class OffloadedMemory;
}

namespace coupler::strategy {

// One parameter's place. offset and numel are in elements of the group's buffers.
struct FlatSlot {
  std::string name;      // "layer1.weight"
  at::Tensor parameter;  // a variable whose data is part of group.parameters; often the user's own
  at::Tensor gradient;   // part of group.gradients in the parameter's shape; undefined without
  int64_t offset = 0;
  int64_t numel = 0;
  int group = 0;
  size_t registered = 0;  // its place among the parameters in order of registration
};

// Slots of one dtype in one memory; [first_slot, end_slot) of FlatParameters::slots.
struct FlatGroup {
  at::Tensor parameters;  // [numel], padding between slots included (zeros)
  at::Tensor gradients;   // likewise; undefined if gradients are not flat
  residency::OffloadedMemory* state_memory =
      nullptr;  // where its optimizer state is; null: in memory
  // The ranks that average its gradients; null: those that average the model's.
  std::shared_ptr<comm::Communicator> averaging = nullptr;
  size_t first_slot = 0, end_slot = 0;
};

class FlatParameters {
 public:
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // Moves the data of all parameters (named, in order of registration, without duplicates) to the
  // device, contiguous. With flat_gradients also makes the gradient buffer, with room for one flag
  // per slot after the last group (flags()). A group of two or more parameters has at most
  // most_elements. averaging: by parameter, FlatGroup::averaging of its group; empty: all null.
  // comm: the ranks that average the others' gradients, or, without flat gradients, parameters;
  // null: one process.
  FlatParameters(const std::vector<std::pair<std::string, at::Tensor>>& parameters,
                 bool flat_gradients, c10::Device device = c10::kCPU,
                 int64_t most_elements = kNoLimit,
                 const std::vector<std::shared_ptr<comm::Communicator>>& averaging = {},
                 const std::shared_ptr<comm::Communicator>& comm = nullptr);
  // Empty, to be filled by add().
  FlatParameters() = default;
  // Adds a group whose memory the caller provides, with its slots in the order of their offsets.
  void add(FlatGroup group, std::vector<FlatSlot> slots);

  std::vector<FlatSlot>& slots() { return slots_; }
  const std::vector<FlatSlot>& slots() const { return slots_; }
  std::vector<FlatGroup>& groups() { return groups_; }
  const std::vector<FlatGroup>& groups() const { return groups_; }

  // [slots] of the last group's dtype: the tail of its gradient buffer, reduced along with it.
  const at::Tensor& flags() const { return flags_; }

  // The gradients that the slots' parameters have: whole buffers if every one is in its place
  // there, padding included (zeros); otherwise one by one.
  std::vector<at::Tensor> gradients() const;

  // The slot of a parameter, by identity; -1 if it is not one of ours.
  int find(const at::Tensor& parameter) const;

 private:
  std::vector<FlatSlot> slots_;
  std::vector<FlatGroup> groups_;
  at::Tensor flags_;
};

// The parts of memory, which holds slots [first, end) of a group, that belong to no slot.
std::vector<at::Tensor> padding_in(const std::vector<FlatSlot>& slots, size_t first, size_t end,
                                   const at::Tensor& memory);

// A tensor over [offset, offset + numel of sizes) of flat memory. To autograd it is not a view,
// since LibTorch's zero_grad detaches gradients in place, which views do not allow.
at::Tensor place_in(const at::Tensor& memory, int64_t offset, at::IntArrayRef sizes);

}  // namespace coupler::strategy
