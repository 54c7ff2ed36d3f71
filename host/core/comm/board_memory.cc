#include "comm/board_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <sstream>

namespace coupler {
namespace {

// Equal in two processes if /proc/PID of one is the same process for the other.
std::string machine_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 64> name_space{};
  const ssize_t length = readlink("/proc/self/ns/pid", name_space.data(), name_space.size() - 1);
  if (boot.empty() || length <= 0) return {};
  return fmt::format("{}/{}", boot, name_space.data());
}

std::string hex(const std::byte* bytes, size_t size) {
  std::string text;
  for (size_t i = 0; i < size; ++i) text += fmt::format("{:02x}", static_cast<unsigned>(bytes[i]));
  return text;
}

std::byte* map(int file, size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  return memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
}

}  // namespace

std::unique_ptr<BoardMemory> BoardMemory::create(size_t bytes) {
  const std::string machine = machine_id();
  if (machine.empty()) return nullptr;
  const int file = memfd_create("coupler-order-board", MFD_CLOEXEC);
  if (file < 0) return nullptr;
  std::byte* data = ftruncate(file, static_cast<off_t>(bytes)) == 0 ? map(file, bytes) : nullptr;
  if (data == nullptr || getrandom(data, token_size, 0) != static_cast<ssize_t>(token_size)) {
    if (data != nullptr) munmap(data, bytes);
    close(file);
    return nullptr;
  }
  std::unique_ptr<BoardMemory> memory(new BoardMemory(data, bytes, file));
  memory->offer_ =
      fmt::format("{} /proc/{}/fd/{} {}", machine, getpid(), file, hex(data, token_size));
  return memory;
}

std::unique_ptr<BoardMemory> BoardMemory::open(const std::string& offer, size_t bytes) {
  std::istringstream words(offer);
  std::string machine, path, token;
  words >> machine >> path >> token;
  if (token.empty() || machine != machine_id()) return nullptr;
  const int file = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOCTTY);
  if (file < 0) return nullptr;
  struct stat status {};
  std::byte* data = nullptr;
  if (fstat(file, &status) == 0 && status.st_size == static_cast<off_t>(bytes)) {
    data = map(file, bytes);
  }
  close(file);
  if (data == nullptr) return nullptr;
  if (hex(data, token_size) != token) {
    munmap(data, bytes);
    return nullptr;
  }
  return std::unique_ptr<BoardMemory>(new BoardMemory(data, bytes, -1));
}

void BoardMemory::close_file() {
  if (file_ >= 0) close(file_);
  file_ = -1;
}

BoardMemory::~BoardMemory() {
  close_file();
  munmap(data_, bytes_);
}

}  // namespace coupler
