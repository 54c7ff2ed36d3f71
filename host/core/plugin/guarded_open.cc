#include "plugin/guarded_open.h"

#include <coupler/error.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <system_error>
#include <vector>

#define BOOST_DLL_USE_STD_FS
#include <boost/dll/shared_library.hpp>

#include "base/report.h"
#include "plugin/refuse.h"

namespace coupler {
namespace {

constexpr int kPluginExitCode = 3;

// What this thread is opening; null if nothing.
thread_local const std::string* opening = nullptr;
std::terminate_handler previous_handler = nullptr;

std::string current_exception_text() {
  try {
    if (!std::current_exception()) return "std::terminate was called";
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is not a std::exception";
  }
}

[[noreturn]] void end_the_process(const std::string& path) {
  report_error(
      fmt::format("plugin {} threw in its constructor (while being loaded): {}\n"
                  "  hint: a static object of the plugin threw; fix the plugin, or choose another "
                  "backend with backend.use",
                  path, current_exception_text()));
  std::fflush(nullptr);
  _exit(kPluginExitCode);
}

[[noreturn]] void end_on_terminate() {
  if (opening != nullptr) end_the_process(*opening);
  // Another thread's exception, or one from elsewhere.
  if (previous_handler != nullptr) previous_handler();
  std::abort();
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

// If an exception does pass through dlopen, the linker's locks stay held for good: no thread could
// load or unload anything any more, or even exit. So it ends the process, too.
void open_library(boost::dll::shared_library& library, const std::string& path,
                  std::error_code& failed) {
  try {
    library.load(path, failed, boost::dll::load_mode::rtld_now | boost::dll::load_mode::rtld_local);
  } catch (...) {
    end_the_process(path);
  }
}

const DistributedBackend* call_entry(const std::string& path, db_entry_function entry) {
  try {
    return entry();
  } catch (...) {
    refuse_plugin(
        path, fmt::format("threw in its entry function: {}", current_exception_text()),
        "let no exception cross the interface; the entry function only has to return its table");
  }
}

}  // namespace

const DistributedBackend* guarded_open(const std::string& path) {
  // Never destroyed: plugins are not unloaded, since their threads, thread-local destructors and
  // exit handlers would be left pointing to unmapped code.
  static auto* const libraries = new std::vector<boost::dll::shared_library>();

  const TerminateGuard guard(path);
  boost::dll::shared_library library;
  std::error_code failed;
  dlerror();  // discard an earlier call's error
  open_library(library, path, failed);
  if (failed) {
    // The error code is always "bad file descriptor"; the linker's own message is the useful one.
    const char* text = dlerror();
    refuse_plugin(path,
                  fmt::format("cannot be loaded: {}", text != nullptr ? text : failed.message()),
                  "a library it needs may be missing (ldd shows which), or a symbol is undefined");
  }
  if (!library.has(DB_ENTRY_SYMBOL)) {
    refuse_plugin(path,
                  "is a shared library but not a backend: it does not export " DB_ENTRY_SYMBOL,
                  "mark the entry function with DB_EXPORT; in C++ it must be extern \"C\"");
  }
  const auto entry = &library.get<const DistributedBackend*()>(DB_ENTRY_SYMBOL);
  libraries->push_back(std::move(library));
  const DistributedBackend* table = call_entry(path, entry);
  if (table == nullptr) {
    refuse_plugin(path, "returned no table from " DB_ENTRY_SYMBOL,
                  "the entry function must return the address of a static DistributedBackend");
  }
  return table;
}

}  // namespace coupler
