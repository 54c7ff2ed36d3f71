// PngFile: a picture's file, which is known to be writable before the picture is there. Used by one
// thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

class PngFile {
 public:
  // Begins PATH.partial; what is at PATH stays there until write() is done. Throws
  // coupler::Error(kIo) naming the path and what the system says.
  explicit PngFile(std::string path);
  ~PngFile();  // removes what is not finished
  PngFile(const PngFile&) = delete;
  PngFile& operator=(const PngFile&) = delete;

  // pixels: [height, width, 3], red, green and blue. At most once. Throws coupler::Error(kIo).
  void write(const uint8_t* pixels, int64_t height, int64_t width);

 private:
  [[noreturn]] void fail(const std::string& reason) const;

  std::string path_, partial_;
  std::FILE* file_;
};
