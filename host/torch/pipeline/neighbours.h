// What one stage of a pipeline shares with the stages before and after it, from batch to batch.
// Used by the training thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "comm/communicator.h"
#include "pipeline/form.h"
#include "pipeline/link.h"

namespace coupler {

struct Neighbours {
  // stages: the communicator whose ranks are the stages, in order. Each pair of neighbors gets a
  // communicator for each direction. Collective.
  Neighbours(Communicator& stages, c10::Device device);

  bool is_first() const { return stage == 0; }
  bool is_last() const { return stage == stages - 1; }
  // Begins a batch; forgets known forms if the signature has changed.
  void begin(uint64_t signature);
  void abort(const std::string& why);

  const int stage, stages;
  std::unique_ptr<Link> values_in, gradients_out;  // null on the first stage
  std::unique_ptr<Link> values_out, gradients_in;  // null on the last
  // The form of a micro-batch, by its number of rows.
  std::map<int64_t, Form> forms_in, forms_out;

 private:
  std::optional<uint64_t> signature_;
};

}  // namespace coupler
