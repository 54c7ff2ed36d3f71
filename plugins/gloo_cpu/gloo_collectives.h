// GlooCollectives: libgloo's collectives over the connections of a communicator (the option
// algorithm = "gloo"). Reductions use the kernels that every backend uses, so that each data type
// and reduction works.
// Thread rule: one thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/error.h"
#include "common/op.h"
#include "gloo_cpu/connection_engine.h"

namespace gloo {
class Context;
}

namespace db::gloo_cpu {

class GlooTransport;

class GlooCollectives {
 public:
  GlooCollectives(int32_t rank, int32_t size, ConnectionEngine* engine);

  // Whether libgloo can run op. It has no reduce_scatter over unbound buffers. With zero elements,
  // its reductions send nothing, so that a mismatch between ranks would go unnoticed, and its
  // gather divides by zero.
  static bool has(const Op& op);

  // Performs op, for which has() is true. header: of its messages, without round and bytes. A
  // timeout is returned without a message.
  Failure run(const Op& op, const Header& header, int64_t spin_ns);

  // The ranks from which the last operation received a message.
  std::vector<int32_t> received_from() const;

 private:
  const std::shared_ptr<GlooTransport> transport_;
  const std::shared_ptr<gloo::Context> context_;
};

}  // namespace db::gloo_cpu
