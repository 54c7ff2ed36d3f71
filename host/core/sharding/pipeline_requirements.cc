#include "sharding/pipeline_requirements.h"

#include <coupler/error.h>
#include <fmt/format.h>

namespace coupler::sharding {

void require_pipeline_transport(const std::string& backend, bool shards) {
  if (!shards) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("the backend '{}' shards a model's parameters itself; a pipeline divides "
                          "its layers and needs a transport",
                          backend),
              {.subject = "backend.use",
               .hint = "set backend.use to a transport, or to \"auto\", which chooses one"});
}

void require_pipeline_optimizer(const config::MemoryConfig& memory) {
  if (memory.offload_optimizer_device == "none") return;
  throw Error(ErrorCode::kUnsupported,
              "memory.offload_optimizer_device is set, but a pipeline keeps each process's part of "
              "the optimizer in memory",
              {.subject = "memory.offload_optimizer_device",
               .hint = "set it to \"none\"; more processes need less memory each"});
}

}  // namespace coupler::sharding
