#include "pipeline/neighbours.h"

#include <fmt/format.h>

#include <array>

namespace coupler {

Neighbours::Neighbours(Communicator& comm, c10::Device device)
    : stage(comm.rank()), stages(comm.size()) {
  if (stages == 1) return;
  // The pairs (0, 1), (2, 3), … and then (1, 2), (3, 4), …: a stage is in at most one of each.
  for (int odd = 0; odd < 2; ++odd) {
    const int pair = stage < odd ? -1 : (stage - odd) / 2;
    const int lower = odd + 2 * pair;
    const bool is_in_one = pair >= 0 && lower + 1 < stages;
    for (const bool forward : {true, false}) {
      auto shared = comm.split(is_in_one ? pair : -1, stage,
                               fmt::format("{} {}", forward ? "activations" : "gradients", odd));
      if (!is_in_one) continue;
      const bool is_lower = stage == lower;
      auto& link =
          forward ? (is_lower ? values_out : values_in) : (is_lower ? gradients_in : gradients_out);
      link = std::make_unique<Link>(std::move(shared), is_lower ? 1 : 0, device);
    }
  }
}

void Neighbours::begin(uint64_t signature) {
  if (signature_ == signature) return;
  signature_ = signature;
  forms_in.clear();
  forms_out.clear();
}

void Neighbours::abort(const std::string& why) {
  const std::array links = {values_in.get(), values_out.get(), gradients_in.get(),
                            gradients_out.get()};
  for (Link* link : links) {
    if (link != nullptr) link->abort(why);
  }
}

}  // namespace coupler
