#include "base/mapping_guard.h"

#include <coupler/error.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/report.h"

namespace coupler {
namespace {

constexpr size_t kLargestPiece = size_t{2} << 20;

constexpr const char* kHint =
    "write weights to a new file and rename it, as save_model does; never change a file in place "
    "that programs have loaded";

// Read by the signal handler: a slot's file is set last and cleared first.
struct Slot {
  mutable std::atomic<const MappedFile*> file{nullptr};
};
std::array<Slot, 4096> slots;
struct sigaction before;

bool append(std::array<char, 1024>& text, size_t& size, std::string_view part) {
  if (size + part.size() > text.size()) return false;
  std::memcpy(text.data() + size, part.data(), part.size());
  size += part.size();
  return true;
}

// Async-signal-safe: it allocates nothing, and the path belongs to the mapping.
void on_bus_error(int, siginfo_t* info, void*) {
  const auto* const address = static_cast<const uint8_t*>(info->si_addr);
  for (const Slot& slot : slots) {
    const MappedFile* const file = slot.file.load();
    if (file == nullptr || address < file->data() || address >= file->data() + file->size()) {
      continue;
    }
    std::array<char, 1024> text;
    size_t size = 0;
    append(text, size, file->path());
    append(text, size, " was truncated, or its disk failed, while a model was using it\n  hint: ");
    append(text, size, kHint);
    report_error({text.data(), size});
    ::_exit(1);
  }
  // Not ours: restore the previous handler, which gets the signal when the instruction runs again.
  ::sigaction(SIGBUS, &before, nullptr);
}

void install() {
  static const bool kDone = [] {
    struct sigaction action {};
    action.sa_sigaction = &on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    return ::sigaction(SIGBUS, &action, &before) == 0;
  }();
  static_cast<void>(kDone);
}

// The whole pages around a range.
struct Pages {
  uint8_t* begin;
  size_t bytes;
};
Pages pages_around(const MappedFile& file, size_t begin, size_t bytes) {
  static const size_t kPage = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t first = begin / kPage * kPage;
  return {file.data() + first, begin + bytes - first};
}

[[noreturn]] void fail_read(const MappedFile& file, const std::string& problem) {
  throw Error(ErrorCode::kIo, fmt::format("{}: {}", file.path(), problem),
              {.subject = file.path(), .hint = kHint});
}

}  // namespace

std::shared_ptr<const void> guard_mapping(const std::shared_ptr<const MappedFile>& file) {
  static std::mutex mutex;
  static auto* const kGuarded = new std::map<const MappedFile*, std::weak_ptr<const void>>;
  install();
  const std::lock_guard lock(mutex);
  if (auto guard = (*kGuarded)[file.get()].lock()) return guard;
  for (Slot& slot : slots) {
    const MappedFile* none = nullptr;
    if (!slot.file.compare_exchange_strong(none, file.get())) continue;
    std::shared_ptr<const void> guard(&slot, [file](const void* taken) {
      const std::lock_guard lock_again(mutex);
      static_cast<const Slot*>(taken)->file.store(nullptr);
      kGuarded->erase(file.get());
    });
    (*kGuarded)[file.get()] = guard;
    return guard;
  }
  return file;
}

void populate(const MappedFile& file, size_t begin, size_t bytes) {
  if (bytes == 0) return;
  const Pages pages = pages_around(file, begin, bytes);
  while (::madvise(pages.begin, pages.bytes, MADV_POPULATE_READ) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno == EFAULT) {
      fail_read(file,
                fmt::format("it is shorter than the {} bytes it had when it was opened, or its "
                            "disk cannot be read",
                            file.size()));
    }
    // Kernels before 5.14: pages are read on use.
    if (errno == EINVAL) return;
    fail_read(file, fmt::format("it cannot be read: {}", std::generic_category().message(errno)));
  }
}

void advise_in(const MappedFile& file, size_t begin, size_t bytes) {
  if (bytes == 0) return;
  const Pages pages = pages_around(file, begin, bytes);
  ::madvise(pages.begin, pages.bytes, MADV_WILLNEED);  // only advice: without it reads are slower
}

// The kernel maps file data in the large pieces in which it was read, up to the size of a huge
// page, so that a range also brings its surroundings into memory.
void drop(const MappedFile& file, size_t begin, size_t bytes) {
  if (bytes == 0) return;
  const size_t first = begin > kLargestPiece ? begin - kLargestPiece : 0;
  const size_t end = std::min<size_t>(file.size(), begin + bytes + kLargestPiece);
  const Pages pages = pages_around(file, first, end - first);
  ::madvise(pages.begin, pages.bytes, MADV_DONTNEED);
}

}  // namespace coupler
