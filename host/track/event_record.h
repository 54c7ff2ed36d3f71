// What TensorBoard's event files are made of: records (length, its checksum, data, its checksum)
// that hold messages tensorflow.Event. Pure functions, any thread.
#pragma once

#include <coupler/tracker.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace coupler {

// CRC-32C, rotated by 15 bits and added to a constant, as records carry it.
uint32_t masked_crc32c(std::string_view data);

void append_record(std::string& out, std::string_view data);

// Event messages. The first of a file:
std::string version_event(double time);
// Each value as a summary of its own: numbers as scalars, in single precision, texts as texts.
std::string values_event(const TrackedStep& entry);
// What the HPARAMS tab shows of a run.
std::string hparams_start_event(double time, const TrackerRun& run);
std::string hparams_end_event(double time);

}  // namespace coupler
