// Handwritten digits: 1,797 rows of 64 pixels (0-16) and a label. Plain functions, no threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

struct Digits {
  at::Tensor train_pixels, train_labels;  // [1437, 64] float in 0…1, [1437] long
  at::Tensor test_pixels, test_labels;    // [360, 64], [360]
};

// Throws std::runtime_error naming the file and line of an error.
Digits load_digits(const std::string& path);
