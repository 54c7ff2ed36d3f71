// A module for LD_PRELOAD: gives the double to a program that knows nothing about it.
#include "test_device.h"

namespace {

const bool kIsDouble = coupler::testing::register_if_chosen();

}  // namespace
