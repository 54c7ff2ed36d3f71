// The contents of TensorBoard's event files: records (length, its checksum, data, its checksum)
// that hold tensorflow.Event messages. Pure functions, any thread.
#pragma once

#include <coupler/tracker.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace coupler {

// CRC-32C, rotated by 15 bits and added to a constant, as records store it.
uint32_t masked_crc32c(std::string_view data);

void append_record(std::string& out, std::string_view data);

// Event messages. The first one of a file:
std::string version_event(double time);
// Each value as its own summary: numbers as single-precision scalars, strings as text.
std::string values_event(const TrackedStep& entry);
// The data for TensorBoard's HPARAMS tab.
std::string hparams_start_event(double time, const TrackerRun& run);
std::string hparams_end_event(double time);

}  // namespace coupler
