#include "plugin/guarded_open.h"

#include <coupler/error.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

#define BOOST_DLL_USE_STD_FS
#include <boost/dll/shared_library.hpp>

#include "error/report.h"

namespace coupler {
namespace {

constexpr int kPluginExitCode = 3;

// What this thread is opening; null where it opens nothing.
thread_local const std::string* opening = nullptr;
std::terminate_handler previous_handler = nullptr;

std::string current_exception_text() {
  try {
    if (!std::current_exception()) return "std::terminate was called";
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

[[noreturn]] void end_on_terminate() {
  if (opening == nullptr) {  // another thread's exception, or one from elsewhere
    if (previous_handler != nullptr) previous_handler();
    std::abort();
  }
  report_error(
      fmt::format("plugin {} threw in its constructor (while being loaded): {}\n"
                  "  hint: a static object of the plugin threw; the plugin must be mended, "
                  "or another backend chosen with backend.use",
                  *opening, current_exception_text()));
  std::fflush(nullptr);
  _exit(kPluginExitCode);
}

class TerminateGuard {
 public:
  explicit TerminateGuard(const std::string& path) {
    opening = &path;
    previous_handler = std::set_terminate(end_on_terminate);
  }
  TerminateGuard(const TerminateGuard&) = delete;
  TerminateGuard& operator=(const TerminateGuard&) = delete;
  ~TerminateGuard() {
    std::set_terminate(previous_handler);
    opening = nullptr;
  }
};

// noexcept, so that every exception out of dlopen or of the entry function ends in the handler.
const DistributedBackend* call_entry(db_entry_function entry) noexcept { return entry(); }

void open_library(boost::dll::shared_library& library, const std::string& path,
                  std::error_code& failed) noexcept {
  library.load(path, failed, boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
}

[[noreturn]] void refuse(const std::string& path, const std::string& what,
                         const std::string& hint) {
  throw Error(ErrorCode::kPlugin, fmt::format("plugin {} {}", path, what), {-1, path, hint});
}

}  // namespace

const DistributedBackend* guarded_open(const std::string& path) {
  // Never destroyed: plugins are not unloaded, since their threads, thread-local destructors and
  // exit handlers would be left pointing into nothing.
  static auto* const libraries = new std::vector<boost::dll::shared_library>();

  const TerminateGuard guard(path);
  boost::dll::shared_library library;
  std::error_code failed;
  dlerror();  // forget what an earlier call left
  open_library(library, path, failed);
  if (failed) {
    // The error code always says "bad file descriptor"; the linker's own text is the useful one.
    const char* text = dlerror();
    refuse(path, fmt::format("cannot be loaded: {}", text != nullptr ? text : failed.message()),
           "a library it needs may be missing (ldd shows which), or a symbol is undefined");
  }
  if (!library.has(DB_ENTRY_SYMBOL)) {
    refuse(path, "is a shared library but no backend: it does not export " DB_ENTRY_SYMBOL,
           "mark the entry function with DB_EXPORT; in C++ it must be extern \"C\"");
  }
  const auto entry = &library.get<const DistributedBackend*()>(DB_ENTRY_SYMBOL);
  libraries->push_back(std::move(library));
  const DistributedBackend* table = call_entry(entry);
  if (table == nullptr) {
    refuse(path, "returned no table from " DB_ENTRY_SYMBOL,
           "the entry function must return the address of a static DistributedBackend");
  }
  return table;
}

}  // namespace coupler
