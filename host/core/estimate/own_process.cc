#include "estimate/own_process.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>

#include "base/unique_fd.h"

namespace coupler {
namespace {

using nlohmann::json;

std::string write(const MemoryEstimate& e) {
  return json({e.at_peak, e.most, e.base, e.heap, e.largest_unit, e.largest_unit_name, e.peak,
               e.when})
      .dump();
}

MemoryEstimate read(const json& value) {
  MemoryEstimate e;
  value.at(0).get_to(e.at_peak);
  value.at(1).get_to(e.most);
  e.base = value.at(2);
  e.heap = value.at(3);
  e.largest_unit = value.at(4);
  e.largest_unit_name = value.at(5);
  e.peak = value.at(6);
  e.when = value.at(7);
  return e;
}

[[noreturn]] void fail(const std::string& why) {
  throw Error(ErrorCode::kInternal, "the estimate failed: " + why,
              {.hint = "report this with the output of coupler env"});
}

std::string text_of(int file) {
  std::string text;
  char block[4096];
  for (off_t at = 0;;) {
    const ssize_t count = ::pread(file, block, sizeof block, at);
    if (count <= 0) return text;
    text.append(block, static_cast<size_t>(count));
    at += count;
  }
}

}  // namespace

MemoryEstimate in_own_process(const std::function<MemoryEstimate()>& work) {
  const UniqueFd file(::memfd_create("coupler-estimate", MFD_CLOEXEC));
  const pid_t child = file.get() < 0 ? -1 : ::fork();
  if (child < 0) fail("cannot create a process for it");
  if (child == 0) {
    std::string text;
    try {
      text = write(work());
    } catch (const std::exception& error) {
      text = json(error.what()).dump();
    }
    const bool written =
        ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::_exit(written ? 0 : 1);
  }
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  const json result = json::parse(text_of(file.get()), nullptr, false);
  if (result.is_string()) fail(result.get<std::string>());
  if (!result.is_array()) fail(fmt::format("its process ended with status {}", status));
  return read(result);
}

}  // namespace coupler
