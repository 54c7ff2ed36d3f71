// "single": the one-process backend that is part of the host. World 1, host memory, every
// operation; each is a copy, a scaling, or a message to itself. Its communicators are those of the
// template that `coupler new plugin --lang c++` copies (api/template/plugin_cpp/cpp_self). Its
// table is an ordinary backend's; threading rules as in coupler/distributed_backend.h.
#pragma once

#include <coupler/distributed_backend.h>

namespace coupler::plugin {

const DistributedBackend& single_backend();

}  // namespace coupler::plugin
