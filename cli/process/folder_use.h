// The use of a folder by several processes, the last of which removes it. Each user holds a shared
// lock on the folder, which the kernel takes away when the process ends, in whatever way; who gets
// the exclusive one is alone with it. So nobody takes a folder away from those who still write into
// it, not even in a container that sees none of their process ids. Plain functions, [any-thread].
#pragma once

#include <string>

#include "rendezvous/unique_fd.h"

namespace coupler::cli {

// Until the descriptor is closed, and every copy of it in other processes. Empty where there is no
// such folder of this user, or its last user is just removing it.
UniqueFd use_folder(const std::string& path);

// Gives the use up. True where nobody else uses the folder, which is still there: it can be
// removed, and nobody begins to use it until the descriptor is closed. kWait: until the others have
// given it up, too; there is no deadline but the caller's.
enum class Others { kLook, kWait };
bool is_last_user(const UniqueFd& use, Others others);

}  // namespace coupler::cli
