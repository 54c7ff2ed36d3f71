// PngFile: an image's file, opened before the image is generated so that it is known to be
// writable. Used by one thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

class PngFile {
 public:
  // Creates PATH.partial; a file at PATH is kept until write() is done. Throws coupler::Error(kIo)
  // naming the path and the system's error.
  explicit PngFile(std::string path);
  ~PngFile();  // removes an unfinished file
  PngFile(const PngFile&) = delete;
  PngFile& operator=(const PngFile&) = delete;

  // pixels: [height, width, 3], RGB. Call it at most once. Throws coupler::Error(kIo).
  void write(const uint8_t* pixels, int64_t height, int64_t width);

 private:
  [[noreturn]] void fail(const std::string& reason) const;

  std::string path_, partial_;
  std::FILE* file_;
};
