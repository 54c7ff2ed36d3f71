// The wire format: a header before every message, then its bytes. The receiver compares the header
// with what it expects, so that a mismatch between ranks becomes an error instead of a wrong
// result. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include "common/op.h"

namespace db::gloo_cpu {

struct Header {
  static constexpr uint32_t kMagic = 0x31504343;  // "CCP1"; also detects a different byte order

  uint32_t magic = kMagic;
  uint16_t kind = 0;
  uint8_t dtype = 0;
  uint8_t reduce = 0;
  int32_t root_or_tag = 0;
  uint32_t round = 0;     // within the operation
  uint64_t sequence = 0;  // of collectives on the communicator, of messages between two ranks
  uint64_t count = 0;     // db_op.count, or a hash of the counts that all ranks must share
  uint64_t bytes = 0;     // that follow

  friend bool operator==(const Header&, const Header&) = default;
};
static_assert(sizeof(Header) == 40 && std::is_trivially_copyable_v<Header>);

// The header of op's messages, without sequence, round and bytes.
Header make_header(const Op& op, int32_t size);

// "all_reduce of 10 f32 (sum), number 7": what the sender of header was doing.
std::string describe(const Header& header);

}  // namespace db::gloo_cpu
