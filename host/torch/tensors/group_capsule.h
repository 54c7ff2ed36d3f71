// A communicator that autograd keeps with a graph until its backward has run. Plain data.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/custom_class.h>

#include <memory>
#include <utility>

#include "comm/communicator.h"

namespace coupler::tensors {

using Group = std::shared_ptr<comm::Communicator>;

struct GroupCapsule : torch::CustomClassHolder {
  explicit GroupCapsule(Group of) : group(std::move(of)) {}
  const Group group;

  static c10::IValue make(Group group) {
    return c10::IValue::make_capsule(c10::make_intrusive<GroupCapsule>(std::move(group)));
  }
  static Group in(const c10::IValue& value) {
    return static_cast<GroupCapsule&>(*value.toCapsule()).group;
  }
};

}  // namespace coupler::tensors
