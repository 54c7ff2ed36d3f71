// A folder shared by several processes, the last of which removes it. Each user holds a shared lock
// on the folder, which the kernel releases when the process ends, in whatever way. The holder of
// the exclusive lock is the only user. So no process removes a folder that others still write to,
// even from a container that cannot see their process ids. Plain functions, [any-thread].
#pragma once

#include <string>

#include "base/file_descriptor.h"

namespace coupler::cli {

// Uses the folder until the descriptor and every copy of it in other processes are closed. Empty if
// this user has no such folder, or its last user is removing it.
UniqueFd use_folder(const std::string& path);

// Gives up the use. True if the folder still exists and has no other user: the caller can remove
// it, and no process can begin to use it until the descriptor is closed. kWait waits until the
// others have given it up; the only deadline is the caller's.
enum class WaitMode { kLook, kWait };
bool is_last_user(const UniqueFd& use, WaitMode others);

}  // namespace coupler::cli
