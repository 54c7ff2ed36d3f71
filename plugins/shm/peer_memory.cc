#include "shm/peer_memory.h"

#include <memory>

#include "common/error.h"
#include "shm/arena.h"
#include "shm/communicator.h"

namespace db::shm {
namespace {

db_status allocate(db_communicator* communicator, uint64_t bytes, void** memory, void** handle,
                   db_error* error) {
  return guarded("shm: ", error, [&] {
    const Communicator& self = *Communicator::of(communicator);
    if (bytes == 0) return report(Failure::invalid("shm: 0 bytes are allocated"), error);
    if (const db_status failed = self.queue.async_error(error); failed < 0) return failed;
    Failure failure;
    std::unique_ptr<Arena::Block> block = self.executor.arena()->allocate(bytes, &failure);
    if (block == nullptr) {
      failure.message = "shm: " + failure.message;
      return report(failure, error);
    }
    *memory = block->data();
    *handle = block.release();
    return db_status{DB_OK};
  });
}

void release(void* handle) {
  const std::unique_ptr<Arena::Block> ended(static_cast<Arena::Block*>(handle));
}

constexpr db_peer_memory kPeerMemory = {sizeof(db_peer_memory), allocate, release};

}  // namespace

const db_peer_memory* memory_extension(const db_communicator* communicator) {
  const Arena* const arena = Communicator::of(communicator)->executor.arena();
  return arena != nullptr && arena->has_room() ? &kPeerMemory : nullptr;
}

}  // namespace db::shm
