// TcpFrame: an Ethernet frame with a TCP segment over IPv4, read and changed in-place. Borrows the
// frame's bytes. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace backend_test {

using Frame = std::vector<uint8_t>;

class TcpFrame {
 public:
  // Whether the frame is such a frame, without IP options and not a fragment.
  static bool is_one(const Frame& frame);

  explicit TcpFrame(Frame& frame) : frame_(frame) {}

  // Both addresses and ports: the same for every segment of one direction of one connection.
  struct Flow {
    uint64_t addresses = 0;
    uint32_t ports = 0;
    friend bool operator==(const Flow&, const Flow&) = default;
    Flow reversed() const;
  };
  Flow flow() const;

  uint32_t sequence() const;
  uint32_t acknowledged() const;
  std::span<uint8_t> payload() const;

  enum Flags : uint8_t { kSynchronizes = 0x02, kReset = 0x04, kAcknowledges = 0x10 };
  uint8_t flags() const;

  void set_sequence(uint32_t value);
  void set_acknowledged(uint32_t value);
  void set_flow(const Flow& flow);
  // Removes timestamps and selective acknowledgments from the options of a first segment, so that
  // the connection does not use them.
  void simplify_options();
  void make_empty(uint8_t flags);  // removes the payload and sets the flags

  void fix_checksums();  // call after the last change

 private:
  uint8_t* ip() const;
  uint8_t* tcp() const;

  Frame& frame_;
};

// Whether sequence number a is not before b, with wraparound.
inline bool reaches(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) >= 0; }

}  // namespace backend_test
