// Safetensors files built by hand, byte by byte, for the tests of the reader.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

namespace coupler::testing {

inline std::string length_bytes(uint64_t length) {
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes;
}

// Header length, header, data.
inline std::string file_bytes(const std::string& json, const std::string& data = "") {
  return length_bytes(json.size()) + json + data;
}

// One header entry: "name":{"dtype":…,"shape":[…],"data_offsets":[begin,end]}
inline std::string entry(const std::string& name, const std::string& dtype,
                         const std::string& shape, uint64_t begin, uint64_t end) {
  return "\"" + name + "\":{\"dtype\":\"" + dtype + "\",\"shape\":[" + shape +
         "],\"data_offsets\":[" + std::to_string(begin) + "," + std::to_string(end) + "]}";
}

}  // namespace coupler::testing
