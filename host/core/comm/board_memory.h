// BoardMemory: memory shared by the ranks of one communicator on one machine. It is an anonymous
// memory file of rank 0, opened by the others through /proc, so that killed processes leave no
// name. One thread owns the object; the memory itself is shared by all.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace coupler {

class BoardMemory {
 public:
  // Zeroed memory, and offer(), a string with which processes of this machine find it. The first
  // token_size bytes hold a random token. Null if the system cannot provide it.
  static std::unique_ptr<BoardMemory> create(size_t bytes);
  // Null if the offer is another machine's or another container's.
  static std::unique_ptr<BoardMemory> open(const std::string& offer, size_t bytes);
  ~BoardMemory();

  BoardMemory(const BoardMemory&) = delete;
  BoardMemory& operator=(const BoardMemory&) = delete;

  static constexpr size_t token_size = 32;
  std::byte* data() const { return data_; }
  const std::string& offer() const { return offer_; }
  void close_file();  // once every rank has opened it

 private:
  BoardMemory(std::byte* data, size_t bytes, int file) : data_(data), bytes_(bytes), file_(file) {}
  std::byte* data_;
  size_t bytes_;
  int file_;
  std::string offer_;
};

}  // namespace coupler
