// Messages: around a ring, in every dtype and in sizes from 0 to 2^20 + 1; with several tags at
// once; in both directions at once.
#include <fmt/format.h>

#include <cstring>

#include "rank.h"
#include "simple_ops.h"
#include "values.h"

namespace coupler::matrix {
namespace {

template <typename T>
void around(comm::Communicator& communicator, db_dtype dtype, uint64_t count, bool blocking) {
  const int world_size = communicator.size(), me = communicator.rank();
  const int next = (me + 1) % world_size, previous = (me + world_size - 1) % world_size;
  Values<T> out(count), in(count);
  for (uint64_t i = 0; i < count; ++i) out[i] = element<T>(0, world_size, count, me, i);
  db_op send{};
  send.kind = DB_SEND;
  send.dtype = dtype;
  send.root_or_peer = next;
  send.count = count;
  send.memory = memory_kind();
  send.send = out.data();
  db_op recv = send;
  recv.kind = DB_RECV;
  recv.root_or_peer = previous;
  recv.send = nullptr;
  recv.recv = in.data();
  if (!communicator.supports(send)) fail(fmt::format("send of dtype {} is rejected", dtype));
  if (blocking) {
    // A blocking send may wait for its receiver, so even ranks send first. In a ring of odd length
    // two neighbors are even; the last of them receives first.
    const bool sends_first = me % 2 == 0 && me != world_size - 1;
    communicator.run(sends_first ? send : recv);
    communicator.run(sends_first ? recv : send);
  } else {
    comm::Work receiving = communicator.submit(recv);
    comm::Work sending = communicator.submit(send);
    sending.wait();
    receiving.wait();
  }
  for (uint64_t i = 0; i < count; ++i) {
    const T expected = element<T>(0, world_size, count, previous, i);
    if (std::memcmp(&in[i], &expected, sizeof(T)) == 0) continue;
    fail(fmt::format("dtype {} x{}: element {} is wrong", dtype, count, i));
  }
}

void tags(comm::Communicator& communicator) {
  const int world_size = communicator.size(), me = communicator.rank();
  constexpr int kMessages = 8;
  const int next = (me + 1) % world_size, previous = (me + world_size - 1) % world_size;
  std::vector<Values<float>> out, in;
  for (int i = 0; i < kMessages; ++i) {
    out.emplace_back(100 + i, static_cast<float>(me * 100 + i));
    in.emplace_back(100 + i, -1.0f);
  }
  std::vector<comm::Work> works;
  for (int i = 0; i < kMessages; ++i) {
    const auto at = static_cast<size_t>(i);
    works.push_back(communicator.submit(message(DB_RECV, previous, 1000 + i, in[at])));
    works.push_back(communicator.submit(message(DB_SEND, next, 1000 + i, out[at])));
  }
  for (comm::Work& work : works) work.wait();
  for (int i = 0; i < kMessages; ++i) {
    check(in[static_cast<size_t>(i)] ==
              Values<float>(100 + static_cast<size_t>(i), static_cast<float>(previous * 100 + i)),
          fmt::format("message {} is wrong", i));
  }
}

}  // namespace

int send_recv(Rank& rank) {
  const auto communicator = rank.connect();
  if (rank.world_size() == 1) return 0;
  for (db_dtype dtype = DB_I8; dtype <= DB_F8_E5M2; ++dtype) {
    for (const uint64_t count : {uint64_t{0}, uint64_t{1}, kPrime, kLarge}) {
      if (count == kLarge && dtype != DB_F32 && dtype != DB_BF16 &&
          rank.arguments().cover != Cover::kFull) {
        continue;
      }
      visit(dtype, [&](auto type) {
        around<decltype(type)>(*communicator, dtype, count, false);
        around<decltype(type)>(*communicator, dtype, count, true);
      });
    }
  }
  for (int round = 0; round < 20; ++round) tags(*communicator);
  communicator->run(barrier());
  return 0;
}

}  // namespace coupler::matrix
