// The plugin's version: ranks with another one are refused. A constant; [any-thread].
#pragma once

namespace db::shm {

inline constexpr char kVersion[] = "0.1.0";

}  // namespace db::shm
