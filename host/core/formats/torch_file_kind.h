// Checks from a file's first bytes whether it is in torch.save's current format. A pure function;
// any thread.
#pragma once

#include <cstdint>
#include <string>

namespace coupler {

// Returns if the file may be a zip archive; otherwise throws an Error that says what it is and how
// to get one: kUnsupported for PyTorch formats that are not supported, kIo for others.
void check_torch_file_kind(const uint8_t* bytes, uint64_t size, const std::string& file);

}  // namespace coupler
