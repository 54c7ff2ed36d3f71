// Opens a plugin's library and calls its entry function. [any-thread]; one call at a time.
//
// A library's static constructors run inside dlopen. An exception from one cannot be caught here:
// glibc's loader does not let it pass, and std::terminate follows. So while the library is being
// opened, a terminate handler reports "plugin … threw in its constructor: …" and exits with the
// code of an unusable plugin. list_plugins() uses a child process, so there it costs only one row.
#pragma once

#include <coupler/distributed_backend.h>

#include <string>

namespace coupler {

// path passed check_plugin_file(). The library stays open for the life of the process. Throws
// Error(kPlugin) with the dynamic linker's message, or if the entry symbol is absent or returns
// NULL.
const DistributedBackend* guarded_open(const std::string& path);

}  // namespace coupler
