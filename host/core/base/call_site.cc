#include <coupler/call_site.h>
#include <fmt/format.h>

#include <atomic>
#include <cstring>

namespace coupler {
namespace {

std::atomic<const char*> last_file{nullptr};
std::atomic<int> last_line{0};

}  // namespace

CallSite::CallSite(const char* file, int line) noexcept {
  last_file.store(file, std::memory_order_relaxed);
  last_line.store(line, std::memory_order_relaxed);
}

std::string CallSite::last() {
  const char* file = last_file.load(std::memory_order_relaxed);
  if (file == nullptr) return {};
  const char* slash = std::strrchr(file, '/');
  return fmt::format("{}:{}", slash == nullptr ? file : slash + 1,
                     last_line.load(std::memory_order_relaxed));
}

}  // namespace coupler
