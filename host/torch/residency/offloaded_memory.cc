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

namespace {

// pages: the host memory that units of a disk go through.
std::unique_ptr<OffloadSource> source_at(const OffloadPlace& place, c10::Device device,
                                         BufferPool& pages) {
  if (place.folder.empty()) return std::make_unique<HostSource>(device, place.pinned);
  auto disk =
      std::make_unique<DiskSource>(place.folder, static_cast<size_t>(std::max(place.buffers, 1)));
  if (device.is_cpu()) return disk;
  return std::make_unique<StagedSource>(std::move(disk), pages, device);
}

}  // namespace

OffloadedMemory::OffloadedMemory(const OffloadPlace& place, c10::Device device)
    : place_(place), device_(device), on_device_(device) {
  // From host memory, one unit is fetched ahead while another is used.
  const int ahead = place.folder.empty() ? 1 : std::max(place.buffers, 0);
  auto source = source_at(place, device, pages_);
  source_ = source.get();
  residency_ = std::make_unique<Residency>(
      std::move(source), device.is_cpu() ? pages_ : on_device_,
      ResidencyOptions{.prefetch = ahead, .live_bytes = 0, .shared = false});
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
  source_->add(unit->bytes);
  bytes_ += unit->bytes;
  residency_->add(std::move(unit));
  put_intercept(result);
  return result;
}

}  // namespace coupler::residency
