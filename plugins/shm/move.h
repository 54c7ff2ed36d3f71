// The templates of Collectives: how parts move through slots or, in chunks, through staging memory.
// Included only by the sources of Collectives.
#pragma once

#include <algorithm>

#include "shm/collectives.h"

namespace db::shm {

template <class Buffer>
void Collectives::find_sources(uint64_t offset, const Buffer& buffer_of) {
  for (int32_t rank = 0; rank < size_; ++rank)
    sources_[static_cast<size_t>(rank)] = buffer_of(rank) + offset;
}

template <class Put, class Take>
Failure Collectives::move(uint64_t most, bool personal, const Put& put, const Take& take) {
  const uint64_t stride = (most + 63) / 64 * 64;
  if (is_large(most, personal)) {
    if (Failure failure = enter_large(); !failure.ok()) return failure;
    return move_in_chunks(most, personal, put, take);
  }
  const uint32_t number = synchronizer_->number();
  const bool tiny = !personal && most <= sizeof(Entry::data);
  const auto buffer_of = [&](int32_t rank) {
    return tiny ? segment_->entry(rank, number).data.data() : segment_->slot(rank, number);
  };
  const Stretch whole{0, most, stride};
  put(buffer_of(rank_), whole);
  synchronizer_->enter();
  if (Failure failure = synchronizer_->await_entries(); !failure.ok()) return failure;
  find_sources(personal ? static_cast<uint64_t>(rank_) * stride : 0, buffer_of);
  take(whole);
  return {};
}

template <class Put, class Take>
Failure Collectives::move_in_chunks(uint64_t most, bool personal, const Put& put,
                                    const Take& take) {
  const uint64_t room = segment_->layout().chunk_bytes;
  const uint64_t stride = personal ? room / static_cast<uint64_t>(size_) / 64 * 64 : room;
  for (uint64_t offset = 0, chunk = 0; offset < most; offset += stride, ++chunk) {
    const Stretch stretch{offset, stride, stride};
    put(segment_->staged(rank_, chunk), stretch);
    if (Failure failure = synchronizer_->await(synchronizer_->publish()); !failure.ok())
      return failure;
    find_sources(personal ? static_cast<uint64_t>(rank_) * stride : 0,
                 [&](int32_t rank) { return segment_->staged(rank, chunk); });
    take(stretch);
  }
  return {};
}

}  // namespace db::shm
