#include "offload/offloaded_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "io/byte_size.h"
#include "log/log.h"
#include "residency/intercept.h"

namespace coupler {

OffloadedMemory::OffloadedMemory(const std::string& folder, int buffers)
    : folder_(folder),
      source_(new DiskSource(folder, static_cast<size_t>(std::max(buffers, 1)))),
      residency_(std::unique_ptr<Source>(source_), pool_,
                 {.prefetch = std::max(buffers, 0), .live_bytes = 0, .shared = false}) {}

OffloadedMemory::~OffloadedMemory() {
  if (!log_enabled(LogLevel::kInfo, "offload")) return;
  log(LogLevel::kInfo, "offload",
      fmt::format("{} were in {}, of which at most {} were in memory at a time",
                  format_byte_size(bytes_), folder_, format_byte_size(peak_bytes())));
}

at::Tensor OffloadedMemory::make(const std::string& name, int64_t numel, at::ScalarType type) {
  auto home = std::make_unique<Home>();
  home->name = name;
  at::Tensor result = make_managed(*home, {numel}, type);
  auto unit = std::make_unique<Unit>();
  unit->name = name;
  unit->bytes = static_cast<size_t>(BlockFile::aligned(std::max<size_t>(result.nbytes(), 1)));
  unit->writes_back = true;
  unit->homes.push_back(std::move(home));
  source_->add(unit->bytes);
  bytes_ += unit->bytes;
  residency_.add(std::move(unit));
  put_intercept(result);
  return result;
}

}  // namespace coupler
