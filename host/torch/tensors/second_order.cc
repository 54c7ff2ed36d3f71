#include "tensors/second_order.h"

#include <ATen/core/grad_mode.h>
#include <coupler/error.h>
#include <fmt/format.h>

#include <string>

namespace coupler::tensors {

void refuse_create_graph(std::string_view through, std::string_view subject,
                         std::string_view hint) {
  if (!at::GradMode::is_enabled()) return;
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format("gradients of gradients (create_graph) through {} are not supported", through),
      {.subject = std::string(subject), .hint = std::string(hint)});
}

}  // namespace coupler::tensors
