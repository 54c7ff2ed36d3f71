#include "residency/offloaded_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "residency/disk_source.h"
#include "residency/host_source.h"
#include "residency/intercept.h"

namespace coupler::residency {

OffloadedMemory::OffloadedMemory(const OffloadPlace& place, c10::Device device)
    : place_(place), device_(device), on_device_(device) {
  // From host memory, one unit is fetched ahead while another is used.
  const int ahead = place.folder.empty() ? 1 : std::max(place.buffers, 0);
  residency_ = std::make_unique<Residency>(
      make_source(), device.is_cpu() ? pages_ : on_device_,
      ResidencyOptions{.prefetch = ahead, .live_bytes = 0, .shared = false});
}

std::unique_ptr<Source> OffloadedMemory::make_source() {
  if (place_.folder.empty()) {
    auto memory = std::make_unique<HostSource>(device_, place_.pinned);
    add_ = [source = memory.get()](size_t bytes) { source->add(bytes); };
    return memory;
  }
  auto disk =
      std::make_unique<DiskSource>(place_.folder, static_cast<size_t>(std::max(place_.buffers, 1)));
  add_ = [source = disk.get()](size_t bytes) { source->add(bytes); };
  if (device_.is_cpu()) return disk;
  auto staged = std::make_unique<StagedSource>(std::move(disk), pages_, device_);
  add_ = [add = std::move(add_), source = staged.get()](size_t bytes) {
    add(bytes);
    source->add(bytes);
  };
  return staged;
}

OffloadedMemory::~OffloadedMemory() {
  if (!log_enabled(LogLevel::kInfo, "offload")) return;
  log(LogLevel::kInfo, "offload",
      fmt::format("{} offloaded to {}, at most {} {} at one time", format_byte_size(bytes_),
                  place_.folder.empty() ? "host memory" : place_.folder,
                  format_byte_size(peak_bytes()),
                  device_.is_cpu() ? "in memory" : "on " + device_.str()));
}

at::Tensor OffloadedMemory::make(const std::string& name, int64_t numel, at::ScalarType type) {
  auto managed = std::make_unique<ManagedStorage>();
  managed->name = name;
  managed->device = device_;
  at::Tensor result = make_managed(*managed, {numel}, type);
  auto unit = std::make_unique<Unit>();
  unit->name = name;
  unit->bytes = static_cast<size_t>(BlockFile::aligned(std::max<size_t>(result.nbytes(), 1)));
  unit->writes_back = true;
  unit->storages.push_back(std::move(managed));
  add_(unit->bytes);
  bytes_ += unit->bytes;
  residency_->add(std::move(unit));
  put_intercept(result);
  return result;
}

}  // namespace coupler::residency
