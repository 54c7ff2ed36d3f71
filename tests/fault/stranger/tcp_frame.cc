#include "tcp_frame.h"

#include <algorithm>
#include <cstddef>

namespace backend_test {
namespace {

constexpr size_t kEthernet = 14, kIp = 20, kLeastTcp = 20;

uint16_t get16(const uint8_t* at) { return static_cast<uint16_t>(at[0] << 8 | at[1]); }
uint32_t get32(const uint8_t* at) { return uint32_t{get16(at)} << 16 | get16(at + 2); }
void put16(uint8_t* at, uint16_t value) {
  at[0] = static_cast<uint8_t>(value >> 8);
  at[1] = static_cast<uint8_t>(value);
}
void put32(uint8_t* at, uint32_t value) {
  put16(at, static_cast<uint16_t>(value >> 16));
  put16(at + 2, static_cast<uint16_t>(value));
}

// The Internet checksum, continuing a given sum.
uint16_t checksum(std::span<const uint8_t> bytes, uint32_t sum) {
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) sum += get16(&bytes[i]);
  if (bytes.size() % 2 != 0) sum += uint32_t{bytes.back()} << 8;
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

}  // namespace

bool TcpFrame::is_one(const Frame& frame) {
  if (frame.size() < kEthernet + kIp + kLeastTcp) return false;
  const uint8_t* const ip = frame.data() + kEthernet;
  const size_t length = get16(ip + 2);
  if (get16(frame.data() + 12) != 0x0800 || ip[0] != 0x45 || ip[9] != 6 ||
      (get16(ip + 6) & 0x3fff) != 0 || kEthernet + length > frame.size()) {
    return false;
  }
  const size_t header = size_t{4} * (ip[kIp + 12] >> 4);
  return header >= kLeastTcp && kIp + header <= length;
}

uint8_t* TcpFrame::ip() const { return frame_.data() + kEthernet; }
uint8_t* TcpFrame::tcp() const { return ip() + kIp; }

TcpFrame::Flow TcpFrame::Flow::reversed() const {
  return {addresses << 32 | addresses >> 32, ports << 16 | ports >> 16};
}

TcpFrame::Flow TcpFrame::flow() const {
  return {uint64_t{get32(ip() + 12)} << 32 | get32(ip() + 16), get32(tcp())};
}

uint32_t TcpFrame::sequence() const { return get32(tcp() + 4); }
uint32_t TcpFrame::acknowledged() const { return get32(tcp() + 8); }
void TcpFrame::set_sequence(uint32_t value) { put32(tcp() + 4, value); }
void TcpFrame::set_acknowledged(uint32_t value) { put32(tcp() + 8, value); }

uint8_t TcpFrame::flags() const { return tcp()[13]; }

void TcpFrame::set_flow(const Flow& flow) {
  put32(ip() + 12, static_cast<uint32_t>(flow.addresses >> 32));
  put32(ip() + 16, static_cast<uint32_t>(flow.addresses));
  put32(tcp(), flow.ports);
}

void TcpFrame::simplify_options() {
  constexpr uint8_t kEnd = 0, kNothing = 1, kMaySelect = 4, kTimestamps = 8;
  uint8_t* at = tcp() + kLeastTcp;
  const uint8_t* const end = payload().data();
  while (at < end && *at != kEnd) {
    if (*at == kNothing) {
      ++at;
      continue;
    }
    const ptrdiff_t length = at + 1 < end ? at[1] : 0;
    if (length < 2 || length > end - at) return;
    if (*at == kMaySelect || *at == kTimestamps) std::fill_n(at, length, kNothing);
    at += length;
  }
}

std::span<uint8_t> TcpFrame::payload() const {
  const size_t header = size_t{4} * (tcp()[12] >> 4);
  return {tcp() + header, get16(ip() + 2) - kIp - header};
}

void TcpFrame::make_empty(uint8_t flags) {
  tcp()[13] = flags;
  const auto left = static_cast<size_t>(payload().data() - frame_.data());
  frame_.resize(left);
  put16(ip() + 2, static_cast<uint16_t>(left - kEthernet));
}

void TcpFrame::fix_checksums() {
  put16(ip() + 10, 0);
  put16(ip() + 10, checksum({ip(), kIp}, 0));
  const size_t length = get16(ip() + 2) - kIp;
  uint32_t sum = 6 + static_cast<uint32_t>(length);  // the pseudo header
  for (size_t i = 12; i < 20; i += 2) sum += get16(ip() + i);
  put16(tcp() + 16, 0);
  put16(tcp() + 16, checksum({tcp(), length}, sum));
}

}  // namespace backend_test
