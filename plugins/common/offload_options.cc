#include "common/offload_options.h"

#include <string>

#include "common/option_values.h"

namespace db {
namespace {

constexpr int64_t kMostBuffers = 1024;

// Without this check, an option that only another device reads would be ignored silently.
Failure check_owner(const Options& options, const OffloadKeys& keys, const char* key, bool read,
                    const char* device) {
  if (read || !options.given(key)) return {};
  return Failure::make(DB_ERR_INVALID_ARGUMENT,
                       "option '" + std::string(key) + "' is for " + keys.device + " = \"" +
                           device + "\", but that is '" + options.string(keys.device) + "'");
}

}  // namespace

Failure read_offload(const Options& options, const OffloadKeys& keys, PlannedOffload* offload) {
  static constexpr db_place kPlaces[] = {DB_PLACE_STAY, DB_PLACE_HOST, DB_PLACE_DISK};
  size_t word = 0;
  int64_t buffers = 0;
  Failure failure = read_word(options, keys.device, {"none", "cpu", "nvme"}, &word);
  if (failure.ok()) failure = read_number(options, keys.buffer_count, 1, kMostBuffers, &buffers);
  if (!failure.ok()) return failure;
  offload->place = kPlaces[word];
  const bool disk = offload->place == DB_PLACE_DISK;
  const bool host = offload->place == DB_PLACE_HOST;
  failure = check_owner(options, keys, keys.nvme_path, disk, "nvme");
  if (failure.ok()) failure = check_owner(options, keys, keys.buffer_count, disk, "nvme");
  if (failure.ok()) failure = check_owner(options, keys, keys.pin_memory, host, "cpu");
  if (!failure.ok()) return failure;
  offload->pinned = host && options.boolean(keys.pin_memory);
  offload->folder = options.string(keys.nvme_path);
  offload->buffers = static_cast<int32_t>(buffers);
  if (disk && offload->folder.empty())
    return Failure::make(DB_ERR_INVALID_ARGUMENT,
                         std::string(keys.device) + " = \"nvme\" needs option '" + keys.nvme_path +
                             "': a folder on the disk to offload to");
  return {};
}

}  // namespace db
