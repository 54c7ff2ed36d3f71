// Gradients of gradients through functions whose backward communicates, and has no gradient of its
// own. To be called by a backward, on its thread.
#pragma once

#include <string_view>

namespace coupler::tensors {

// Error(kUnsupported) if the backward that runs makes a graph (create_graph). through: the part of
// the model that cannot be differentiated twice; subject: the name or key of it; hint: what to do.
void refuse_create_graph(std::string_view through, std::string_view subject, std::string_view hint);

}  // namespace coupler::tensors
