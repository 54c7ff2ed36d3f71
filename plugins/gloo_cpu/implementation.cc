#include "gloo_cpu/implementation.h"

#include <dlfcn.h>
#include <gloo/allreduce.h>
#include <gloo/config.h>

#include <string>

#include "common/error.h"
#include "gloo_cpu/communicator.h"

namespace db::gloo_cpu {
namespace {

void describe(char* text, uint64_t capacity) {
  Dl_info where{};
  const auto address = reinterpret_cast<const void*>(&gloo::allreduce);
  const char* const path =
      dladdr(address, &where) != 0 && where.dli_fname != nullptr ? where.dli_fname : "?";
  const std::string found = "libgloo " + std::to_string(GLOO_VERSION_MAJOR) + "." +
                            std::to_string(GLOO_VERSION_MINOR) + "." +
                            std::to_string(GLOO_VERSION_PATCH) + " (" + path + ")";
  copy_text(text, capacity, found.c_str());
}

constexpr Implementation kImplementation = {create_communicator, describe};

}  // namespace
}  // namespace db::gloo_cpu

extern "C" DB_EXPORT const db::gloo_cpu::Implementation* coupler_gloo_cpu_implementation() {
  return &db::gloo_cpu::kImplementation;
}
