// Tells by a file's first bytes whether it is what torch.save writes today. A pure function; any
// thread.
#pragma once

#include <cstdint>
#include <string>

namespace coupler {

// Returns where the file may be a zip archive; otherwise throws Error that says what it is instead
// and how to come by one: kUnsupported for formats of PyTorch's that are not read, kIo for others.
void check_torch_file_kind(const uint8_t* bytes, uint64_t size, const std::string& file);

}  // namespace coupler
